"""Moves: a thing is one message at a time, and changes its state by moving to another subject of its stream.

Each move is one publish with one condition: the last message on **any** of the thing's subjects is at the sequence that
the mover has seen (0: there is no such thing). So if two movers move the same thing, the server refuses one of them,
and nothing is made twice. The condition names the pattern of all the thing's subjects, and each mover names it the same
way: a cluster compares writes under way by that very text (tried on 2.15.1, one server and three).

In a cluster a move is also refused while another is under way (10164), which may yet be dropped with its leader. So it
is tried again until the other is made or gone. It is reported that a thing has moved on only when it has, since the
caller then lets the thing go.

The leader of a cluster may also be behind. Another server delivers what it has stored, and the leader may not have
stored it yet. If the server itself made that message, by a schedule, the leader refuses its next move: the thing's last
sequence is an earlier one than expected (29 of 244,000 firings on three servers without any fault). So a refusal by an
earlier sequence counts only if it came from a leader that was known to have the expected message.

If the message that is left behind is a schedule, it goes in the same step (`leaves`). If it is a delivery of a
consumer, the mover acks it afterwards. If the ack fails, it is delivered again, and its next mover is refused, since
the thing has moved on.

"There is none" (0) is true again once the thing is gone. So a move that makes a thing carries a message id too, and is
not repeated if the server may have forgotten that id (streams/publish/publisher.py). Then its outcome is unknown.

If an answer was lost, or the repeat of a move met its own first try, the mover reads from the stream's leader: the move
was made if the thing's last message is on the subject meant, with just that payload. So payloads of moves that must be
told apart have to differ, by a mark or a time. If another mover has moved the thing on, the move counts as refused
`is_after_retry`: the caller decides again from the thing as it is now, and must not report that nothing was done.
"""

import math
from asyncio import Future
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import anyio
from msgspec import Struct

from streams.errors import OutcomeUnknown, Refused, Repeated, RevisionConflict, StreamError
from streams.jobs.timetable import at_line
from streams.link.connection import Connection
from streams.publish.outcomes import Outgoing, Receipt
from streams.publish.publisher import Publisher
from streams.reads.log import extent_of, last_entry

PAUSES_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Waits while another move is under way, or the leader is behind."""
_UNDER_WAY = 10164
_HEAD = "NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: "


class Move(Struct, frozen=True, gc=False):
    """Where a thing goes, and from where.

    `thing`: the pattern of all its subjects. `expected`: the sequence of its last message, 0 for none. `leaves`: the
    subject of the schedule that goes with this step. `due_ms` and `target`: it waits at `subject` as a schedule, and
    the server sends it to `target` then. `ttl_s`: seconds until it is forgotten, from 1. `message_id`: for a move that
    makes a thing, since "there is none" is true again once the thing is gone. `fires_ms`: when the server fires the
    schedule that is left. A move that is stored later than that may be followed by the firing. `lead_ms`: how long
    before `due_ms` the thing itself is due, and may leave its schedule.
    """

    subject: str
    payload: bytes
    thing: str
    expected: int
    leaves: str = ""
    due_ms: int = 0
    target: str = ""
    ttl_s: int = 0
    message_id: str = ""
    fires_ms: int = 0
    lead_ms: int = 0


class Mover:
    """Moves things of streams that allow schedules and direct reads, each within its stream. `stream_of`: returns the
    stream of a subject. The caller has checked the subjects."""

    def __init__(self, connection: Connection, publisher: Publisher, stream_of: Callable[[str], str]) -> None:
        self._connection = connection
        self._publisher = publisher
        self._stream_of = stream_of

    async def move_many(self, moves: Sequence[Move], *, until_s: float = math.inf) -> list[int | StreamError]:
        """Make the moves, sent without waiting for one another. Return for each the sequence of its message, or the
        reason why it was not made: RevisionConflict if the thing was not at `expected`, Repeated if the server knows
        its message id, OutcomeUnknown if the outcome is not known. Nothing is sent after `until_s` of the monotonic
        clock."""
        outcomes = await self._publisher.try_many([_outgoing(move) for move in moves], until_s=until_s)
        return await self.ended(moves, outcomes, until_s=until_s)

    def start(self, move: Move, *, until_s: float = math.inf) -> "Future[Receipt | StreamError] | None":
        """Send a move, and return the future of its outcome, for `ended`. None: there is no room, see
        `Publisher.start`."""
        return self._publisher.start(_outgoing(move), until_s=until_s)

    async def ended(
        self, moves: Sequence[Move], outcomes: list[Receipt | StreamError], *, until_s: float = math.inf
    ) -> list[int | StreamError]:
        """Return what `move_many` does for moves that were sent, by the outcomes of their messages."""
        made: list[int | StreamError]
        made = [one.seq for one in outcomes if type(one) is Receipt and not one.is_duplicate]
        if len(made) == len(outcomes):  # most often
            return made
        if self._connection.is_clustered:
            outcomes = [_unless_behind(move, outcome, 0) for move, outcome in zip(moves, outcomes, strict=True)]
        doubtful = {at for at, outcome in enumerate(outcomes) if _may_be_ours(outcome)}
        doubtful |= await self._wait_for_others(moves, outcomes, until_s)
        return [
            _made(move, outcome)
            if isinstance(outcome, Receipt)
            else await self._resolved(move, outcome, at in doubtful)
            for at, (move, outcome) in enumerate(zip(moves, outcomes, strict=True))
        ]

    async def _wait_for_others(
        self, moves: Sequence[Move], outcomes: list[Receipt | StreamError], until_s: float
    ) -> set[int]:
        """Make those moves again that were refused because another is under way, or because the leader is behind,
        until that is over. Return which of them may have met themselves: their own first try, or one that a leader
        refused while the one that followed it stored it."""
        doubtful: set[int] = set()
        for pause_s in PAUSES_S:
            waiting = [at for at, outcome in enumerate(outcomes) if _is_under_way(outcome)]
            if not waiting:
                break
            await anyio.sleep(pause_s)
            stored = await self._stored_seqs({self._stream_of(moves[at].subject) for at in waiting})
            again = await self._publisher.try_many([_outgoing(moves[at]) for at in waiting], until_s=until_s)
            for at, outcome in zip(waiting, again, strict=True):
                outcomes[at] = _unless_behind(moves[at], outcome, stored.get(self._stream_of(moves[at].subject), 0))
                doubtful |= {at} if _may_be_ours(outcome) or not _is_under_way(outcomes[at]) else set()
        return doubtful

    async def move(self, move: Move) -> int:
        """Make one move and return its sequence. Raise what keeps it from being made."""
        (outcome,) = await self.move_many((move,))
        if isinstance(outcome, StreamError):
            raise outcome
        return outcome

    async def _stored_seqs(self, streams: Iterable[str]) -> dict[str, int]:
        """Return up to which sequence the leader of each stream has stored messages. One that does not tell is left
        out."""
        found: dict[str, int] = {}
        for stream in streams:
            with suppress(StreamError):
                found[stream] = (await extent_of(self._connection, stream)).last_seq
        return found

    async def _resolved(self, move: Move, end: StreamError, is_doubtful: bool) -> int | StreamError:
        """Return the sequence of a move that was made though it ended as `end`, else what is known by now."""
        if _is_under_way(end):  # a conflict would say that the thing has moved on, and it may not have
            if is_doubtful:  # the write under way may be our own first try
                return OutcomeUnknown(f"not known to be made: {end}", subject=move.subject)
            return Refused(f"others kept moving it: {end}", subject=move.subject, err_code=_UNDER_WAY)
        if not is_doubtful or not isinstance(end, OutcomeUnknown | RevisionConflict):
            return end
        try:
            last = await last_entry(self._connection, self._stream_of(move.subject), move.thing)
        except StreamError:
            return OutcomeUnknown(f"not read back after {end}", subject=move.subject)
        at = last.seq if last else 0
        if last is not None and last.subject == move.subject and last.payload == move.payload:
            return at
        if isinstance(end, OutcomeUnknown) and at > move.expected:
            moved_on = RevisionConflict(f"wrong last sequence: {at}", subject=move.subject)
            moved_on.is_after_retry = True
            return moved_on
        return end  # if it is not there, it may still be on its way


def _made(move: Move, receipt: Receipt) -> int | StreamError:
    if not receipt.is_duplicate:
        return receipt.seq
    repeated = Repeated(f"the server has had message id {move.message_id}", subject=move.subject)
    repeated.seq = receipt.seq
    return repeated


def _unless_behind(move: Move, outcome: Receipt | StreamError, stored_seq: int) -> Receipt | StreamError:
    """Return the outcome. If a leader that may not have stored the expected message refused the move by an earlier one,
    it is as if another move was under way. `stored_seq`: what the leader had stored before."""
    if not isinstance(outcome, RevisionConflict) or outcome.actual is None:
        return outcome
    if outcome.actual >= move.expected or move.expected <= stored_seq:
        return outcome
    waits = RevisionConflict(outcome.description, subject=move.subject, err_code=_UNDER_WAY)
    waits.is_after_retry = outcome.is_after_retry
    return waits


def _is_under_way(outcome: Receipt | StreamError) -> bool:
    return isinstance(outcome, RevisionConflict) and outcome.err_code == _UNDER_WAY


def _may_be_ours(outcome: Receipt | StreamError) -> bool:
    """Whether a try of the move may have been stored although the outcome says otherwise."""
    return isinstance(outcome, OutcomeUnknown) or (isinstance(outcome, RevisionConflict) and outcome.is_after_retry)


def _outgoing(move: Move) -> Outgoing:
    """Return the move as it is published. Its headers are built here, since they are most of its cost."""
    lines = f"{_HEAD}{move.expected}\r\nNats-Expected-Last-Subject-Sequence-Subject: {move.thing}\r\n"
    if move.message_id:
        lines += f"Nats-Msg-Id: {move.message_id}\r\n"
    if move.leaves:
        lines += f"Nats-Scheduler: {move.leaves}\r\nNats-Schedule-Next: purge\r\n"
    if move.due_ms:
        lines += f"Nats-Schedule: {at_line(move.due_ms)}\r\nNats-Schedule-Target: {move.target}\r\n"
    if move.ttl_s:
        lines += f"Nats-TTL: {move.ttl_s}s\r\n"
    block, is_unfenced = f"{lines}\r\n".encode(), move.expected == 0
    return Outgoing(move.subject, move.payload, move.message_id or None, None, block, is_unfenced)
