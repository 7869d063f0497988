"""Whether this node may work on what is bound to a zone or to a shard: sources, topics, tasks, flows (ADR 52).

In: the shard map, the records of the live nodes, and what runs on this node (`watch`). Out: the epoch that this node
has taken, for its record. State: which shards it may work on, in memory.

When a shard leaves its zone, a node begins nothing more that is bound to it, and takes the map once the rest has ended.
A node of the shard's new zone begins when every live node of the other zones has taken that map, or `drain_ms` after it
heard of the map. When it cannot go on: a node that the others may take for dead begins nothing that is bound. Once they
hear it again, it reads the map and the settings anew first: what moved meanwhile may not have reached it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import anyio
from anyio.abc import TaskStatus

from actors.runtime.bounds import Held, SettingsView
from actors.runtime.logs import fields
from actors.runtime.membership import Members
from actors.runtime.rules.bounds import SHARD, shard_in
from actors.zone.overdue import Overdue
from actors.zone.rebound import Rebound
from actors.zone.routing import Routing
from actors.zone.rules.binding import has_given_up, stray, usable, zone_of
from actors.zone.rules.routing import DRAIN_MS, ShardMap
from actors.zone.runner import ZoneLife
from streams.errors import MalformedMessage, StreamError

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""How often it is looked whether work has ended, while a shard waits for that."""


class Bindings:
    """One node's view. `zone`: its zone, empty if it has none. `is_alone`: no other zone is on its server."""

    def __init__(
        self, *, zone: str, members: Members, routing: Routing, life: ZoneLife, is_alone: bool = False
    ) -> None:
        self.zone = zone
        self.taken = 0
        """The epoch of the newest map that this node has taken."""
        self._members = members
        self._is_alone = is_alone
        self._routing = routing
        self._life = life
        self._usable: dict[str, int] = {}
        self._seen: ShardMap | None = None
        self._overdue = Overdue(zone)
        self._held: list[Held] = []
        self._holding: Counter[str] = Counter()
        self._lock = Lock()
        self._listeners: list[Callable[[], None]] = []
        self._news = anyio.Event()
        self._rebound = Rebound(
            zone=zone,
            live=members.live,
            may_be_here=self._may_be_here,
            drain_ms=lambda: self._drain_ms,
            hear=self._news_came,
        )
        self._read_at = self._lapses
        """How often this node had been out, when it read the map and the settings last."""
        self._was_refused = False
        """Whether somebody was told no because this node may not act for its zone now."""
        members.on_change(self._hear)
        routing.on_change(self._hear)

    # ---- what engines ask (actors/runtime/bounds.py)

    def may_run(self, bound: str, kind: str = "", name: str = "") -> bool:
        """Return whether this node may begin work with this bound now. Cheap."""
        if not bound:
            return True
        if not self._may_act():
            self._was_refused = True
            self._news.set()
            return False
        return self._may_be_here(bound) and (not kind or self._rebound.is_ours(kind, name, bound))

    def _may_act(self) -> bool:
        """Return whether nobody else may have what this node knows as its own."""
        return self._is_in() and self._read_at == self._lapses

    def _is_in(self) -> bool:
        return self._life.may_run() and self._members.is_heard()

    @property
    def _lapses(self) -> tuple[int, int]:
        return self._life.lapses, self._members.lapses

    def _may_be_here(self, bound: str) -> bool:
        shard = shard_in(bound)
        if shard:
            return self.since(shard) is not None
        return bound == self.zone and self._may_act()

    def follow(self, kind: str, view: SettingsView) -> None:
        """Follow the settings that bind things of a kind."""
        self._rebound.follow(kind, view)

    @property
    def settled(self) -> dict[str, int]:
        """Up to which revision of each kind of settings this node has given up what they bind to another zone."""
        if self._has_left():
            self._rebound.settle()
        return self._rebound.settled

    def since(self, shard: str) -> int | None:
        """Return since which epoch a shard is this node's zone's. `None`: the node may not work on it now."""
        shards = self._routing.current()
        if shards is None or shards.owners.get(shard) != self.zone or not self._may_act():
            return None
        return self._usable.get(shard)

    def current(self) -> ShardMap | None:
        """Return the shard map as last seen."""
        return self._routing.current()

    def zone_of(self, bound: str) -> str | None:
        """Return the zone that a bound means now. `None`: no zone. Empty: it is bound to none."""
        return zone_of(self._routing.current(), bound)

    def among(self, bound: str, nodes: Collection[str]) -> list[str]:
        """Return those of the live nodes that are in the zone that a bound means."""
        zone, live = self.zone_of(bound), self._members.live()
        return [node for node in nodes if not bound or (node in live and zone and live[node].zone == zone)]

    def stray(self, what: str, key: str, bound: str) -> str:
        """Return why a record with this key may not be in the zone that a bound means, and write a line for the audit.
        Without a bound it is this node's zone, if its server has no other. Empty: it may, or nothing says where."""
        own = self.zone if self._is_alone and not bound else ""
        shards, zone = self._routing.current(), self.zone_of(bound) or own
        why = "" if shards is None or not zone else stray(shards, zone, key)
        if why and shards is not None:
            log.warning("zone.record_refused", extra=fields(of=what, zone=zone, epoch=shards.epoch, why=why))
        return why

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when this node may begin other work than before. Return a function that removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @contextmanager
    def hold(self, shard: str) -> Iterator[int | None]:
        """Return since which epoch a shard is this node's zone's, and keep it there until the block ends. A thread may
        call it."""
        with self._lock:
            self._holding[shard] += 1
        try:
            yield self.since(shard)
        finally:
            with self._lock:
                self._holding[shard] -= 1

    def watch(self, held: Held) -> Callable[[], None]:
        """Have a shard go only when none of this work is left. Return a function that ends it."""
        self._held.append(held)
        return lambda: self._held.remove(held)

    # ---- the loop

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the map and the nodes until cancelled."""
        self._look()
        task_status.started()
        while True:
            waits = self._waits()
            with anyio.move_on_after(LOOK_S if waits else None):
                await self._news.wait()
            self._news = anyio.Event()
            await self._read_anew()
            self._look()

    async def _read_anew(self) -> None:
        """Read the map and the settings, if this node was out and is heard again. If that fails, it is tried again."""
        lapses = self._lapses
        if self._read_at == lapses or not self._is_in():
            return
        try:
            await self._routing.fresh()
            await self._rebound.refresh()
        except (StreamError, MalformedMessage) as error:
            log.warning("zone.not_read", extra=fields(zone=self.zone, error=str(error)))
        else:
            self._read_at = lapses
            log.info("zone.read_anew", extra=fields(zone=self.zone))

    def _hear(self) -> None:
        shards = self._routing.current()
        if shards is not self._seen:
            self._look()  # at once: nothing that is bound to a lost shard begins after this
        self._news.set()

    def _waits(self) -> bool:
        """Return whether there is something to look at again without news: work that ends, or a time that comes."""
        shards = self._routing.current()
        if self._rebound.waits or self._rebound.has_news or self._was_refused:
            return True
        if shards is None:
            return False
        return self.taken < shards.epoch or len(self._usable) < len(shards.shards_of(self.zone))

    def _news_came(self) -> None:
        self._news.set()

    @property
    def _drain_ms(self) -> int:
        shards = self._routing.current()
        return DRAIN_MS if shards is None else shards.drain_ms

    def _has_left(self) -> bool:
        """Return whether nothing is under way here that is bound to another zone."""
        return all(not bound or self.zone_of(bound) == self.zone for bound in self._work())

    def _look(self) -> None:
        shards = self._seen = self._routing.current()
        before = self._usable
        self._usable = {} if shards is None else self._now_usable(shards)
        is_back = self._was_refused and self._may_act()
        self._was_refused = self._was_refused and not is_back
        if self._rebound.look() or is_back or before.keys() != self._usable.keys():
            for listener in tuple(self._listeners):
                listener()
        if self._has_left() and self._rebound.take_news():
            self._members.beat_soon()
        if shards is None:
            return
        if self.taken < shards.epoch and has_given_up(shards, self.zone, self._work()):
            self.taken = shards.epoch
            self._members.beat_soon()
            log.debug("zone.map_taken", extra=fields(zone=self.zone, epoch=self.taken))

    def _work(self) -> Sequence[str]:
        with self._lock:
            holding = [f"{SHARD}{shard}" for shard, count in self._holding.items() if count]
        return [*holding, *(bound for held in self._held for bound in held())]

    def _now_usable(self, shards: ShardMap) -> dict[str, int]:
        if not self.zone:
            return {}
        taken = [node.taken for node in self._members.live().values() if node.zone and node.zone != self.zone]
        return usable(shards, self.zone, self._usable, taken=taken, overdue=self._overdue.of(shards))
