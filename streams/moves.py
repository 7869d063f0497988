"""Moves: a thing is one message at a time, and changes its state by moving to another subject of its stream.

Each move is one publish with one condition: the last message on **any** of the thing's subjects is at the sequence
that the mover has seen (0: there is no such thing). So of two who move the same thing one is refused, whatever both
want, and nothing is made twice. The condition names the pattern of all the thing's subjects, and each mover names it
the same way: a cluster compares writes under way by that very text (tried on 2.15.1, one server and three).

The message that is left behind goes in the same step if it is a schedule (`leaves`). If it is a delivery of a consumer,
the mover acks it afterwards; should it not come to that, it is delivered again, and its next mover is refused, for the
thing has moved on.

Where an answer was lost, or the repeat of a move met its own first try, the stream's leader is asked: the move was made
if the thing's last message is on the subject meant, with just that payload. So payloads of moves that must be told
apart have to differ, by a mark or a time. One that somebody has moved on from counts as refused: whoever decides again
finds the thing as it is now.
"""

from collections.abc import Sequence
from typing import NamedTuple

from streams.connection import Connection
from streams.errors import OutcomeUnknown, RevisionConflict, StreamError
from streams.log import last_entry
from streams.outcomes import Outgoing, Receipt
from streams.publisher import Publisher
from streams.timetable import at_line

__all__ = ["Move", "Mover"]

_HEAD = "NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: "


class Move(NamedTuple):
    """Where a thing goes, and from where.

    `thing`: the pattern of all its subjects. `expected`: the sequence of its last message, 0 for none. `leaves`: the
    subject of the schedule that goes with this step. `due_ms` and `target`: it waits at `subject` as a schedule, and
    the server sends it on to `target` then. `ttl_s`: seconds until it is forgotten, from 1.
    """

    subject: str
    payload: bytes
    thing: str
    expected: int
    leaves: str = ""
    due_ms: int = 0
    target: str = ""
    ttl_s: int = 0


class Mover:
    """Moves things of one stream, which allows schedules and direct reads. Subjects have been checked."""

    def __init__(self, connection: Connection, publisher: Publisher, stream: str) -> None:
        self._connection = connection
        self._publisher = publisher
        self._stream = stream

    async def move_many(self, moves: Sequence[Move]) -> list[int | StreamError]:
        """Make the moves, sent without waiting for one another; return for each the sequence of its message, else why
        it was not made: RevisionConflict if the thing was not at `expected`, OutcomeUnknown if nobody knows."""
        outcomes = await self._publisher.try_many([_outgoing(move) for move in moves])
        return [
            outcome.seq if isinstance(outcome, Receipt) else await self._resolved(move, outcome)
            for move, outcome in zip(moves, outcomes, strict=True)
        ]

    async def move(self, move: Move) -> int:
        """Make one move and return its sequence; raise what keeps it from being made."""
        (outcome,) = await self.move_many((move,))
        if isinstance(outcome, StreamError):
            raise outcome
        return outcome

    async def _resolved(self, move: Move, end: StreamError) -> int | StreamError:
        """Return the sequence of a move that was made though it ended as `end`, else what is known by now."""
        is_unknown = isinstance(end, OutcomeUnknown)
        if not is_unknown and not (isinstance(end, RevisionConflict) and end.is_after_retry):
            return end
        try:
            last = await last_entry(self._connection, self._stream, move.thing)
        except StreamError:
            return OutcomeUnknown(f"not read back after {end}", subject=move.subject)
        at = last.seq if last else 0
        if last is not None and last.subject == move.subject and last.payload == move.payload:
            return at
        if is_unknown and at != move.expected:
            return RevisionConflict(f"wrong last sequence: {at}", subject=move.subject)
        return end  # if it is not there yet, it may still be on its way


def _outgoing(move: Move) -> Outgoing:
    """Return the move as it is published: its headers are put together here, for they are most of its cost."""
    subject, payload, thing, expected, leaves, due_ms, target, ttl_s = move
    lines = f"{_HEAD}{expected}\r\nNats-Expected-Last-Subject-Sequence-Subject: {thing}\r\n"
    if leaves:
        lines += f"Nats-Scheduler: {leaves}\r\nNats-Schedule-Next: purge\r\n"
    if due_ms:
        lines += f"Nats-Schedule: {at_line(due_ms)}\r\nNats-Schedule-Target: {target}\r\n"
    if ttl_s:
        lines += f"Nats-TTL: {ttl_s}s\r\n"
    return Outgoing(subject, payload, block=f"{lines}\r\n".encode())
