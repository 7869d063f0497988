"""Which shard a row is in, by its key. Every language can compute it: `docs/howto/zones.md` has examples to check with.

- `number`: the key is a whole number, 0 or more. The shard is `key mod shards`.
- `hash`: the key is any text. The shard is `crc32(key as UTF-8) mod shards`, with the CRC-32 of zip files and of the
  function `CRC32()` of MySQL. A whole number is its decimal text.
- `region`: the key is a region code, and the shard is the code itself.

A shard has a name, which is a token: `7` or `DE`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from zlib import crc32

Function = Literal["number", "hash", "region"]
MOST_SHARDS = 1_000


class BadKey(ValueError):
    """A row's key that is in no shard. The text says which, and what to do."""


def shard_of(key: object, function: Function, count: int) -> str:
    """Return the shard of a row's key. `count`: how many shards there are; a region code needs none. Raises BadKey."""
    match function:
        case "number":
            return str(_number(key) % count)
        case "hash":
            return str(crc32(_text(key).encode("utf-8", "surrogatepass")) % count)
        case "region":
            return _text(key)


def _number(key: object) -> int:
    if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
        return key
    if isinstance(key, str) and key.isascii() and key.isdecimal():
        return int(key)
    raise BadKey(f"key {_shown(key)}: is no whole number of 0 or more; use the shard function `hash` for other keys")


def _text(key: object) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if isinstance(key, str) and key:
        return key
    raise BadKey(f"key {_shown(key)}: is neither text nor a whole number")


def numbered(count: int) -> list[str]:
    """Return the names of so many shards."""
    return [str(number) for number in range(count)]


def in_order(shards: Iterable[str]) -> list[str]:
    """Return the shards sorted: numbers by their value, and names after them."""
    return sorted(shards, key=lambda shard: (0, int(shard), "") if shard.isdecimal() else (1, 0, shard))


def text_of(shards: Iterable[str], function: Function) -> str:
    """Return the shards as a person writes them, such as `0-32,40` or `DE,FR`. Empty: there are none."""
    ordered = in_order(shards)
    if function == "region":
        return ",".join(ordered)
    runs: list[list[int]] = []
    for number in map(int, ordered):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _shown(key: object) -> str:
    return ascii(key)[:80]
