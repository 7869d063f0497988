"""Jobs of the client: add them, reserve them, settle them, look at them. A length of time is a text with its unit
("30s", "5m"), a number of seconds, or a `timedelta`.

The `body` of a held job is decoded at each access. `reserve` holds one job and settles it by itself. With
`reserve_many` the caller finishes, touches and releases the jobs.
"""

import builtins
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar, Unpack

import anyio
from msgspec.structs import replace

from actors.jobs.rules.job_answers import (
    MOST_TOPICS,
    Added,
    JobReply,
    Listed,
    ListPage,
    NotAdded,
    Reserved,
    TopicCounted,
    TopicView,
)
from actors.jobs.rules.obstacles import JobWhy
from actors.jobs.rules.topic_settings import as_written
from actors.runtime.rules.setting_values import BadSetting, Duration
from actors.runtime.rules.spellings import hinted
from actors.runtime.tracing import traces
from actors.runtime.turns import Carriers, Turns
from penstock.api.forms.jobs import Answers, JobOptions, Kicked, ReservedJobs, TopicsShown, TopicViews, Whys
from penstock.errors import NotAccepted, Stale, Timeout, Unavailable, UsageError
from penstock.sdk.calls import ServiceClient, client_error
from penstock.sdk.client_adds import MOST_DIRECT, MOST_IN_PART, ClientAdds, named, new_job
from penstock.sdk.client_forms import (
    dealt,
    decode,
    encode,
    finite,
    millis,
)
from penstock.sdk.held_jobs import HeldJob, ReservationContext
from penstock.sdk.job_replies import in_doubt, one_each, unless_repeated
from penstock.sdk.pages import all_lines
from streams.clock import monotonic_s
from streams.errors import StreamError
from streams.messages.jobs import MOST_JOBS, NewJob, State
from streams.messages.nonces import fresh_nonce

if TYPE_CHECKING:
    from penstock.sdk.direct_adds import DirectAdds
    from penstock.sdk.direct_takes import DirectTakes

__all__ = ["HeldJob", "Jobs", "ReservationContext"]

_T = TypeVar("_T")
PIECE_MS = 30_000
"""Milliseconds. A longer wait is split, because the service ends a request within a minute, and so do many links."""
PAUSE_S = 0.02


class _Wish(NamedTuple):
    """What calls of `reserve` that travel together ask for alike. `own`: of a call that travels alone."""

    topic: str
    is_waiting: bool
    ttr_ms: int | None
    holder: str
    own: object = None


class _Wanted(NamedTuple):
    """What one of them asks for."""

    most: int
    wait_ms: int


class _Settling(NamedTuple):
    """What settles that travel together ask for alike. `more`: further fields of the request, as JSON."""

    verb: str
    more: bytes
    timeout_s: float | None


class _Dealt(NamedTuple):
    """Jobs of a caller. `is_last`: none was ready for any of those that asked together."""

    jobs: builtins.list[Reserved]
    is_last: bool


class Jobs:
    """The jobs of one namespace. The methods raise NotAccepted (Stale is one), Timeout, Unavailable, UsageError.

    Adds, reserves and settles that are made in the same turn of the event loop travel together (turns.py)."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service
        self.carriers = carriers = Carriers(Unavailable, Timeout)
        self._adds = ClientAdds(service, carriers)
        self._finishes = Turns(carriers, self._send_direct_finishes, most_size=lambda: MOST_JOBS, most=MOST_DIRECT)
        self._settles = Turns(carriers, self._send_settles, most_size=self._adds.room, most=MOST_IN_PART)
        self._reserves = Turns(
            carriers, self._send_reserves, most_size=lambda: MOST_JOBS, most=MOST_JOBS, lost=self._give_back_dealt
        )

    async def store_directly(self, monitor: str) -> None:
        """Store added jobs from here on without a desk. Raises the client's errors if that cannot be."""
        from penstock.sdk.direct_adds import DirectAdds  # most programs do without what it imports

        direct = DirectAdds(self._service.connection, monitor)
        self.carriers.start(direct.run())
        await direct.opened
        self._adds.direct = direct

    @property
    def direct(self) -> "DirectAdds | None":
        """What stores jobs without a desk, if this client does."""
        return self._adds.direct

    @property
    def _taking(self) -> "DirectTakes | None":
        """What takes jobs without a desk, if this client does."""
        direct = self._adds.direct
        return direct.taking if direct is not None else None

    # ---- adding

    async def add(self, topic: str, body: object = None, **options: Unpack[JobOptions]) -> Added:
        """Add one job and return it. The options are those of `new_job`. If the result's `is_new` is False, it is the
        job that already existed.

        With `on_same="error"` an existing job raises NotAccepted, `code` `exists`. After a Timeout, `add_many` with the
        error's `job` repeats this add, and adds no second job."""
        job = named(new_job(topic, body, **options))
        if not traces.is_on:  # this is called for each job, and a block of nothing costs, too
            return await self._adds.add(job)
        with traces.span(f"add {topic}", "producer", {"topic": topic, "job": job.id}):
            return await self._adds.add(replace(job, traceparent=traces.current()))

    async def add_many(self, jobs: Iterable[NewJob]) -> builtins.list[Added | NotAdded]:
        """Add jobs, and return the result of each, in order. The client sends them in parts that fit into a message.

        Each job has a nonce for this call, so a repeat after a lost reply adds no second job."""
        adds = [named(job) for job in jobs]
        if not traces.is_on:
            return await self._adds.add_all(adds)
        with traces.span("add", "producer", {"jobs": len(adds)}):
            current = traces.current()
            return await self._adds.add_all(
                [job if job.traceparent else replace(job, traceparent=current) for job in adds]
            )

    # ---- holding

    @hinted("a reservation")
    def reserve(
        self, topic: str, *, wait: Duration = 0, ttr: Duration | None = None, holder: str = ""
    ) -> "ReservationContext":
        """Hold one job for the length of a block: `async with client.jobs.reserve("mail", wait=30) as job: …`.

        The block gets None if no job became ready within `wait`. `ttr` replaces the job's own. While the block runs,
        the job is touched. The end of the block finishes the job. An exception releases it after the topic's backoff,
        with the exception as its reason, and is raised again. A cancellation releases it at once, and does not use up
        the attempt. A job that the block settled itself is left as it is.

        The job is lost if no node could be reached for its TTR, or if it was deleted. Then the block is cancelled, and
        Stale is raised."""
        return ReservationContext(self, partial(self.reserve_many, topic, wait=wait, ttr=ttr, holder=holder))

    @hinted("a reservation")
    async def reserve_many(
        self, topic: str, *, most: int = 1, wait: Duration = 0, ttr: Duration | None = None, holder: str = ""
    ) -> builtins.list[HeldJob]:
        """Hold up to `most` jobs. Wait up to `wait` for the first one. Settle each within its TTR. A job whose reply
        was lost comes again when its TTR runs out."""
        wait_ms = 0 if wait == 0 else millis("wait", wait)
        ttr_ms = None if ttr is None else millis("ttr", ttr)
        is_plain = type(most) is int and 1 <= most <= MOST_JOBS
        until_s, left_ms = monotonic_s() + wait_ms / 1000, wait_ms
        while True:
            wish = _Wish(topic, left_ms > 0, ttr_ms, holder, None if is_plain else object())
            wanted = _Wanted(most, min(left_ms, PIECE_MS))
            dealt_out = await self._reserves.call(wanted, size=most if is_plain else 1, kind=wish)
            held = [HeldJob(self, reserved, ttr_ms) for reserved in dealt_out.jobs]
            left_s = until_s - monotonic_s()
            if held or (dealt_out.is_last and left_s <= 0):
                return held
            # A node that stops ends its waits early, and another one takes the next. If others got what was ready,
            # more may be.
            pause_s = min(left_s, PAUSE_S) if dealt_out.is_last else 0.0
            await anyio.sleep(pause_s)
            left_ms = max(0, round((left_s - pause_s) * 1000))

    async def _send_reserves(self, wish: _Wish, wanted: Sequence[_Wanted]) -> builtins.list[_Dealt]:
        """Reserve for several callers, until the first of them has waited long enough."""
        most = [one.most for one in wanted]
        wait_ms = min(one.wait_ms for one in wanted)
        jobs = await self._reserve_here(wish, sum(most), wait_ms) if wish.own is None else None
        if jobs is None:
            jobs = await self._reserve_there(wish, most, wait_ms)
        return [_Dealt(some, not jobs) for some in (dealt(jobs, most) if len(most) > 1 else [jobs])]

    async def _reserve_here(self, wish: _Wish, most: int, wait_ms: int) -> builtins.list[Reserved] | None:
        """Reserve without a desk. None: a desk has to."""
        taking = self._taking
        if taking is None or wait_ms < 0 or not taking.serves(wish.topic, wish.ttr_ms, wish.holder):
            return None
        try:
            return await taking.reserve(wish.topic, most=most, wait_ms=wait_ms, ttr_ms=wish.ttr_ms, holder=wish.holder)
        except StreamError as error:
            raise client_error(error) from error

    async def _reserve_there(self, wish: _Wish, most: builtins.list[int], wait_ms: int) -> builtins.list[Reserved]:
        ask: dict[str, object] = {
            "topic": wish.topic,
            "most": most[0] if len(most) == 1 else sum(most),
            "wait_ms": wait_ms,
            "holder": wish.holder,
        }
        if wish.ttr_ms is not None:
            ask["ttr_ms"] = wish.ttr_ms
        wait_s = max(0, wait_ms) / 1000
        answered = await self._service.request("reserve", encode(ask), wait_s=wait_s, on_late=self._give_back)
        return decode(answered.payload, ReservedJobs).jobs

    def _give_back_dealt(self, lost: _Dealt) -> None:
        if lost.jobs:
            with suppress(Unavailable):  # closed: what is held is written down, and its TTR gives it back
                self.carriers.start(self._give_back_held(lost.jobs))

    async def _give_back_held(self, jobs: Sequence[Reserved]) -> None:
        with suppress(StreamError):  # then a desk releases them, or their TTR gives them back
            jobs = jobs if self._taking is None else await self._taking.give_back(jobs)
        self._release_now(jobs, "its caller had left")

    def _give_back(self, payload: bytes) -> None:
        """Release the jobs of a late reply, since another node's reply was used."""
        self._release_now(decode(payload, ReservedJobs).jobs, "handed out twice for one question")

    def _release_now(self, jobs: Sequence[Reserved], reason: str) -> None:
        if jobs:
            receipts = [reserved.receipt for reserved in jobs]
            ask = {"receipts": receipts, "delay_ms": 0, "counts": False, "reason": reason}
            self._service.post("release", encode(ask))

    async def finish(self, job: HeldJob | str) -> None:
        """Finish a job, by the held job or its receipt. Raises Stale."""
        await self._settle("finish", job)

    async def finish_many(self, jobs: Iterable[HeldJob | str]) -> builtins.list[JobReply]:
        """Finish jobs, and return the result of each: its `code` is `ok`, `stale` or `unknown`."""
        held = list(jobs)
        answers: builtins.list[JobReply] = []
        for start in range(0, len(held), MOST_JOBS):
            answers += await self._settle_many("finish", held[start : start + MOST_JOBS])
        return answers

    async def finish_by_id(self, id: str) -> None:
        """Finish the reservation of the job of this id, whichever client holds it. Its holder's own finish is Stale
        then. Raises NotAccepted if no such job is reserved."""
        try:
            await self._service.request("finish", encode({"id": id, "nonce": fresh_nonce()}))
        except NotAccepted as refused:
            raise unless_repeated(refused) from refused

    async def touch(self, job: HeldJob | str, ttr: Duration | None = None, *, timeout_s: float | None = None) -> None:
        """Hold the job for its TTR from now on, or for `ttr`. Raises Stale."""
        if ttr is None and isinstance(job, HeldJob):
            ttr = job.ttr_s
        more = {} if ttr is None else {"ttr_ms": millis("ttr", ttr)}
        began_s = monotonic_s()
        await self._settle("touch", job, timeout_s=timeout_s, **more)
        if isinstance(job, HeldJob):
            job.held_until_s = began_s + more["ttr_ms"] / 1000

    async def release(
        self, job: HeldJob | str, *, delay: Duration | None = None, reason: str = "", counts: bool = True
    ) -> None:
        """Give the job back. It is ready again in `delay`, by default after the topic's backoff. `counts`: the attempt
        is used up, and the last one makes the job a dead letter. Raises Stale."""
        more = {} if delay is None else {"delay_ms": millis("delay", delay)}
        await self._settle("release", job, reason=reason, counts=counts, **more)

    async def bury(self, job: HeldJob | str, reason: str = "") -> None:
        """Make the job a dead letter. Raises Stale."""
        await self._settle("bury", job, reason=reason)

    async def _settle(self, verb: str, job: HeldJob | str, *, timeout_s: float | None = None, **more: object) -> None:
        plain = job if isinstance(job, str) else job.receipt
        is_here = self._holds(plain)
        if verb == "finish" and is_here:
            answer = await self._finishes.call(plain, size=1, kind=None)
        else:
            if is_here:
                await self._write_down(plain)
            receipt, settling = encode(plain), _Settling(verb, encode(more), timeout_s)
            answer = await self._settles.call(receipt, size=len(receipt) + 1, kind=settling)
        _mark(verb, job, answer)
        if answer.code == "stale":
            raise Stale(answer.reason)
        if answer.code == "unknown":
            raise Timeout(answer.reason)
        if answer.code != "ok":
            raise NotAccepted(answer.reason, code=answer.code)

    def _holds(self, receipt: str) -> bool:
        """Return whether this client took the job by itself, and its reservation is not written down."""
        return self._taking is not None and self._taking.holds(receipt)

    async def _write_down(self, receipt: str) -> None:
        if self._taking is not None:
            await self._taking.write_down([receipt])

    async def _send_direct_finishes(self, _kind: None, receipts: Sequence[str]) -> builtins.list[JobReply]:
        if self._taking is None:  # it was closed over an error; a desk knows what was written down
            return await self._send_settles(_Settling("finish", b"{}", None), list(map(encode, receipts)))
        try:
            return await self._taking.finish(receipts)
        except StreamError as error:
            raise client_error(error) from error

    async def _settle_many(self, verb: str, jobs: Sequence[HeldJob | str]) -> builtins.list[JobReply]:
        plain = [job if isinstance(job, str) else job.receipt for job in jobs]
        here = list(filter(self._holds, plain)) if verb == "finish" else []
        known = dict(zip(here, await self._send_direct_finishes(None, here), strict=True)) if here else {}
        there = [receipt for receipt in plain if receipt not in known]
        if there:
            settling = _Settling(verb, b"{}", None)
            told = await self._send_settles(settling, [encode(receipt) for receipt in there])
            known |= zip(there, told, strict=True)
        answers = [known[receipt] for receipt in plain]
        for job, answer in zip(jobs, answers, strict=True):
            _mark(verb, job, answer)
        return answers

    async def _send_settles(self, settling: _Settling, receipts: Sequence[bytes]) -> builtins.list[JobReply]:
        more = b"" if settling.more == b"{}" else b"," + settling.more[1:-1]
        payload = b'{"receipts":[%b]%b}' % (b",".join(receipts), more)
        answered = await self._service.request(settling.verb, payload, timeout_s=settling.timeout_s)
        answers = one_each(decode(answered.payload, Answers).answers, len(receipts))
        if answered.is_repeated:
            answers = [in_doubt(answer) if answer.code in ("stale", "unavailable") else answer for answer in answers]
        return answers

    # ---- looking, and what a person does

    async def peek(self, topic: str, id: str) -> Listed | None:
        """Return the job of this id in any state, None if there is none."""
        try:
            return await self._service.ask("peek", {"topic": topic, "id": id}, Listed)
        except NotAccepted as refused:
            if refused.code == "not_found":
                return None
            raise

    async def why(self, id: str, topic: str | None = None) -> builtins.list[JobWhy]:
        """Return why the job of this id is not running, without `topic` for each topic that has one. Empty if there is
        none."""
        ask = {"id": id} | ({} if topic is None else {"topic": topic})
        return (await self._service.ask("why", ask, Whys)).jobs

    async def delete(self, id: str, topic: str | None = None) -> bool:
        """Remove the job of this id in any state, and return whether there was one. Without `topic`, all topics are
        searched. After the return the job is not handed out again. A client that already holds it may still work on
        it."""
        ask = {"id": id, "nonce": fresh_nonce()} | ({} if topic is None else {"topic": topic})
        try:
            return (await self._service.ask("delete", ask, JobReply)).code == "ok"
        except NotAccepted as refused:
            if refused.code == "not_found" and not refused.is_repeated:
                return False
            raise unless_repeated(refused) from refused

    async def kick(self, topic: str, id: str | None = None, *, most: int = 1) -> int:
        """Make the delayed job of this id due now, or up to `most` of a topic, the earliest due first. Return their
        number. Without an id a repeat would kick others, so there is none: after Timeout, count before you call
        again."""
        ask = {"topic": topic, "most": most} if id is None else {"topic": topic, "id": id, "nonce": fresh_nonce()}
        return (await self._service.ask("kick", ask, Kicked, is_once=id is None)).kicked

    async def list(self, topic: str, state: State = "delayed", *, page: int = 100) -> AsyncIterator[Listed]:
        """Yield the topic's jobs in a state, page by page."""
        after = ""
        while True:
            ask = {"topic": topic, "state": state, "after": after, "limit": page}
            found = await self._service.ask("list", ask, ListPage)
            for job in found.jobs:
                yield job
            after = found.after
            if not after:
                return

    async def count(self, topic: str) -> TopicCounted:
        """Return how many jobs of the topic are in each state."""
        return await self._service.ask("count", {"topic": topic}, TopicCounted)

    async def counts(
        self, topics: Sequence[str] | None = None, *, after: str = "", limit: int | None = None
    ) -> builtins.list[TopicCounted]:
        """Return how many jobs each of these topics has in each state. `None`: all topics, by name, or up to `limit` of
        those after `after`. In few requests, however many they are."""
        if topics is None:
            return await all_lines(
                self._service, "count", TopicsShown, lambda page: page.topics, after=after, limit=limit
            )
        found: builtins.list[TopicCounted] = []
        for start in range(0, len(topics), MOST_TOPICS):
            ask = {"topics": topics[start : start + MOST_TOPICS]}
            found += (await self._service.ask("count", ask, TopicsShown)).topics
        return found

    async def topics(self, *, after: str = "", limit: int | None = None) -> builtins.list[TopicView]:
        """Return all topics that were ever used, with their settings, by name, or up to `limit` of those after
        `after`."""
        return await all_lines(self._service, "topics", TopicViews, lambda page: page.topics, after=after, limit=limit)

    async def change_topic(self, topic: str, **values: object) -> TopicView:
        """Change settings of a topic (`ttr="90s"`, `is_paused=True`, …), and return the topic with all settings in
        force. `None`: the default. Raises NotAccepted, whose `field` names the setting, and UsageError."""
        try:
            values = as_written(values)
        except BadSetting as error:
            raise UsageError(str(error)) from error
        return await self._service.ask("topic", {"topic": topic, "set": finite(values)}, TopicView)


def _mark(verb: str, job: HeldJob | str, answer: JobReply) -> None:
    if isinstance(job, HeldJob) and (answer.code == "stale" or (answer.code == "ok" and verb != "touch")):
        job.is_settled = True
