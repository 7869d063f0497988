"""A platform with a limit, and nodes that read from it as fast as they may: what the learning of limits comes to."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from actors.fetch.rules.ledger import Limit
from actors.fetch.rules.limits import RecentAnswers, allowed, heard, is_slow, met, told

Platform = Callable[[float], int | None]
"""Takes a request at a time in ms. Returns None, or the wait that it names. -1: it refuses and names none."""


def window(most: int, span_ms: int, *, is_named: bool = False, slides: bool = False) -> Platform:
    """So many requests in each span of time, or in any span of that length."""
    times: deque[float] = deque()

    def take(now_ms: float) -> int | None:
        while times and (times[0] <= now_ms - span_ms if slides else times[0] // span_ms != now_ms // span_ms):
            times.popleft()
        if len(times) < most:
            times.append(now_ms)
            return None
        left_ms = times[0] + span_ms - now_ms if slides else span_ms - now_ms % span_ms
        return int(left_ms) + 1 if is_named else -1

    return take


def token_bucket(per_s: float, burst: float) -> Platform:
    left, at_ms = burst, 0.0

    def take(now_ms: float) -> int | None:
        nonlocal left, at_ms
        left, at_ms = min(burst, left + (now_ms - at_ms) / 1000 * per_s), now_ms
        if left < 1:
            return -1
        left -= 1
        return None

    return take


def by_chance(part: float, wait_ms: int = -1, seed: int = 1) -> Platform:
    """Refuse this part of the requests, at any pace."""
    chance = random.Random(seed)
    return lambda _now_ms: wait_ms if chance.random() < part else None


def both(one: Platform, other: Platform) -> Platform:
    def take(now_ms: float) -> int | None:
        said = one(now_ms)
        return other(now_ms) if said is None else said

    return take


class Read(NamedTuple):
    """What became of a reading. `answers`: the time of each request, and whether it was refused."""

    answers: list[tuple[float, bool]]
    limit: Limit | None

    def per_s(self, after_ms: float = 0.0) -> float:
        """Return how many requests a second the platform took."""
        taken = [at_ms for at_ms, is_refused in self.answers if at_ms >= after_ms and not is_refused]
        return len(taken) * 1000 / (self.answers[-1][0] - after_ms)

    def refused(self, after_ms: float = 0.0) -> float:
        """Return which part of the requests was refused."""
        later = [is_refused for at_ms, is_refused in self.answers if at_ms >= after_ms]
        return sum(later) / max(1, len(later))

    def in_a_row(self, after_ms: float = 0.0) -> int:
        """Return how often two requests one after the other were refused."""
        later = [is_refused for at_ms, is_refused in self.answers if at_ms >= after_ms]
        return sum(one and other for one, other in pairwise(later))


def read(
    platform: Platform,
    lasts_s: float,
    *,
    rate: float = 10.0,
    nodes: int = 1,
    own_wait_ms: int = 10_000,
    says: float | None = None,
    knows_part: bool = True,
) -> Read:
    """Have nodes read without a pause, each at its part of the rate that the limit allows."""
    limit: Limit | None = None
    answers = [RecentAnswers() for _ in range(nodes)]
    due = [(1_000_000.0 + 1000 / rate * number, number) for number in range(nodes)]
    heapify(due)
    seen: list[tuple[float, bool]] = []
    sent_ms = 0.0
    while due[0][0] < 1_000_000 + lasts_s * 1000:
        at_ms, node = heappop(due)
        now_ms = int(at_ms)
        if limit is not None and limit.until_ms > now_ms:
            heappush(due, (limit.until_ms + node * 1000 / (allowed(limit, now_ms) or rate), node))
            continue
        if is_slow(limit, now_ms) and (turn_ms := sent_ms + 1000 / (allowed(limit, now_ms) or rate)) > at_ms:
            heappush(due, (turn_ms, node))  # the governor deals single turns
            continue
        sent_ms = at_ms
        said = platform(at_ms - 1_000_000)
        seen.append((at_ms - 1_000_000, said is not None))
        free_ms = 0.0
        if said is None:
            answers[node].add(now_ms)
            limit = heard(limit, now_ms) if says is None else told(limit, says)
        else:
            part = 1 / nodes if knows_part else 1.0
            named_ms = None if said < 0 else said
            refusal = answers[node].refusal(limit, named_ms, rate, part, now_ms)
            if limit is not None and is_slow(limit, now_ms):
                refusal = RecentAnswers.of(limit.heard).refusal(limit, named_ms, rate, 1.0, now_ms)
            limit, wait_ms, _ = met(limit, refusal, own_wait_ms, now_ms, most_wait_ms=3_600_000)
            free_ms = at_ms + wait_ms + node * 1000 / (allowed(limit, now_ms) or rate)
        pace = min(rate, allowed(limit, now_ms) or rate, (limit and limit.told) or rate)
        heappush(due, (max(free_ms, at_ms + nodes * 1000 / pace), node))
    return Read(seen, limit)
