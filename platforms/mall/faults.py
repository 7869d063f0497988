"""Which fault a request meets, if any. Seeded: the n-th request of a run meets the same one each time."""

from __future__ import annotations

import random  # noqa: TID251 - seeded faults are this file's whole point
from collections import Counter
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

Chance = Annotated[float, Meta(ge=0, le=1)]
FaultName = Literal["late", "throttle", "error", "cut", "hang", "html", "half", "object", "drift", "expire", "redirect"]
FAULT_NAMES: tuple[FaultName, ...] = get_args(FaultName)


class Faults(Struct, frozen=True, forbid_unknown_fields=True):
    """Chances per request, at most one of them each time.

    late: answered after late_ms. throttle: 429 with Retry-After of retry_after_s, without one below 0. error: 500. cut:
    the connection is closed in mid-body. hang: no answer for hang_s, then closed. html: a maintenance page under 200.
    half: half the JSON under 200. object: an error object under 200. drift: a page after the first leaves out a row, as
    if an order before it had gone. expire: the access token becomes void. redirect: for good. `next`: faults for
    the coming requests, before any chance is asked. rate_per_s > 0: honest throttling above that many requests a
    second. rate_burst: so many may come at once, 0 for one second's worth. bad_at_ms: 500 for every window that holds
    this moment, whoever asks and how often."""

    late: Chance = 0.0
    late_ms: Annotated[int, Meta(ge=0)] = 200
    throttle: Chance = 0.0
    retry_after_s: Annotated[int, Meta(ge=-1)] = 1
    error: Chance = 0.0
    cut: Chance = 0.0
    hang: Chance = 0.0
    hang_s: Annotated[float, Meta(ge=0)] = 3.0
    html: Chance = 0.0
    half: Chance = 0.0
    object: Chance = 0.0
    drift: Chance = 0.0
    expire: Chance = 0.0
    redirect: Chance = 0.0
    next: tuple[FaultName, ...] = ()
    rate_per_s: Annotated[float, Meta(ge=0)] = 0.0
    rate_burst: Annotated[int, Meta(ge=0)] = 0
    bad_at_ms: Annotated[int, Meta(ge=0)] = 0


NO_FAULTS = Faults()
PRESETS = {
    "none": NO_FAULTS,
    "demo": Faults(
        late=0.03, throttle=0.01, error=0.01, cut=0.005, hang=0.001, html=0.005, half=0.002, object=0.005, drift=0.02
    ),
    "hard": Faults(
        late=0.1, throttle=0.05, error=0.05, cut=0.03, hang=0.002, html=0.03, half=0.02, object=0.03, drift=0.1
    ),
}


class Dealer:
    """Deals faults and counts them."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self._chance = random.Random(f"{seed}/faults")
        self.dealt: Counter[str] = Counter()
        self.set(faults)

    def set(self, faults: Faults) -> None:
        self.faults = faults
        self._next = list(faults.next)
        self._has_any = any(getattr(faults, name) > 0 for name in FAULT_NAMES)
        self._free_ms = 0.0

    def left(self, now_ms: int) -> int | None:
        """Return how many requests may come at once, None without a limit."""
        if not self.faults.rate_per_s:
            return None
        return max(
            0, int((now_ms + self._ahead_ms - max(self._free_ms, float(now_ms))) / 1000 * self.faults.rate_per_s)
        )

    @property
    def _ahead_ms(self) -> float:
        return 1000 * (self.faults.rate_burst - 1) / self.faults.rate_per_s if self.faults.rate_burst else 1000

    def deal(self, now_ms: int) -> FaultName | None:
        """Return the fault of the coming answer, None for an honest one."""
        fault = self._pick(now_ms)
        if fault is not None:
            self.dealt[fault] += 1
        return fault

    def _pick(self, now_ms: int) -> FaultName | None:
        if self._next:
            return self._next.pop(0)
        if self.faults.rate_per_s and self._is_too_fast(now_ms):
            return "throttle"
        if not self._has_any:
            return None
        draw = self._chance.random()
        for name in FAULT_NAMES:
            draw -= getattr(self.faults, name)
            if draw < 0:
                return name
        return None

    def _is_too_fast(self, now_ms: int) -> bool:
        """Keep a burst: the virtual schedule may run so far ahead (GCRA)."""
        if self._free_ms > now_ms + self._ahead_ms:
            return True
        self._free_ms = max(self._free_ms, float(now_ms)) + 1000 / self.faults.rate_per_s
        return False
