"""A source at one look, and the one thing in its way. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.outages import is_down
from actors.fetch.sources import SourceKey, SourceRecord
from actors.fetch.stored import Broken
from actors.runtime.rules.placement import owner
from actors.runtime.rules.texts import time_text
from streams.messages.begun import NodeBegun


class Overview(Struct, frozen=True):
    """A line of `sources list`. `state`: running, down, throttled, paused, parked, or what is wrong: `no ledger`,
    `removed` (its ledger is kept), `broken`. `node`: who cuts its slices. Any node may fetch them. `waits`: what is in
    the way of a running one, empty if nothing is."""

    source: str
    adapter: str = ""
    state: str = ""
    reason: str = ""
    watermark_ms: int | None = None
    frontier_ms: int | None = None
    lag_ms: int | None = None
    down_since_ms: int | None = None
    open: int = 0
    taken: int = 0
    holes: int = 0
    accepted: int = 0
    backfills: tuple[str, ...] = ()
    node: str = ""
    waits: str = ""


def overview(
    source: SourceKey,
    record: SourceRecord | Broken | None,
    ledger: Ledger | Broken | None,
    *,
    settle_ms: int,
    nodes: Sequence[str],
    now_ms: int,
) -> Overview:
    """Return a source at one look. `settle_ms` is what its windows wait for, which is no lag."""
    adapter = record.adapter if isinstance(record, SourceRecord) else ""
    node = owner(str(source), nodes) or "" if isinstance(record, SourceRecord) else ""
    state, reason = _state(record, ledger, now_ms)
    shown = Overview(source=str(source), adapter=adapter, state=state, reason=reason, node=node)
    if not isinstance(ledger, Ledger):
        return shown
    return msgspec.structs.replace(
        shown,
        watermark_ms=ledger.watermark_ms,
        frontier_ms=ledger.frontier_ms,
        lag_ms=max(0, now_ms - settle_ms - ledger.watermark_ms),
        down_since_ms=ledger.outage.since_ms if ledger.outage is not None and is_down(ledger) else None,
        open=len(ledger.open),
        taken=sum(held.is_taken for held in ledger.open),
        holes=sum(not hole.accepted_by for hole in ledger.holes),
        accepted=sum(bool(hole.accepted_by) for hole in ledger.holes),
        backfills=tuple(each.name for each in ledger.passes if each.kind == "b"),
    )


def _state(record: SourceRecord | Broken | None, ledger: Ledger | Broken | None, now_ms: int) -> tuple[str, str]:
    for broken in (record, ledger):
        if isinstance(broken, Broken):
            return "broken", f"{broken.key}: {broken.why}"
    if record is None:
        return "removed", "its ledger is kept"
    if not isinstance(ledger, Ledger):
        return "no ledger", "say where to begin: penstock sources rewind SOURCE TIME"
    if ledger.state == "running" and ledger.outage is not None and is_down(ledger):
        return "down", f"since {time_text(ledger.outage.since_ms)}: {ledger.outage.reason}"
    if ledger.state == "running" and ledger.hold_until_ms > now_ms:
        return "throttled", f"until {time_text(ledger.hold_until_ms)}"
    return ledger.state, ledger.reason


class SourceWhy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a source is not read. `code` is the kind of obstacle: its state, or `adapter` (it cannot be used), `nobody`
    (no live node tends it, or may fetch it), `sink` (orders pile up before a sink), `rate` (its requests wait for a
    rate), `turn` (its slices wait for a free fetcher) or `at_work` (nothing is in the way)."""

    id: str
    state: str
    code: str
    reason: str


class SpentRate(NamedTuple):
    """A rate for which requests to the source wait. `name`: for people. `per_s`: over all nodes. `free_ms`: in how many
    milliseconds the next one may begin, as far as is known."""

    name: str
    per_s: float
    free_ms: int


def waits_of(replies: Iterable[NodeBegun]) -> dict[str, int]:
    """Return the rates for which something waits, and in how many milliseconds the next one may begin on each node. A
    rate that held something back lately, and under which the next one may begin now, is not spent."""
    waits = dict[str, int]()
    for begun in (begun for node in replies for begun in node.keys if begun.is_waiting and begun.free_ms):
        waits[begun.key] = max(begun.free_ms, waits.get(begun.key, 0))
    return waits


class SliceWorld(NamedTuple):
    """What is around a slice. `nodes`: the live ones that may fetch it. `pin`: the label that they need. `sink`: that
    orders pile up before a sink, in words, empty if not. `elsewhere`: that no node is in the zone to which the source
    is bound, in words. `spent`: the rate for which requests to the source wait longest. `adapter`: why the source's
    adapter cannot be used, empty if it can. `unmade`: why none of the nodes could make the consumer of its slices,
    empty if one could."""

    settle_ms: int
    pin: str
    nodes: Sequence[str]
    sink: str
    elsewhere: str = ""
    spent: SpentRate | None = None
    adapter: str = ""
    unmade: str = ""


def in_the_way(world: SliceWorld) -> tuple[str, str]:
    """Return the kind of what is around a source and in the way of all its slices, and the reason. Empty: nothing."""
    if world.adapter:
        return "adapter", world.adapter
    if world.elsewhere and not world.nodes:
        return "nobody", world.elsewhere
    if not world.nodes:
        need = f" with the label {world.pin}" if world.pin else ""
        return "nobody", f"no live node{need} fetches; start one with `penstock up`"
    if world.unmade:
        return "consumer", f"no node can make the consumer of its slices: {world.unmade}"
    if world.sink:
        return "sink", world.sink
    return ("rate", spent_text(world.spent)) if world.spent is not None else ("", "")


def spent_text(rate: SpentRate) -> str:
    """Return that a rate is spent, for people."""
    return f"{rate.name}, {rate.per_s:g} a second over all nodes, is spent"


def stands_still(shown: Overview, world: SliceWorld) -> tuple[str, str]:
    """Return the kind of what keeps all of a source from being read by its state, and the reason. Empty: it runs. That
    nobody may read it comes before an outage or a limit: nobody tries whether it is still so."""
    if shown.state == "running":
        return "", ""
    around, waits = in_the_way(world)
    if around == "nobody" and shown.state in ("down", "throttled"):
        return around, waits
    return shown.state.replace(" ", "_"), shown.reason or "a person paused it"


def source_why(shown: Overview, world: SliceWorld) -> SourceWhy:
    """Return what is in the way of a source."""
    (still, because), (around, waits) = stands_still(shown, world), in_the_way(world)
    if still:
        code, reason = still, because
    elif not shown.node:
        code, reason = "nobody", "no live node tends it; start one with `penstock up`"
    elif around:
        code, reason = around, waits
    elif shown.open > shown.taken:
        code, reason = "turn", f"{shown.open - shown.taken} of its {shown.open} open slices wait for a free fetcher"
    else:
        code, reason = "at_work", f"nothing is in its way: {shown.taken} slices are being read"
    return SourceWhy(id=shown.source, state=shown.state, code=code, reason=reason)
