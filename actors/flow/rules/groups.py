"""Which group of nodes loads which shard. Pure.

A group is a label of nodes. Each has a weight, or one of ALL, ODD and EVEN in any case: shards are numbered in the
order in which the user's code lists them, from 0, and by the number at the end of their name where all have one.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from streams.subjects import TOKEN

Part = float | str
"""A weight above 0, or ALL, ODD, EVEN."""
WORDS = ("ALL", "ODD", "EVEN")
_NUMBER = re.compile(r"([0-9]{1,18})$", re.ASCII)


def check_groups(groups: Mapping[str, object]) -> dict[str, Part]:
    """Return the groups with their words in capitals. Raises ValueError."""
    found: dict[str, Part] = {}
    for name, part in groups.items():
        if not TOKEN.fullmatch(name):
            raise ValueError(f"group {name[:80]!a}: no node can have this label; use 1 to 64 of A-Z a-z 0-9 _ -")
        if isinstance(part, str) and part.upper() in WORDS:
            found[name] = part.upper()
        elif isinstance(part, int | float) and not isinstance(part, bool) and 0 < part <= 1_000_000:
            found[name] = float(part)
        else:
            raise ValueError(f"group {name!r}: {str(part)[:80]!r} is no part; use ALL, ODD, EVEN or a weight above 0")
    if len({isinstance(part, str) for part in found.values()}) > 1:
        raise ValueError("groups: some have weights and some ALL, ODD or EVEN; use one of the two for all")
    return found


def warnings_of(groups: Mapping[str, Part], living: Collection[str]) -> list[str]:
    """Return what a person should know of groups that have no node now. It may come later. `living`: the groups that
    have one."""
    without = {name: part for name, part in groups.items() if name not in living}
    others = "the other groups take its shards" if len(without) < len(groups) else "no shard is loaded"
    return [
        f"groups: no live node that serves the flow has the label {name!r}; until one does,"
        f" {others if isinstance(part, float) or len(without) == len(groups) else 'shards of its parity may wait'}"
        for name, part in without.items()
    ]


def split_shards(shards: Sequence[str], groups: Mapping[str, Part], living: Collection[str]) -> dict[str, str]:
    """Return the group of each shard. `living`: the groups that have a node now. A shard whose parity no living group
    takes is left out. Weights divide all shards among the living groups, in order, so that few of them move when one
    comes or goes."""
    names = [name for name in sorted(groups) if name in living]
    if not names:
        return {}
    if all(isinstance(groups[name], str) for name in names):
        return _by_words(shards, {name: str(groups[name]) for name in names})
    weights = [float(groups[name]) for name in names]
    whole, upto, found = sum(weights), 0.0, {}
    bounds: list[float] = []
    for weight in weights:
        upto += weight
        bounds.append(upto / whole * len(shards))
    at = 0
    for number, shard in enumerate(shards):
        while at < len(names) - 1 and number + 0.5 > bounds[at]:
            at += 1
        found[shard] = names[at]
    return found


def _by_words(shards: Sequence[str], groups: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    turns = {"ODD": 0, "EVEN": 0}
    for number, shard in zip(_numbers(shards), shards, strict=True):
        word = "ODD" if number % 2 else "EVEN"
        takers = [name for name, part in groups.items() if part in ("ALL", word)]
        if takers:
            found[shard] = takers[turns[word] % len(takers)]
            turns[word] += 1
    return found


def _numbers(shards: Sequence[str]) -> Sequence[int]:
    ends = [_NUMBER.search(shard) for shard in shards]
    return [int(end[1]) for end in ends if end] if all(ends) else range(len(shards))
