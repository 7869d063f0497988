"""What a fetcher does next: plain functions from a ledger and a message to the next ledger and a decision.

In: `Offered`, a slice from the queue, and `Ended`, the outcome of reading it. Out: work to do, events, and how to
settle the message. State: the source's ledger, by compare-and-set. A repeated offer takes over a slice that another
holds, under a new fence. A repeated end finds its fence void and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, assert_never

import msgspec
from msgspec.structs import replace

from actors.fetch.fetch_events import hole_made, slice_failed, slice_split, source_parked, source_throttled
from actors.fetch.rules import holding
from actors.fetch.rules.ledger import Ledger, OpenSlice, Shortfall, find_open
from actors.fetch.rules.outages import answered, earliest_ms, may_take
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.actor import Ack, Forget, GiveBack, Work
from streams.messages.fetch import FetchEvent

STEP_MS = 1_000
UNKNOWN_AGAIN_S = 1.0
"""A source's record and its first offers come to a node by different ways. Within this time both are there."""

SOON_MS = 5_000
"""A wait up to this is spent in the queue. Another offer could meet the message that is just being acknowledged, and be
refused for it. And what is due by the clock of the offering node may have to wait by ours. A longer wait leaves the
queue to work that can start, and the slice is offered again at its end."""


class WindowStored(msgspec.Struct, frozen=True, tag="stored"):
    """Every order of the window is stored, and so is the event that it was read. `is_readable`: whether any row of it
    could be read. `None`: it had no rows. `rows`: how many it had."""

    is_readable: bool | None = None
    rows: int | None = None


class Short(msgspec.Struct, frozen=True, tag="short"):
    """The window was read to its end and its orders are stored, but it is known that some are missing."""

    reason: str
    short: Shortfall
    is_readable: bool | None = None


class Misread(msgspec.Struct, frozen=True, tag="misread"):
    """The platform's responses are not as the adapter declares them. `said`: the response, without secrets. `of_rows`:
    the rows of an answer, or the answer itself, cannot be read."""

    reason: str
    said: str
    of_rows: bool = False


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """This attempt failed. Another may succeed. The platform wants a wait of `least_wait_ms` before it."""

    reason: str
    least_wait_ms: int = 0


class Missed(msgspec.Struct, frozen=True, tag="missed"):
    """The platform gave no usable response to any request of this attempt. It may be down, and then no window is to
    blame. It wants a wait of `least_wait_ms` before the next try."""

    reason: str
    least_wait_ms: int = 0


class TimedOut(msgspec.Struct, frozen=True, tag="timedout"):
    """The slice's own timeout ran out. Half of the window may fit. `is_missed`: without a usable response, so the
    platform may be down. `goes_on`: the next attempt continues where this one stopped, which spends no attempt.
    `is_anew`: this one began the window anew. The ledger counts those."""

    reason: str
    is_missed: bool = False
    goes_on: bool = False
    is_anew: bool = False


class Throttled(msgspec.Struct, frozen=True, tag="throttled"):
    """The platform wants no requests for `wait_ms`. This spends no attempt."""

    reason: str
    wait_ms: int


class NotNow(msgspec.Struct, frozen=True, tag="notnow"):
    """This slice has to wait for `wait_ms`, through nobody's fault. This spends no attempt, and others go on."""

    reason: str
    wait_ms: int


class TooWide(msgspec.Struct, frozen=True, tag="toowide"):
    """The platform cannot answer for so wide a window, or we may not take so much at once."""

    reason: str


class PlatformRefused(msgspec.Struct, frozen=True, tag="refused"):
    """No slice of this source can be read until a person acts (credentials, scope, a closed shop)."""

    reason: str


class Hopeless(msgspec.Struct, frozen=True, tag="hopeless"):
    """This slice can never be read, by any node. Others can, unless the source's requests are wrong. `said`: the
    response, without secrets."""

    reason: str
    said: str = ""


Outcome = (
    WindowStored
    | Short
    | Misread
    | Failed
    | Missed
    | TimedOut
    | Throttled
    | NotNow
    | TooWide
    | PlatformRefused
    | Hopeless
)


def label_of(outcome: Outcome) -> str:
    """Return the outcome's label in the metrics."""
    return str(outcome.__struct_config__.tag)


Standing = Literal["ours", "unknown", "elsewhere"]
"""What an offer is to this node. `ours`: this node may read it. `unknown`: this node does not know the source yet.
`elsewhere`: other nodes may read it, and the allocator offers it to them again."""


class Offered(msgspec.Struct, frozen=True):
    """An offer of a slice. `node` would read it under `settings`."""

    source: SourceKey
    slice_id: str
    node: str
    settings: FetchSettings
    standing: Standing = "ours"


class Ended(msgspec.Struct, frozen=True):
    """The outcome of reading a taken slice. `upto_ms`: the slice is read before this time, its `rows` there are stored,
    and the outcome is that of the rest. 0: nothing of it is complete. `chance` in [0, 1) spreads the wait before a
    retry. `step_ms` is the resolution of the platform's clock, at which a window can be cut."""

    source: SourceKey
    slice: OpenSlice
    outcome: Outcome
    settings: FetchSettings
    chance: float
    step_ms: int = STEP_MS
    upto_ms: int = 0
    rows: int = 0


Message = Offered | Ended


class ReadSlice(msgspec.Struct, frozen=True):
    """Read this slice's window and store its orders. `slice.fence` is ours. `is_trusted`: its rows could be read
    before. `wide_ms`: from here on no slice of the source was longer than an hour."""

    source: SourceKey
    slice: OpenSlice
    settings: FetchSettings
    is_trusted: bool = True
    wide_ms: int = 0


class Next(NamedTuple):
    """What follows once the ledger is stored: events to publish, then work, or the settling of the message."""

    then: Ack | Forget | GiveBack | Work[ReadSlice]
    events: tuple[FetchEvent, ...] = ()


def decide(ledger: Ledger, message: Message, now_ms: int) -> tuple[Ledger, Next]:
    """Return the ledger after `message`, and what follows."""
    match message:
        case Offered():
            return _taken(ledger, message, now_ms)
        case Ended():
            return _ended(ledger, message, now_ms)
        case _:
            assert_never(message)


def _taken(ledger: Ledger, offer: Offered, now_ms: int) -> tuple[Ledger, Next]:
    """Take the slice. A slice that is not open or not due needs no message: the allocator offers it when it is."""
    if offer.standing != "ours":
        return ledger, Next(GiveBack(UNKNOWN_AGAIN_S) if offer.standing == "unknown" else Ack())
    after, result = holding.take(ledger, offer.slice_id, offer.node, now_ms, most_losses=offer.settings.losses)
    match result:
        case holding.Taken(slice=piece):
            wide_ms = ledger.tuning.wide_ms if ledger.tuning is not None else 0
            return after, Next(Work(ReadSlice(offer.source, piece, offer.settings, ledger.trust > 0, wide_ms)))
        case holding.GaveUp(hole=hole):
            return after, Next(Ack(), (hole_made(offer.source, hole, now_ms),))
        case holding.Wait(until_ms=until_ms):
            return after, Next(_until(until_ms, now_ms))
        case holding.StaleFence():
            return after, Next(Ack())
        case _:
            assert_never(result)


def _ended(ledger: Ledger, ended: Ended, now_ms: int) -> tuple[Ledger, Next]:
    if ended.upto_ms:
        return _advanced(ledger, ended, now_ms)
    after, result = _move(ended)(ledger, now_ms)
    if isinstance(result, holding.TooNarrow) and ended.slice.is_look:
        after, result = holding.drop(ledger, ended.slice.slice_id, ended.slice.fence)
    if isinstance(result, holding.TooNarrow):
        reason = f"{_reason(ended.outcome)}; a window of one step of the platform's clock cannot be split"
        after, result = _failure(ended, reason)(ledger, now_ms)
    if _is_answer(ended.outcome) and not isinstance(result, holding.StaleFence):
        after = answered(after, now_ms)
    match result:
        case holding.StaleFence():
            return after, Next(_farewell(after, ended))
        case holding.Completed():
            return after, Next(Ack())
        case holding.Retried(slice=again) | holding.Released(slice=again) | holding.ReleasedDown(slice=again) if (
            after.state == "running"
        ):
            then = _until(earliest_ms(after, again), now_ms) if may_take(after, again) else Ack()
            return after, Next(then, _events(ended, result, ledger, after, now_ms))
        case _:
            return after, Next(Ack(), _events(ended, result, ledger, after, now_ms))


def _advanced(ledger: Ledger, ended: Ended, now_ms: int) -> tuple[Ledger, Next]:
    """End the first part of the slice, and then the attempt at the rest. The message names a slice that is not open any
    more, so it is settled, and the rest is offered by itself."""
    held = ended.slice
    after, rest = holding.advance(ledger, held.slice_id, held.fence, ended.upto_ms, now_ms, rows=ended.rows)
    if isinstance(rest, holding.StaleFence):
        return ledger, Next(_farewell(ledger, ended))
    after, following = _ended(after, replace(ended, slice=rest, upto_ms=0, rows=0), now_ms)
    return after, Next(Ack(), following.events)


def _until(due_ms: int, now_ms: int) -> Ack | GiveBack:
    """Return how to settle the message of a slice that has to wait."""
    wait_ms = due_ms - now_ms
    return GiveBack(wait_ms / 1000) if wait_ms <= SOON_MS else Ack()


def _farewell(ledger: Ledger, ended: Ended) -> Ack | Forget:
    """Do not settle a message whose slice is open, since by now another node has it. Ack the message of a slice that is
    gone (completed by another node, rewound, removed): it has no meaning any more."""
    return Ack() if find_open(ledger, ended.slice) is None else Forget()


def _is_answer(outcome: Outcome) -> bool:
    """Return whether the platform responded in an attempt that ended so."""
    match outcome:
        case Missed() | NotNow() | TooWide():
            return False
        case TimedOut(is_missed=is_missed):
            return not is_missed
        case _:
            return True


Result = (
    holding.Completed
    | holding.Retried
    | holding.Released
    | holding.ReleasedDown
    | holding.Halved
    | holding.TooNarrow
    | holding.GaveUp
    | holding.StaleFence
)
Move = Callable[[Ledger, int], tuple[Ledger, Result]]


def _move(ended: Ended) -> Move:
    """Return the move of the ledger for an outcome."""
    slice_id, fence, outcome = ended.slice.slice_id, ended.slice.fence, ended.outcome
    policy = ended.settings.retry_policy
    if ended.slice.is_look and not _goes_on(outcome):
        return lambda ledger, now_ms: holding.drop(ledger, slice_id, fence)
    match outcome:
        case WindowStored(is_readable=is_readable, rows=rows):
            return lambda ledger, now_ms: holding.complete(
                ledger, slice_id, fence, now_ms, is_readable=is_readable, rows=rows
            )
        case Short(reason=reason, short=short, is_readable=is_readable):
            return lambda ledger, now_ms: holding.fall_short(
                ledger, slice_id, fence, short, reason, policy, now_ms, chance=ended.chance, is_readable=is_readable
            )
        case Misread(reason=reason, said=said, of_rows=of_rows):
            return lambda ledger, now_ms: holding.misread(
                ledger, slice_id, fence, reason, said, policy, now_ms, chance=ended.chance, of_rows=of_rows
            )
        case Failed(reason=reason, least_wait_ms=wait_ms):
            return _failure(ended, reason, wait_ms)
        case Missed(reason=reason, least_wait_ms=wait_ms):
            return _failure(ended, reason, wait_ms, is_missed=True)
        case TimedOut(reason=reason, goes_on=True, is_anew=is_anew):
            return lambda ledger, now_ms: holding.release(ledger, slice_id, fence, now_ms, reason=reason, anew=is_anew)
        case TimedOut(reason=reason, is_missed=is_missed) if not 0 < ended.settings.split_after < _tries(ended.slice):
            return _failure(ended, reason, is_missed=is_missed)
        case TimedOut() | TooWide():
            return lambda ledger, now_ms: holding.split(ledger, slice_id, fence, now_ms, step_ms=ended.step_ms)
        case Throttled(reason=reason, wait_ms=wait_ms):
            return lambda ledger, now_ms: holding.release(
                ledger, slice_id, fence, now_ms, hold_until_ms=now_ms + wait_ms, reason=reason
            )
        case NotNow(reason=reason, wait_ms=wait_ms):
            return lambda ledger, now_ms: holding.release(
                ledger, slice_id, fence, now_ms, not_before_ms=now_ms + wait_ms, reason=reason
            )
        case PlatformRefused(reason=reason):
            return lambda ledger, now_ms: holding.park(ledger, slice_id, fence, reason, now_ms)
        case Hopeless(reason=reason, said=said):
            return lambda ledger, now_ms: holding.refused(
                ledger, slice_id, fence, reason, said, policy, now_ms, chance=ended.chance
            )
        case _:
            assert_never(outcome)


def _goes_on(outcome: Outcome) -> bool:
    """Return whether a look that ended so is read, or goes on. Any other end is the tail's to find out and report."""
    return isinstance(outcome, WindowStored | Throttled | NotNow | TooWide) or (
        isinstance(outcome, TimedOut) and outcome.goes_on
    )


def _tries(held: OpenSlice) -> int:
    return held.attempt + held.misses


def _failure(ended: Ended, reason: str, least_wait_ms: int = 0, *, is_missed: bool = False) -> Move:
    move = holding.miss if is_missed else holding.fail
    return lambda ledger, now_ms: move(
        ledger,
        ended.slice.slice_id,
        ended.slice.fence,
        reason,
        ended.settings.retry_policy,
        now_ms,
        chance=ended.chance,
        least_wait_ms=least_wait_ms,
    )


def _events(ended: Ended, result: Result, before: Ledger, after: Ledger, now_ms: int) -> tuple[FetchEvent, ...]:
    """Return the events of an end that is no completion."""
    reason = _reason(ended.outcome)
    match result:
        case holding.Retried(slice=again) | holding.ReleasedDown(slice=again):
            return (slice_failed(ended.source, ended.slice, again, now_ms),)
        case holding.Halved(slices=parts):
            return (slice_split(ended.source, ended.slice, parts, reason, now_ms),)
        case holding.Released() if after.state == "parked" != before.state:
            return (source_parked(ended.source, after.reason, now_ms),)
        case holding.Released() if isinstance(ended.outcome, Throttled):
            return (source_throttled(ended.source, after.hold_until_ms, reason, now_ms),)
        case holding.GaveUp(hole=hole):
            return (hole_made(ended.source, hole, now_ms),)
        case _:
            return ()


def _reason(outcome: Outcome) -> str:
    return "" if isinstance(outcome, WindowStored) else outcome.reason
