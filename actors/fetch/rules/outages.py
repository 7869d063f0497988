"""A source that cannot be reached at all: how it differs from a window that fails, and how it is probed.

An attempt in which the platform gave no usable response (refused, reset, timed out, 5xx, a page of its maintenance) is
a *miss*. It says nothing about its window, so it spends no attempt. The source is down, and one open slice at a time is
its probe, with a growing wait in between. The probe is the slice with the fewest misses, so that one window for which
the platform fails every time does not decide for the others. If all open slices have missed some times, another one is
cut for that. Any response ends the outage. A window that misses again
though others were read meanwhile has failed by its own fault, and `holding.miss` counts it.

The ledger records the outage, and whether it was reported, so that both outlive every node.
"""

from msgspec.structs import replace

from actors.fetch.rules.ledger import Ledger, OpenSlice, Outage
from streams.backoff import Backoff, next_delay_ms

LONGEST_PROBE_MS = 60_000
"""The longest time in which a platform that is back may stay unnoticed. A request a minute hurts nobody."""

PROBED_ALONE = 3
"""After so many misses of each open slice, another one is cut as a probe: the open ones may all be bad windows."""
MOST_PROBED = 8
"""So many slices may be open for that, or `max_open`, if that is more."""


def is_down(ledger: Ledger) -> bool:
    """Return whether the source cannot be reached at all now."""
    return ledger.outage is not None and not ledger.outage.over_ms


def earliest_ms(ledger: Ledger, held: OpenSlice) -> int:
    """Return the moment before which nobody may take `held`: its own wait, the source's hold, the wait for a probe."""
    outage = ledger.outage
    probe_ms = 0 if outage is None or outage.over_ms else outage.probe_ms
    return max(held.not_before_ms, ledger.hold_until_ms, probe_ms)


def offerable(ledger: Ledger) -> list[OpenSlice]:
    """Return the slices that nobody holds and a node may take. For a source that is down: its next probe, if none is
    under way."""
    free = [held for held in ledger.open if not held.is_taken]
    outage = ledger.outage
    if outage is None or outage.over_ms:
        return free
    if any(held.fence > outage.fence for held in ledger.open):
        return []
    return sorted(free, key=lambda held: (earliest_ms(ledger, held), held.misses))[:1]


def wants_other_probe(ledger: Ledger) -> bool:
    """Return whether every open slice of a source that is down has missed often enough to be to blame itself."""
    return is_down(ledger) and all(held.misses >= PROBED_ALONE for held in ledger.open)


def may_take(ledger: Ledger, held: OpenSlice) -> bool:
    """Return whether `held`, which is open, may be taken, as far as the outage goes. A held slice may be: its holder
    vanished."""
    return held.is_taken or not is_down(ledger) or held in offerable(ledger)


def lengthened(
    ledger: Ledger,
    held: OpenSlice,
    reason: str,
    policy: Backoff,
    now_ms: int,
    *,
    chance: float,
    least_wait_ms: int,
) -> Outage:
    """Return the outage after one more miss, of `held`. The miss is the first, or a probe's, or of an attempt that was
    under way when the outage began. The last kind changes nothing."""
    outage = ledger.outage or Outage(now_ms)
    if is_down(ledger) and held.fence <= outage.fence:
        return outage
    probes = outage.probes + 1 if is_down(ledger) else 0
    pauses = replace(policy, cap_ms=min(policy.cap_ms, LONGEST_PROBE_MS))
    wait_ms = max(least_wait_ms, next_delay_ms(probes + 2, pauses, chance=chance))
    return replace(outage, fence=ledger.fence, probes=probes, probe_ms=now_ms + wait_ms, reason=reason, over_ms=0)


def answered(ledger: Ledger, now_ms: int) -> Ledger:
    """End the outage, if there is one. Every slice is offered at once, and earlier offers are void. A reported outage
    stays in the record until its end is reported too."""
    outage = ledger.outage
    if outage is None or outage.over_ms:
        return ledger
    over = replace(outage, over_ms=now_ms) if outage.is_told else None
    return replace(ledger, outage=over, hold_until_ms=max(ledger.hold_until_ms, now_ms + 1))


def others_read(pieces: tuple[OpenSlice, ...]) -> tuple[OpenSlice, ...]:
    """Return open slices after another one of their source was read: a slice that misses again does so alone."""
    if not [held for held in pieces if held.misses]:  # as after nearly every request
        return pieces
    return tuple(replace(held, others_read=True) if held.misses and not held.others_read else held for held in pieces)


def mark_reported(ledger: Ledger, since_ms: int, now_ms: int) -> Ledger:
    """Record the report that the source is down since `since_ms`. If it responded meanwhile, it is recorded as over, so
    that the end is reported as well."""
    outage = ledger.outage
    if outage is None:
        return replace(ledger, outage=Outage(since_ms, is_told=True, over_ms=now_ms))
    reported = replace(outage, is_told=True, since_ms=since_ms)
    return ledger if reported == outage else replace(ledger, outage=reported)


def mark_over(ledger: Ledger, over_ms: int, now_ms: int) -> Ledger:
    """Record the report that the outage ended at `over_ms`. If the source is down again by now, that is another outage,
    and must be reported again."""
    outage = ledger.outage
    if outage is None or not outage.is_told:
        return ledger
    if outage.over_ms:
        return replace(ledger, outage=None) if outage.over_ms == over_ms else ledger
    return replace(ledger, outage=replace(outage, is_told=False, since_ms=now_ms))
