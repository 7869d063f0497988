"""Which waiting instances of a task may begin: as many at once as its limit says, urgent and old ones first. Also how
many may begin at its rate, evenly spaced, and how many chunks of a running one may be released at a time.

Tenants have the places by their weights, so one that submits a hundred instances does not make all others wait. Each
has the whole places of its part. The rest goes round: the next place is for whom has begun fewest for its weight
(start-time fair queuing, Goyal, Vin and Cheng, 1996).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from actors.batch.rules.record import Instance
from actors.batch.rules.unfinished import Row

SAVED_MS = 100
"""How much of the rate is saved for late looks."""

AHEAD_S = 1.5
"""How much work at a rate may stand before an instance that comes later, even if that one is urgent or small."""
WASTE = 1e-9
HANDS = 2
"""Chunks that a worker has in hand at a time."""


class TenantTurns:
    """How many instances of each tenant have begun for its weight, while it had any that waited. A tenant that comes
    back has neither credit nor debt."""

    def __init__(self) -> None:
        self._now = 0.0
        self._next: dict[str, float] = {}

    def of(self, tenant: str) -> float:
        """Return when it is a tenant's turn, as a number: the smallest is next."""
        return self._next.get(tenant, self._now)

    def take(self, tenant: str, weight: int) -> None:
        """Count the beginning of an instance."""
        self._now = self.of(tenant)
        self._next = {name: turn for name, turn in self._next.items() if turn > self._now}
        self._next[tenant] = self._now + 1 / weight

    def copy(self) -> "TenantTurns":
        made = TenantTurns()
        made._now, made._next = self._now, self._next
        return made


def admit(
    rows: Mapping[Row, Sequence[tuple[int, str]]],
    at_work: Iterable[Instance],
    most: int,
    turns: TenantTurns | None = None,
) -> Iterator[str]:
    """Yield the ids of the instances of one task that may begin now, in their order. `rows`: those that wait
    (`Unfinished`). `most`: how many may be at work at a time. `0`: no limit. `turns`: what has begun before. Paused
    ones hold no place, so they block nobody. After a resume there may be more than `most` for a while. What it costs
    does not grow with those that wait behind."""
    begun = Counter(each.tenant for each in at_work if not each.is_paused)
    waiting = sum(map(len, rows.values()))
    places = waiting if most <= 0 else min(waiting, most - begun.total())
    if places <= 0:
        return
    weights = {tenant: weight for _, weight, tenant in sorted(rows)}
    shared, total = places + sum(begun[tenant] for tenant in weights), sum(weights.values())
    whole = {tenant: shared * weight // total for tenant, weight in weights.items()}
    turns = turns.copy() if turns else TenantTurns()
    heads = dict.fromkeys(rows, 0)

    def turn(row: Row) -> tuple[int, bool, float, tuple[int, str]]:
        urgency, _, tenant = row
        return urgency, begun[tenant] >= whole[tenant], turns.of(tenant), rows[row][heads[row]]

    for _ in range(places):
        row = min(heads, key=turn)
        begun[row[2]] += 1
        turns.take(row[2], row[1])
        yield rows[row][heads[row]][1]
        heads[row] += 1
        if heads[row] == len(rows[row]):
            del heads[row]


def starts(rate: float, last_ms: int, now_ms: int) -> tuple[int, int]:
    """Return how many may begin now at `rate` a second, after one that began at `last_ms`, and when the next may."""
    gap_ms = 1000 / rate
    since_ms = max(0, now_ms - last_ms)
    if since_ms < gap_ms:
        return 0, last_ms + math.ceil(gap_ms)
    return max(1, math.floor(min(since_ms, SAVED_MS) / gap_ms)), now_ms + math.ceil(gap_ms)


def part_of(own: Instance, running: Iterable[Instance]) -> tuple[float, float]:
    """Return an instance's part of its task's rate, and the smallest part of any: by weight, and divided among the
    instances of its tenant."""
    at_work = {each.instance_id: each for each in running} | {own.instance_id: own}
    of_tenant = Counter(each.tenant for each in at_work.values())
    weights = {name: each.weight / of_tenant[each.tenant] for name, each in at_work.items()}
    total = sum(weights.values())
    return weights[own.instance_id] / total, min(weights.values()) / total


def window(rate: float, chunk_items: float, *, workers: int, part: float, smallest: float, most: int) -> int:
    """Return how many chunks of an instance may be released at a time, at most `most`. With a rate it is only what runs
    soon, together with those that share it, but enough that no worker waits for another's chunk. Chunks run in the
    order in which they were released, so an instance has the part of the rate that it has of the chunks. The one with
    the `smallest` part has one at least."""
    if rate <= 0:
        return most
    chunks = max(HANDS * workers, rate * AHEAD_S / max(1.0, chunk_items), 1 / smallest)
    return max(1, min(most, math.ceil(chunks * part - WASTE)))
