"""Jobs of the client: add them, reserve them, settle them, look at them. A length of time is a text with its unit
("30s", "5m"), a number of seconds, or a `timedelta`.

The `body` of a held job is decoded at each access. `reserve` holds one job and settles it by itself. With
`reserve_many` the caller finishes, touches and releases the jobs.
"""

import builtins
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Unpack

import anyio
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.rules.job_answers import Added, JobReply, Listed, ListPage, NotAdded, TopicCounted, TopicView
from actors.jobs.rules.obstacles import JobWhy
from actors.jobs.rules.topic_settings import as_written
from actors.runtime.rules.setting_values import BadSetting, Duration
from actors.runtime.supervisor import one_error
from penstock.api.forms.jobs import Answers, JobOptions, Kicked, ReservedJobs, TopicViews, Whys
from penstock.errors import NotAccepted, Stale, Timeout, Unavailable, UsageError
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_forms import (
    AddAnswers,
    add_answer,
    decode,
    encode,
    millis,
    moment_ms,
    parts_of,
    too_large,
)
from penstock.sdk.held_jobs import HeldJob, ReservationContext
from streams.clock import monotonic_s
from streams.job_messages import MOST_JOBS, NewJob, State, body_of, encode_new_job, is_json
from streams.nonces import fresh_nonce

__all__ = ["HeldJob", "Jobs", "ReservationContext", "new_job"]

AT_ONCE = 4
"""Parts of a long list that are on their way at the same time."""
PIECE_MS = 30_000
"""Milliseconds. A longer wait is split, because the service ends a request within a minute, and so do many links."""
PAUSE_S = 0.02
EARLIER = "an earlier try may have been done; the last was told"
_MILLISECONDS: dict[str, Callable[[str, Any], int]] = {
    "delay": millis,
    "due": moment_ms,
    "ttr": millis,
    "expires_in": millis,
}
"""How to convert the options whose fields end with `_ms`."""
ROOM = 4096
"""Bytes of a message that are left for the other fields."""


def new_job(topic: str, body: object = None, **options: Unpack[JobOptions]) -> NewJob:
    """Return a job for `add_many`. `body`: any JSON value, or `msgspec.Raw` for text that is JSON already.

    The options are those of `JobOptions`: `id`, `delay` or `due`, `ttr`, `priority`, `attempts`, `expires_in`,
    `on_same`, `nonce`. Raises UsageError."""
    if unknown := options.keys() - JobOptions.__optional_keys__:
        raise TypeError(f"a job has no option {min(unknown)!r}")
    try:
        raw = body if isinstance(body, Raw) else body_of(body)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise UsageError(f"body: is not what JSON can hold: {error}") from error
    if isinstance(body, Raw) and not is_json(bytes(body)):
        raise UsageError("body: the text is no JSON")
    asked: dict[str, Any] = {"id": "" if options.get("nonce") else secrets.token_hex(12)}
    for name, value in options.items():
        if read := _MILLISECONDS.get(name):
            is_default = value is None and name != "delay"
            asked[f"{name}_ms"] = None if is_default else read(name, value)
        elif value or name != "id":
            asked[name] = value
    return NewJob(topic=topic, body=raw, **asked)


class Jobs:
    """The jobs of one namespace. The methods raise NotAccepted (Stale is one), Timeout, Unavailable, UsageError."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    # ---- adding

    async def add(self, topic: str, body: object = None, **options: Unpack[JobOptions]) -> Added:
        """Add one job and return it. The options are those of `new_job`. If the result's `is_new` is False, it is the
        job that already existed.

        With `on_same="error"` an existing job raises NotAccepted, `code` `exists`."""
        [answer] = await self.add_many([new_job(topic, body, **options)])
        if isinstance(answer, NotAdded) and answer.code in ("unknown", "unavailable"):
            raise (Timeout if answer.code == "unknown" else Unavailable)(answer.reason)
        if isinstance(answer, NotAdded):
            raise NotAccepted(answer.reason, code=answer.code, field=answer.field)
        return answer

    async def add_many(self, jobs: Iterable[NewJob]) -> builtins.list[Added | NotAdded]:
        """Add jobs, and return the result of each, in order. The client sends them in parts that fit into a message.

        Each job has a nonce for this call, so a repeat after a lost reply adds no second job."""
        named = [job if job.nonce else replace(job, nonce=fresh_nonce()) for job in jobs]
        answers: builtins.list[Added | NotAdded | None] = [too_large(job) for job in named]
        encoded = [(at, encode_new_job(job)) for at, job in enumerate(named) if answers[at] is None]
        limiter = anyio.Semaphore(AT_ONCE)

        async def send(part: Sequence[tuple[int, bytes]]) -> None:
            async with limiter:
                answered = await self._service.request("add", b"[%b]" % b",".join(job for _, job in part))
            for (at, _), answer in zip(part, decode(answered.payload, AddAnswers).answers, strict=True):
                answers[at] = _known(add_answer(answer), answered.is_repeated)

        with one_error():
            async with anyio.create_task_group() as tasks:
                for part in parts_of(encoded, self._service.max_payload - ROOM):
                    tasks.start_soon(send, part)
        return [answer for answer in answers if answer is not None]

    # ---- holding

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

    async def reserve_many(
        self, topic: str, *, most: int = 1, wait: Duration = 0, ttr: Duration | None = None, holder: str = ""
    ) -> builtins.list[HeldJob]:
        """Hold up to `most` jobs. Wait up to `wait` for the first one. Settle each within its TTR. A job whose reply
        was lost comes again when its TTR runs out."""
        wait_ms = millis("wait", wait)
        ask: dict[str, object] = {"topic": topic, "most": most, "wait_ms": min(wait_ms, PIECE_MS), "holder": holder}
        ttr_ms = None if ttr is None else millis("ttr", ttr)
        if ttr_ms is not None:
            ask["ttr_ms"] = ttr_ms
        until_s = monotonic_s() + wait_ms / 1000
        while True:
            answered = await self._service.request(
                "reserve", encode(ask), wait_s=max(0, wait_ms) / 1000, on_late=self._give_back
            )
            held = [HeldJob(self, reserved, ttr_ms) for reserved in decode(answered.payload, ReservedJobs).jobs]
            left_s = until_s - monotonic_s()
            if held or left_s <= 0:
                return held
            await anyio.sleep(
                min(left_s, PAUSE_S)
            )  # a node that stops ends its waits early, and another one takes the next
            ask["wait_ms"] = max(0, min(round((left_s - PAUSE_S) * 1000), PIECE_MS))

    def _give_back(self, payload: bytes) -> None:
        """Release the jobs of a late reply, since another node's reply was used."""
        receipts = [reserved.receipt for reserved in decode(payload, ReservedJobs).jobs]
        if receipts:
            reason = "handed out twice for one question"
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
        """Finish the reservation of the job of this id, whichever client holds it. Raises NotAccepted if no such job is
        reserved."""
        try:
            await self._service.request("finish", encode({"id": id}))
        except NotAccepted as refused:
            raise _unless_repeated(refused) from refused

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
        [answer] = await self._settle_many(verb, [job], timeout_s=timeout_s, **more)
        if answer.code == "stale":
            raise Stale(answer.reason)
        if answer.code == "unknown":
            raise Timeout(answer.reason)
        if answer.code != "ok":
            raise NotAccepted(answer.reason, code=answer.code)

    async def _settle_many(
        self, verb: str, jobs: Sequence[HeldJob | str], *, timeout_s: float | None = None, **more: object
    ) -> builtins.list[JobReply]:
        receipts = [job if isinstance(job, str) else job.receipt for job in jobs]
        answered = await self._service.request(verb, encode({"receipts": receipts, **more}), timeout_s=timeout_s)
        answers = decode(answered.payload, Answers).answers
        if answered.is_repeated:
            answers = [_in_doubt(answer) if answer.code in ("stale", "unavailable") else answer for answer in answers]
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(job, HeldJob) and (answer.code == "stale" or (answer.code == "ok" and verb != "touch")):
                job.is_settled = True
        return answers

    # ---- looking, and what a person does

    async def peek(self, topic: str, id: str) -> Listed | None:
        """Return the job of this id in any state, None if there is none."""
        try:
            answered = await self._service.request("peek", encode({"topic": topic, "id": id}))
        except NotAccepted as refused:
            if refused.code == "not_found":
                return None
            raise
        return decode(answered.payload, Listed)

    async def why(self, id: str, topic: str | None = None) -> builtins.list[JobWhy]:
        """Return why the job of this id is not running, without `topic` for each topic that has one. Empty if there is
        none."""
        ask = {"id": id} | ({} if topic is None else {"topic": topic})
        answered = await self._service.request("why", encode(ask))
        return decode(answered.payload, Whys).jobs

    async def delete(self, id: str, topic: str | None = None) -> bool:
        """Remove the job of this id in any state, and return whether there was one. Without `topic`, all topics are
        searched. After the return the job is not handed out again. A client that already holds it may still work on
        it."""
        ask = {"id": id, "nonce": fresh_nonce()} | ({} if topic is None else {"topic": topic})
        try:
            answered = await self._service.request("delete", encode(ask))
        except NotAccepted as refused:
            if refused.code == "not_found" and not refused.is_repeated:
                return False
            raise _unless_repeated(refused) from refused
        return decode(answered.payload, JobReply).code == "ok"

    async def kick(self, topic: str, id: str | None = None, *, most: int = 1) -> int:
        """Make the delayed job of this id due now, or up to `most` of a topic, the earliest due first. Return their
        number."""
        ask = {"topic": topic, "most": most} if id is None else {"topic": topic, "id": id}
        return decode((await self._service.request("kick", encode(ask))).payload, Kicked).kicked

    async def list(self, topic: str, state: State = "delayed", *, page: int = 100) -> AsyncIterator[Listed]:
        """Yield the topic's jobs in a state, page by page."""
        after = ""
        while True:
            ask = {"topic": topic, "state": state, "after": after, "limit": page}
            found = decode((await self._service.request("list", encode(ask))).payload, ListPage)
            for job in found.jobs:
                yield job
            after = found.after
            if not after:
                return

    async def count(self, topic: str) -> TopicCounted:
        """Return how many jobs of the topic are in each state."""
        return decode((await self._service.request("count", encode({"topic": topic}))).payload, TopicCounted)

    async def topics(self) -> builtins.list[TopicView]:
        """Return all topics that were ever used, with their settings."""
        return decode((await self._service.request("topics", b"")).payload, TopicViews).topics

    async def change_topic(self, topic: str, **values: object) -> TopicView:
        """Change settings of a topic (`ttr="90s"`, `is_paused=True`, …), and return the topic with all settings in
        force. `None`: the default. Raises NotAccepted, whose `field` names the setting, and UsageError."""
        try:
            values = as_written(values)
        except BadSetting as error:
            raise UsageError(str(error)) from error
        return decode(
            (await self._service.request("topic", encode({"topic": topic, "set": values}))).payload, TopicView
        )


# ---- what a repeat was told, where an earlier try had no answer: of that one it says nothing


def _known(answer: Added | NotAdded, is_repeated: bool) -> Added | NotAdded:
    """Return the reply to an add. It is `unknown` if the last try did nothing and an earlier one may have added the
    job."""
    if not is_repeated or answer.code == "bad" or (isinstance(answer, Added) and answer.is_new):
        return answer
    told = f"there is one of this id, {answer.state}" if isinstance(answer, Added) else answer.reason
    return NotAdded(code="unknown", reason=f"{EARLIER}: {told}", topic=answer.topic, id=answer.id)


def _in_doubt(answer: JobReply) -> JobReply:
    return replace(answer, code="unknown", reason=f"{EARLIER}: {answer.reason}")


def _unless_repeated(refused: NotAccepted) -> NotAccepted | Timeout:
    return Timeout(f"{EARLIER}: {refused}") if refused.is_repeated and refused.code != "bad" else refused
