"""Tells whether the server has fired a job once more after a crash, which it had fired or removed before.

What a handler ran leaves no trace. But of what the server fired after a restart, all that was due below the mark
of its last life (firing_mark.py) was fired in that life. And what was ended or deleted before left a record.
"""

from __future__ import annotations

from typing import NamedTuple

import anyio
import msgspec

from actors.jobs.rules.job_rules import fires_of, is_in_past
from streams.clock import Clock
from streams.connection import Connection
from streams.delivery import Delivery
from streams.errors import MalformedMessage
from streams.firing import EXPECTED, SCHEDULER, SHOT
from streams.job_messages import FREE_TOKEN, Job, decode_done, decode_job
from streams.log import last_entries, last_entry
from streams.subjects import Namespace, token_of

__all__ = ["Mark", "Refirings", "Restart", "decode_mark", "marks"]

KNOWN_S = 10.0
"""How long after a restart its mark is waited for: a killed leader is followed within five seconds."""
LOOK_S = 0.2


class Restart(NamedTuple):
    """What the server stores from `from_ms` on belongs to its next life. In the one before it had fired all that was
    to be fired until `fired_ms`."""

    from_ms: int
    fired_ms: int


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The mark `fired_ms` of the life `server` of the server, and the restarts before it. The mark itself is due
    at `due_ms`."""

    server: str
    due_ms: int
    fired_ms: int = 0
    restarts: tuple[Restart, ...] = ()


def marks(namespace: Namespace) -> tuple[str, str, str]:
    """Return the subject of the mark that waits, the subject of the one that was fired, and the pattern of both."""
    waiting, fired = namespace.subject("jobs", "mark", "next"), namespace.subject("jobs", "mark", "fired")
    return waiting, fired, namespace.pattern("jobs", "mark", "*")


def decode_mark(payload: bytes) -> Mark | None:
    """Return the mark, None for what is none."""
    try:
        return msgspec.json.decode(payload, type=Mark)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class Refirings:
    """Of one connection. `clock` is the server's."""

    def __init__(self, connection: Connection, namespace: Namespace, clock: Clock) -> None:
        self._connection = connection
        self._namespace = namespace
        self._clock = clock
        self._stream = namespace.stream("JOBS")
        self._server: str | None = None
        self._restarts: tuple[Restart, ...] = ()

    def may_be(self, delivery: Delivery) -> bool:
        """Return whether a ready job has to be looked at: the server fired it, and was started anew since it was
        added."""
        is_known = self._server == self._connection.memory
        if (is_known and not self._restarts) or self._connection.is_clustered or not _is_by_server(delivery):
            return False
        return not is_known or delivery.stored_ms >= self._restarts[0].from_ms

    async def is_one(self, delivery: Delivery) -> bool:
        """Return whether the job was fired, ended or deleted before the server's last start, and is fired once more.
        Waits for the mark after a restart, up to KNOWN_S. Raises NoStream, Disconnected."""
        if not self.may_be(delivery):
            return False
        await self._look()
        try:
            job = decode_job(delivery.payload)
        except MalformedMessage:
            return False
        now_ms, stored_ms = self._clock.now_ms(), delivery.stored_ms
        before = [one for one in self._restarts if one.from_ms <= stored_ms and one.fired_ms <= now_ms]
        if not before or job.added_ms >= before[-1].from_ms:
            return False
        if fires_of(job) <= max(one.fired_ms for one in before):
            return True
        return await self._was_over(job, before[-1].from_ms)

    async def _was_over(self, job: Job, before_ms: int) -> bool:
        """Return whether a record from before the restart says that just this job is over."""
        key = token_of(job.id)
        subjects = [self._namespace.job(token, job.topic, key) for token in ("done", FREE_TOKEN)]
        for entry in (await last_entries(self._connection, self._stream, subjects)).values():
            try:
                done = decode_done(entry.payload)
            except MalformedMessage:
                continue
            if entry.stored_ms < before_ms and is_in_past(done, job.nonce):
                return True
        return False

    async def _look(self) -> None:
        """Know the restarts of the server that we are linked to."""
        while self._server != (server := self._connection.memory):
            entry = await last_entry(self._connection, self._stream, marks(self._namespace)[2])
            mark = decode_mark(entry.payload) if entry else None
            if mark is None or mark.server == server:
                self._server, self._restarts = server, mark.restarts if mark else ()
            elif self._connection.memory_age_s > KNOWN_S:  # nobody writes marks: rather twice than never
                self._restarts = mark.restarts
                return
            else:
                await anyio.sleep(LOOK_S)


def _is_by_server(delivery: Delivery) -> bool:
    """Return whether the server fired it by itself: a timer's copy and a move have headers of their own."""
    return delivery.has_header(SCHEDULER) and not (delivery.has_header(SHOT) or delivery.has_header(EXPECTED))
