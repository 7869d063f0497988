"""Why a slice of a source is not read: the one thing in its way. Pure."""

from msgspec import Struct

from actors.fetch.overview import Overview, SliceWorld, in_the_way, spent_text, stands_still
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.slices import Slice
from actors.runtime.rules.texts import some_of, time_text

MOST_NAMED = 3


class SliceWhy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a slice is not read. `state`: `stored`, `hole`, `open`, `taken`, `not_cut` or `old` (of an earlier epoch).
    `code`: `over`, `hole`, `held` (a node reads it), the state of its source (`paused`, `parked`, `down`, `throttled`,
    …), `settle` (orders of its time may still come), `retry` (an attempt failed), `nobody` (no live node may fetch it),
    `consumer` (no node can make the consumer of its slices), `sink` (orders pile up before the sink), `rate` (a rate
    that its requests spend is spent), or `turn` (it waits for a free fetcher). `until_ms`: when that ends, as far as is
    known."""

    id: str
    state: str
    code: str
    reason: str
    until_ms: int = 0


def slice_why(shown: Overview, ledger: Ledger, piece: Slice, world: SliceWorld, now_ms: int) -> SliceWhy:
    """Return what is in the way of a slice. `shown`: its source at one look."""
    state, code, reason, until_ms = _obstacle(shown, ledger, piece, world, now_ms)
    return SliceWhy(id=f"{shown.source}/{piece.slice_id}", state=state, code=code, reason=reason, until_ms=until_ms)


def _obstacle(
    shown: Overview, ledger: Ledger, piece: Slice, world: SliceWorld, now_ms: int
) -> tuple[str, str, str, int]:
    found = next((one for one in ledger.open if one.slice_id == piece.slice_id), None)
    hole = next((one for one in ledger.holes if one.slice_id == piece.slice_id), None)
    if hole is not None:
        why = f"it was given up after {hole.attempts} attempts: {hole.reason}"
        return "hole", "hole", f"{why}; `penstock holes redrive {shown.source} {piece.slice_id}` reads it again", 0
    if found is not None and found.is_taken:
        if world.spent is not None:
            reason = f"{found.holder or 'a node'} reads it, and waits: {spent_text(world.spent)}"
            return "taken", "rate", reason, now_ms + world.spent.free_ms
        since = f" since {time_text(found.taken_ms)}" if found.taken_ms else ""
        return "taken", "held", f"{found.holder or 'a node'} reads it{since}, attempt {found.attempt}", 0
    if found is None and piece.epoch != ledger.epoch:
        return "old", "over", f"the source was rewound: slices of epoch {piece.epoch} count no more", 0
    if found is None and (piece.kind != "t" or piece.end_ms <= ledger.frontier_ms):
        return "stored", "over", "it is not open: its orders are stored, or it was cut into other slices", 0
    state = "open" if found is not None else "not_cut"
    still, because = stands_still(shown, world)
    if still:
        until_ms = ledger.hold_until_ms if still == "throttled" else 0
        return state, still, because if still == "nobody" else f"its source is {shown.state}: {because}", until_ms
    if found is None:
        due_ms = piece.end_ms + world.settle_ms
        return (
            state,
            "settle",
            "orders of its time may still come, so it is not cut yet",
            due_ms if due_ms > now_ms else 0,
        )
    if found.not_before_ms > now_ms:
        return (
            state,
            "retry",
            f"attempt {found.attempt - 1 or 1} failed: {found.reason or 'no reason'}",
            found.not_before_ms,
        )
    code, reason = in_the_way(world)
    if code:
        return state, code, reason, now_ms + world.spent.free_ms if code == "rate" and world.spent else 0
    named = some_of(world.nodes, MOST_NAMED)
    waiting = sum(not one.is_taken for one in ledger.open)
    return state, "turn", f"it is one of {waiting} slices of its source that wait for a free fetcher ({named})", 0
