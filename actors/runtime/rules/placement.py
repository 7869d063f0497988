"""Which node tends what. Every node computes it alike from the live nodes: nothing is assigned, nothing is stored.

Rendezvous hashing (Thaler and Ravishankar 1998): each node scores each key, and the highest score owns it. When a node
leaves, only its own keys move. When one joins, keys move only to it. Two nodes that see different members may both tend
a source for a moment. That costs a lost compare-and-set and nothing else.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import NamedTuple

LEAST_CHOSEN, ONE_IN = 4, 8
"""Four share the work of 2,000 slices a second, and three of them may die at once (ADR 67)."""
FEWEST, KEYS_EACH = 2, 10_000
"""Of those, so many tend few keys, and one more for each ten thousand: when one of two dies, the other's keys go on."""
MOST_KEYS = 262_144
"""Keys that are remembered. The instances of a batch task come and go for ever."""


def owner(key: str, nodes: Iterable[str]) -> str | None:
    """Return the node of `nodes` that tends `key`, whatever their order. `None`: there is no node."""
    return max(nodes, key=lambda node: (score(key, node), node), default=None)


def ranking(key: str, nodes: Iterable[str]) -> list[str]:
    """Return `nodes` in the order in which they would tend `key`, each if all before it were gone."""
    return sorted(set(nodes), key=lambda node: (score(key, node), node), reverse=True)


def chosen(role: str, nodes: Iterable[str], *, most: int | None = None, first: Collection[str] = ()) -> list[str]:
    """Return the nodes of a role that tend keys, where a node that tends must follow all records of its keys' kind. Of
    few nodes all do, of many one in eight: what they follow then grows with the records and not with the nodes too.
    `most`: so many will do. `first`: these are chosen before others, since they follow the records anyway. When a node
    comes or goes, at most one other begins or stops."""
    ranked = sorted(ranking(role, nodes), key=lambda node: node not in first)
    count = max(LEAST_CHOSEN, len(ranked) // ONE_IN)
    return ranked[: count if most is None else min(count, most)]


def score(key: str, node: str) -> int:
    """Return the node's 64-bit score for `key`. It is the same on every machine and in every release."""
    return int.from_bytes(blake2b(f"{node}\0{key}".encode(), digest_size=8).digest(), "big")


def serves(labels: Iterable[str], name: str, pin: str) -> bool:
    """Return whether a node with these labels and this name may do work pinned to `pin`. An empty pin is for all."""
    return not pin or pin == name or pin in labels


class _Owned(NamedTuple):
    name: str | None
    nodes: frozenset[str]


class Owners:
    """The owners of keys, remembered while nodes come and go. A node that came is compared with the last owner of a key
    alone, and a node that went matters to its own keys alone. So a change among 100 nodes costs two scores a key in
    place of 100. `owner` is that of the nodes now, and is computed when it is asked for."""

    def __init__(self) -> None:
        self._nodes: frozenset[str] = frozenset()
        self._known: dict[str, _Owned] = {}
        self._shared: dict[str | None, _Owned] = {}
        self._came: dict[frozenset[str], tuple[str, ...]] = {}

    def become(self, nodes: Iterable[str]) -> None:
        """These are the nodes from now on."""
        after = frozenset(nodes)
        if after != self._nodes:
            self._nodes, self._shared, self._came = after, {}, {}

    def owner(self, key: str) -> str | None:
        """Return what the function `owner` returns for the nodes now."""
        known = self._known.get(key)
        if known is not None and known.nodes is self._nodes:
            return known.name
        if known is None or known.name not in self._nodes:
            name = owner(key, self._nodes)
        else:
            came = self._came_since(known.nodes)
            name = owner(key, (known.name, *came)) if came else known.name
        if len(self._known) >= MOST_KEYS:
            self._known.clear()
        self._known[key] = self._owned(name)
        return name

    def _came_since(self, nodes: frozenset[str]) -> tuple[str, ...]:
        found = self._came.get(nodes)
        if found is None:
            found = self._came[nodes] = tuple(self._nodes - nodes)
        return found

    def _owned(self, name: str | None) -> _Owned:
        """Return one record for all keys of an owner, to spare memory."""
        found = self._shared.get(name)
        if found is None:
            found = self._shared[name] = _Owned(name, self._nodes)
        return found
