"""The shards of this node's zone, as a flow in each zone names them (`ShardScope` in actors/flow/handler.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actors.zone.bindings import Bindings
from actors.zone.rules.routing import ShardMap
from actors.zone.rules.shards import BadKey, in_order

_NUMBER = re.compile(r"([0-9]{1,18})$", re.ASCII)


def shard_named(shards: ShardMap, name: str) -> str | None:
    """Return the shard of the map in which a shard of a flow is. With the function `number`, its key is the number at
    the end of its name. `None`: it has none."""
    number = _NUMBER.search(name)
    if shards.function == "number" and number is None:
        return None
    try:
        return shards.shard_of(number[1] if shards.function == "number" and number is not None else name)
    except BadKey:
        return None


class FlowScope:
    """One node's. `context`: makes what `split` gets."""

    def __init__(self, bounds: Bindings, context: Any) -> None:
        self._bounds = bounds
        self._context = context

    @property
    def zone(self) -> str:
        """The node's zone."""
        return self._bounds.zone

    def split_context(self, flow: str) -> Any:
        """Return what `split` gets: the shards that this node may work on."""
        shards = self._bounds.current() or ShardMap()
        names = in_order(shard for shard in shards.shards_of(self.zone) if self._bounds.since(shard) is not None)
        own = tuple(names) if shards.function == "region" else tuple(map(int, names))
        return self._context(flow=flow, zone=self.zone, shards=own, epoch=shards.epoch)

    def since(self, shard: str) -> int | None:
        """Return since which epoch the zone has a shard. `None`: it may not be worked on here."""
        name = self._named(shard)
        return None if name is None else self._bounds.since(name)

    @contextmanager
    def hold(self, shard: str) -> Iterator[int | None]:
        """Return the same, and keep the shard in the zone until the block ends. A thread may call it."""
        name = self._named(shard)
        if name is None:
            yield None
            return
        with self._bounds.hold(name) as since:
            yield since

    def _named(self, shard: str) -> str | None:
        shards = self._bounds.current()
        return None if shards is None else shard_named(shards, shard)
