"""Which node tends what. Every node computes it alike from the live nodes: nothing is assigned, nothing is stored.

Rendezvous hashing (Thaler and Ravishankar 1998): each node scores each key, and the highest score owns it. When a node
leaves, only its own keys move. When one joins, keys move only to it. Two nodes that see different members may both tend
a source for a moment. That costs a lost compare-and-set and nothing else.
"""

from collections.abc import Iterable
from hashlib import blake2b


def owner(key: str, nodes: Iterable[str]) -> str | None:
    """Return the node of `nodes` that tends `key`, whatever their order. `None`: there is no node."""
    return max(nodes, key=lambda node: (score(key, node), node), default=None)


def ranking(key: str, nodes: Iterable[str]) -> list[str]:
    """Return `nodes` in the order in which they would tend `key`, each if all before it were gone."""
    return sorted(set(nodes), key=lambda node: (score(key, node), node), reverse=True)


def score(key: str, node: str) -> int:
    """Return the node's 64-bit score for `key`. It is the same on every machine and in every release."""
    return int.from_bytes(blake2b(f"{node}\0{key}".encode(), digest_size=8).digest(), "big")


def serves(labels: Iterable[str], name: str, pin: str) -> bool:
    """Return whether a node with these labels and this name may do work pinned to `pin`. An empty pin is for all."""
    return not pin or pin == name or pin in labels
