"""What a node does with the jobs that its handlers serve: run or set aside, try again or bury, and how many to hold.

Attempts. A job that a handler runs is held by its consumer's delivery, and nothing is written before the run. So what
is used up is what the payload says, and one for each earlier delivery of this message: a holder that vanished. A job
that was given back unstarted is written anew for that reason, and its deliveries count from one again.

Holding. Jobs are fetched ahead by what the topic ends in a twentieth of a second, so that fast handlers never wait for
the server and slow ones keep nothing from other nodes. A holder that vanishes costs all that it held an attempt, so
where jobs come back from such a one, nothing is fetched ahead; and where they have cost half of their attempts that
way, each runs alone, so that of a poisonous job and its neighbours only the poison is used up.
"""

from typing import Literal

import msgspec

from streams.backoff import Backoff, next_delay_ms

AHEAD_S = 0.05
"""How much of its own pace a topic fetches ahead: fifty times the way to a server nearby."""
MOST_AHEAD = 2_048

Suspicion = Literal["none", "some", "grave"]


class RetryAfter(msgspec.Struct, frozen=True):
    """Try again after `delay_ms`."""

    delay_ms: int


class GiveUp(msgspec.Struct, frozen=True):
    """No further attempt."""

    reason: str


class UnfitReason(msgspec.Struct, frozen=True):
    """Not to be run at all."""

    outcome: Literal["expired", "used_up"]
    reason: str


def attempt_of(attempts: int, delivered: int) -> int:
    """Return which attempt this delivery is, from 1: `attempts` by the payload, `delivered` by the server."""
    return attempts + delivered


def unfit(attempt: int, most_attempts: int, expires_ms: int, now_ms: int) -> UnfitReason | None:
    """Return why a job must not be run any more; None if it may be."""
    if expires_ms and now_ms >= expires_ms:
        return UnfitReason("expired", f"it was not started in time: {now_ms - expires_ms} ms too late")
    if attempt > most_attempts:
        return UnfitReason("used_up", f"{attempt - 1} attempts are used up; the last holder vanished with it")
    return None


def after_failure(
    attempt: int, most_attempts: int, policy: Backoff, reason: str, *, delay_ms: int | None, chance: float
) -> RetryAfter | GiveUp:
    """Return what follows a failed attempt; `delay_ms` is the handler's own wish, None for the topic's backoff."""
    if attempt >= most_attempts:
        return GiveUp(f"attempt {attempt} of {most_attempts}: {reason}")
    if delay_ms is not None:
        return RetryAfter(delay_ms)
    return RetryAfter(next_delay_ms(attempt + 1, policy, chance=chance))


def ahead_of(ended_per_s: float) -> int:
    """Return how many jobs to fetch ahead: a power of two, so that it seldom changes."""
    wanted = min(MOST_AHEAD, int(ended_per_s * AHEAD_S))
    return 1 << (wanted - 1).bit_length() if wanted else 0


def suspicion_of(delivered: int, attempt: int, most_attempts: int) -> Suspicion:
    """Return what a delivery says of the company it keeps: it may be what its earlier holders died of."""
    if delivered <= 1:
        return "none"
    return "grave" if 2 * (attempt - 1) >= most_attempts else "some"


def capacity_of(places: int, running: int, ahead: int, suspicion: Suspicion) -> int:
    """Return how many jobs a topic holds at most, of which `places` can run at the same time and `running` do."""
    if suspicion == "grave":
        return min(places, running + 1)
    return places + ahead if suspicion == "none" and places else places


def excess_of(waiting: int, held: int, capacity: int, ended_per_s: float, suspicion: Suspicion) -> int:
    """Return how many of the `waiting` jobs to give back: what is held beyond the capacity, unless it will run within
    a second as things go, and nothing speaks against it."""
    if suspicion == "none" and waiting <= ended_per_s:
        return 0
    return max(0, min(waiting, held - capacity))


def lane_capacities(capacity: int, held: tuple[int, ...]) -> tuple[int, ...]:
    """Divide a topic's capacity among its lanes, that of the highest first: each may fill what the others leave."""
    total = sum(held)
    return tuple(max(0, capacity - total + own) for own in held)
