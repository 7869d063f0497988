"""What a platform allows one source, learned from its answers: how it falls when the platform says that it is too much,
and how it rises again.

A limit is kept in the source's ledger, so every node has the same one. It falls to what the platform took until it
refused, the wait that it wants included, less a part for safety. It stands for ten times that wait, and then it rises
by a hundredth with each wait, until the platform refuses again, or our own rate is reached. So it needs no write to
recover. A platform that refuses now and then at any rate must not bring it down for good: it never falls below half of
the best that was measured lately.
"""

from __future__ import annotations

from msgspec.structs import replace

from actors.fetch.rules.ledger import Ledger, Limit

SAFE = 0.85
LEAST_PER_S = 1 / 3_600
LEAST_STEP_MS, MOST_STEP_MS = 1_000, 60_000
CALM_STEPS = 10
STEP = 0.01
FORGET = 0.9
UNDER_WAY_MS = 1_000
"""Requests that were sent together are refused together."""


def allowed(limit: Limit, now_ms: int) -> float:
    """Return how many requests a second the limit allows now. What the platform itself says does not rise."""
    step_ms = max(LEAST_STEP_MS, min(MOST_STEP_MS, limit.until_ms - limit.met_ms))
    steps = (now_ms - limit.met_ms) // step_ms - CALM_STEPS
    return limit.per_s if limit.is_told or steps < 0 else limit.per_s * (1 + STEP * steps)


def met(ledger: Ledger, taken: int, span_ms: int, wait_ms: int, most_per_s: float, now_ms: int) -> Ledger:
    """Return the ledger after the platform refused a request. It took `taken` requests in the `span_ms` before, and
    wants none for `wait_ms`. `most_per_s`: our own rate."""
    until_ms, known = now_ms + wait_ms, ledger.limit
    if known is not None and now_ms < known.met_ms + UNDER_WAY_MS:
        longer = max(until_ms, known.until_ms)
        return ledger if longer == known.until_ms else replace(ledger, limit=replace(known, until_ms=longer))
    before = min(most_per_s, most_per_s if known is None else allowed(known, now_ms))
    took = max(1, taken) * 1_000 / max(1_000, span_ms + wait_ms)
    best = max(took, 0.0 if known is None else FORGET * known.best)
    per_s = max(LEAST_PER_S, best / 2, SAFE * min(before, took))
    return replace(ledger, limit=Limit(per_s, now_ms, until_ms, best))


def told(ledger: Ledger, per_s: float, now_ms: int) -> Ledger:
    """Return the ledger after the platform has said what it allows. The same object if it has said so before."""
    known = ledger.limit
    if known is not None and known.is_told and known.per_s == per_s:
        return ledger
    return replace(ledger, limit=Limit(max(LEAST_PER_S, per_s), now_ms, known.until_ms if known else 0, is_told=True))


def held(ledger: Ledger, until_ms: int, now_ms: int) -> Ledger:
    """Return the ledger after the platform has said that nothing is left until then."""
    known = ledger.limit or Limit(0.0, now_ms)
    return ledger if until_ms <= known.until_ms else replace(ledger, limit=replace(known, until_ms=until_ms))


def next_wait_ms(limit: Limit | None, taken: int, span_ms: int, wait_ms: int, now_ms: int, *, is_named: bool) -> int:
    """Return how long to send nothing. `wait_ms`: what the platform names, or our own setting for that. If the platform
    names nothing, it may count by the minute: the first time wait for six times the setting, from the first request on.
    If it took none since it refused last, its wait was too short."""
    if limit is not None and now_ms < limit.met_ms + UNDER_WAY_MS:
        return max(wait_ms, limit.until_ms - now_ms)
    if limit is not None and limit.until_ms > limit.met_ms and not taken:
        return max(wait_ms, 2 * (limit.until_ms - limit.met_ms))
    if limit is None and not is_named:
        return max(wait_ms, 6 * wait_ms - span_ms)
    return wait_ms
