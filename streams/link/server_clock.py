"""The server's clock, as far as a client can know it. Due times and TTR ends go by it, not by a node's own clock.

A node's clock may be off by seconds, and each node's by another amount. So the offset is measured. The stream's leader
fires the schedules and stamps the messages by its clock. Where several streams have jobs, the slowest of their leaders'
clocks is taken: what is due by it is due by each. It is asked for its time (`STREAM.INFO` carries it, to the
nanosecond), a few times in a row. The leader writes its answer before it arrives, so at the arrival the server's clock
is at least what the answer says. The highest of these lower bounds counts. So **this clock is never ahead of the
server's**, and what is due by it is due by the server's. It is behind by the answer's way back, 0.1 to 0.3 ms on one
machine.

An earlier measurement stays unless an answer contradicts it. After slow answers the clock asks again: while a node
starts, and on a busy machine, all of a few answers may be late by a quarter of a second.

Between measurements, and over jumps of the local wall clock, time goes by the monotonic clock. The offset is measured
again every `EVERY_S` and after each reconnect, which may have led to another leader. If a new measurement is less by up
to `HOLD_MS`, the clock stands still instead of going back. If it is less by more, the server's clock was set, and this
clock goes back too.

Before the first measurement, and if none succeeds, it is the local wall clock, and the log says so once.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import anyio
from anyio.abc import TaskStatus

from streams.clock import monotonic_s, now_ms, until_turn_s
from streams.errors import ConnectionLost, MalformedMessage, PermissionDenied, StreamError
from streams.link.connection import Connection

log = logging.getLogger(__name__)

EVERY_S = 10.0
"""Two good quartz clocks differ by at most a millisecond after this time."""
SAMPLES, MOST_SAMPLES = 5, 20
GOOD_S = 0.010
"""Requests are repeated until an answer took no longer than this. While a node starts or its machine is busy most
answers take longer, and the clock would be behind by as much: a receipt would count for too long."""
DRIFT = 1e-4
"""How much two clocks may drift apart, as a share of the time that passes."""
FIRST_S = 2.0
"""Seconds that a start waits for the first measurement."""
AGAIN_S = 1.0
HOLD_MS = 50
TELL_MS = 1_000
"""A local clock this far off is worth a report."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetBounds(NamedTuple):
    """Bounds of the server's wall clock minus our monotonic one, by one answer."""

    low_s: float
    high_s: float


def ahead_s(samples: Sequence[OffsetBounds], before_s: float | None) -> float:
    """Return how far the server's clock is ahead of ours at least. The offset known before stays if it is more and no
    answer contradicts it, since slow answers say less."""
    low_s, high_s = max(one.low_s for one in samples), min(one.high_s for one in samples)
    return low_s if before_s is None or before_s > high_s else max(low_s, before_s)


def _best_s(samples: Sequence[OffsetBounds]) -> float:
    return min(one.high_s - one.low_s for one in samples)


class ServerClock:
    """A `Clock`. It is usable at once, and exact once `run` has measured. It is cheap to read."""

    def __init__(self, connection: Connection, streams: Sequence[str]) -> None:
        """`streams`: the full names of the streams whose leaders' clocks count."""
        self._connection = connection
        self._streams = streams
        self._ahead_s: float | None = None  # the server's wall clock minus our monotonic clock
        self._measured: dict[str, tuple[float, float]] = {}  # the same of each leader, and when that was measured
        self._latest_ms = 0
        self._told: str | None = None
        self._measure_now = anyio.Event()

    @property
    def is_measured(self) -> bool:
        """Whether a measurement has succeeded. If not, this is the local clock."""
        return self._ahead_s is not None

    @property
    def offset_ms(self) -> float:
        """The server's clock minus the local wall clock, to a millisecond. 0.0 as long as nothing was measured."""
        return 0.0 if self._ahead_s is None else (monotonic_s() + self._ahead_s) * 1000 - now_ms()

    def now_ms(self) -> int:
        """Return the server's time as whole milliseconds UTC, rounded down."""
        if self._ahead_s is None:
            return now_ms()
        at_ms = int((monotonic_s() + self._ahead_s) * 1000)
        if at_ms > self._latest_ms or at_ms < self._latest_ms - HOLD_MS:
            self._latest_ms = at_ms
        return self._latest_ms

    def seconds_until(self, at_ms: int) -> float:
        """Return the seconds until the server's clock shows `at_ms`. Negative when it is past."""
        if self._ahead_s is None:
            return (at_ms - now_ms()) / 1000
        return at_ms / 1000 - self._ahead_s - monotonic_s()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Measure for ever. Started after the first measurement, or when that takes too long. Raises ConnectionLost,
        PermissionDenied."""
        remove = self._connection.on_reconnect(lambda: self._measure_now.set())
        try:
            with anyio.move_on_after(FIRST_S):
                await self._try_to_measure()
            task_status.started()
            while True:
                with anyio.move_on_after(until_turn_s(EVERY_S if self.is_measured else AGAIN_S)):
                    await self._measure_now.wait()
                self._measure_now = anyio.Event()
                await self._try_to_measure()
        finally:
            remove()

    async def measure(self) -> None:
        """Measure now. Raises Disconnected, OutcomeUnknown, NoStream and the other errors of `Connection.api`."""
        before_s = self._ahead_s
        for stream in self._streams if self._connection.is_clustered else self._streams[:1]:
            await self._measure(stream)
        assert self._ahead_s is not None
        offset_ms = self.offset_ms
        if before_s is None and abs(offset_ms) > TELL_MS:
            log.warning("clock.differs", extra={"fields": {"server_minus_local_ms": round(offset_ms)}})
        elif before_s is not None and abs(self._ahead_s - before_s) * 1000 > HOLD_MS:
            moved_ms = round((self._ahead_s - before_s) * 1000)
            log.warning("clock.server_moved", extra={"fields": {"moved_ms": moved_ms}})
        self._told = None

    async def _measure(self, stream: str) -> None:
        samples: list[OffsetBounds] = []
        before = self._measured.get(stream)
        while len(samples) < SAMPLES or (_best_s(samples) > GOOD_S and len(samples) < MOST_SAMPLES):
            samples.append(await self._sample(stream))
            if len(samples) >= SAMPLES:
                at_s = monotonic_s()
                before_s = None if before is None else before[0] - DRIFT * (at_s - before[1])
                self._measured[stream] = ahead_s(samples, before_s), at_s
                self._ahead_s = min(leader_ahead_s for leader_ahead_s, _ in self._measured.values())

    async def _sample(self, stream: str) -> OffsetBounds:
        asked_s = monotonic_s()
        answer = await self._connection.api(f"STREAM.INFO.{stream}")
        answered_s = monotonic_s()
        told_s = server_time_s(answer.get("ts"))
        return OffsetBounds(told_s - answered_s, told_s - asked_s)

    async def _try_to_measure(self) -> None:
        try:
            await self.measure()
        except (ConnectionLost, PermissionDenied):
            raise
        except StreamError as error:
            self._tell_unmeasured(str(error))

    def _tell_unmeasured(self, reason: str) -> None:
        if self._told != reason:
            self._told = reason
            used = "the last measurement" if self.is_measured else "the local clock"
            log.warning("clock.not_measured", extra={"fields": {"used": used, "reason": reason}})


def server_time_s(text: object) -> float:
    """Return a time as the server writes it (RFC 3339, up to nanoseconds) in seconds since 1970, to the microsecond.
    Raises MalformedMessage."""
    try:
        return (datetime.fromisoformat(str(text)) - _EPOCH) / timedelta(seconds=1)
    except (ValueError, TypeError) as error:
        raise MalformedMessage(f"the server's time {str(text)[:80]!a} cannot be read: {error}") from error
