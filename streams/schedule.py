"""Later delivery: a stored message that the server itself sends to its target subject when it is due.

The schedule's subject is its identity: one message there is one schedule, and a second one replaces it. The target is
another subject of the same stream. The server fires 0 to 250 ms late, never early. Schedules survive a killed server. A
one-shot schedule is removed in the same step as it fires, so it fires once. A schedule that is due within 250 ms, or
was due before, fires up to 250 ms after it was stored. For waits below half a second keep a timer of your own.

**The server does not check once more.** It loads what is due, then stores it. A schedule that is fired, cancelled or
replaced in between is delivered all the same. Measured on 2.15.1: timers fired 4,000 schedules by `fire_now` at the
very time at which the server would, and 6 were delivered twice. Of cancels at that moment, one in each run came too
late although it was reported as done. With the server's time 500 ms after the timers' there were none. So a caller that
fires on time gives the schedule a due time `BACKSTOP_MS` later than meant, fires at the meant time, and after that
leaves it to the server. A consumer that gets a delivery close to a cancel checks whether it is still wanted. The delay
timer sends nothing late and waits for the server's answers, so 35 ms are enough for it (ADR 14).

The server acts with its own authority within the stream: a client that may publish to any subject of a stream with
schedules may, by a schedule, publish to all of them. Such a stream is one zone of trust.

Every condition is on the schedule's own sequence, as `Pending.seq` and the writes return it. 0 means that there must be
none. If an answer was lost, marked.py finds out what became of the write.
"""

from collections.abc import Mapping
from typing import NamedTuple

from streams.connection import Connection
from streams.errors import MalformedHeader, Refused, RevisionConflict
from streams.frames import check_subject
from streams.marked import MarkedWriter
from streams.publisher import Publisher
from streams.timetable import BadSchedule, at_line, check_tz, cron_line, every_line

BACKSTOP_MS = 500
"""Milliseconds between our timer and the server's own firing, so that the two never meet."""
_NOT_FOUND = (10057, 10043)  # no such message, deleted already
_INVALID = {
    10188: "schedules in this stream",
    10189: "the time",
    10190: "the target",
    10191: "the time to live",
    10223: "the time zone",
}


class Pending(NamedTuple):
    """A schedule that waits. `line` is `@at …`, `@every …` or a cron line."""

    seq: int
    line: str
    target: str
    tz: str
    payload: bytes


class Schedules:
    """The schedules of one stream, which must have `allow_msg_schedules` (and `allow_msg_ttl` for `fired_ttl_s`)."""

    def __init__(self, connection: Connection, publisher: Publisher, stream: str) -> None:
        self._connection = connection
        self._publisher = publisher
        self._stream = stream
        self._writer = MarkedWriter(connection, publisher, stream)

    async def at(
        self,
        subject: str,
        target: str,
        payload: bytes,
        *,
        due_ms: int,
        expected_seq: int | None = None,
        headers: Mapping[str, str] | None = None,
        fired_ttl_s: int | None = None,
    ) -> int:
        """Have `payload` delivered to `target` at `due_ms`. Return the schedule's sequence.

        It replaces the schedule under `subject`. `expected_seq` 0: only if there is none. Another number: only exactly
        that schedule (RevisionConflict). `headers` travel along. `fired_ttl_s`: seconds after which the delivered
        message is dropped. Raises BadSchedule, MalformedSubject, MalformedHeader, and the errors of Publisher.publish.
        """
        return await self._store(subject, target, payload, at_line(due_ms), "", expected_seq, headers, fired_ttl_s)

    async def every(
        self,
        subject: str,
        target: str,
        payload: bytes,
        *,
        every_ms: int,
        expected_seq: int | None = None,
        headers: Mapping[str, str] | None = None,
        fired_ttl_s: int | None = None,
    ) -> int:
        """Have `payload` delivered each `every_ms` (at least 1,000), first in `every_ms`. Otherwise as `at`."""
        return await self._store(subject, target, payload, every_line(every_ms), "", expected_seq, headers, fired_ttl_s)

    async def cron(
        self,
        subject: str,
        target: str,
        payload: bytes,
        *,
        expression: str,
        tz: str = "",
        expected_seq: int | None = None,
        headers: Mapping[str, str] | None = None,
        fired_ttl_s: int | None = None,
    ) -> int:
        """Have `payload` delivered by a cron line of six fields, by the clock of `tz` (default UTC). Otherwise as
        `at`."""
        line, tz = cron_line(expression), tz and check_tz(tz)
        return await self._store(subject, target, payload, line, tz, expected_seq, headers, fired_ttl_s)

    async def cancel(self, subject: str, *, seq: int | None = None) -> bool:
        """Remove the schedule, with `seq` only exactly that one. Return whether there was one to remove.

        False: it has fired, was replaced, was cancelled, or never was. True within a few milliseconds of its time may
        come with a delivery that was under way. OutcomeUnknown: call it again.
        """
        if seq is None:
            answer = await self._connection.api(f"STREAM.PURGE.{self._stream}", {"filter": check_subject(subject)})
            return bool(answer.get("purged"))
        try:
            await self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", {"seq": seq, "no_erase": True})
        except Refused as refused:
            if refused.err_code not in _NOT_FOUND:
                raise
            return False
        return True

    async def fire_now(
        self,
        subject: str,
        target: str,
        payload: bytes,
        *,
        seq: int,
        headers: Mapping[str, str] | None = None,
        ttl_s: int | None = None,
    ) -> bool:
        """Deliver the schedule now and remove it, in one step. Return whether this call did it.

        False: the schedule is not at `seq` any more, so it has fired (here or by the server), was replaced or was
        cancelled. Call it well before the schedule's own time (see above), or both may deliver. Raises OutcomeUnknown:
        call it again. False then means that it was done.
        """
        conditions = {
            **_own(headers),
            "Nats-Scheduler": check_subject(subject),
            "Nats-Schedule-Next": "purge",
        }
        try:
            await self._writer.write(
                check_subject(target), payload, expected=seq, expected_of=subject, headers=conditions, ttl_s=ttl_s
            )
        except RevisionConflict:
            return False
        return True

    async def pending(self, subject: str) -> Pending | None:
        """Return the schedule that waits under `subject`, None if none does."""
        answer = await self._connection.request(f"$JS.API.DIRECT.GET.{self._stream}.{check_subject(subject)}")
        headers = answer.headers
        if answer.status or "Nats-Schedule" not in headers:
            return None
        return Pending(
            seq=int(headers["Nats-Sequence"]),
            line=headers["Nats-Schedule"],
            target=headers.get("Nats-Schedule-Target", ""),
            tz=headers.get("Nats-Schedule-Time-Zone", ""),
            payload=answer.payload,
        )

    async def _store(
        self,
        subject: str,
        target: str,
        payload: bytes,
        line: str,
        tz: str,
        expected_seq: int | None,
        headers: Mapping[str, str] | None,
        fired_ttl_s: int | None,
    ) -> int:
        schedule = _schedule_headers(subject, target, line, tz, fired_ttl_s) | _own(headers)
        try:
            if expected_seq is not None:
                return await self._writer.write(subject, payload, expected=expected_seq, headers=schedule)
            mark = self._writer.next_mark()
            return (await self._publisher.publish(subject, payload, message_id=mark, headers=schedule)).seq
        except Refused as refused:
            if refused.err_code not in _INVALID:
                raise
            what = _INVALID[refused.err_code]
            raise BadSchedule(
                f"schedule {subject} ({line}{tz and f', {tz}'}) to {target}: the server refuses {what}: "
                f"{refused.description}; {self._stream} must allow schedules and take the target, the time must come"
            ) from refused


def _schedule_headers(subject: str, target: str, line: str, tz: str, fired_ttl_s: int | None) -> dict[str, str]:
    if check_subject(target) == check_subject(subject):
        raise BadSchedule(f"schedule {subject}: its target is itself; use another subject of the same stream")
    if fired_ttl_s is not None and fired_ttl_s < 1:
        raise BadSchedule(f"schedule {subject}: fired_ttl_s {fired_ttl_s!r}: whole seconds, at least 1")
    headers = {"Nats-Schedule": line, "Nats-Schedule-Target": target}
    if tz:
        headers["Nats-Schedule-Time-Zone"] = tz
    if fired_ttl_s is not None:
        headers["Nats-Schedule-TTL"] = f"{fired_ttl_s}s"
    return headers


def _own(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the caller's headers. Refuse headers that would command the server."""
    for name in headers or ():
        if name.lower().startswith("nats-"):
            raise MalformedHeader(f"header {name!r}: names that start with Nats- are the server's")
    return dict(headers or {})
