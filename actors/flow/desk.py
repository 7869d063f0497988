"""The desk of flows: what people and programs ask of them, the same at every door.

In: requests. Out: settings in FLOWS and of the topic of a flow's rows, rounds that are asked for, and views. State:
none of its own. Everything here is harmless to repeat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from actors.flow.flows import (
    LONGEST_EVERY_MS,
    LONGEST_LOAD_MS,
    SHORTEST_EVERY_MS,
    BadFlow,
    FlowLimits,
    FlowRecord,
    Flows,
    RoundReport,
    ShardState,
    checked_limits,
    interval_ms,
)
from actors.flow.rates_desk import BadRate, checked_rate, key_of
from actors.flow.rules.groups import warnings_of
from actors.flow.rules.limited_by import FlowPace, LimitedBy, Usage, limit_of
from actors.flow.rules.obstacles import RowJob, RowsProgress, RowWhy, why_row
from actors.runtime.rates.counts import Gathered
from actors.runtime.rules.pages import MOST_LINES, PAGE_BYTES, page_of
from actors.runtime.rules.setting_values import BadSetting, duration_text, nearest, span_ms
from actors.runtime.rules.slot_keys import Slots
from streams.calls import mark_of
from streams.clock import Clock
from streams.messages.begun import KeyBegun
from streams.subjects import TOKEN

SPANS = {"every": "every_ms", "longest": "longest_ms", "lead": "lead_ms", "load_timeout": "load_timeout_ms"}
"""Settings that are lengths of time, and their fields."""
RANGES = {
    "every": (SHORTEST_EVERY_MS, LONGEST_EVERY_MS),
    "longest": (SHORTEST_EVERY_MS, LONGEST_EVERY_MS),
    "lead": (0, LONGEST_EVERY_MS),
    "load_timeout": (100, LONGEST_LOAD_MS),
}
RATE_CODES = ("rate", "turn", "held", "full", "round")
"""A row for one of these reasons is executed sooner if the flow reaches its rate."""
SLOTS = ("slots", "slot_key", "when_full")
SETTINGS = (*SPANS, "rate", "most_in_flight", "groups", "zone", "region_key", *SLOTS)


class FlowJobsDoor(Protocol):
    """The part of the job engine that is needed here."""

    async def refresh(self, flow: str) -> None:
        """Take the rate, the pause and the slots as they are stored now, and the pause of the rounds."""
        ...

    def rate(self, flow: str) -> float: ...

    def is_paused(self, flow: str) -> bool: ...

    async def loaded_many(self, flows: Sequence[str]) -> Sequence[tuple[int, int]]:
        """Return how many rows of each are loaded and not executed: without those that wait for another attempt or a
        free slot, and those alone."""
        ...

    async def change(self, flow: str, **values: object) -> None:
        """Set the rate, or the pause, of a flow's rows. Raises BadSetting."""
        ...

    def slots(self, flow: str) -> Slots | None:
        """Return how many rows of a key are executed at once. `None`: no limit."""
        ...

    async def change_slots(self, flow: str, values: Mapping[str, object]) -> None:
        """Set some of `SLOTS`. `None` resets one to the value in the code. Raises BadSetting."""
        ...

    async def follow(self, flow: str, every_ms: int) -> None:
        """Have rounds at this interval."""
        ...

    async def bind(self, flow: str, bound: str, region_key: str) -> None:
        """Have rounds and rows where a bound says, and refuse rows of other zones by their region."""
        ...

    async def job(self, flow: str, shard: str, key: str) -> RowJob | None:
        """Return what is in the way of a row in flight, or that it ended. `None`: it is not in flight."""
        ...

    async def begin(self, flow: str, nonce: str = "") -> str:
        """Have a round now. Return its id. `nonce`: the same in each try of one call. Raises BadFlow if none can
        come."""
        ...

    async def next_round(self, flow: str) -> tuple[int, str]:
        """Return when the next round is due, or 0 and why none comes."""
        ...


class FlowView(Struct, frozen=True, kw_only=True):
    """A flow as people see it. `every`: the interval now. `in_flight`: rows that are loaded and not executed, with
    those that wait for another attempt or a free slot. A round counts without them. `rounds`: the latest ones, the
    oldest first. `warnings`: what the settings want and is not there now. `begun`: rows a second that were begun in the
    last seconds, under a rate. `limited_by`: why the flow does not reach its rate."""

    flow: str
    app: str
    rate: float
    is_paused: bool
    every: str
    in_flight: int
    settings: dict[str, Any]
    rounds: Sequence[RoundReport] = ()
    warnings: Sequence[str] = ()
    begun: float = 0.0
    limited_by: LimitedBy | None = None


class FlowDesk:
    """One node's desk. Many callers may use it at once. `serving(flow)`: the live nodes that serve a flow, with their
    labels. `check_bound(flow, bound)` raises ValueError if it may not be bound so here. `begun(keys)`: what live nodes
    began lately under keys of rates. It raises UnknownFlow, BadFlow, and the broker's errors."""

    def __init__(
        self,
        flows: Flows,
        jobs: FlowJobsDoor,
        *,
        clock: Clock,
        serving: Callable[[str], Mapping[str, Collection[str]]] = lambda _flow: {},
        check_bound: Callable[[str, object], None] = lambda _flow, _bound: None,
        begun: Callable[[Sequence[str]], Awaitable[Gathered]] | None = None,
    ) -> None:
        self._begun = begun
        self._check_bound = check_bound
        self._flows = flows
        self._jobs = jobs
        self._clock = clock
        self._serving = serving

    async def list(
        self, *, after: str = "", limit: int = MOST_LINES, most_bytes: int = PAGE_BYTES
    ) -> tuple[list[FlowView], str]:
        """Return a page of flows by name, each with its last round, and the name of the last one if there are more.
        `after`: such a name."""
        names = [flow for flow in self._flows.known() if flow > after][: limit + 1]
        shown = (replace(view, rounds=view.rounds[-1:]) for view in await self._views(names))
        return page_of(shown, limit, most_bytes, lambda view: view.flow)

    async def show(self, flow: str) -> FlowView:
        """Return a flow with its latest rounds, as it was set last, at whatever node."""
        await self._found(flow)
        [view] = await self._views([flow])
        return view

    async def _found(self, flow: str) -> FlowRecord:
        """Return a flow's record. It, the rate and the pause are as they are stored now, whoever has set them."""
        if TOKEN.fullmatch(flow):  # nothing else is the name of one
            await self._flows.refresh(flow)
            await self._jobs.refresh(flow)
        return self._flows.named(flow)

    async def _views(self, flows: Sequence[str]) -> Sequence[FlowView]:
        """Count the rows of all flows at once, and ask the nodes once."""
        counts, gathered = await self._jobs.loaded_many(flows), await self._gathered(flows)
        of_keys: dict[str, dict[str, KeyBegun]] = {}
        for node in gathered.nodes:
            for each in node.keys:
                of_keys.setdefault(each.key, {})[node.node] = each
        return [
            self._shown(flow, self._pace(flow, *counted, gathered, of_keys.get(key_of("flow", flow), {})))
            for flow, counted in zip(flows, counts, strict=True)
        ]

    async def _gathered(self, flows: Sequence[str]) -> Gathered:
        """Ask the nodes what they began of the flows that have a rate and are not paused."""
        keys = [key_of("flow", flow) for flow in flows if self._jobs.rate(flow) and not self._jobs.is_paused(flow)]
        return await self._begun(keys) if self._begun is not None and keys else Gathered((), ())

    def _pace(
        self, flow: str, in_flight: int, waiting: int, gathered: Gathered, begun: Mapping[str, KeyBegun]
    ) -> FlowPace:
        """Return how a flow gets on. `begun`: what each node began of it."""
        limits, progress = self._flows.current(flow).limits, self._flows.progress(flow)
        rate, serving = self._jobs.rate(flow), self._serving(flow)
        return FlowPace(
            rate=rate,
            begun=round(sum((sum(each.begun) / max(1, len(each.begun)) for each in begun.values()), 0.0), 1),
            in_flight=in_flight,
            waiting=waiting,
            most_in_flight=limits.most_in_flight,
            is_capped=rate * interval_ms(limits, progress.every_ms) / 1000 > limits.most_in_flight,
            nodes={
                node.node: Usage(begun[node.node].share if node.node in begun else 0.0, node.cores, node.load)
                for node in gathered.nodes
                if node.node in serving
            },
            silent=[name for name in gathered.silent if name in serving],
            last=progress.rounds[-1] if progress.rounds else None,
            rounds=len(progress.rounds),
        )

    def _shown(self, flow: str, pace: FlowPace) -> FlowView:
        record, progress, is_paused = self._flows.current(flow), self._flows.progress(flow), self._jobs.is_paused(flow)
        return FlowView(
            flow=flow,
            app=record.app,
            rate=pace.rate,
            is_paused=is_paused,
            every=duration_text(interval_ms(record.limits, progress.every_ms)),
            in_flight=pace.in_flight + pace.waiting,
            settings={**_document(record.limits), **_slots_document(self._jobs.slots(flow))},
            rounds=progress.rounds,
            warnings=warnings_of(record.limits.groups, self._living(flow)),
            begun=pace.begun,
            limited_by=None if is_paused or self._begun is None else limit_of(pace),
        )

    def _living(self, flow: str) -> set[str]:
        """Return the labels of the live nodes that serve a flow."""
        return {label for labels in self._serving(flow).values() for label in labels}

    async def why(self, flow: str, shard: str, key: str) -> RowWhy:
        """Return what keeps a row from being executed."""
        record = await self._found(flow)
        limits, serving, progress = record.limits, self._serving(flow), self._flows.progress(flow)
        state = progress.shards.get(shard, ShardState())
        next_ms, stopped = await self._jobs.next_round(flow)
        known = RowsProgress(
            limits.groups,
            next_ms,
            progress.names,
            state.busy_ms,
            progress.rounds[-1] if progress.rounds else None,
            state.has_failed,
            stopped,
        )
        why = why_row(
            flow,
            shard,
            key,
            await self._jobs.job(flow, shard, key),
            known,
            is_paused=self._jobs.is_paused(flow),
            serving=serving,
            living=self._living(flow),
            now_ms=self._clock.now_ms(),
        )
        if why.code not in RATE_CODES:
            return why
        [view] = await self._views([flow])
        if view.limited_by is None:
            return why
        pace = f"the flow begins {view.begun:g} of its {view.rate:g} rows a second"
        return replace(why, reason=f"{why.reason}; {pace} ({view.limited_by.code}): {view.limited_by.reason}")

    async def set(self, flow: str, values: Mapping[str, object]) -> FlowView:
        """Change some settings: every, longest, lead, load_timeout (as `5s`), rate, most_in_flight, groups, slots
        (calls of `execute` at once under each key, 0: no limit), slot_key, when_full, zone (where it runs, as `east` or
        `shard:7`). `None` resets one to the value in the code."""
        record = await self._found(flow)
        if unknown := [name for name in values if name not in SETTINGS]:
            raise BadFlow(f"{unknown[0][:80]!a}: is not a setting of flows; {nearest(unknown[0], SETTINGS)}")
        rate = _rate(values["rate"], record) if "rate" in values else None
        slots = {name: value for name, value in values.items() if name in SLOTS}
        changes = {name: value for name, value in values.items() if name != "rate" and name not in slots}
        try:
            self._check_bound(flow, changes.get("zone"))
        except ValueError as error:
            raise BadFlow(str(error)) from error
        _changed(record.limits, record, changes)  # all or nothing
        if slots:
            try:
                await self._jobs.change_slots(flow, slots)
            except BadSetting as error:
                raise BadFlow(str(error)) from error
        if changes:
            await self._flows.limit(flow, lambda limits: _changed(limits, record, changes), mark_of(changes))
            await self._follow(flow)
        if rate is not None:
            await self._jobs.change(flow, rate=rate)
        return await self.show(flow)

    async def _follow(self, flow: str) -> None:
        """Have rounds and rows as the stored settings say, also if another desk stores others meanwhile."""
        followed: FlowLimits | None = None
        while (limits := self._flows.current(flow).limits) != followed:
            await self._jobs.bind(flow, limits.zone, limits.region_key)
            await self._jobs.follow(flow, interval_ms(limits, self._flows.progress(flow).every_ms))
            followed = limits
            await self._flows.refresh()

    async def pause(self, flow: str) -> FlowView:
        """Load and execute nothing more. Rows that run come to their end."""
        return await self._paused(flow, True)

    async def resume(self, flow: str) -> FlowView:
        """Go on."""
        return await self._paused(flow, False)

    async def run(self, flow: str) -> FlowView:
        """Have a round now, beside the schedule. A paused flow has none."""
        await self._found(flow)
        if self._jobs.is_paused(flow):
            raise BadFlow(f"flow {flow}: is paused; resume it first")
        await self._jobs.begin(flow, mark_of("run"))
        return await self.show(flow)

    async def _paused(self, flow: str, is_paused: bool) -> FlowView:
        await self._found(flow)
        await self._jobs.change(flow, is_paused=is_paused)
        return await self.show(flow)


def _document(limits: FlowLimits) -> dict[str, object]:
    spans = {name: duration_text(getattr(limits, field)) for name, field in SPANS.items()}
    return {
        **spans,
        "most_in_flight": limits.most_in_flight,
        "groups": limits.groups,
        "zone": limits.zone,
        "region_key": limits.region_key,
    }


def _slots_document(slots: Slots | None) -> dict[str, object]:
    """Return the settings of slots. Without slots there is one."""
    return {"slots": 0} if slots is None else {"slots": slots.most, "slot_key": slots.key, "when_full": slots.when_full}


def _changed(limits: FlowLimits, record: FlowRecord, values: Mapping[str, object]) -> FlowLimits:
    declared = record.declared or FlowLimits()
    changes: dict[str, object] = {}
    for name, value in values.items():
        field = SPANS.get(name, name)
        if value is None:
            changes[field] = getattr(declared, field)
        elif name in SPANS:
            try:
                changes[field] = _span_ms(name, value)
            except BadSetting as error:
                raise BadFlow(str(error)) from error
        else:
            changes[field] = value
    every, longest = changes.get("every_ms"), changes.get("longest_ms")
    if isinstance(every, int) and longest is None:  # one interval stays one, and a bound goes along
        is_fixed = limits.every_ms == limits.longest_ms
        changes["longest_ms"] = every if is_fixed else max(every, limits.longest_ms)
    return checked_limits(changes, limits)


def _span_ms(name: str, value: Any) -> int:
    low, high = RANGES[name]
    found = span_ms(name, value)
    if not low <= found <= high:
        bounds = f"{duration_text(low)} to {duration_text(high)}"
        raise BadFlow(f"{name}: {str(value)[:80]!a}: is out of range; use {bounds}")
    return found


def _rate(value: object, record: FlowRecord) -> float:
    if value is None:
        return record.declared_rate
    try:
        return checked_rate(value) or 0.0
    except BadRate as error:
        raise BadFlow(str(error)) from error
