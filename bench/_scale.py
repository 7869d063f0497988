"""What the lines of `bench scale` have in common: a cost at two sizes, the second ten times the first."""

from __future__ import annotations

import msgspec

MOST_GROWTH = 1.3
"""How much more one unit may cost at ten times the size."""


class Line(msgspec.Struct, kw_only=True, frozen=True):
    """One cost. `sizes`: how many there were of `things`. `costs`: what one unit cost at each size, in `unit`.
    `reached`: a figure at the larger size that must not be above `most`, in `of`."""

    what: str
    things: str
    unit: str
    sizes: tuple[int, int]
    costs: tuple[float, float]
    reached: float | None = None
    most: float | None = None
    of: str = ""
    most_growth: float = MOST_GROWTH

    @property
    def growth(self) -> float:
        """How much more a unit costs at the larger size. 1: the same."""
        return self.costs[1] / self.costs[0] if self.costs[0] else 1.0

    @property
    def ok(self) -> bool:
        is_within = self.most is None or (self.reached is not None and self.reached <= self.most)
        return self.growth <= self.most_growth and is_within

    def document(self) -> dict[str, object]:
        """Return the line for JSON, with its growth and its verdict."""
        return {**msgspec.to_builtins(self), "growth": round(self.growth, 2), "ok": self.ok}

    def __str__(self) -> str:
        (small, large), (one, other) = self.sizes, self.costs
        reached = "" if self.reached is None else f", {self.reached:.3g} {self.of}"
        limit = "" if self.most is None else f" (most {self.most:g})"
        costs = f"{one:.3g} -> {other:.3g} {self.unit} x{self.growth:.2f}"
        verdict = "ok    " if self.ok else "MISSED"
        return f"{verdict} {self.what}: {costs} at {small:,} -> {large:,} {self.things}{reached}{limit}"
