"""Looks: windows that are read at once because somebody outside has a hint that there is something new.

A look is beside the tail. It reads what may not have settled yet, so it proves nothing, moves no watermark, and leaves
no hole: what it misses, the tail reads in its turn. Hints that come before the next look are joined into it. A source
has a look each `look_every_ms` at most, and the next one begins when no slice of the last one is open. So a storm of
hints costs no more than that, and its requests come out of the source's own rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from actors.fetch.rules.ledger import LOOK, Hints, Ledger, LookWindow, OpenSlice, find_hole, find_open
from actors.fetch.rules.outages import is_down
from actors.fetch.rules.slices import Slice
from actors.fetch.rules.tuning import LIVE_SHARE, Lengths, judged

EVERY_MS = 5_000
OLDEST_MS = 86_400_000
USUAL_MS = 900_000
"""How far back a hint without a window looks, if the tail is further behind."""
AHEAD_MS = 60_000
"""How far a caller's clock may be ahead of ours."""
GRAIN_MS = 10_000
"""Windows are widened to whole multiples, so that the hints of one moment are one."""
MOST_WINDOWS = 8
MOST_OPEN = 4


class BadLook(ValueError):
    """A hint that cannot be followed. The text says why, and what to do. `field`: the wrong value. Empty: the source
    cannot be looked at now."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


def look_every_ms(lengths: Lengths) -> int:
    """Return the shortest time between two looks: some seconds, and no more than a quarter of the rate."""
    return max(EVERY_MS, int(LIVE_SHARE * 1_000 / lengths.per_s))


def look_window(ledger: Ledger, start_ms: int | None, end_ms: int | None, now_ms: int) -> LookWindow:
    """Return the window of a hint. `None`: from where the tail has come to, and up to the moment of the look.
    Raises BadLook for one that lies in the future, or too far back."""
    if start_ms is not None and start_ms > now_ms:
        raise BadLook("start_ms", "the window begins in the future; a look reads what has been")
    if end_ms is not None and end_ms > now_ms + AHEAD_MS:
        raise BadLook("end_ms", "the window ends in the future; leave the end out to look up to now")
    if start_ms is None:
        start_ms = min(max(ledger.frontier_ms, now_ms - USUAL_MS), (end_ms or now_ms) - GRAIN_MS)
    if start_ms < now_ms - OLDEST_MS - GRAIN_MS:
        raise BadLook("start_ms", "the window begins more than a day ago; `sources backfill` reads an older one")
    if start_ms < ledger.start_ms - GRAIN_MS:
        raise BadLook("start_ms", "the window begins before the source does; `sources backfill` reads an older one")
    if end_ms is not None and end_ms <= start_ms:
        raise BadLook("end_ms", "the window is empty: its end must lie after its start")
    until_ms = 0 if end_ms is None else -(-end_ms // GRAIN_MS) * GRAIN_MS
    return LookWindow(max(0, start_ms // GRAIN_MS * GRAIN_MS), 0 if until_ms >= now_ms else until_ms)


def ask_look(ledger: Ledger, window: LookWindow) -> Ledger:
    """Add a window to the next look. The same object if that has it already. Raises BadLook if the source stands."""
    if ledger.state != "running":
        told = f": {ledger.reason}" if ledger.reason else ""
        raise BadLook("", f"the source is {ledger.state}{told}; it reads nothing before `sources resume`")
    hints = ledger.hints or Hints()
    waiting = _joined((*hints.waiting, window))
    return ledger if waiting == hints.waiting else replace(ledger, hints=replace(hints, waiting=waiting))


def covers(ledger: Ledger, window: LookWindow) -> bool:
    """Return whether the next look reads the window already."""
    return any(each.holds(window) for each in ledger.hints.waiting) if ledger.hints is not None else False


def look_due_ms(ledger: Ledger, lengths: Lengths) -> int | None:
    """Return when the next look may begin, or go on. `None`: nothing waits, or its own slices have to end first."""
    hints = ledger.hints
    if hints is None or is_down(ledger):
        return None
    open_looks = sum(held.is_look for held in ledger.open)
    if hints.reading:
        return 0 if open_looks < MOST_OPEN else None
    if not hints.waiting or open_looks:
        return None
    return max(hints.began_ms + look_every_ms(lengths), ledger.hold_until_ms)


def cut_looks(ledger: Ledger, now_ms: int, lengths: Lengths, slice_ms: int) -> tuple[list[OpenSlice], Hints | None]:
    """Return the slices of looks to cut now, and what is left to look at. `slice_ms`: the setting, 0 for `auto`."""
    hints, due_ms = ledger.hints, look_due_ms(ledger, lengths)
    if hints is None or due_ms is None or due_ms > now_ms:
        return [], hints
    reading = hints.reading
    if not reading:
        resolved = (LookWindow(max(each.start_ms, now_ms - OLDEST_MS), each.end_ms or now_ms) for each in hints.waiting)
        reading = tuple(each for each in resolved if each.start_ms < each.end_ms)
        hints = Hints(now_ms)
    length_ms = slice_ms or judged(ledger.tuning, lengths).length_ms
    room, fresh = MOST_OPEN - sum(held.is_look for held in ledger.open), list[OpenSlice]()
    while reading and len(fresh) < room:
        first = reading[0]
        end_ms = first.end_ms if lengths.is_one_walk else min(first.end_ms, first.start_ms + length_ms)
        piece = Slice("b", ledger.epoch, first.start_ms, end_ms)
        if not find_open(ledger, piece) and not find_hole(ledger, piece):  # a backfill's window is read by that
            fresh.append(OpenSlice("b", ledger.epoch, first.start_ms, end_ms, now_ms, pass_name=LOOK))
        left = (LookWindow(end_ms, first.end_ms),) if end_ms < first.end_ms else ()
        reading = (*left, *reading[1:])
    return fresh, replace(hints, reading=reading)


def _joined(windows: Sequence[LookWindow]) -> tuple[LookWindow, ...]:
    """Return windows in order, those that touch as one, and the nearest ones as one where there are too many."""
    found: list[LookWindow] = []
    for each in sorted(windows, key=lambda window: (window.start_ms, window.until_ms)):
        if found and each.start_ms <= found[-1].until_ms:
            found[-1] = _both(found[-1], each)
        else:
            found.append(each)
    while len(found) > MOST_WINDOWS:
        at = min(range(1, len(found)), key=lambda at: found[at].start_ms - found[at - 1].until_ms)
        found[at - 1 : at + 1] = [_both(found[at - 1], found[at])]
    return tuple(found)


def _both(one: LookWindow, other: LookWindow) -> LookWindow:
    is_open = not one.end_ms or not other.end_ms
    return LookWindow(min(one.start_ms, other.start_ms), 0 if is_open else max(one.end_ms, other.end_ms))
