"""Job desk: the operations that every door calls. It adds jobs, hands them out, takes them back, shows them.

In: calls of the HTTP gateway, the micro service, the command line, the submissions. Out: answers as values, one for
each job or receipt. State: only the waits of callers that wait for a job. All other state is in the stream. Under
repeats: an id is added once. A finish of a finished receipt is `ok` again. Any other repeat is `stale`.

When it cannot go on: the caller gets the broker's errors. Disconnected, NoStream and StoreFull mean that nothing was
done. OutcomeUnknown also means that a part was done. After it, call again. A caller's mistake is a BadJob, or, for one
among many, an answer with the code `bad`.
"""

import builtins
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import get_args

from msgspec.structs import replace

from actors.jobs.adding import Adding
from actors.jobs.copies import Copies
from actors.jobs.handout import Handout
from actors.jobs.obstacles import Obstacles
from actors.jobs.reads import Found, TopicCounts
from actors.jobs.replay import JobReplay
from actors.jobs.replies import (
    FINISHED_BEFORE,
    NO_SUCH_JOB,
    OVER,
    Outcome,
    answer_of,
    listed_of,
    not_reserved,
    reserved_of,
)
from actors.jobs.rules.cursors import BadCursor, read_cursor, write_cursor
from actors.jobs.rules.job_answers import (
    MOST_TOPICS,
    JobReply,
    Listed,
    ListPage,
    Reserved,
    TopicCounted,
    TopicView,
)
from actors.jobs.rules.job_checks import check_id, check_range, check_topic
from actors.jobs.rules.job_receipt import BadReceipt, JobReceipt, by_id, read_receipt
from actors.jobs.rules.job_rules import (
    KEPT_MS,
    TRACE_MS,
    BadJob,
    is_callers_own,
    is_in_past,
    named_nonce,
)
from actors.jobs.rules.obstacles import JobWhy
from actors.jobs.rules.topic_settings import DEFAULT, as_document
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.rules.setting_values import BadSetting
from streams.backoff import next_delay_ms
from streams.chance import chance
from streams.clock import Clock
from streams.errors import unknown_once
from streams.messages.jobs import (
    LONGEST_DELAY_MS,
    LONGEST_TTR_MS,
    MOST_JOBS,
    SHORTEST_TTR_MS,
    JobRecord,
    State,
)
from streams.subjects import token_of

MOST_BYTES = 4 * 1024 * 1024
"""Limit in bytes of the jobs handed out or shown in one call, unless the door has a limit of its own."""
LONGEST_WAIT_MS = 60_000
"""A long poll ends after this, and its client calls again. Links in between sooner or later give up on silence."""
LONGEST_HOLDER = 128

Allowed = Callable[[str], bool]


def anywhere(_topic: str) -> bool:
    return True


def is_holder(name: str) -> bool:
    """Return whether a holder of jobs may have this name."""
    return len(name) <= LONGEST_HOLDER and name.isprintable()


class JobDesk:
    """One node's desk. Many callers may use it at once. `check` raises the reason why existing jobs cannot be moved."""

    def __init__(
        self,
        *,
        adding: Adding,
        store: JobStore,
        topics: Topics,
        handout: Handout,
        copies: Copies,
        replay: JobReplay,
        obstacles: Obstacles,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._handout = handout
        self._copies = copies
        self._replay = replay
        self._obstacles = obstacles
        self._clock = clock

        self.adding = adding
        self.add = adding.add
        self.add_one = adding.add_one
        self.adds_none = adding.adds_none
        self.standstill = adding.standstill

    # ---- holding

    async def reserve(
        self,
        topic: str,
        *,
        most: int = 1,
        wait_ms: int = 0,
        ttr_ms: int | None = None,
        holder: str = "",
        most_bytes: int = MOST_BYTES,
    ) -> builtins.list[Reserved]:
        """Hand out up to `most` ready jobs. Wait up to `wait_ms` for the first. Return an empty list if there is none.

        Each is held for its TTR, or for `ttr_ms` instead. `holder`: a name for people. `most_bytes`: of all of them
        together. May be cancelled: jobs in hand are given back then. Raises BadJob.
        """
        check_topic(topic)
        check_range("most", most, 1, MOST_JOBS)
        check_range("wait_ms", wait_ms, 0, LONGEST_WAIT_MS)
        if ttr_ms is not None:
            check_range("ttr_ms", ttr_ms, SHORTEST_TTR_MS, LONGEST_TTR_MS)
        if not is_holder(holder):
            raise BadJob("holder", holder, "is no name", f"use up to {LONGEST_HOLDER} printable characters")
        if slots := self._topics.current(topic).slots:
            raise BadJob(
                "topic",
                topic,
                f"lets only {slots} calls of a key run at once, so only handlers in nodes take its jobs",
                f"run them by @penstock.job, or lift the limit by `penstock jobs topic {topic} slots=0`",
            )
        self._store.check(topic)
        reservations = await self._handout.take(
            topic, most=most, wait_s=wait_ms / 1000, ttr_ms=ttr_ms, holder=holder, most_bytes=most_bytes
        )
        return [reserved_of(reservation) for reservation in reservations]

    async def finish(self, receipts: Sequence[str]) -> builtins.list[JobReply]:
        """Finish each. Return `ok` or `stale` for each. Its id is free then, unless its topic remembers it."""
        return await self._settle(receipts, self._finish)

    async def touch(self, receipts: Sequence[str], *, ttr_ms: int | None = None) -> builtins.list[JobReply]:
        """Hold each for its TTR from now on, or for `ttr_ms`. Return `ok` with the new end, or `stale`."""
        if ttr_ms is not None:
            check_range("ttr_ms", ttr_ms, SHORTEST_TTR_MS, LONGEST_TTR_MS)
        return await self._settle(receipts, lambda some: self._store.touch_many(some, ttr_ms=ttr_ms))

    async def release(
        self, receipts: Sequence[str], *, delay_ms: int | None = None, reason: str = "", counts: bool = True
    ) -> builtins.list[JobReply]:
        """Take each back, to be ready again in `delay_ms`, else after its topic's backoff. Return `ok` or `stale`.
        With `counts` the attempt is used up, and if it was the last one the job becomes a dead letter."""
        if delay_ms is not None:
            check_range("delay_ms", delay_ms, 0, LONGEST_DELAY_MS)
        delay = self._backoff_ms if delay_ms is None else delay_ms
        return await self._settle(
            receipts, lambda some: self._store.release_many(some, delay_ms=delay, counts=counts, reason=reason)
        )

    async def bury(self, receipts: Sequence[str], *, reason: str = "") -> builtins.list[JobReply]:
        """Make each a dead letter. Return `ok` or `stale`."""
        return await self._settle(receipts, lambda some: self._store.bury_many(some, reason=reason))

    async def finish_by_id(self, job_id: str, *, nonce: str = "", is_allowed: Allowed = anywhere) -> JobReply:
        """Finish the reservation of the job of this id in any allowed topic, the latest of several. For clients that
        keep no receipt: it ends any client's hold, whose own finish is `stale` then. `nonce`: the same in each repeat
        of this finish, which ends no later job."""
        self._store.check()
        mark, trace_ms = _mark("", job_id, nonce=nonce), _trace_ms(nonce)
        found = [each for each in await self._found(None, job_id) if is_allowed(each.topic)]
        if any(each.known is not None and is_in_past(each.known, mark) for each in found):
            return JobReply(code="ok", reason=FINISHED_BEFORE, id=job_id)
        held = [(each.seq, each, each.job) for each in found if each.state == "reserved" and each.job is not None]
        if not held:
            return not_reserved(found, job_id)
        seq, latest, job = max(held, key=lambda each: each[0])
        receipt = by_id(JobReceipt(latest.topic, latest.key, seq, job.until_ms, job.receipt))
        remember_s = self._topics.current(latest.topic).remember_s
        outcome = await self._store.finish_named(receipt, remember_s=remember_s, nonce=mark, trace_ms=trace_ms)
        return replace(answer_of(receipt, outcome), id=job_id)

    def _backoff_ms(self, job: JobRecord) -> int:
        return next_delay_ms(job.attempts + 1, self._topics.current(job.topic).backoff, chance=chance())

    # ---- operations for people

    async def delete(
        self, topic: str | None, job_id: str, *, nonce: str = "", is_allowed: Allowed = anywhere
    ) -> JobReply:
        """Remove the job of this id in whatever state, without `topic` from every allowed topic. Return `ok` or
        `not_found`. After the answer it is not handed out any more. Its holder may still work on it. Finished jobs stay
        known. `nonce`: the same in each repeat of this delete. One of the caller's own is known for a day. Raises
        BadJob."""
        self._store.check(*([] if topic is None else [topic]))
        mark, trace_ms = _mark(job_id, nonce=nonce), _trace_ms(nonce)
        found = [each for each in await self._found(topic, job_id) if is_allowed(each.topic)]
        was: State | None = None
        with unknown_once(lambda: was is not None, job_id):
            for each in found:
                if (state := await self._store.delete(each.topic, job_id, nonce=mark, trace_ms=trace_ms)) is not None:
                    was = state
                    await self._copies.drop(each.topic, each.key)
        if was is None:
            is_over = any(each.state == "done" and not each.is_free for each in found)
            return JobReply(code="not_found", reason=OVER if is_over else NO_SUCH_JOB, id=job_id)
        return JobReply(code="ok", reason=f"it was {was}", id=job_id)

    async def kick(self, topic: str, job_id: str | None = None, *, most: int = 1, nonce: str = "") -> int:
        """Make a job ready now: the one of this id, if it is delayed or buried. Without an id make up to `most` of a
        topic ready: the buried ones, or if there are none the delayed ones, in the order in which they came there.
        Return how many. `nonce`: the same in each repeat of a kick by id, which makes no later job ready. Raises
        BadJob."""
        check_topic(topic)
        check_range("most", most, 1, MOST_JOBS)
        self._store.check(topic)
        if job_id is not None:
            mark = _mark("", "", check_id(job_id), nonce=nonce), self._clock.now_ms() + _trace_ms(nonce)
            is_kicked = await self._store.kick_delayed(topic, job_id, mark)
            return int(is_kicked or await self._replay.kick_one(topic, job_id, mark))
        return await self._replay.kick(topic, most) or await self._kick_delayed(topic, most)

    async def _kick_delayed(self, topic: str, most: int) -> int:
        kicked, cursor = 0, ""
        with unknown_once(lambda: kicked > 0, topic):
            while kicked < most:
                page = await self._store.list_jobs(topic, "delayed", cursor=cursor, most=most - kicked)
                for found in page.found:
                    if found.job is not None:
                        kicked += await self._store.kick_delayed(topic, found.job.id)
                cursor = page.cursor
                if not cursor:
                    break
        return kicked

    async def peek(self, topic: str, job_id: str) -> Listed | None:
        """Return the job of this id in whatever state. `None`: there is none, or none known any more. Raises BadJob."""
        check_topic(topic)
        found = await self._store.find(topic, check_id(job_id))
        return None if found is None else listed_of(found)

    async def why(self, topic: str | None, job_id: str, *, is_allowed: Allowed = anywhere) -> builtins.list[JobWhy]:
        """Return what keeps the job of this id from running, without `topic` for every allowed topic that has one.
        Raises BadJob."""
        found = [each for each in await self._found(topic, job_id) if is_allowed(each.topic) and not each.is_free]
        return await self._obstacles.of(found)

    async def list(
        self,
        topic: str,
        *,
        state: State = "delayed",
        after: str = "",
        limit: int = 100,
        due_after_ms: int | None = None,
        due_before_ms: int | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> ListPage:
        """Return jobs of a state, in the order in which they came into it. `after` is an earlier page's cursor. With
        bounds, only those due in `[due_after_ms, due_before_ms)`. A page may hold fewer than `limit`, or none, and not
        be the last one. Raises BadJob."""
        check_topic(topic)
        check_range("limit", limit, 1, MOST_JOBS)
        if state not in get_args(State):
            raise BadJob("state", state, "is none", f"use {', '.join(get_args(State))}")
        for name, bound in (("due_after_ms", due_after_ms), ("due_before_ms", due_before_ms)):
            if bound is not None:
                check_range(name, bound, 0, 2**53)
        about = (topic, state, str(due_after_ms), str(due_before_ms))
        try:
            page = await self._store.list_jobs(
                topic,
                state,
                cursor=read_cursor(after, about),
                most=limit,
                due_from_ms=due_after_ms or 0,
                due_before_ms=due_before_ms or 0,
                most_bytes=most_bytes,
            )
        except BadCursor as error:
            raise BadJob("after", after, "is no cursor of this list", "use the one that the last page gave") from error
        return ListPage(jobs=tuple(map(listed_of, page.found)), after=write_cursor(page.cursor, about))

    async def count(self, topic: str) -> TopicCounted:
        """Return how many jobs the topic has in each state. Raises BadJob."""
        return _counted(check_topic(topic), await self._store.count(topic))

    async def count_many(self, topics: Sequence[str]) -> builtins.list[TopicCounted]:
        """Return how many jobs each topic has in each state, in few requests. Raises BadJob."""
        counts = await self._store.count_many([check_topic(topic) for topic in topics])
        return [_counted(topic, each) for topic, each in zip(topics, counts, strict=True)]

    def topics(self, *, after: str = "", limit: int = MOST_TOPICS) -> builtins.list[TopicView]:
        """Return the topics that were ever used, with their settings, by name: up to `limit` of those after `after`.
        Raises BadJob."""
        return [self._view(topic) for topic in self.topic_names(after=after, limit=limit)]

    def topic_names(self, *, after: str, limit: int) -> builtins.list[str]:
        """Return the names alone of such a page. Raises BadJob."""
        check_range("limit", limit, 1, MOST_TOPICS)
        known = self._topics.known()
        first = bisect_right(known, after)
        return known[first : first + limit]

    def known_topics(self) -> Sequence[str]:
        """Return the topics that were ever used, by name."""
        return self._topics.known()

    async def change_topic(self, topic: str, values: Mapping[str, object]) -> TopicView:
        """Set some of a topic's settings (`default`: of all topics). `None` resets one to the wider level. Return what
        is in force then. Raises BadJob."""
        if topic != DEFAULT:
            check_topic(topic)
        if not values:
            await self._topics.refresh(topic)
            return self._view(topic)
        try:
            settings = await self._topics.change(topic, values)
        except BadSetting as error:
            raise BadJob(error.name, error.value, error.why, error.do) from error
        return TopicView(topic=topic, settings=as_document(settings))

    def end_waits(self) -> None:
        """End every wait for a job: the node stops."""
        self._handout.end_waits()

    def _view(self, topic: str) -> TopicView:
        is_used = topic == DEFAULT or topic in self._topics
        return TopicView(topic=topic, settings=as_document(self._topics.current(topic)), is_used=is_used)

    # ---- by receipt, by id

    async def _settle(
        self, receipts: Sequence[str], act: Callable[[Sequence[JobReceipt]], Awaitable[Sequence[Outcome]]]
    ) -> builtins.list[JobReply]:
        """Act on each receipt once, and answer each receipt of the call."""
        if len(receipts) > MOST_JOBS:
            raise BadJob("receipts", len(receipts), "are too many for one call", f"send at most {MOST_JOBS}")
        read: dict[str, JobReceipt] = {}
        answers: dict[str, JobReply] = {}
        for text in receipts:
            try:
                read[text] = read_receipt(text)
            except BadReceipt as error:
                answers[text] = JobReply(code="bad", reason=str(error))
        self._store.check(*{receipt.topic for receipt in read.values()})
        outcomes = await act(tuple(read.values())) if read else ()
        for (text, receipt), outcome in zip(read.items(), outcomes, strict=True):
            answers[text] = answer_of(receipt, outcome)
        return [answers[text] for text in receipts]

    async def _finish(self, receipts: Sequence[JobReceipt]) -> Sequence[Outcome]:
        """Finish each. Its id is free then, unless its topic remembers it."""
        places: dict[int, builtins.list[int]] = {}
        for at, receipt in enumerate(receipts):
            places.setdefault(self._topics.current(receipt.topic).remember_s, []).append(at)
        outcomes: dict[int, Outcome] = {}
        for remember_s, group in places.items():
            some = [receipts[at] for at in group]
            settled = await self._store.finish_many(some, remember_s=remember_s)
            outcomes |= zip(group, settled, strict=True)
        return [outcomes[at] for at in range(len(receipts))]

    async def _found(self, topic: str | None, job_id: str) -> Sequence[Found]:
        """Return the job of this id, or those of every topic that has one. Finished ones still known are included."""
        check_id(job_id)
        if topic is None:
            return await self._store.find_everywhere(token_of(job_id))
        found = await self._store.find_key(check_topic(topic), token_of(job_id))
        return () if found is None else (found,)


def _mark(*names: str, nonce: str) -> str:
    """Return the mark of a delete, a finish or a kick by the id. Each has another number of names, and no add has the
    same mark, since no topic is empty."""
    return named_nonce(*names, nonce) if nonce else ""


def _trace_ms(nonce: str) -> int:
    return KEPT_MS if is_callers_own(nonce) else TRACE_MS


def _counted(topic: str, counts: TopicCounts) -> TopicCounted:
    return TopicCounted(
        topic=topic, delayed=counts.delayed, ready=counts.ready, reserved=counts.reserved, done=counts.done
    )
