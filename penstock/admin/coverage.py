"""Which part of a range of a source's time was read, by whom and with what result, and which part is missing. Pure.

Two records are put together. The ledger is the truth about what is complete: what lies in its tiling and is neither
open nor a hole. The events say who read it, when, and how many rows. They are kept for some days only, so a window may
be read by the ledger's word alone ("unattested"). Outside of the tiling (before the source's start, or read ahead by a
backfill) the events are all there is.

A read of an older epoch counts behind the frontier, where a rewind let it stand. Beyond the frontier only the present
epoch counts: somebody asked for that time to be read again. A hole is closed by any later read of the same window.

Time that is known to be short of what the platform lists does not count as read, whichever look found it out. Only a
later read that the platform's count proved makes up for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from msgspec import Struct

from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice
from actors.fetch.rules.slices import parse_slice_id
from streams.messages.fetch import SliceCompleted

__all__ = ["Coverage", "Stretch", "StretchState", "cover"]

StretchState = Literal["read", "open", "hole", "ahead", "gap"]
"""read: everything listed there is stored. open: cut, and not finished. hole: given up on. ahead: not cut yet.
gap: never read, and nothing will read it (before the start, or no ledger)."""


class Stretch(Struct, frozen=True):
    """A part of the range in one state. `slice_id` and `reason` tell of the open slice or hole. `rows` counts what
    first readings listed, overlaps with the neighbours included, `late_rows` what second looks found new."""

    start_ms: int
    end_ms: int
    state: StretchState
    slice_id: str = ""
    reason: str = ""
    is_proven: bool = True
    is_attested: bool = True
    readings: int = 0
    rows: int = 0
    late_rows: int = 0
    nodes: tuple[str, ...] = ()
    first_ms: int = 0
    last_ms: int = 0

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


class Coverage(Struct, frozen=True):
    """The whole range as stretches without a gap or overlap, and every reading that touches it, by start and time."""

    start_ms: int
    end_ms: int
    stretches: tuple[Stretch, ...]
    readings: tuple[SliceCompleted, ...]

    @property
    def is_whole(self) -> bool:
        """True if every millisecond was read."""
        return all(stretch.state == "read" for stretch in self.stretches)

    def length_ms(self, *states: StretchState) -> int:
        """Return how much of the range is in one of `states`."""
        return sum(stretch.length_ms for stretch in self.stretches if stretch.state in states)

    @property
    def unproven_ms(self) -> int:
        """How much was read without the platform's own count to prove it."""
        read = (each for each in self.stretches if each.state == "read" and each.is_attested)
        return sum(each.length_ms for each in read if not each.is_proven)

    @property
    def unattested_ms(self) -> int:
        """How much is read by the ledger's word, its events being no longer kept."""
        return sum(each.length_ms for each in self.stretches if each.state == "read" and not each.is_attested)


def cover(ledger: Ledger | None, readings: Iterable[SliceCompleted], start_ms: int, end_ms: int) -> Coverage:
    """Return what is known of `[start_ms, end_ms)`. `readings` may hold others, also of a removed source of that name.
    A repeat of one event counts once. It costs one sort of what touches the range."""
    made_fence = ledger.made_fence if ledger is not None else 0
    touching = {
        (event.slice_id, event.fence, event.finished_ms): event
        for event in readings
        if event.start_ms < end_ms and event.end_ms > start_ms and (event.fence > made_fence or not made_fence)
    }
    ordered = tuple(sorted(touching.values(), key=lambda event: (event.start_ms, event.finished_ms)))
    pieces = [_piece(ledger, *segment) for segment in _segments(ledger, ordered, start_ms, end_ms)]
    return Coverage(start_ms, end_ms, tuple(_merged(pieces)), ordered)


Covering = SliceCompleted | OpenSlice | Hole


class _Piece(NamedTuple):
    """A stretch without seams inside, and the readings that count for it."""

    start_ms: int
    end_ms: int
    state: StretchState
    about: OpenSlice | Hole | None
    reads: tuple[SliceCompleted, ...]


def _segments(
    ledger: Ledger | None, readings: Sequence[SliceCompleted], start_ms: int, end_ms: int
) -> Iterator[tuple[int, int, list[Covering]]]:
    """Yield the range cut at every edge of whatever touches it, with all that covers each segment."""
    items: list[Covering] = list(readings)
    if ledger is not None:
        items += [*ledger.open, *ledger.holes]
    items = sorted((item for item in items if item.start_ms < end_ms and item.end_ms > start_ms), key=_start)
    edges = {start_ms, end_ms, *(edge for item in items for edge in (item.start_ms, item.end_ms))}
    edges |= set() if ledger is None else {ledger.start_ms, ledger.frontier_ms}
    seams = sorted(edge for edge in edges if start_ms <= edge <= end_ms)
    active: list[Covering] = []
    coming = iter(items)
    following = next(coming, None)
    for low_ms, high_ms in pairwise(seams):
        while following is not None and following.start_ms <= low_ms:
            active.append(following)
            following = next(coming, None)
        active = [item for item in active if item.end_ms > low_ms]
        yield low_ms, high_ms, active


def _start(item: Covering) -> int:
    return item.start_ms


def _piece(ledger: Ledger | None, start_ms: int, end_ms: int, covering: list[Covering]) -> _Piece:
    reads = tuple(event for event in covering if isinstance(event, SliceCompleted) and _counts(ledger, event, start_ms))
    about = _unread(ledger, start_ms, covering, reads)
    if about is not None:
        return _Piece(start_ms, end_ms, "open" if isinstance(about, OpenSlice) else "hole", about, reads)
    if reads or (ledger is not None and ledger.start_ms <= start_ms < ledger.frontier_ms):
        return _Piece(start_ms, end_ms, "read", None, reads)
    is_ahead = ledger is not None and start_ms >= ledger.frontier_ms
    return _Piece(start_ms, end_ms, "ahead" if is_ahead else "gap", None, reads)


def _counts(ledger: Ledger | None, event: SliceCompleted, at_ms: int) -> bool:
    if ledger is None or at_ms < ledger.frontier_ms:
        return True
    return parse_slice_id(event.slice_id).epoch == ledger.epoch


def _unread(
    ledger: Ledger | None, at_ms: int, covering: list[Covering], reads: tuple[SliceCompleted, ...]
) -> OpenSlice | Hole | None:
    """Return the open slice or hole for which this time does not count as read.

    A tail slice that is open is unread by the ledger's word, whatever was read before. What backfills and second looks
    have open or lost matters only where nothing else has read it (`pass_name` is empty for a hole read again), or where
    it is known that what was read is not all."""
    if ledger is None:
        return None
    is_tiled = ledger.start_ms <= at_ms < ledger.frontier_ms
    for held in covering:
        if isinstance(held, OpenSlice) and (held.kind == "t" or held.short is not None):
            return held
    for hole in covering:
        if not isinstance(hole, Hole) or not _holds(hole, ledger, at_ms, is_tiled=is_tiled):
            continue
        if not any(event.finished_ms > hole.since_ms and (event.is_proven or not hole.short) for event in reads):
            return hole
    if reads:
        return None
    backs = [held for held in covering if isinstance(held, OpenSlice) and held.kind == "b"]
    return next((held for held in backs if not held.pass_name or not is_tiled), None)


def _holds(hole: Hole, ledger: Ledger, at_ms: int, *, is_tiled: bool) -> bool:
    """True if the hole says that this time was not read, or not wholly, and not only that one more look failed."""
    if hole.epoch != ledger.epoch and at_ms >= ledger.frontier_ms:
        return False
    return hole.kind == "t" or hole.short is not None or (hole.kind == "b" and (not hole.pass_name or not is_tiled))


def _merged(pieces: Sequence[_Piece]) -> Iterator[Stretch]:
    """Join neighbours that differ only in who read them."""
    group: list[_Piece] = []
    for piece in pieces:
        if group and _kind(group[-1]) != _kind(piece):
            yield _stretch(group)
            group = []
        group.append(piece)
    if group:
        yield _stretch(group)


def _kind(piece: _Piece) -> tuple[object, ...]:
    about = piece.about.slice_id if piece.about else ""
    return piece.state, about, any(event.is_proven for event in piece.reads), bool(piece.reads)


def _stretch(group: Sequence[_Piece]) -> Stretch:
    first, about = group[0], group[0].about
    reads = list({id(event): event for piece in group for event in piece.reads}.values())
    looks = [event for event in reads if event.slice_id.startswith("a")]
    return Stretch(
        start_ms=first.start_ms,
        end_ms=group[-1].end_ms,
        state=first.state,
        slice_id=about.slice_id if about else "",
        reason=_reason(about),
        is_proven=any(event.is_proven for event in first.reads),
        is_attested=bool(first.reads),
        readings=len(reads),
        rows=sum(event.rows for event in reads) - sum(event.rows for event in looks),
        late_rows=sum(event.new_rows for event in looks),
        nodes=tuple(sorted({event.node for event in reads})),
        first_ms=min((event.finished_ms for event in reads), default=0),
        last_ms=max((event.finished_ms for event in reads), default=0),
    )


def _reason(about: OpenSlice | Hole | None) -> str:
    match about:
        case OpenSlice():
            who = f"held by {about.holder}" if about.is_taken else "waiting"
            why = about.reason or (str(about.short) if about.short else "")
            return f"{who}, attempt {about.attempt}" + (f": {why}" if why else "")
        case Hole():
            accepted = f" (accepted by {about.accepted_by})" if about.accepted_by else ""
            known = f"{about.short}; " if about.short and not about.reason.startswith("short") else ""
            return f"{known}given up after {about.attempts} attempts: {about.reason}{accepted}"
        case None:
            return ""
