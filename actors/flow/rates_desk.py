"""The desk of rates: which there are, what is begun under them each second, and how they are changed.

In: requests. Out: settings of topics, flows, tasks, platforms and sources, by the doors of their engines, and views.
State: none. What was begun, and the shares, come from all live nodes (actors/runtime/rates/counts.py). Everything here
is harmless to repeat.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace

from actors.flow.flows import rows_topic
from actors.flow.governor import LEASE
from actors.runtime.rates.counts import Gathered, gather_begun, last_second
from actors.runtime.rates.slot_look import SlotLook
from actors.runtime.rules.pages import MOST_LINES, PAGE_BYTES, page_of
from actors.runtime.rules.setting_values import near
from streams.buckets.bucket import Bucket
from streams.buckets.lease import read_record
from streams.clock import Clock
from streams.link.connection import Connection
from streams.messages.begun import MOST_SECONDS, KeyBegun
from streams.messages.slots import SlotsListed
from streams.subjects import TOKEN

Kind = Literal["topic", "flow", "task", "platform", "source"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_PREFIXES: Mapping[Kind, str] = {
    "topic": "jobs.",
    "flow": f"jobs.{rows_topic('')}",
    "task": "batch.",
    "platform": "platform.",
    "source": "source.",
}
LEAST_RATE, MOST_RATE = 0.001, 1_000_000
MOST_SLOT_KEYS, ALL_SLOT_KEYS = 100, 2_000
SECONDS = 10
"""Over how many seconds people see the mean, unless they say."""


class UnknownRate(Exception):
    """Nothing with a rate has this name."""


class BadRate(ValueError):
    """A rate, or a question about one, that is refused. The text says which value, and what to do. `field`: the value's
    name, with which the text begins."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class RateDoor(NamedTuple):
    """The part that is needed of the engine that has the keys of one kind. `names()`: of the keys, with a rate or
    without. `rate(name)`: per second, 0 for no limit. `change(name, rate)` sets it, and returns the rate in force.
    `None`: as the code, or the wider level, has it. `now(name)`: the rate that acts now, if it is not always the one
    that was set. `refresh(name)` takes what is stored, since this node may not have heard of it."""

    names: Callable[[], Iterable[str]]
    rate: Callable[[str], float]
    change: Callable[[str, float | None], Awaitable[float]]
    now: Callable[[str], float] | None = None
    refresh: Callable[[str], Awaitable[None]] | None = None


class NodeShare(Struct, frozen=True, kw_only=True):
    """A node under a rate. `share`: what it may begin a second now. 0: none, or single turns. `begun`: in the last full
    second. `is_waiting`: its share held something back lately."""

    node: str
    share: float
    begun: int
    is_waiting: bool


class RateView(Struct, frozen=True, kw_only=True):
    """A rate as people see it. `rate`: per second over the whole cluster. 0: no limit, and nothing is counted. `last`:
    what was begun in the last full second, `mean`: a second over all of `begun`, which has each second, the oldest
    first."""

    kind: Kind
    name: str
    rate: float
    last: int
    mean: float
    begun: Sequence[int]
    nodes: Sequence[NodeShare]


class SlotsView(Struct, frozen=True, kw_only=True):
    """A key of which slots are taken. `most`: calls at once under it. `waiting`: calls for which nodes wait. `nodes`:
    those with slots, and how many."""

    kind: Kind
    name: str
    key: str
    most: int
    taken: int
    waiting: int
    nodes: dict[str, int]


class RatesView(Struct, frozen=True, kw_only=True):
    """Rates at one moment. `until_ms`: the end of the last full second, by the server's clock. `governor`: the node
    that deals the shares. Empty: there is none now. `answered` of `asked` live nodes said what they began. `silent`:
    the others. `slots`: keys of which slots are taken, those with the most waiting calls first, at most 100. `keys`:
    how many there are. `next`: the `after` of the following page of a list, whose first page alone has slots."""

    until_ms: int
    governor: str
    answered: int
    asked: int
    silent: Sequence[str]
    rates: Sequence[RateView]
    slots: Sequence[SlotsView] = ()
    keys: int = 0
    next: str = ""


class RateChanged(Struct, frozen=True, kw_only=True):
    """A rate before and after a change. 0: no limit."""

    kind: Kind
    name: str
    before: float
    rate: float


class RatesDesk:
    """One node's desk. Many callers may use it at once. `living()`: the names of the live nodes. It raises UnknownRate,
    BadRate, and the broker's errors."""

    def __init__(
        self,
        connection: Connection,
        *,
        doors: Mapping[Kind, RateDoor],
        leases: Bucket[bytes],
        living: Callable[[], Collection[str]],
        clock: Clock,
    ) -> None:
        self._connection = connection
        self._slots = SlotLook(connection)
        self._doors = doors
        self._leases = leases
        self._living = living
        self._clock = clock

    async def list(
        self, seconds: int = SECONDS, *, after: str = "", limit: int = MOST_LINES, most_bytes: int = PAGE_BYTES
    ) -> RatesView:
        """Return a page of the rates that there are, by kind and name, each with its last `seconds` seconds. Of the
        sources, which all have one, those that sent requests in them: so a page may hold fewer than `limit`, or none,
        and still not be the last. `after`: the `next` of an earlier page."""
        known = ((kind, name) for kind in KINDS for name in sorted(self._doors[kind].names()))
        first = _place(after)
        wanted = [each for each in known if self._rate_now(*each) > 0 and _order(*each) > first][: limit + 1]
        view = await self._view(wanted, seconds)
        page, behind = page_of(view.rates, limit, most_bytes, lambda rate: f"{rate.kind}/{rate.name}")
        rates = [each for each in page if each.kind != "source" or any(each.begun)]
        if after:
            return replace(view, rates=rates, next=behind)
        listed = await self._slots.listed(MOST_SLOT_KEYS)
        return replace(view, rates=rates, slots=_slots_of(listed), keys=listed.total, next=behind)

    async def show(self, kind: str, name: str, seconds: int = SECONDS) -> RatesView:
        """Return one rate, with its last `seconds` seconds."""
        found = await self._stored(kind, name)
        view = await self._view([found], seconds)
        slots = [one for one in _slots_of(await self._slots.listed(ALL_SLOT_KEYS)) if (one.kind, one.name) == found]
        return replace(view, slots=slots[:MOST_SLOT_KEYS], keys=len(slots))

    async def set(self, kind: str, name: str, rate: object) -> RateChanged:
        """Change a rate, live on all nodes. 0: no limit. `None`: as the code, or the wider level, has it."""
        found, name = await self._stored(kind, name)
        wanted = checked_rate(rate)
        before = self._rate(found, name)
        return RateChanged(kind=found, name=name, before=before, rate=await self._doors[found].change(name, wanted))

    def _rate(self, kind: Kind, name: str) -> float:
        return self._doors[kind].rate(name)

    def _rate_now(self, kind: Kind, name: str) -> float:
        door = self._doors[kind]
        return (door.now or door.rate)(name)

    async def _stored(self, kind: str, name: str) -> tuple[Kind, str]:
        """Do as `_found` with what is stored now, whatever this node has heard of."""
        if TOKEN.fullmatch(name):
            for each in KINDS:
                if kind in ("", each) and (refresh := self._doors[each].refresh) is not None:
                    await refresh(name)
        return self._found(kind, name)

    def _found(self, kind: str, name: str) -> tuple[Kind, str]:
        """Return the key that is meant. An empty kind: the one that has the name. The topic of a flow's rows is the
        flow."""
        if kind and kind not in KINDS:
            raise BadRate("kind", f"{kind[:80]!a}: use {', '.join(KINDS)}")
        if kind in ("", "topic") and name.startswith(rows_topic("")):
            kind, name = "flow", name.removeprefix(rows_topic(""))
        found = [each for each in KINDS if kind in ("", each) and name in set(self._doors[each].names())]
        if not found:
            what = kind or f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
            raise UnknownRate(f"no {what} {name[:80]!a}; {self._near(kind, name) or _WHERE[kind]}")
        if len(found) > 1:
            raise BadRate("name", f"{name[:80]!a} is a {' and a '.join(found)}; say which, as {found[0]}/{name[:80]}")
        return found[0], name

    def _near(self, kind: str, name: str) -> str:
        """Return a hint with the nearest name of this kind, or else the same name of another kind. Empty: there is
        none."""
        kinds = [each for each in KINDS if kind in ("", each)]
        if close := near(name, (each for one in kinds for each in self._doors[one].names())):
            name = close
        else:
            kinds = list(KINDS)
        found = [each for each in kinds if name in set(self._doors[each].names())]
        return f"did you mean {found[0]}/{name}?" if found else ""

    async def _view(self, keys: Sequence[tuple[Kind, str]], seconds: int) -> RatesView:
        if not 1 <= seconds <= MOST_SECONDS:
            raise BadRate("seconds", f"{seconds}: use 1 to {MOST_SECONDS}; nodes know no more")
        until_s = last_second(self._clock.now_ms())
        asked = [key_of(*each) for each in keys]
        gathered = await gather_begun(self._connection, self._living, asked, until_s=until_s, seconds=seconds)
        lease = await self._leases.get(LEASE)
        record = read_record(lease.raw) if lease is not None else None
        return RatesView(
            until_ms=(until_s + 1) * 1000,
            governor=record.holder if record is not None else "",
            answered=len(gathered.nodes),
            asked=len(gathered.nodes) + len(gathered.silent),
            silent=gathered.silent,
            rates=self._rates(keys, asked, gathered, seconds),
        )

    def _rates(
        self, keys: Sequence[tuple[Kind, str]], asked: Sequence[str], gathered: Gathered, seconds: int
    ) -> Sequence[RateView]:
        of_key: dict[str, dict[str, KeyBegun]] = {}
        for node in gathered.nodes:
            for each in node.keys:
                if len(each.begun) == seconds:
                    of_key.setdefault(each.key, {})[node.node] = each
        return [
            _rate_view(kind, name, self._rate_now(kind, name), of_key.get(key, {}), seconds)
            for (kind, name), key in zip(keys, asked, strict=True)
        ]


_WHERE = {
    "": "see `penstock jobs topics`, `penstock flows list`, `penstock batch tasks`, `penstock sources list`",
    "platform": "add a source of it, or see `penstock sources list`",
    "source": "write it as source/PLATFORM/NAME, and see `penstock sources list`",
    "topic": "its first job makes it, or `penstock jobs topic` sets it up; see `penstock jobs topics`",
    "flow": "start the application that serves it, or see `penstock flows list`",
    "task": "start the application that serves it, or see `penstock batch tasks`",
}


def _rate_view(kind: Kind, name: str, rate: float, nodes: Mapping[str, KeyBegun], seconds: int) -> RateView:
    begun = [sum(counts) for counts in zip(*(each.begun for each in nodes.values()), strict=True)] or [0] * seconds
    return RateView(
        kind=kind,
        name=name,
        rate=rate,
        last=begun[-1],
        mean=round(sum(begun) / seconds, 3),
        begun=begun,
        nodes=[
            NodeShare(node=node, share=each.share, begun=each.begun[-1], is_waiting=each.is_waiting)
            for node, each in nodes.items()
        ],
    )


def _order(kind: Kind, name: str) -> tuple[int, str]:
    """Return what rates are listed by."""
    return KINDS.index(kind), name


def _place(after: str) -> tuple[int, str]:
    """Return where a list goes on. Raises BadRate for a text that no page gave."""
    kind, _, name = after.partition("/")
    if after and not (kind in KINDS and name):
        raise BadRate("after", f"{after[:80]!a}: is no place in this list; use the one that the last page gave")
    return (KINDS.index(kind), name) if after else (0, "")


def _slots_of(listed: SlotsListed) -> list[SlotsView]:
    found: list[SlotsView] = []
    for one in listed.keys:
        owner, _, key = one.key.partition(":")
        owned = kind_of(owner)
        if owned is not None:
            kind, name = owned
            taken = sum(count for _, count in one.holders)
            nodes = dict(one.holders)
            found.append(
                SlotsView(kind=kind, name=name, key=key, most=one.most, taken=taken, waiting=one.waiting, nodes=nodes)
            )
    return found


def checked_rate(rate: object) -> float | None:
    """Return the rate. Raises BadRate."""
    if rate is None:
        return None
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not is_number or not math.isfinite(rate) or not (rate == 0 or LEAST_RATE <= rate <= MOST_RATE):  # type: ignore[arg-type, operator] # it is a number
        shown = str(rate)[:80]
        raise BadRate("rate", f"{shown!a}: use {LEAST_RATE} to {MOST_RATE:,} a second, or 0 for no limit")
    return float(rate)  # type: ignore[arg-type]


def key_of(kind: Kind, name: str) -> str:
    """Return the key under which nodes spend a rate."""
    return _PREFIXES[kind] + name


def kind_of(key: str) -> tuple[Kind, str] | None:
    """Return what has the rate that nodes spend under a key. `None`: a rate that people do not see here, such as one
    that an adapter declares."""
    kinds = [each for each in KINDS if key.startswith(_PREFIXES[each])]
    kind = max(kinds, key=lambda each: len(_PREFIXES[each]), default=None)
    return (kind, key.removeprefix(_PREFIXES[kind])) if kind is not None else None
