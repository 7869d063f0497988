"""What is done to a source as a whole (pause, resume, rewind, backfills) and to its holes.

These moves come from people, from commands and from the monitor. A repeat changes nothing and returns the same object.
"""

from msgspec.structs import replace

from actors.fetch.rules.ledger import (
    Hole,
    Ledger,
    OpenSlice,
    Pass,
    find_hole,
    find_open,
    in_order,
    revised,
    same_slice,
)
from actors.fetch.rules.slices import Kind, MalformedSliceId, parse_slice_id
from actors.runtime.rules.texts import time_text

MOST_BACKFILLS = 1_000
"""Backfills of a source at a time. They are in its ledger, which is one message, and each move stores it anew."""


class NotPossible(ValueError):
    """The move would lose time or make no sense. The text says what to do instead."""


class TooManyBackfills(NotPossible):
    """A backfill could be added once others have ended."""


def pause(ledger: Ledger, reason: str = "") -> Ledger:
    """Stop cutting and offering. Held slices may finish. A parked source stays parked, with its reason."""
    return ledger if ledger.state != "running" else replace(ledger, state="paused", reason=reason)


def resume(ledger: Ledger, now_ms: int) -> Ledger:
    """Run on after a pause or a parking. A hold by throttling stands. Earlier offers are void: messages that arrived
    meanwhile were dropped. So are hints: the tail reads what they meant."""
    if ledger.state == "running":
        return ledger
    return replace(ledger, state="running", reason="", hints=None, hold_until_ms=max(ledger.hold_until_ms, now_ms + 1))


def rewind(ledger: Ledger, to_ms: int) -> Ledger:
    """Begin a new epoch that reads everything from `to_ms` on again. Open slices are void.

    Holes that begin before `to_ms` stay listed (the new epoch does not read all of them), later ones are read again.
    Second looks go back to `to_ms`. Passes cut their open slices again. A hole that was being read again behind the
    watermark becomes a hole again.

    Raises NotPossible if `to_ms` lies beyond the watermark: open slices and holes there would vanish unread.
    """
    if to_ms > ledger.watermark_ms:
        raise NotPossible(
            f"cannot rewind to {time_text(to_ms)}: it lies beyond the watermark {time_text(ledger.watermark_ms)}; "
            "accept the holes first"
        )
    if to_ms < 0:
        raise NotPossible(f"cannot rewind to {time_text(to_ms)}: time begins with 1970 here")
    return replace(
        ledger,
        epoch=ledger.epoch + 1,
        start_ms=min(ledger.start_ms, to_ms),
        frontier_ms=to_ms,
        watermark_ms=to_ms,
        open=(),
        holes=(*(hole for hole in ledger.holes if hole.start_ms < to_ms), *_orphans(ledger, to_ms)),
        passes=tuple(_taken_back(ledger, each, to_ms) for each in ledger.passes),
    )


def _orphans(ledger: Ledger, to_ms: int) -> list[Hole]:
    """Return as holes the open slices that neither the new epoch nor a pass reads again (holes redriven behind the
    watermark)."""
    running = {each.name for each in ledger.passes}
    return [
        _left(held, "rewound while it was open")
        for held in ledger.open
        if held.start_ms < to_ms and held.pass_name not in running and not held.is_look
    ]


def _taken_back(ledger: Ledger, reading: Pass, to_ms: int) -> Pass:
    open_ms = [held.start_ms for held in ledger.open if held.pass_name == reading.name]
    limit_ms = [to_ms] if reading.kind == "a" else []
    return replace(reading, cursor_ms=min([reading.cursor_ms, *open_ms, *limit_ms]))


def add_backfill(ledger: Ledger, name: str, start_ms: int, end_ms: int) -> Ledger:
    """Read `[start_ms, end_ms)` once more beside the live tail, which it does not change.
    Raises NotPossible for an empty window, or if another running backfill has the name, and TooManyBackfills."""
    if not 0 <= start_ms < end_ms:
        raise NotPossible(
            f"backfill {name}: the start {time_text(start_ms)} must lie before the end {time_text(end_ms)}"
        )
    for each in ledger.passes:
        if each.name == name:
            if (each.kind, each.start_ms, each.end_ms) == ("b", start_ms, end_ms):
                return ledger
            raise NotPossible(f"backfill {name} is running with another window: remove it first or choose a new name")
    if sum(each.kind == "b" for each in ledger.passes) >= MOST_BACKFILLS:
        raise TooManyBackfills(f"backfill {name}: {MOST_BACKFILLS} others have not ended; wait for them or remove some")
    return replace(ledger, passes=(*ledger.passes, Pass(name, "b", start_ms, start_ms, end_ms)))


def remove_backfill(ledger: Ledger, name: str) -> Ledger:
    """Drop a backfill with its open slices. Its holes stay listed, and open slices that are known to be short become
    holes. The same object if there is no such backfill."""
    passes = tuple(each for each in ledger.passes if each.name != name or each.kind != "b")
    if len(passes) == len(ledger.passes):
        return ledger
    left = tuple(held for held in ledger.open if held.pass_name != name)
    short = (held for held in ledger.open if held.pass_name == name and held.short is not None)
    return revised(
        replace(ledger, passes=passes),
        open=left,
        holes=(*ledger.holes, *(_left(held, "its backfill was cancelled while it was read again") for held in short)),
    )


def _left(held: OpenSlice, why: str) -> Hole:
    """Return the hole that remains of an open slice which no node will read any more."""
    reason = f"{held.short}; {why}" if held.short else why
    since_ms = held.cut_ms if held.short else 0  # rows read before it was known to be short do not make up for it
    return Hole(held.kind, held.epoch, held.start_ms, held.end_ms, since_ms, reason=reason, short=held.short)


def accept_hole(ledger: Ledger, slice_id: str, by: str) -> tuple[Ledger, bool]:
    """Let the watermark pass the hole. It stays listed, with who accepted it. Return False if there is no such hole."""
    hole = _hole(ledger, slice_id)
    if hole is None:
        return ledger, False
    if hole.accepted_by:
        return ledger, True
    return revised(ledger, holes=_put(ledger, replace(hole, accepted_by=by))), True


def redrive_hole(ledger: Ledger, slice_id: str, now_ms: int) -> tuple[Ledger, OpenSlice | None]:
    """Open the hole's window again with attempt 1. Return the slice that reads it, or None if there is no such hole.
    A hole that the watermark has not passed comes back as itself. One that it has passed (accepted, or of an older
    epoch) comes back as a backfill slice, so that the watermark need not go back. If that window is already open as a
    backfill, that slice stands for both."""
    hole = _hole(ledger, slice_id)
    if hole is None:
        return ledger, None
    is_passed = hole.epoch != ledger.epoch or (hole.kind == "t" and hole.start_ms < ledger.watermark_ms)
    kind: Kind = "b" if is_passed and hole.kind == "t" else hole.kind
    again = OpenSlice(
        kind,
        ledger.epoch,
        hole.start_ms,
        hole.end_ms,
        now_ms,
        not_before_ms=now_ms + 1,
        pass_name=hole.pass_name,
        short=hole.short,
    )
    holes = tuple(other for other in ledger.holes if other is not hole and not same_slice(other, again))
    standing = find_open(ledger, again)
    if standing is not None:
        # no repeat of a backfill any more: what it reads was never read
        mine = replace(standing, pass_name="", short=standing.short or hole.short)
        opened = tuple(mine if held is standing else held for held in ledger.open)
        return revised(ledger, open=opened, holes=holes), mine
    return revised(ledger, open=in_order((*ledger.open, again)), holes=holes), again


def mark_reported(ledger: Ledger, slice_id: str) -> tuple[Ledger, bool]:
    """Record that the hole was reported. Return False if there is no such hole."""
    hole = _hole(ledger, slice_id)
    if hole is None:
        return ledger, False
    if hole.is_told:
        return ledger, True
    return replace(owe_end(ledger), holes=_put(ledger, replace(hole, is_told=True))), True


def owe_end(ledger: Ledger) -> Ledger:
    """Record that a hole was reported, which may have gone meanwhile. Its end must be reported too."""
    return ledger if ledger.owes_end else replace(ledger, owes_end=True)


def mark_ended(ledger: Ledger) -> Ledger:
    """Record the report that no hole is left. Nothing changes if another hole was reported since."""
    is_owed = any(hole.is_told and not hole.accepted_by for hole in ledger.holes)
    return replace(ledger, owes_end=False) if ledger.owes_end and not is_owed else ledger


def forget_hole(ledger: Ledger, slice_id: str) -> tuple[Ledger, bool]:
    """Remove a hole for good. Return False, with nothing changed, unless it was accepted before, or lies in a backfill
    or a second look, which hold nothing back."""
    hole = _hole(ledger, slice_id)
    if hole is None or (hole.kind == "t" and not hole.accepted_by):
        return ledger, False
    return revised(ledger, holes=tuple(other for other in ledger.holes if other is not hole)), True


def _hole(ledger: Ledger, slice_id: str) -> Hole | None:
    try:
        return find_hole(ledger, parse_slice_id(slice_id))
    except MalformedSliceId:
        return None


def _put(ledger: Ledger, changed: Hole) -> tuple[Hole, ...]:
    return tuple(changed if same_slice(other, changed) else other for other in ledger.holes)
