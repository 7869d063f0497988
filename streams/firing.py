"""Fires delayed jobs ahead of the server's own schedule: one conditional publish each, pipelined, sent once.

A fired job is stored on the schedule's target, and the schedule removed, in one step; the condition is that the job's
last message, in whatever state, is still the one that was read. The publish is **never repeated**: a repeat after a
silence or a reconnect could meet the server's own firing, which does not look again at what it has loaded (ADR 14), and
what got lost the server fires anyway. So this is no case for the publisher, which repeats.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Literal, NamedTuple, Self

from streams.clock import monotonic_s
from streams.connection import Connection
from streams.delayed_jobs import WaitingJob
from streams.errors import Disconnected, RevisionConflict, StreamError, no_responders
from streams.frames import check_size, publish_frame, status_of
from streams.outcomes import Receipt, outcome_of
from streams.subjects import Namespace

WINDOW = 256
"""Shots on their way at most: their own queue at the server is part of a round trip."""
SLOW = 2
"""So many after `slow_down`; each answer lets in one more."""
SILENT_S = 2.0
"""After this a shot counts as lost."""
SHOT = b"Penstock-Shot"
SCHEDULER = b"Nats-Scheduler"
EXPECTED = b"Nats-Expected-Last-Subject-Sequence"
"""Moves of ours have both; what the server fired has the first alone."""
"""Header of what a timer made ready. The server's own firings have none."""
_HEAD = "NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: "

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
    """An async context manager over a connection. `ended(shot, how, trip_s, error)` is called for each that was sent;
    it is short and does not raise."""

    def __init__(
        self,
        connection: Connection,
        namespace: Namespace,
        ended: Callable[[Shot, End, float, StreamError | None], None],
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._ended = ended
        self._sent: dict[int, tuple[Shot, float]] = {}
        self._number = 0
        self._window = WINDOW

    async def __aenter__(self) -> Self:
        self._inbox = f"{self._connection.new_inbox()}."
        self._sid = self._connection.listen(f"{self._inbox}*", self._answered)
        self._remove = self._connection.on_disconnect(self._lose_all)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        self._connection.unlisten(self._sid)
        self._sent.clear()

    def load(self, job: WaitingJob) -> Shot:
        """Return what fires the job. Raises TooLarge."""
        name = job.name.decode()
        delayed = f"{self._namespace.name}.jobs.delayed.{name}"
        block = (
            f"{_HEAD}{job.seq}\r\n"
            f"Nats-Expected-Last-Subject-Sequence-Subject: {self._namespace.name}.jobs.*.{name}\r\n"
            f"Nats-Scheduler: {delayed}\r\nNats-Schedule-Next: purge\r\n{SHOT.decode()}: 1\r\n{job.own}\r\n"
        ).encode()
        check_size(job.target, block, job.payload, self._connection.max_payload)
        return Shot(job.due_ms, job.server_ms, job.name, job.target, block, job.payload)

    @property
    def room(self) -> int:
        """How many more may be sent now; none (or less) while the link is down, or too many are on their way."""
        return self._window - len(self._sent) if self._connection.is_connected else 0

    def slow_down(self) -> None:
        """Have few on their way, until the server answers as it used to."""
        self._window = SLOW

    @property
    def in_flight(self) -> int:
        """Shots sent and not yet answered."""
        return len(self._sent)

    @property
    def oldest_s(self) -> float:
        """For how long the oldest shot has been on its way; 0.0 if there is none."""
        return next((monotonic_s() - sent_s for _, sent_s in self._sent.values()), 0.0)

    def fire(self, shot: Shot) -> None:
        """Send it now. Raises Disconnected or ConnectionLost if it was certainly not sent.

        While the link is down the client would keep it for the reconnect, long after the server's own firing."""
        if not self._connection.client.is_connected:
            raise Disconnected("the link is down, and a shot must not wait for it")
        self._number = number = self._number + 1
        frame = publish_frame(shot.subject, f"{self._inbox}{number}", shot.block, shot.payload)
        self._connection.client.send(frame)
        self._sent[number] = shot, monotonic_s()

    def lose_silent(self) -> None:
        """Give up those that were never answered; called now and then."""
        since_s = monotonic_s() - SILENT_S
        for number, (shot, sent_s) in tuple(self._sent.items()):
            if sent_s > since_s:
                break
            self._end(number, shot, "lost", SILENT_S, None)

    def _answered(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        number = int(subject[len(self._inbox) :])
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
