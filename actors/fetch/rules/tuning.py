"""How long the next slice of a source is, if nobody has set it (`slice` is `auto`).

Two lengths. In the past a slice holds some pages: a shop with few orders has slices of days, a busy one of seconds. At
the end of time a slice ends where the orders have settled, some seconds or a minute after the one before it. The ledger
has a `Tuning`, what the slices read so far have shown. Each slice that completes adds its length and rows to it, and
the next cut judges them. A length follows from the ledger and the source's `Lengths` alone, whoever cuts.

Some stretches of time are not cut at all (`whole`). A platform that writes wall times cannot be asked for a part of an
hour that repeats: each window in it lists the whole hour. So one slice reads it, or one every ten minutes while it
lasts.

Slices begin where the one before them ends, so they cover time without a gap or an overlap, whatever the lengths are.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import NamedTuple

from msgspec.structs import replace

from actors.fetch.rules.ledger import Tuning

FIRST_MS = 600_000
"""The first slice of a source. Even at a hundred orders a second it ends within a few attempts."""
LEAST_MS = 1_000
MOST_PAGES = 10
"""Pages of a slice. The last one is half empty on average, which costs a twentieth."""
GROWTH = 8
ENOUGH = 4
"""A quarter of the rows that a slice should hold are enough to know the density by."""
UNSURE_OPEN = 2
"""Slices that may be open while nobody knows yet how long they should be."""
LIVE_MS = (1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 30_000, 60_000)
LEAST_LIVE_MS, MOST_LIVE_MS = 5_000, 60_000
OVERLAPS = 5
"""A live slice is so many times as long as the overlap that is read with it."""
PAST_OVERLAPS = 40
"""So is a slice of the past, where many orders would make it shorter: its overlap costs a fortieth of its requests."""
MOST_LONGER, MOST_LONGER_BY_NUMBER = 4.0, 1.75
"""How much longer it becomes for that, at most. Twenty pages by number are read without a cut."""
LIVE_SHARE = 4
"""Looking at the end of time costs a quarter of the rate at most."""
WIDE_MS = 3_600_000
WHOLE_LIVE_MS = 600_000
"""How often a stretch that is not cut is read while it lasts. Each reading lists all of it."""


class Lengths(NamedTuple):
    """What bounds the slices of one source: by its adapter, its settings and its rate.

    longest_ms: of one slice. rows, pages: what a slice should hold. overlap_ms: what is read beside it. per_s: requests
    a second. is_one_walk: the platform's lists have no end, so all of the past is one slice. least_live_ms: of a slice
    at the end of time. whole: stretches of time that are not cut, earliest first. longer: how many times longer a
    slice of the past may be than `rows` says, where its overlap costs much."""

    longest_ms: int = 86_400_000
    rows: int = 1_000
    pages: int = 10
    overlap_ms: int = 4_000
    per_s: float = 10.0
    is_one_walk: bool = False
    least_live_ms: int = 0
    whole: tuple[tuple[int, int], ...] = ()
    longer: float = 1.0


def before_whole(end_ms: int, lengths: Lengths) -> int:
    """Return where a slice that was to end at `end_ms` ends: no later than a stretch begins that is not cut."""
    whole = _whole_with(end_ms - 1, lengths)
    return end_ms if whole is None or end_ms == whole[1] else whole[0]


def end_of_whole(at_ms: int, lengths: Lengths) -> int | None:
    """Return the end of the stretch that is not cut and holds `at_ms`. `None`: there is none."""
    whole = _whole_with(at_ms, lengths)
    return None if whole is None else whole[1]


def live_whole_ms(step_ms: int) -> int:
    """Return the length of slices in such a stretch while it lasts, where it is `step_ms` at other times."""
    return max(step_ms, WHOLE_LIVE_MS)


def _whole_with(at_ms: int, lengths: Lengths) -> tuple[int, int] | None:
    found = bisect_right(lengths.whole, (at_ms, sys.maxsize)) - 1
    return lengths.whole[found] if found >= 0 and at_ms < lengths.whole[found][1] else None


def pages_of(per_s: float, timeout_ms: int) -> int:
    """Return how many pages a slice should have, so that it fits a quarter of an attempt's time."""
    return int(max(1, min(MOST_PAGES, per_s * timeout_ms / 4_000)))


def read(tuning: Tuning, length_ms: int, rows: int) -> Tuning:
    """Add a slice that was read."""
    return replace(tuning, span_ms=tuning.span_ms + length_ms, rows=tuning.rows + rows)


def with_cut(tuning: Tuning, start_ms: int, end_ms: int) -> Tuning:
    """Record a slice that was cut, if it is a wide one."""
    return replace(tuning, wide_ms=max(tuning.wide_ms, end_ms)) if end_ms - start_ms > WIDE_MS else tuning


def judged(tuning: Tuning | None, lengths: Lengths) -> Tuning:
    """Return the tuning after a look at what was read since the last one. A length that is not sure yet grows by steps,
    because so far no slice has shown that it may be longer."""
    least_ms = min(lengths.longest_ms, max(LEAST_MS, OVERLAPS * lengths.overlap_ms))
    if tuning is None:
        return Tuning(_within(FIRST_MS, least_ms, lengths.longest_ms))
    if tuning.rows * ENOUGH < lengths.rows and tuning.span_ms < tuning.length_ms:
        kept_ms = _within(tuning.length_ms, least_ms, lengths.longest_ms)
        return tuning if kept_ms == tuning.length_ms else replace(tuning, length_ms=kept_ms)
    fitting_ms = tuning.span_ms * lengths.rows // max(1, tuning.rows)
    fitting_ms = max(fitting_ms, int(min(PAST_OVERLAPS * lengths.overlap_ms, lengths.longer * fitting_ms)))
    length_ms = _within(min(fitting_ms, GROWTH * tuning.length_ms), least_ms, lengths.longest_ms)
    return Tuning(length_ms, is_sure=length_ms < 2 * tuning.length_ms, wide_ms=tuning.wide_ms)


def settled_length_ms(lengths: Lengths, rows: int, span_ms: int) -> int:
    """Return the length to which slices come where `span_ms` has so many rows, evenly spread."""
    tuning = judged(None, lengths)
    while not tuning.is_sure:
        tuning = judged(read(tuning, tuning.length_ms, rows * tuning.length_ms // span_ms), lengths)
    return tuning.length_ms


def most_open(tuning: Tuning, most: int) -> int:
    """Return how many slices may be open."""
    return most if tuning.is_sure else min(most, UNSURE_OPEN)


def live_ms(tuning: Tuning, lengths: Lengths) -> int:
    """Return the length of a slice at the end of time: about a page's worth, within some seconds and a minute, and no
    shorter than the rate and the overlap allow."""
    least_ms = max(LEAST_LIVE_MS, OVERLAPS * lengths.overlap_ms, int(LIVE_SHARE * 1_000 / lengths.per_s))
    least_ms = max(least_ms, lengths.least_live_ms)
    wanted_ms = max(least_ms, min(MOST_LIVE_MS, tuning.length_ms // lengths.pages))
    if wanted_ms > MOST_LIVE_MS:
        return -(-wanted_ms // MOST_LIVE_MS) * MOST_LIVE_MS
    return next(each for each in LIVE_MS if each >= wanted_ms)


def end_ms_of(at_ms: int, settled_ms: int, tuning: Tuning, lengths: Lengths) -> int | None:
    """Return the end of the slice that begins at `at_ms`, where all before `settled_ms` has settled. `None`: not yet.
    Ends lie on whole seconds, and those of live slices on multiples of their length."""
    stop_ms, step_ms = end_of_whole(at_ms, lengths), live_ms(tuning, lengths)
    if stop_ms is not None:
        end_ms = stop_ms if stop_ms <= settled_ms else _whole(settled_ms, live_whole_ms(step_ms))
    elif settled_ms - at_ms >= tuning.length_ms and not lengths.is_one_walk:
        end_ms = before_whole(_whole(at_ms + tuning.length_ms, LEAST_MS), lengths)
    else:
        end_ms = before_whole(_whole(settled_ms, step_ms), lengths)
    return end_ms if end_ms > at_ms else None


def due_ms_of(at_ms: int, tuning: Tuning, lengths: Lengths) -> int:
    """Return the first `settled_ms` for which `end_ms_of` returns an end."""
    stop_ms, step_ms = end_of_whole(at_ms, lengths), live_ms(tuning, lengths)
    if stop_ms is not None:
        step_ms = live_whole_ms(step_ms)
        return min(stop_ms, _whole(at_ms, step_ms) + step_ms)
    live_end_ms = _whole(at_ms, step_ms) + step_ms
    return live_end_ms if lengths.is_one_walk else min(live_end_ms, at_ms + tuning.length_ms)


def _whole(at_ms: int, step_ms: int) -> int:
    return at_ms // step_ms * step_ms


def _within(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))
