"""How many rows a round loads, and from which shard. Pure.

The loop is closed: a round loads what is missing from the target, rate x (interval + lead), whatever became of the
rounds before. What a round could not load, or a killed node lost, is missing in the next one. So no remainder has to be
carried, and no number of nodes is configured.
"""

import math
from collections.abc import Iterable, Sequence


def target(rate: float, every_ms: int, lead_ms: int, *, most: int) -> int:
    """Return how many rows must be in flight after a round, so that they last until the next round's rows are there.
    `rate`: rows a second, 0: no limit. Never above `most`."""
    return min(most, math.ceil(rate * (every_ms + lead_ms) / 1000)) if rate else most


def default_lead_ms(every_ms: int) -> int:
    """Return for how long rows are in flight beyond the interval: half of it, or longer. A round in the hands of a node
    that stands still is missing. It comes again after `COMES_AGAIN_MS`, or the next one is due sooner. Until that has
    loaded, there must be rows."""
    return max(every_ms // 2, min(every_ms, COMES_AGAIN_MS) + FIRST_ROWS_MS)


def missing(wanted: int, in_flight: int, waiting: int, *, most: int) -> int:
    """Return for how many rows a round asks. `waiting`: those that wait for another attempt or a free slot. They make
    no round smaller, so rows that fail hold up no others. But with them no more than `most` are loaded."""
    return max(0, min(wanted - in_flight, most - in_flight - waiting))


def spread_s(rate: float, every_ms: int, in_flight: int) -> float:
    """Return over how many seconds a round's requests go out, so that the database and the nodes have no burst: for
    most of the interval, but no longer than the rows in flight last."""
    return min(SPREAD * every_ms / 1000, in_flight / rate) if rate else 0.0


def deal(total: int, shards: Sequence[str], first: int, least: int = 1) -> dict[str, int]:
    """Deal `total` rows over the shards. No two of those that get any differ by more than one, the sum is `total`, and
    nobody gets one that is not there: if there is less than `least` for each shard, the rows go to the shards from
    `first` on. Shards without any are left out."""
    if not shards or total <= 0:
        return {}
    count = _taking(total, len(shards), least)
    each, rest = divmod(total, count)
    turned = [shards[(first + at) % len(shards)] for at in range(count)]
    return {shard: each + (at < rest) for at, shard in enumerate(turned)}


def next_first(total: int, count: int, first: int, least: int = 1) -> int:
    """Return where the next deal begins, so that all shards get the remainders in turn. `count`: of the shards."""
    if not count:
        return 0
    taking = min(total, _taking(total, count, least))
    return (first + (taking if taking < count else total)) % count


def next_least(least: int, *, is_cut: bool) -> int:
    """Return how many rows the next round asks a shard for at least. A request to load costs as much as dozens of rows.
    So a round that had no time for all its shards (`is_cut`) is followed by one that asks fewer of them for more, and
    the others have their turn after that. Otherwise it falls by an eighth, to one in the end."""
    return min(MOST_LEAST, least * 4) if is_cut else least - (least + 6) // 8


def _taking(total: int, count: int, least: int) -> int:
    """Return how many shards get rows."""
    return min(count, max(1, total // least))


def next_every_ms(every_ms: int, shortest_ms: int, longest_ms: int, *, asked: int, new: int, was_empty: bool) -> int:
    """Return the next interval within its bounds. With less than half of the asked rows there, twice as long. When all
    were there, half as long, and the shortest if the rows before had run out."""
    if not asked:
        return every_ms
    if new >= asked:
        return shortest_ms if was_empty else max(shortest_ms, every_ms // 2)
    return min(longest_ms, every_ms * 2) if new * 2 < asked else every_ms


def shards_of(answer: Iterable[object] | None) -> list[str]:
    """Return the names of the shards that the user's code lists. Raises ValueError for one that is no name, or twice
    there."""
    if answer is None or isinstance(answer, str | bytes):  # each of its letters would be a shard
        raise ValueError(f"{str(answer)[:80]!r} is no list of shards; return a list")
    names = [str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in answer]
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_SHARD or not name.isprintable():
            raise ValueError(f"shard {str(name)[:80]!r}: is no name; use 1 to {LONGEST_SHARD} printable characters")
    checked = [name for name in names if isinstance(name, str)]
    if len(checked) > MOST_SHARDS:
        raise ValueError(f"{len(checked)} shards are too many; use at most {MOST_SHARDS}")
    seen: set[str] = set()
    for name in checked:
        if name in seen:
            raise ValueError(f"shard {name!r} is there twice; list each once")
        seen.add(name)
    for name in checked:
        for at, sign in enumerate(name):
            if sign == ":" and name[:at] in seen:  # a row's job has the id SHARD:KEY
                raise ValueError(f"shard {name!r}: begins with the name of shard {name[:at]!r} and a colon; rename one")
    return checked


COMES_AGAIN_MS = 3_000
"""How soon a job comes again whose holder is silent (`job_ack_wait_s`, on one server)."""
FIRST_ROWS_MS = 1_000
"""How long a round takes until its first rows are there."""
SPREAD = 0.6
MOST_LEAST = 128
LONGEST_SHARD = 64
MOST_SHARDS = 10_000
