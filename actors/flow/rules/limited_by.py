"""Why a flow does not reach its rate: the one thing that limits it. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

REACHED = 0.95
"""A mean of this part of the rate reaches it."""
EMPTY_S = 0.5
"""Rows for less time than this are soon executed. Then the rows limit, and not their execution."""
FULL_CORES = 0.85
"""A node that uses so much of a core has no time to spare: one core runs its event loop and its Python code."""
FULL_LOAD = 1.5
"""So many programs for each core of a machine wait for one another."""
FIRST_ROUNDS = 2
"""Before these only a machine without a core to spare is named: the mean has seconds before the flow began."""


class LimitedBy(Struct, frozen=True, kw_only=True):
    """Why a flow does not reach its rate. `code`: `nobody` (no live node serves it), `rows` (the tables have no more),
    `loads` (they fail, or are not done in time), `most_in_flight`, `round` (the next one loads more), `waiting` (rows
    wait for another attempt or a free slot), `share` (the governor has not dealt the whole rate), `machine` (a node
    has no core to spare), `workers` (the calls of `execute` take too long) or `silent` (not all nodes said what they
    began)."""

    code: str
    reason: str


class LastRound(Protocol):
    """What the last round did (`RoundReport`)."""

    @property
    def took_ms(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def asked(self) -> int: ...
    @property
    def new(self) -> int: ...
    @property
    def short(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def silent(self) -> int: ...
    @property
    def shards(self) -> int: ...
    @property
    def alone(self) -> int: ...
    @property
    def errors(self) -> Sequence[str]: ...


class Usage(NamedTuple):
    """A node of the flow. `share`: rows that it may begin a second. `cores`: what its process used of a core lately.
    `load`: programs that run or wait on its machine, for each core."""

    share: float = 0.0
    cores: float = 0.0
    load: float = 0.0


class FlowPace(NamedTuple):
    """How a flow gets on. `begun`: rows a second. `in_flight`: without `waiting`, the rows that wait for another
    attempt or a free slot. `is_capped`: `most_in_flight` is less than the rate takes in an interval. `nodes`: those
    that serve it and said what they began. `silent`: those that did not. `rounds`: how many are known."""

    rate: float
    begun: float
    in_flight: int
    waiting: int
    most_in_flight: int
    is_capped: bool
    nodes: Mapping[str, Usage]
    silent: Collection[str]
    last: LastRound | None
    rounds: int


def limit_of(pace: FlowPace) -> LimitedBy | None:
    """Return what keeps the flow from its rate. `None`: it reaches it, has no limit, or has just begun."""
    last = pace.last
    if not pace.rate or pace.begun >= REACHED * pace.rate:
        return None
    if not pace.nodes and not pace.silent:
        return _by("nobody", "no live node serves the flow; start one with `penstock work`")
    if pace.silent:
        names = ", ".join(sorted(pace.silent)[:3])
        return _by("silent", f"{names} did not say in time how many rows began there; so they are too few, or busy")
    if last is None or pace.rounds < FIRST_ROUNDS:
        found = _slow_rows(pace) if pace.in_flight >= EMPTY_S * pace.rate else None
        return found if found and found.code == "machine" else None
    if min(pace.in_flight, last.in_flight) < EMPTY_S * pace.rate:  # just after a round there are always rows
        return _few_rows(pace, last)
    return _slow_rows(pace)


def _few_rows(pace: FlowPace, last: LastRound) -> LimitedBy:
    if last.errors and last.errors[0].startswith("split: "):
        return _by("loads", f"the last round failed: {last.errors[0]}")
    if not last.shards:
        return _by("rows", "`split` named no shard in the last round")
    if last.alone == last.shards:
        return _by("loads", "no live node is in the group of any shard; start one with its label, or change `groups`")
    loaded = f"the last round loaded {last.new} of the {last.asked} rows that it asked for, in {last.took_ms} ms"
    if last.new < last.asked and (last.failed or last.silent or not last.short):
        do = "raise `loads`, lengthen `every`, or start more nodes"
        return _by("loads", f"{loaded}; {last.failed} shards failed, {last.silent} did not answer in time; {do}")
    if last.new < last.asked:
        return _by("rows", f"{loaded}: the tables have no more")
    if pace.is_capped:
        do = "raise it, or shorten `every`"
        return _by("most_in_flight", f"at most {pace.most_in_flight} rows are loaded (`most_in_flight`); {do}")
    if pace.waiting > pace.in_flight:
        return _by("waiting", f"{pace.waiting} rows wait for another attempt or a free slot")
    return _by("round", f"{pace.in_flight} rows are in flight until the next round; a longer `lead` keeps more")


def _slow_rows(pace: FlowPace) -> LimitedBy:
    full = {name: one for name, one in pace.nodes.items() if one.cores >= FULL_CORES or one.load >= FULL_LOAD}
    if full:
        name, one = max(full.items(), key=lambda each: (each[1].cores, each[1].load))
        used = f"node {name} uses {one.cores:.2f} of a core, and its machine has {one.load:.1f} programs for each core"
        return _by("machine", f"{used}; start nodes on more cores, or let calls have more rows (`execute_many`)")
    dealt = sum(one.share for one in pace.nodes.values())
    if dealt < REACHED * pace.rate:
        return _by("share", f"nodes may begin {dealt:g} a second at present; the governor deals the rest as they ask")
    do = "raise `concurrency` or `most`, make `execute` quicker, or start more nodes"
    return _by("workers", f"{pace.in_flight} rows wait for calls of `execute`, and no core is busy; {do}")


def _by(code: str, reason: str) -> LimitedBy:
    return LimitedBy(code=code, reason=reason)
