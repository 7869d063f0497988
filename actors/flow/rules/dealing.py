"""How a rate is divided among those who ask for it.

Max-min fair by weight: nobody has less than its weight's part unless it asks for less, and what it leaves goes to the
others. If all have what they ask for, the rest is divided by weight, so that each can begin more without asking first.
Whatever the weights are, each has one a second at least, if the rate is as high as their number.
"""

from collections.abc import Mapping

WASTE = 1e-9
DIGITS = 6
"""Parts that differ by less are the same. Otherwise the last bits of a sum decide who has one more."""
NONE: Mapping[str, float] = {}


def deal(rate: float, demands: Mapping[str, float], weights: Mapping[str, float] = NONE) -> dict[str, float]:
    """Divide `rate` among the names. `weights`: 1 for those that are not in it. The parts are whole, but for what the
    rate is above a whole number: that goes to one of them. Together they are the rate. The same demands give the same
    parts."""
    whole, fraction = int(rate), rate - int(rate)
    parts = _with_least(whole, demands, weights)
    dealt = {name: float(int(part + WASTE)) for name, part in parts.items()}
    by_loss = sorted(parts, key=lambda name: (round(dealt[name] - parts[name], DIGITS), name))
    for name in by_loss[: whole - int(sum(dealt.values()))]:
        dealt[name] += 1
    if by_loss:
        dealt[min(dealt)] += fraction
    return dealt


def _with_least(rate: float, demands: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Return parts by weight, and 1 for those whose part would be less."""
    parts = _filled(rate, demands, weights)
    low = {name for name, part in parts.items() if part < 1 - WASTE} if rate >= len(demands) else set()
    if not low:
        return parts
    rest = {name: demand for name, demand in demands.items() if name not in low}
    return dict.fromkeys(low, 1.0) | _with_least(rate - len(low), rest, weights)


def _filled(rate: float, demands: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Return parts that are max-min fair by weight, with the rest divided by weight."""
    weight = {name: weights.get(name, 1.0) for name in demands}
    parts: dict[str, float] = {}
    all_left = left = sum(weight.values())
    for name in sorted(demands, key=lambda name: (demands[name] / weight[name], name)):
        parts[name] = min(demands[name], rate * weight[name] / left) if left > WASTE else 0.0
        rate -= parts[name]
        left -= weight[name]
    return {name: part + rate * weight[name] / all_left for name, part in parts.items()}
