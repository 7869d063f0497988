"""Fires delayed jobs ahead of the server's own schedule: one conditional publish each, pipelined, sent once.

One step stores the fired job on the schedule's target and removes the schedule. Its condition: the job's last message,
in any state, is still the one that was read. The publish is **never repeated**. A repeat after a silence or a reconnect
could meet the server's own firing, which does not look again at what it has loaded (ADR 14), and the server fires lost
ones anyway. So the publisher, which repeats, is not used here.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Literal, NamedTuple, Self

from streams.clock import monotonic_s
from streams.errors import Disconnected, RevisionConflict, StreamError, no_responders
from streams.jobs.delayed import WaitingJob
from streams.link.connection import Connection
from streams.link.frames import check_size, publish_frame, status_of
from streams.publish.outcomes import Receipt, outcome_of
from streams.subjects import Namespace

WINDOW = 256
"""The most shots on their way: their own queue at the server is part of a round trip."""
SLOW = 2
"""The window after `slow_down`. Each answer widens it by one."""
SILENT_S = 2.0
"""Seconds after which a shot counts as lost."""
SHOT = b"Penstock-Shot"
"""Header of a message that a timer made ready. The server's own firings have none."""
SCHEDULER = b"Nats-Scheduler"
EXPECTED = b"Nats-Expected-Last-Subject-Sequence"
"""Our own moves have this header and SCHEDULER. A message that the server fired has SCHEDULER alone."""
_HEAD = "NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: "
_NEVER = 2**63 - 1
"""The sequence of no message."""

End = Literal["fired", "gone", "refused", "lost"]
"""gone: fired, cancelled or replaced before."""


class Shot(NamedTuple):
    """A job ready to be fired: everything is put together ahead of its time."""

    due_ms: int
    server_ms: float
    name: bytes
    subject: str
    block: bytes
    payload: bytes


class Firing:
    """An async context manager over a connection. It calls `ended(shot, how, trip_s, error)` for each shot that it
    sent, and `tried(trip_s)` for each answered publish of `try_trip`. The callbacks are short and do not raise."""

    def __init__(
        self,
        connection: Connection,
        namespace: Namespace,
        ended: Callable[[Shot, End, float, StreamError | None], None],
        tried: Callable[[float], None],
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._ended = ended
        self._tried = tried
        self._tries: dict[int, float] = {}
        self._sent: dict[int, tuple[Shot, float]] = {}
        self._number = 0
        self._window = WINDOW

    async def __aenter__(self) -> Self:
        self._inbox = f"{self._connection.new_inbox()}."
        self._sid = self._connection.listen(f"{self._inbox}*", self._answered)
        self._remove = self._connection.on_disconnect(self._lose_all)
        self._tries.clear()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        self._connection.unlisten(self._sid)
        self._sent.clear()

    def load(self, job: WaitingJob) -> Shot:
        """Return the shot that fires the job. Raises TooLarge."""
        name = job.name.decode()
        delayed = f"{self._first(name)}.delayed.{name}"
        block = (
            f"{_HEAD}{job.seq}\r\n"
            f"Nats-Expected-Last-Subject-Sequence-Subject: {self._first(name)}.*.{name}\r\n"
            f"Nats-Scheduler: {delayed}\r\nNats-Schedule-Next: purge\r\n{SHOT.decode()}: 1\r\n{job.own}\r\n"
        ).encode()
        check_size(job.target, block, job.payload, self._connection.max_payload)
        return Shot(job.due_ms, job.server_ms, job.name, job.target, block, job.payload)

    @property
    def room(self) -> int:
        """How many more shots may be sent now. 0 or less: the link is down, or too many are on their way."""
        return self._window - len(self._sent) if self._connection.is_connected else 0

    def slow_down(self) -> None:
        """Have few shots on their way, until the server answers as fast as before."""
        self._window = SLOW

    @property
    def in_flight(self) -> int:
        """Shots sent and not yet answered."""
        return len(self._sent)

    @property
    def oldest_s(self) -> float:
        """Seconds that the oldest shot has been on its way, 0.0 if there is none."""
        return next((monotonic_s() - sent_s for _, sent_s in self._sent.values()), 0.0)

    def fire(self, shot: Shot) -> None:
        """Send the shot now. Raises Disconnected or ConnectionLost if it was certainly not sent.

        While the link is down the client would keep it for the reconnect, long after the server's own firing."""
        if not self._connection.client.is_connected:
            raise Disconnected("the link is down, and a shot must not wait for it")
        self._number = number = self._number + 1
        frame = publish_frame(shot.subject, f"{self._inbox}{number}", shot.block, shot.payload)
        self._connection.client.send(frame)
        self._sent[number] = shot, monotonic_s()

    def try_trip(self, shot: Shot) -> None:
        """Learn how long the server takes for a publish: send one that goes the way of the shot, and cannot be stored.
        Raises Disconnected or ConnectionLost if it was not sent."""
        self._number = number = self._number + 1
        name = shot.name.decode()
        names = f"{self._first(name)}.*.{name}"
        block = f"{_HEAD}{_NEVER}\r\nNats-Expected-Last-Subject-Sequence-Subject: {names}\r\n\r\n".encode()
        self._connection.client.send(publish_frame(shot.subject, f"{self._inbox}{number}", block, b""))
        self._tries = {number: monotonic_s()}

    def _first(self, name: str) -> str:
        return f"{self._namespace.name}.{self._namespace.jobs_first(name.partition('.')[0])}"

    def lose_silent(self) -> None:
        """Give up shots that were never answered. Called at intervals."""
        since_s = monotonic_s() - SILENT_S
        for number, (shot, sent_s) in tuple(self._sent.items()):
            if sent_s > since_s:
                break
            self._end(number, shot, "lost", SILENT_S, None)

    def _answered(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        number = int(subject[len(self._inbox) :])
        if number in self._tries:
            self._tried(monotonic_s() - self._tries.pop(number))
        if number not in self._sent:
            return
        shot, sent_s = self._sent[number]
        self._window = min(self._window + 1, WINDOW)
        trip_s = monotonic_s() - sent_s
        if status_of(block)[0]:
            self._end(number, shot, "refused", trip_s, no_responders(shot.subject))
            return
        outcome = outcome_of(payload, shot.subject)
        if isinstance(outcome, Receipt):
            self._end(number, shot, "fired", trip_s, None)
        else:
            how: End = "gone" if isinstance(outcome, RevisionConflict) else "refused"
            self._end(number, shot, how, trip_s, outcome)

    def _lose_all(self) -> None:
        for number, (shot, sent_s) in tuple(self._sent.items()):
            self._end(number, shot, "lost", monotonic_s() - sent_s, None)

    def _end(self, number: int, shot: Shot, how: End, trip_s: float, error: StreamError | None) -> None:
        del self._sent[number]
        self._ended(shot, how, trip_s, error)
