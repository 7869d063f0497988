"""Jobs over HTTP: add one or a list, reserve by long poll, show, delete and kick."""

import logging
from collections.abc import Sequence
from typing import Literal

import anyio
import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from actors.jobs.replies import NO_SUCH_JOB
from actors.jobs.rules.job_answers import HTTP_CODES, Added, Listed, NotAdded, Reserved
from actors.runtime.logs import fields
from penstock.api.forms.jobs import (
    ItemAnswer,
    JobAdded,
    JobChanged,
    JobsAdded,
    JobShown,
    JobsShown,
    JobToAdd,
    ListQuery,
    Reservation,
    Reservations,
    ToReserve,
)
from penstock.api.forms.reading import picked
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded, query_of
from penstock.api.http.limits import UNREAD
from penstock.api.http.problems import RefusedRequest, refused
from streams.errors import StreamError
from streams.messages.jobs import LARGEST_BODY, MOST_JOBS, NewJob

log = logging.getLogger(__name__)

GIVE_BACK_S = 2.0

_one = msgspec.json.Decoder(JobToAdd)
_list = msgspec.json.Decoder(list[JobToAdd])
_items = msgspec.json.Decoder(list[Raw])
_any = msgspec.json.Decoder()
_reserve = msgspec.json.Decoder(ToReserve)


async def add(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Add a job, or each job of a list. Each job of a list has an answer of its own, so a bad one affects no other."""
    topic = call.topic()
    if call.body.lstrip()[:1] != b"[":
        return await _add_one(shared, call, topic)
    asked = jobs_of(call.body)
    call.charge(len(asked))
    wanted = [
        picked(NewJob, one, topic=topic, nonce=call.key and f"{call.key}/{at}", traceparent="")
        for at, one in enumerate(asked)
        if isinstance(one, JobToAdd)
    ]
    with shared.load.work("add", call.caller.key):
        await shared.quotas.check(call.caller, topic, wanted)
        told = iter(await shared.desk.add(wanted))
    answers = [item_of(call, next(told)) if isinstance(one, JobToAdd) else one for one in asked]
    return HttpAnswer(JobsAdded(added=sum(one.is_there for one in answers), answers=answers))


async def _add_one(shared: GatewayState, call: HttpCall, topic: str) -> HttpAnswer:
    asked = decoded(_one, call.body)
    check_body(asked.body)
    wanted = [picked(NewJob, asked, topic=topic, nonce=call.key, traceparent="")]
    with shared.load.work("add", call.caller.key):
        await shared.quotas.check(call.caller, topic, wanted)
        told = await shared.desk.add_one(wanted[0])
    item = item_of(call, told)
    if item.state is UNSET:
        raise problem_of(item)
    return HttpAnswer(picked(JobAdded, item, is_new=item.status == 201), item.status)


def item_of(call: HttpCall, told: Added | NotAdded) -> ItemAnswer:
    """Return the answer for one job. An existing job with another body is a conflict, also if it was to be kept."""
    if isinstance(told, NotAdded):
        status = 422 if told.code == "bad" else HTTP_CODES[told.code]
        return ItemAnswer(
            status=status, code=told.code, detail=call.caller.said(told.reason), what=told.field, id=told.id
        )
    if not told.is_new and not told.is_same_body:
        detail = f"a job of this id, with another body, is {told.state}; it stands"
        return ItemAnswer(status=409, code="exists", detail=detail, what="id", id=told.id)
    topic = call.caller.outer(told.topic)
    return ItemAnswer(status=201 if told.is_new else 200, topic=topic, id=told.id, state=told.state, due_ms=told.due_ms)


def problem_of(item: ItemAnswer) -> RefusedRequest:
    """Return an item's answer as the answer of a whole call."""
    hints = {"exists": "on_same=replace puts this one in its place; another id makes another job"}
    return refused(
        item.status,
        item.code,  # type: ignore[arg-type]  # the desk's codes are among ours
        item.detail,
        what=item.what,
        value=item.id if item.what == "id" else "",
        hint=hints.get(item.code, ""),
        retry_after_s=1 if item.status in (429, 503, 504) else 0,
    )


def check_body(body: Raw) -> None:
    """Raise RefusedRequest for a body that is too large, or that not every client can read: lone surrogates, numbers
    beyond a double, bytes that are not UTF-8."""
    text = bytes(body)
    if len(text) > LARGEST_BODY:
        raise refused(413, "too_large", f"a job's body has up to {LARGEST_BODY} bytes", what="body")
    decoded(_any, text, what="body")


def jobs_of(body: bytes) -> list[JobToAdd | ItemAnswer]:
    """Return the list's jobs, with a problem in place of each invalid one. A list without faults is decoded at once.
    Raises RefusedRequest if the body is not a list, or the list is empty or too long."""
    try:
        found = _list.decode(body)
        _any.decode(body)
        is_sound = all(memoryview(one.body).nbytes <= LARGEST_BODY for one in found)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        is_sound = False
    if is_sound:
        _check_count(len(found))
        return [*found]
    items = decoded(_items, body)
    _check_count(len(items))
    return [_job_or_problem(bytes(item)) for item in items]


def _job_or_problem(text: bytes) -> JobToAdd | ItemAnswer:
    try:
        asked = decoded(_one, text, what="job")
        check_body(asked.body)
    except RefusedRequest as told:
        problem = told.problem
        detail = f"{problem.detail}; {problem.hint}" if problem.hint else problem.detail
        return ItemAnswer(status=problem.status, code=problem.code, detail=detail, what=problem.what)
    return asked


def _check_count(count: int) -> None:
    if not 1 <= count <= MOST_JOBS:
        raise refused(422, "bad", f"{count} jobs; a list has 1 to {MOST_JOBS}", what="body")


# ---- handing out


async def reserve(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Hand out ready jobs. With `wait_ms`, answer as soon as there is one."""
    topic, asked = call.topic(), decoded(_reserve, call.body or b"{}")
    jobs = await hand_out(shared, call, topic, most=asked.most, wait_ms=asked.wait_ms, ttr_ms=asked.ttr_ms)
    return HttpAnswer(Reservations(jobs=[reservation_of(call, job) for job in jobs]))


async def hand_out(
    shared: GatewayState, call: HttpCall, topic: str, *, most: int, wait_ms: int, ttr_ms: int | None
) -> Sequence[Reserved]:
    """Reserve while the client is connected. If it disconnects, or clients have yet to read too many answers, the
    undelivered jobs are given back at once."""

    jobs: Sequence[Reserved] = ()

    async def take() -> Sequence[Reserved]:
        return await shared.desk.reserve(topic, most=most, wait_ms=wait_ms, ttr_ms=ttr_ms, holder=call.caller.name)

    if wait_ms:
        with shared.load.poll(call.caller.key):
            jobs = await call.while_there(shared, take, jobs)
    else:
        with shared.load.work("reserve", call.caller.key):
            jobs = await take()
    if not call.may_answer(sum(len(bytes(job.body)) for job in jobs)):
        await give_back(shared, [job.receipt for job in jobs], "clients have yet to read too many answers")
        raise refused(503, "busy", UNREAD, retry_after_s=1)
    call.charge(len(jobs))
    if jobs and call.is_gone:
        await give_back(shared, [job.receipt for job in jobs])
    return jobs


async def give_back(shared: GatewayState, receipts: Sequence[str], reason: str = "the client went away") -> None:
    """Release undelivered jobs. If that fails too, they return when their TTR ends."""
    with anyio.move_on_after(GIVE_BACK_S, shield=True):
        try:
            await shared.desk.release(receipts, delay_ms=0, reason=reason, counts=False)
        except StreamError as error:
            log.debug("gateway.not_given_back", extra=fields(count=len(receipts), error=str(error)))


def reservation_of(call: HttpCall, job: Reserved) -> Reservation:
    return picked(Reservation, job, topic=call.caller.outer(job.topic), receipt=call.caller.outer(job.receipt))


# ---- one job


async def show(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show a job in whatever state it is, without touching it."""
    topic, job_id = call.topic(), call.value("job_id")
    with shared.load.work("other", call.caller.key):
        found = await shared.desk.peek(topic, job_id)
    if found is None:
        raise no_such_job(job_id)
    return HttpAnswer(shown_job(call, found))


async def why(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Tell why a job is not running."""
    topic, job_id = call.topic(), call.value("job_id")
    with shared.load.work("other", call.caller.key):
        found = await shared.desk.why(topic, job_id)
    if not found:
        raise no_such_job(job_id)
    return HttpAnswer(replace(found[0], topic=call.caller.outer(topic)))


async def list_jobs(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show a topic's jobs of one state, a page at a time."""
    topic, asked = call.topic(), query_of(ListQuery, call.query)
    with shared.load.work("other", call.caller.key):
        page = await shared.desk.list(
            topic,
            state=asked.state,
            after=asked.after,
            limit=asked.limit,
            due_after_ms=asked.due_after_ms,
            due_before_ms=asked.due_before_ms,
        )
    return HttpAnswer(JobsShown(jobs=[shown_job(call, job) for job in page.jobs], next=page.after))


async def delete(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Remove a job in any state. If a client holds it, its finish is refused."""
    topic, job_id = call.topic(), call.value("job_id")
    with shared.load.work("settle", call.caller.key):
        answer = await shared.desk.delete(topic, job_id, nonce=call.key)
    return _changed(call, "deleted", topic, job_id, is_done=answer.code == "ok", reason=answer.reason)


async def kick(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Make a delayed job due now."""
    topic, job_id = call.topic(), call.value("job_id")
    with shared.load.work("other", call.caller.key):
        count = await shared.desk.kick(topic, job_id, nonce=call.key)
    return _changed(call, "kicked", topic, job_id, is_done=count > 0, reason=NO_SUCH_JOB)


def _changed(
    call: HttpCall, done: Literal["deleted", "kicked"], topic: str, job_id: str, *, is_done: bool, reason: str
) -> HttpAnswer:
    audit(call, f"job.{done}", topic=topic, id=job_id, is_done=is_done)
    if not is_done:
        raise no_such_job(job_id, reason)
    return HttpAnswer(JobChanged(topic=call.caller.outer(topic), id=job_id, done=done))


def audit(call: HttpCall, event: str, **facts: object) -> None:
    """Log who changed what."""
    log.info(event, extra=fields(by=call.caller.name, address=call.address, **facts))


def no_such_job(job_id: str, reason: str = NO_SUCH_JOB) -> RefusedRequest:
    return refused(404, "not_found", reason, what="id", value=job_id)


def shown_job(call: HttpCall, job: Listed) -> JobShown:
    return picked(JobShown, job, topic=call.caller.outer(job.topic))
