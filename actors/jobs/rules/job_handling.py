"""What a node does with the jobs that its handlers serve: run or refuse, try again or bury, and how many to hold.

Attempts. The consumer's delivery holds a job that a handler runs, and nothing is written before the run. So the used
attempts are those in the payload, and one for each earlier delivery of this message whose holder vanished. A job that
was given back unstarted is therefore written anew, and its deliveries count from one again. The server also counts what
it delivered to a caller that left in that moment, and delivers it again at once: that is no attempt.

Holding. A topic prefetches as many jobs as it ends in a twentieth of a second. So fast handlers never wait for the
server, and slow ones take nothing from other nodes. A handler of lists holds its next lists too. Under a rate these are
no more than it may begin in half a second: what it held beyond would be missing on the other nodes. A holder that
vanishes costs all its jobs an attempt. So when jobs come back from such a holder, nothing is prefetched. When they have
lost half of their attempts that way, each runs alone, so that of a poisonous job and its neighbours only the poisonous
one uses up its attempts.
"""

import math
from typing import Literal

import msgspec

from streams.backoff import Backoff, next_delay_ms

EARLY_MS = 500
"""By how much a delivery may seem to come before its ack wait is over: the server's clock is not known exactly."""
AHEAD_S = 0.05
"""How much of its own pace a topic prefetches: fifty times the round trip to a server nearby."""
MOST_AHEAD = 2_048
SOON_S = 0.5
"""How much of its share of a rate a topic holds for its next calls."""

Suspicion = Literal["none", "some", "grave"]


class RetryAfter(msgspec.Struct, frozen=True):
    """Try again after `delay_ms`."""

    delay_ms: int


class GiveUp(msgspec.Struct, frozen=True):
    """No further attempt."""

    reason: str


class UnfitReason(msgspec.Struct, frozen=True):
    """The job must not be run at all."""

    outcome: Literal["expired", "used_up"]
    reason: str


def lost_before(delivered: int, age_ms: int, ack_wait_ms: int) -> int:
    """Return how many deliveries before this one were attempts: each time the holder vanished, and the job came again
    after the ack wait. What came again sooner had begun nowhere: it was given back, or its caller left as it came.
    `age_ms`: how long ago the job was stored."""
    return min(delivered - 1, max(0, age_ms + EARLY_MS) // ack_wait_ms)


def unfit(attempt: int, most_attempts: int, expires_ms: int, now_ms: int) -> UnfitReason | None:
    """Return why a job must not be run any more. `None`: it may be."""
    if expires_ms and now_ms >= expires_ms:
        return UnfitReason("expired", f"it was not started in time: {now_ms - expires_ms} ms too late")
    if attempt > most_attempts:
        return UnfitReason("used_up", f"{attempt - 1} attempts are used up; the last holder vanished with it")
    return None


def after_failure(
    attempt: int, most_attempts: int, policy: Backoff, reason: str, *, delay_ms: int | None, chance: float
) -> RetryAfter | GiveUp:
    """Return what follows a failed attempt. `delay_ms` is the handler's own wish. `None`: the topic's backoff."""
    if attempt >= most_attempts:
        return GiveUp(f"attempt {attempt} of {most_attempts}: {reason}")
    if delay_ms is not None:
        return RetryAfter(delay_ms)
    return RetryAfter(next_delay_ms(attempt + 1, policy, chance=chance))


def ahead_of(ended_per_s: float) -> int:
    """Return how many jobs to prefetch: a power of two, so that it seldom changes."""
    wanted = min(MOST_AHEAD, int(ended_per_s * AHEAD_S))
    return 1 << (wanted - 1).bit_length() if wanted else 0


def suspicion_of(lost: int, used: int, most_attempts: int) -> Suspicion:
    """Return how suspicious a delivery makes its topic's jobs: its earlier holders may have died of it. `lost`: how
    many of the `used` attempts ended so since the job was stored."""
    if not lost:
        return "none"
    return "grave" if 2 * used >= most_attempts else "some"


def places_of(places: int, most: int, running: int, free: int, share: float) -> int:
    """Return how many jobs run, or may begin soon. `places` calls take `most` jobs each, and `free` of them do not run.
    `share`: what may begin a second. Infinite: no limit."""
    return min(places * most, running + max(free, math.ceil(min(share * SOON_S, places * most))))


def capacity_of(places: int, running: int, ahead: int, suspicion: Suspicion) -> int:
    """Return how many jobs a topic holds at most. `places` of them can run at the same time and `running` do."""
    if suspicion == "grave":
        return min(places, running + 1)
    return places + ahead if suspicion == "none" and places else places


def excess_of(waiting: int, held: int, capacity: int, ended_per_s: float, suspicion: Suspicion) -> int:
    """Return how many of the `waiting` jobs to give back: those beyond the capacity, unless they will run within a
    second at the present pace, and there is no suspicion."""
    if suspicion == "none" and waiting <= ended_per_s:
        return 0
    return max(0, min(waiting, held - capacity))


def lane_capacities(capacity: int, held: tuple[int, ...]) -> tuple[int, ...]:
    """Divide a topic's capacity among its lanes, the highest first. Each may use what the others leave."""
    total = sum(held)
    return tuple(max(0, capacity - total + own) for own in held)
