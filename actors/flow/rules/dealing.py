"""How a rate is divided among those who ask for it.

Max-min fair: nobody has less than an equal part unless it asks for less, and what it leaves goes to the others. If all
have what they ask for, the rest is divided equally, so that each can begin more without asking first.
"""

from collections.abc import Mapping

WASTE = 1e-9
DIGITS = 6
"""Parts that differ by less are the same. Otherwise the last bits of a sum decide who has one more."""


def deal(rate: float, demands: Mapping[str, float]) -> dict[str, float]:
    """Divide `rate` among the names. The parts are whole, but for what the rate is above a whole number: that goes to
    one of them. Together they are the rate. The same demands give the same parts."""
    whole, fraction = int(rate), rate - int(rate)
    parts = _filled(whole, demands)
    dealt = {name: float(int(part + WASTE)) for name, part in parts.items()}
    by_loss = sorted(parts, key=lambda name: (round(dealt[name] - parts[name], DIGITS), name))
    for name in by_loss[: whole - int(sum(dealt.values()))]:
        dealt[name] += 1
    if by_loss:
        dealt[min(dealt)] += fraction
    return dealt


def _filled(rate: float, demands: Mapping[str, float]) -> dict[str, float]:
    """Return parts that are max-min fair, with the rest divided equally."""
    parts: dict[str, float] = {}
    for name in sorted(demands, key=lambda name: (demands[name], name)):
        parts[name] = min(demands[name], rate / (len(demands) - len(parts)))
        rate -= parts[name]
    return {name: part + rate / len(parts) for name, part in parts.items()}
