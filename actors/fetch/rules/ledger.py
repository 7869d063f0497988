"""The ledger: the one record that says what of a source's time is cut, open, complete or given up.

It is changed only by compare-and-set on its key, and only by the moves in `cutting` (which windows come next),
`holding` (take, complete, fail, …) and `steering` (what people and outcomes do to a source as a whole). A move is a
plain function from a ledger to a ledger and a result. A move that changes nothing returns *the very same object*, so
`after is before` says that no write is needed, and many moves can be folded into one write.

Rules, all times whole milliseconds UTC, windows half-open (`faults` checks them):

- Tail slices tile `[start_ms, frontier_ms)` exactly. Each is open, a hole, or complete. Complete ones are not listed:
  what lies in the tiling and is neither open nor a hole has been stored.
- `watermark_ms` is the least start of an open tail slice or of a tail hole that nobody has accepted, else the frontier.
  Each move sets it anew, and within an epoch it never goes back.
- Slices of backfills and of second looks are listed beside the tail and change neither frontier nor watermark.
- `fence` is the number given at the latest take. A holder names the fence that it was given. A move with any other
  fence changes nothing.
- A rewind raises `epoch`. Slices of an older epoch change nothing.
"""

from typing import Literal

import msgspec

from actors.fetch.rules.slices import Lane, Slice, overlapping
from actors.runtime.rules.texts import range_text, time_text

LedgerState = Literal["running", "paused", "parked"]

LOOK = "@look"
"""The pass of slices that are read because of a hint (`looks`). No backfill can have that name."""
ENDLESS_MS = 1 << 62


class Shortfall(msgspec.Struct, frozen=True, omit_defaults=True):
    """By how much a reading was short: `missing` of `listed` orders by the platform's own count. 0 of 0: a list broke
    off and the platform counts nothing."""

    missing: int = 0
    listed: int = 0

    def __str__(self) -> str:
        return f"short by {self.missing} of {self.listed}" if self.missing else "short by a number that nobody tells"


class OpenSlice(Slice, frozen=True, omit_defaults=True):
    """A slice that is cut and not finished. `fence` 0: nobody holds it. `attempt` counts from 1: failure and expiry
    raise it, throttling does not. `losses` counts holders that vanished. Nobody may take it before `not_before_ms`.
    `short`: the shortfall of an earlier reading. Only a reading that disproves it completes the slice."""

    cut_ms: int = 0
    attempt: int = 1
    not_before_ms: int = 0
    fence: int = 0
    holder: str = ""
    taken_ms: int = 0
    losses: int = 0
    reason: str = ""  # why the attempt before this one ended
    misses: int = 0  # attempts in which the platform gave no response, and that did not count
    others_read: bool = False  # another slice of the source was read since the last miss, so this window is to blame
    pass_name: str = ""  # the backfill or second look that it belongs to
    short: Shortfall | None = None
    anew: int = 0  # attempts that began its window anew, ran out of time, and did not count

    @property
    def is_taken(self) -> bool:
        return self.fence > 0

    @property
    def is_look(self) -> bool:
        return self.pass_name == LOOK

    @property
    def lane(self) -> Lane:
        return "tail" if self.kind == "t" or self.is_look else "back"


class Hole(Slice, frozen=True, omit_defaults=True):
    """A slice given up on. It holds the watermark back until a person accepts it, and is listed until it is redriven or
    forgotten. `short`: its window was read, and is known to be incomplete. What was read is stored."""

    since_ms: int = 0
    attempts: int = 0
    reason: str = ""
    is_told: bool = False  # an administrator got a notice
    accepted_by: str = ""
    pass_name: str = ""
    short: Shortfall | None = None


class Pass(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reading beside the live tail, cut from `cursor_ms` on. Kind b: a backfill of `[start_ms, end_ms)`. Kind a: a
    second look that follows the clock by `delay_ms`, without an end."""

    name: str
    kind: Literal["b", "a"]
    start_ms: int
    cursor_ms: int
    end_ms: int | None = None
    delay_ms: int = 0


class Outage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A time in which the source cannot be reached at all (`over_ms` 0), or could not, and the notice of its end is not
    sent yet. A slice that was taken under a higher fence than `fence` is a probe."""

    since_ms: int
    fence: int = 0
    probes: int = 0  # how many of them had no response
    probe_ms: int = 0  # no probe before this
    reason: str = ""
    is_told: bool = False
    over_ms: int = 0


class Tuning(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long slices are where nobody has set it. `span_ms`, `rows`: what was read since `length_ms` was last judged.
    `is_sure`: it is known that longer slices would hold too much, or may not be longer. `wide_ms`: the end of the last
    slice that was longer than an hour."""

    length_ms: int
    span_ms: int = 0
    rows: int = 0
    is_sure: bool = False
    wide_ms: int = 0


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many requests a second a platform takes, as its answers have shown. 0: nothing limits the pace.

    `met_ms`: when it refused last for the pace. It wants none until `until_ms`. `mark`: what it took a second, `took`
    over the `over_ms` before, and `calm_ms`, after what time it may be asked for as much again. `share`: which part of
    the requests it refused at that pace, and `noise`, which part it refuses at any pace. `dense`: how often one after
    the other it was met by requests of which many were refused. `tried`: refusals in the present trial, and `odd`, in
    those before, which no limit explains. `told`: how many a second the platform itself says, and `burst`, how many at
    once. 0: it does not say. `heard`: at a slow pace, when the last requests of all nodes were answered, and refused
    (below 0)."""

    per_s: float
    met_ms: int
    until_ms: int = 0
    mark: float = 0.0
    took: float = 0.0
    over_ms: int = 0
    calm_ms: int = 0
    share: float = 0.0
    noise: float = 0.0
    dense: int = 0
    odd: int = 0
    tried: int = 0
    told: float = 0.0
    burst: int = 0
    heard: tuple[int, ...] = ()


class LookWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A range of time to look at. `end_ms` 0: up to the moment of the look."""

    start_ms: int
    end_ms: int = 0

    @property
    def until_ms(self) -> int:
        return self.end_ms or ENDLESS_MS

    def holds(self, other: "LookWindow") -> bool:
        return self.start_ms <= other.start_ms and other.until_ms <= self.until_ms


class Hints(msgspec.Struct, frozen=True, omit_defaults=True):
    """What hints have asked for. `began_ms`: when the last look began. `reading`: what of it is not cut yet. `waiting`:
    what the next one reads."""

    began_ms: int = 0
    waiting: tuple[LookWindow, ...] = ()
    reading: tuple[LookWindow, ...] = ()


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of one source. `open` is in the order of delivery: the tail's first, each by start.

    `trust` says whether its rows can be read as its adapter declares them. Above 0: some could, and so many windows in
    a row may still hold only unreadable rows. 0: none ever could, or none any more. Below 0: a window has failed for
    it. `has_readable`: an answer could be read since then, whatever became of its window. `answers` says of its
    requests what `trust` says of its rows: above 0, some were answered, and so many windows in a row may still be
    refused. `owes_end`: an administrator got a notice of a hole, and must get one when none is left.
    `made_fence`: the fence when the source was added. Readings up to it are of a removed source of its name.
    """

    start_ms: int
    frontier_ms: int
    watermark_ms: int
    epoch: int = 1
    fence: int = 0
    state: LedgerState = "running"
    reason: str = ""
    hold_until_ms: int = 0  # throttled: nobody takes a slice before this
    open: tuple[OpenSlice, ...] = ()
    holes: tuple[Hole, ...] = ()
    passes: tuple[Pass, ...] = ()
    trust: int = 0
    has_readable: bool = False
    answers: int = 0
    outage: Outage | None = None
    owes_end: bool = False
    swept_ms: int = 0  # when the last sweep began, or the source had caught up for the first time
    tuning: Tuning | None = None
    limit: Limit | None = None
    hints: Hints | None = None
    made_fence: int = 0


def first_ledger(start_ms: int) -> Ledger:
    """Return the ledger of a source from which nothing has been cut yet."""
    return Ledger(start_ms, start_ms, start_ms)


def find_open(ledger: Ledger, piece: Slice) -> OpenSlice | None:
    """Return the open slice with the identity of `piece`, or None. Costs O(open)."""
    for held in ledger.open:
        if held.start_ms == piece.start_ms and same_slice(held, piece):
            return held
    return None


def find_hole(ledger: Ledger, piece: Slice) -> Hole | None:
    """Return the hole with the identity of `piece`, or None. Costs O(holes)."""
    for hole in ledger.holes:
        if hole.start_ms == piece.start_ms and same_slice(hole, piece):
            return hole
    return None


def same_slice(one: Slice, other: Slice) -> bool:
    """Return whether both have one identity, whatever else they record."""
    return (
        one.start_ms == other.start_ms
        and one.end_ms == other.end_ms
        and one.kind == other.kind
        and one.epoch == other.epoch
    )


def watermark_of(ledger: Ledger) -> int:
    """Return where the watermark must stand by the lists alone."""
    lowest = ledger.frontier_ms
    for held in ledger.open:
        if held.start_ms < lowest and held.kind == "t":
            lowest = held.start_ms
    for hole in ledger.holes:
        if hole.start_ms < lowest and hole.kind == "t" and not hole.accepted_by:
            lowest = hole.start_ms
    return lowest


def revised(
    ledger: Ledger,
    *,
    open: tuple[OpenSlice, ...] | None = None,
    holes: tuple[Hole, ...] | None = None,
) -> Ledger:
    """Return the ledger with other lists, its watermark moved to match and its finished backfills removed."""
    after = msgspec.structs.replace(
        ledger,
        open=ledger.open if open is None else open,
        holes=ledger.holes if holes is None else holes,
    )
    passes = tuple(each for each in after.passes if not is_finished(after, each)) if after.passes else ()
    return msgspec.structs.replace(after, watermark_ms=watermark_of(after), passes=passes)


def is_finished(ledger: Ledger, reading: Pass) -> bool:
    """Return whether `reading` has an end, was cut up to it, and has no slice open any more."""
    if reading.end_ms is None or reading.cursor_ms < reading.end_ms:
        return False
    return all(held.pass_name != reading.name for held in ledger.open)


def in_order(slices: tuple[OpenSlice, ...]) -> tuple[OpenSlice, ...]:
    """Return open slices in the order of delivery: the tail's before the others, each by time."""
    return tuple(sorted(slices, key=lambda held: (held.kind != "t", held.start_ms, held.end_ms)))


def faults(ledger: Ledger) -> list[str]:
    """Return every rule that `ledger` breaks, in words, empty if it is sound. For tests and `penstock doctor`."""
    broken: list[str] = []
    tail: list[Slice] = [held for held in ledger.open if held.kind == "t"]
    tail += [hole for hole in ledger.holes if hole.kind == "t" and hole.epoch == ledger.epoch]
    shared = overlapping(tail)
    if shared is not None:
        broken.append(f"tail slices {shared[0].slice_id} and {shared[1].slice_id} overlap")
    broken += [
        f"tail slice {piece.slice_id} lies outside the time {range_text(ledger.start_ms, ledger.frontier_ms)}"
        for piece in tail
        if not ledger.start_ms <= piece.start_ms < piece.end_ms <= ledger.frontier_ms
    ]
    if ledger.watermark_ms != watermark_of(ledger):
        broken.append(f"watermark {time_text(ledger.watermark_ms)} should be {time_text(watermark_of(ledger))}")
    ids = [piece.slice_id for piece in (*ledger.open, *ledger.holes)]
    broken += [f"slice {slice_id} is listed twice" for slice_id in sorted({one for one in ids if ids.count(one) > 1})]
    broken += [f"open slice {held.slice_id} is of another epoch" for held in ledger.open if held.epoch != ledger.epoch]
    broken += [
        f"open slice {held.slice_id} has a fence never given" for held in ledger.open if held.fence > ledger.fence
    ]
    return broken
