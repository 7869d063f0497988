"""How long to wait before the next attempt.

Linear is FETCH-39 (attempt x base: a bad network is not hammered). Exponential doubles. Both are spread, so that many
slices that failed together do not come back together. Both are bounded: the cap holds with the spread included, so the
time until a slice is given up is bounded too.
"""

from typing import Literal

import msgspec

Growth = Literal["linear", "exponential"]


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How often and when to try again. `retries` counts tries after the first: attempts run from 1 to retries + 1."""

    retries: int = 3
    growth: Growth = "linear"
    base_ms: int = 5_000
    cap_ms: int = 600_000
    spread: float = 0.2  # share of the wait that chance may add, 0: none

    def is_last(self, attempt: int) -> bool:
        """True if no attempt may follow `attempt`."""
        return attempt > self.retries

    def wait_s(self, failures: int, *, chance: float = 0.0) -> float:
        """Return the seconds to wait after so many failures in a row (1 or more)."""
        return next_delay_ms(failures + 1, self, chance=chance) / 1000


def next_delay_ms(attempt: int, policy: Backoff, *, chance: float) -> int:
    """Return the wait before `attempt` (2 or more). Linear: the number of the failed attempt x base. Exponential: base,
    doubled for each failure after the first. `chance` in [0, 1) adds up to `policy.spread` of the wait. The result is
    never above `policy.cap_ms`, spread included, and never below 1."""
    failures = max(1, attempt - 1)
    factor = failures if policy.growth == "linear" else 1 << min(failures - 1, 62)
    # The cap leaves room for the spread. Without it many slices at the cap would come back in the same moment.
    unspread = min(policy.base_ms * factor, policy.cap_ms / (1 + policy.spread))
    return max(1, min(int(unspread * (1 + policy.spread * chance)), policy.cap_ms))
