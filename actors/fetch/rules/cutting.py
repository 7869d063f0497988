"""Which windows come next: cutting slices off a source's time, and when to offer them.

Any node may cut. Compare-and-set decides between two that do. A slice is cut as soon as its end has settled (`now -
settle`). If the settings have a length, slices lie on a grid from the ledger's start. So the window of a slice depends
on the settings and never on who looked when. A changed length moves the grid for new cuts. Open slices keep the windows
they were cut with. Without a length (`auto`) it follows from what the slices before have shown (`tuning`).

Beside the tail there are passes. A backfill reads any past window once. A second look ("again") reads what the tail has
completed once more, `delay` after a window's end, for orders that the platform showed late. A look reads at once what
a hint names (`looks`).
"""

from collections.abc import Mapping

from msgspec.structs import replace

from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, Pass, find_open, in_order, revised, same_slice
from actors.fetch.rules.looks import cut_looks, look_due_ms
from actors.fetch.rules.outages import MOST_PROBED, earliest_ms, offerable, wants_other_probe
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.slices import Kind, Slice, next_end_ms
from actors.fetch.rules.tuning import (
    Lengths,
    before_whole,
    due_ms_of,
    end_ms_of,
    end_of_whole,
    judged,
    live_whole_ms,
    most_open,
    with_cut,
)

OfferKey = tuple[Kind, int, int, int, int, int]
"""The identity of one offer: kind, epoch, start, end, attempt, and the moment from which it may be taken."""

SWEEP = "sweep"
"""The name of the pass that reads everything again."""
CAUGHT_UP_MS = 600_000

NOTHING_OFFERED: Mapping[OfferKey, int] = {}
USUAL = Lengths()


def offer_key(ledger: Ledger, held: OpenSlice) -> OfferKey:
    """Return the key under which an allocator remembers when it offered `held`.
    It contains the wait that was over by then. A later wait makes the offer void, since its message was settled when
    the slice was given back. The wait comes from another node's clock, so it is not compared with our own."""
    return (held.kind, held.epoch, held.start_ms, held.end_ms, held.attempt, earliest_ms(ledger, held))


def cut(ledger: Ledger, settings: FetchSettings, now_ms: int, lengths: Lengths = USUAL) -> Ledger:
    """Return the ledger with every slice cut that may be cut now. It is the same object if there is none.

    Tail: whole slices up to `now - settle`, while fewer than `max_open` tail slices are open and fewer than `max_holes`
    holes are listed (a source that fails everywhere must not go on for ever). A probe of a source that is down may be
    one more. Backfills and second looks: while fewer
    than `back_open` slices of their kind are open, the passes in turn. Nothing while the source is paused or parked. If
    a window that is listed as a hole is cut again, the hole is removed, because it is being read again. The new slice
    keeps its shortfall.
    """
    if ledger.state != "running":
        return ledger
    looks, hints = cut_looks(ledger, now_ms, lengths, settings.slice_ms)
    tail = _cut_tail(ledger, settings, now_ms, lengths)
    swept_ms = _swept_ms(ledger, settings, now_ms)
    passes = _without_late(_passes(ledger, settings), tail, now_ms)
    if ledger.swept_ms and swept_ms != ledger.swept_ms:
        passes = (*passes, Pass(SWEEP, "b", ledger.start_ms, ledger.start_ms, ledger.watermark_ms))
    back, passes = _cut_passes(ledger, passes, settings, now_ms, lengths)
    if not tail and not back and hints == ledger.hints:
        return ledger
    back = [_with_shortfall(held, ledger.holes) for held in back]
    frontier_ms = tail[-1].end_ms if tail else ledger.frontier_ms
    after = replace(ledger, frontier_ms=frontier_ms, passes=passes, swept_ms=swept_ms, hints=hints)
    if not settings.slice_ms:
        tuning = judged(ledger.tuning, lengths)
        for fresh in (*tail, *back):
            tuning = with_cut(tuning, fresh.start_ms, fresh.end_ms)
        after = replace(after, tuning=tuning)
    return revised(after, open=in_order((*ledger.open, *tail, *back, *looks)), holes=_not_again(ledger.holes, back))


def offers_due(
    ledger: Ledger, now_ms: int, offered: Mapping[OfferKey, int] = NOTHING_OFFERED, reoffer_ms: int = 0
) -> list[OpenSlice]:
    """Return the open slices to offer now, in the order of delivery: nobody holds them, the source runs, and neither
    their own wait nor the source's hold is in the future. For a source that is down this is its probe alone.

    `offered` is the caller's memory of its own offers (`offer_key` to the moment, ms). A slice offered less than
    `reoffer_ms` ago is left out, unless it has had to wait or was held back since. It is a memory only: offering twice
    is harmless, and forgetting it all costs one more offer each.
    """
    if ledger.state != "running":
        return []
    return [held for held in offerable(ledger) if _offer_at_ms(ledger, held, offered, reoffer_ms) <= now_ms]


def next_due_ms(
    ledger: Ledger,
    settings: FetchSettings,
    now_ms: int,
    offered: Mapping[OfferKey, int] = NOTHING_OFFERED,
    lengths: Lengths = USUAL,
) -> int | None:
    """Return the first moment, `now_ms` or later, at which `cut` or `offers_due` would yield something if the ledger
    stays as it is. `None`: time alone changes nothing."""
    if ledger.state != "running":
        return None
    moments = _cut_moments(ledger, settings, lengths)
    moments += [_offer_at_ms(ledger, held, offered, settings.reoffer_ms) for held in offerable(ledger)]
    return max(now_ms, min(moments)) if moments else None


def _offer_at_ms(ledger: Ledger, held: OpenSlice, offered: Mapping[OfferKey, int], reoffer_ms: int) -> int:
    last = offered.get(offer_key(ledger, held)) if offered else None
    return earliest_ms(ledger, held) if last is None else last + reoffer_ms


def _cut_tail(ledger: Ledger, settings: FetchSettings, now_ms: int, lengths: Lengths) -> list[OpenSlice]:
    fresh: list[OpenSlice] = []
    at_ms, settled_ms = ledger.frontier_ms, now_ms - settings.settle_ms
    for _ in range(_tail_room(ledger, settings, lengths)):
        end_ms = _tail_end_ms(ledger, settings, at_ms, settled_ms, lengths)
        if end_ms is None:
            break
        fresh.append(OpenSlice("t", ledger.epoch, at_ms, end_ms, cut_ms=now_ms))
        at_ms = end_ms
    return fresh


def _tail_end_ms(ledger: Ledger, settings: FetchSettings, at_ms: int, settled_ms: int, lengths: Lengths) -> int | None:
    """Return the end of the tail slice that begins at `at_ms`. `None`: it has not settled."""
    if not settings.slice_ms:
        return end_ms_of(at_ms, settled_ms, judged(ledger.tuning, lengths), lengths)
    end_ms = _grid_end_ms(ledger, settings, at_ms, settled_ms, lengths)
    return end_ms if end_ms <= settled_ms else None


def _grid_end_ms(ledger: Ledger, settings: FetchSettings, at_ms: int, settled_ms: int | None, lengths: Lengths) -> int:
    """Return the end of a slice of a set length: on the grid, but for stretches that are not cut. `settled_ms`: all
    before it has settled. `None`: it may be any time."""
    stop_ms, length_ms = end_of_whole(at_ms, lengths), settings.slice_ms
    if stop_ms is None:
        return before_whole(next_end_ms(at_ms, length_ms, ledger.start_ms), lengths)
    is_over = settled_ms is not None and stop_ms <= settled_ms
    return stop_ms if is_over else min(stop_ms, next_end_ms(at_ms, live_whole_ms(length_ms), 0))


def _tail_due_ms(ledger: Ledger, settings: FetchSettings, lengths: Lengths) -> int:
    if not settings.slice_ms:
        settled_ms = due_ms_of(ledger.frontier_ms, judged(ledger.tuning, lengths), lengths)
    else:
        settled_ms = _grid_end_ms(ledger, settings, ledger.frontier_ms, None, lengths)
    return settled_ms + settings.settle_ms


def _tail_room(ledger: Ledger, settings: FetchSettings, lengths: Lengths) -> int:
    if len(ledger.holes) >= settings.max_holes:
        return 0
    most = settings.max_open
    if wants_other_probe(ledger):
        return min(1, max(most, MOST_PROBED) - _count_open(ledger, "t"))
    if not settings.slice_ms:
        most = most_open(judged(ledger.tuning, lengths), most)
    return most - _count_open(ledger, "t")


def _count_open(ledger: Ledger, kind: Kind) -> int:
    return len([held for held in ledger.open if held.kind == kind and not held.is_look])


def _passes(ledger: Ledger, settings: FetchSettings) -> tuple[Pass, ...]:
    """Return the backfills, then one second look for each setting: running ones, and new ones that begin at the
    frontier. A new one needs no write of its own: it can cut nothing before the tail moves the frontier."""
    running = {each.delay_ms: each for each in ledger.passes if each.kind == "a"}
    again = tuple(
        running.get(delay_ms) or Pass(f"again-{delay_ms}", "a", ledger.frontier_ms, ledger.frontier_ms, None, delay_ms)
        for delay_ms in settings.looks_ms()
    )
    return (*(each for each in ledger.passes if each.kind == "b"), *again)


def _swept_ms(ledger: Ledger, settings: FetchSettings, now_ms: int) -> int:
    """Return when the last sweep began: now, if one is due. The time before the first one begins when the source has
    caught up."""
    if not settings.sweep_ms or any(each.name == SWEEP for each in ledger.passes):
        return ledger.swept_ms
    if not ledger.swept_ms:
        return now_ms if now_ms - settings.settle_ms - ledger.watermark_ms < CAUGHT_UP_MS else 0
    is_due = now_ms >= ledger.swept_ms + settings.sweep_ms and ledger.watermark_ms > ledger.start_ms
    return now_ms if is_due else ledger.swept_ms


def _without_late(passes: tuple[Pass, ...], tail: list[OpenSlice], now_ms: int) -> tuple[Pass, ...]:
    """Move second looks past tail slices that are cut, and so read for the first time, only after the second look was
    due. Without it, catching up with three months would read everything once more for every look."""
    return tuple(_past_late(each, tail, now_ms) if each.kind == "a" else each for each in passes)


def _past_late(look: Pass, tail: list[OpenSlice], now_ms: int) -> Pass:
    cursor_ms = look.cursor_ms
    for fresh in tail:
        if fresh.start_ms == cursor_ms:
            cursor_ms = min(fresh.end_ms, max(cursor_ms, now_ms - look.delay_ms))
    return look if cursor_ms == look.cursor_ms else replace(look, cursor_ms=cursor_ms)


def _cut_passes(
    ledger: Ledger, passes: tuple[Pass, ...], settings: FetchSettings, now_ms: int, lengths: Lengths
) -> tuple[list[OpenSlice], tuple[Pass, ...]]:
    """Cut one slice a pass in turn, until no pass has room or a window that is due."""
    fresh: list[OpenSlice] = []
    room = {"b": settings.back_open - _count_open(ledger, "b"), "a": settings.back_open - _count_open(ledger, "a")}
    cursors = list(passes)
    is_moving = True
    while is_moving:
        is_moving = False
        for i, each in enumerate(cursors):
            piece = _next_piece(ledger, each, settings, lengths)
            if piece is None or room[each.kind] < 1 or _due_ms(piece, each, settings) > now_ms:
                continue
            if any(same_slice(piece, other) for other in fresh):
                continue
            fresh.append(OpenSlice(each.kind, ledger.epoch, piece.start_ms, piece.end_ms, now_ms, pass_name=each.name))
            cursors[i] = replace(each, cursor_ms=piece.end_ms)
            room[each.kind] -= 1
            is_moving = True
    return fresh, tuple(cursors)


def _next_piece(ledger: Ledger, reading: Pass, settings: FetchSettings, lengths: Lengths) -> Slice | None:
    """Return the window that `reading` would cut next. `None`: it is at its end, would pass the watermark, or the same
    window is open for another pass (a slice is known by its window, so this one waits for it)."""
    at_ms = reading.cursor_ms
    if reading.kind == "b":
        assert reading.end_ms is not None
        end_ms = min(_back_end_ms(ledger, settings, at_ms, lengths) or reading.end_ms, reading.end_ms)
    else:
        end_ms = _past_end_ms(at_ms, at_ms + again_length_ms(ledger, reading.delay_ms, settings, lengths), lengths)
    is_beyond = end_ms > ledger.watermark_ms if reading.kind == "a" else at_ms >= end_ms
    piece = Slice(reading.kind, ledger.epoch, at_ms, end_ms)
    return None if is_beyond or find_open(ledger, piece) else piece


def _back_end_ms(ledger: Ledger, settings: FetchSettings, at_ms: int, lengths: Lengths) -> int | None:
    """Return the end of a backfill's slice. `None`: the end of the backfill, since the platform's lists have none."""
    if settings.slice_ms:
        return _past_end_ms(at_ms, next_end_ms(at_ms, settings.slice_ms, ledger.start_ms), lengths)
    if lengths.is_one_walk:
        return None
    return _past_end_ms(at_ms, at_ms + judged(ledger.tuning, lengths).length_ms, lengths)


def again_length_ms(ledger: Ledger, delay_ms: int, settings: FetchSettings, lengths: Lengths) -> int:
    """Return the length of a second look's window. If slices follow the orders, it holds no more pages than
    they do, and a look that comes late has a wide one: a quarter of its delay is no time to wait."""
    if settings.slice_ms or lengths.is_one_walk:
        return settings.again_slice_ms
    return min(max(settings.again_slice_ms, delay_ms // 4), judged(ledger.tuning, lengths).length_ms)


def _past_end_ms(at_ms: int, end_ms: int, lengths: Lengths) -> int:
    """Return where a slice of the past ends that was to end at `end_ms`, so that no stretch is cut that must not be."""
    return end_of_whole(at_ms, lengths) or before_whole(end_ms, lengths)


def _due_ms(piece: Slice, reading: Pass, settings: FetchSettings) -> int:
    return piece.end_ms + (settings.settle_ms if reading.kind == "b" else reading.delay_ms)


def _cut_moments(ledger: Ledger, settings: FetchSettings, lengths: Lengths) -> list[int]:
    """Return the moment of the next cut of the tail and of each pass that has room."""
    look_ms = look_due_ms(ledger, lengths)
    moments = [] if look_ms is None else [look_ms]
    if _tail_room(ledger, settings, lengths) > 0:
        moments.append(_tail_due_ms(ledger, settings, lengths))
    room = {"b": settings.back_open > _count_open(ledger, "b"), "a": settings.back_open > _count_open(ledger, "a")}
    is_swept = any(each.name == SWEEP for each in ledger.passes)
    if settings.sweep_ms and ledger.swept_ms and room["b"] and not is_swept:
        moments.append(ledger.swept_ms + settings.sweep_ms)
    for each in _passes(ledger, settings):
        piece = _next_piece(ledger, each, settings, lengths) if room[each.kind] else None
        if piece is not None:
            moments.append(_due_ms(piece, each, settings))
    return moments


def _with_shortfall(held: OpenSlice, holes: tuple[Hole, ...]) -> OpenSlice:
    short = next((hole.short for hole in holes if hole.short and same_slice(hole, held)), None)
    return replace(held, short=short) if short else held


def _not_again(holes: tuple[Hole, ...], back: list[OpenSlice]) -> tuple[Hole, ...]:
    if not holes or not back:
        return holes
    return tuple(hole for hole in holes if not any(same_slice(hole, held) for held in back))
