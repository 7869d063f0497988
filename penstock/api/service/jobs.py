"""Jobs over NATS. A malformed, too large or out-of-range job is refused with the reason. One bad job of a list does not
affect the others. A single job gets its own answer, or an error."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from actors.jobs.adds import FIRST
from actors.jobs.desk import JobDesk
from actors.jobs.rules.job_answers import (
    HTTP_CODES,
    MOST_TOPICS,
    Added,
    JobReply,
    Listed,
    ListPage,
    NotAdded,
    TopicCounted,
    TopicView,
)
from actors.jobs.rules.job_checks import check_range
from actors.runtime.rules.pages import page_of
from penstock.api.forms.jobs import (
    Answers,
    CountAsk,
    DeleteAsk,
    FinishAsk,
    KickAsk,
    Kicked,
    ListAsk,
    PeekAsk,
    ReserveAsk,
    ReservedJobs,
    TopicAsk,
    TopicsAsk,
    TopicsShown,
    TopicViews,
    WhyAsk,
    Whys,
    read_jobs,
)
from penstock.api.forms.reading import Malformed
from penstock.api.replies import encode, refused
from penstock.api.service.calls import Question
from penstock.api.settling import SETTLES
from streams.messages.jobs import AGE_HEADER, MEMORY_HEADER, MOST_JOBS, FirstTry, NewJob
from streams.micro import RequestRefused

ROOM_EACH = 400
"""Bytes by which a reserved job may be longer than the stored one, mostly for its receipt."""


async def add(desk: JobDesk, _ask: None, question: Question) -> object:
    if still := desk.standstill():  # our client asks again, and says of what age its add is
        raise refused("unavailable", f"{still}; not done, ask again")
    jobs, is_single = read_jobs(question.request.payload)
    if len(jobs) == 1 and isinstance(jobs[0], NewJob):  # our client sends lists, of one too
        answers = [await desk.add_one(jobs[0], first=_first_try(question))]
    else:
        asked = [job for job in jobs if not isinstance(job, NotAdded)]
        added = iter(await desk.add(asked, first=_first_try(question)))
        answers = [job if isinstance(job, NotAdded) else next(added) for job in jobs]
    return _only(answers) if is_single else {"answers": answers}


def _first_try(question: Question) -> FirstTry:
    """Return when a request was first sent."""
    headers = question.request.headers
    told = headers.get(AGE_HEADER, "")
    if not told and MEMORY_HEADER not in headers:
        return FIRST
    age_s = int(told) / 1000 if told.isascii() and told.isdigit() and len(told) < 12 else 0.0
    return FirstTry(age_s, headers.get(MEMORY_HEADER, ""))


async def reserve(desk: JobDesk, ask: ReserveAsk, question: Question) -> ReservedJobs:
    most_bytes = question.page_bytes - ROOM_EACH * min(max(ask.most, 0), MOST_JOBS)
    jobs = await desk.reserve(
        ask.topic, most=ask.most, wait_ms=ask.wait_ms, ttr_ms=ask.ttr_ms, holder=ask.holder, most_bytes=most_bytes
    )
    return ReservedJobs(jobs)


def settles(verb: str) -> Callable[[JobDesk, Any, Question], Awaitable[object]]:
    """Return the endpoint that settles the one receipt, or each of several."""

    async def settle(desk: JobDesk, ask: Any, _question: Question) -> object:
        if bool(ask.receipt) == bool(ask.receipts):
            raise Malformed("give either `receipt` or `receipts`")
        if len(ask.receipts) > MOST_JOBS:
            raise Malformed(f"receipts: {len(ask.receipts)}, at most {MOST_JOBS} in one call")
        answers = await SETTLES[verb](desk, ask.receipts or [ask.receipt], ask)
        return _only(answers) if ask.receipt else Answers(answers)

    return settle


_finish = settles("finish")


async def finish(desk: JobDesk, ask: FinishAsk, question: Question) -> object:
    if ask.id and not ask.receipt and not ask.receipts:
        return _only([await desk.finish_by_id(ask.id, nonce=ask.nonce)])
    return await _finish(desk, ask, question)


async def kick(desk: JobDesk, ask: KickAsk, _question: Question) -> Kicked:
    return Kicked(await desk.kick(ask.topic, ask.id, most=ask.most, nonce=ask.nonce))


async def delete(desk: JobDesk, ask: DeleteAsk, _question: Question) -> object:
    return _only([await desk.delete(ask.topic, ask.id, nonce=ask.nonce)])


async def peek(desk: JobDesk, ask: PeekAsk, _question: Question) -> Listed:
    job = await desk.peek(ask.topic, ask.id)
    if job is None:
        raise refused("not_found", f"topic {ask.topic!r} has no job of this id")
    return job


async def why(desk: JobDesk, ask: WhyAsk, _question: Question) -> Whys:
    return Whys(jobs=await desk.why(ask.topic, ask.id))


async def list_jobs(desk: JobDesk, ask: ListAsk, question: Question) -> ListPage:
    return await desk.list(
        ask.topic,
        state=ask.state,
        after=ask.after,
        limit=ask.limit,
        due_after_ms=ask.due_after_ms,
        due_before_ms=ask.due_before_ms,
        most_bytes=question.page_bytes,
    )


async def count(desk: JobDesk, ask: CountAsk, _question: Question) -> TopicCounted | TopicsShown:
    if ask.topic:
        return await desk.count(ask.topic)
    if ask.topics is not None:
        check_range("topics", len(ask.topics), 0, MOST_TOPICS)
        return TopicsShown(topics=await desk.count_many(ask.topics))
    names = desk.topic_names(after=ask.after, limit=ask.limit)
    counted = await desk.count_many(names)
    return TopicsShown(topics=counted, next=_next_topic(desk, names, ask.limit))


async def topics(desk: JobDesk, ask: TopicsAsk, question: Question) -> TopicViews:
    """Return a page, short enough for one message."""
    views, behind = page_of(
        desk.topics(after=ask.after, limit=ask.limit), ask.limit, question.page_bytes, lambda view: view.topic
    )
    return TopicViews(topics=views, next=behind or _next_topic(desk, [view.topic for view in views], ask.limit))


def _next_topic(desk: JobDesk, names: Sequence[str], limit: int) -> str:
    return names[-1] if len(names) == limit and desk.topic_names(after=names[-1], limit=1) else ""


async def topic(desk: JobDesk, ask: TopicAsk, _question: Question) -> TopicView:
    return await desk.change_topic(ask.topic, ask.set)


def _only(answers: Sequence[Added | NotAdded | JobReply]) -> object:
    """Return the only answer. Raises RequestRefused if it was not done."""
    [answer] = answers
    if isinstance(answer, Added) or answer.code == "ok":
        return answer
    raise RequestRefused(HTTP_CODES[answer.code], answer.reason, encode({"error": answer}))
