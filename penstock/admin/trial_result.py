"""What a trial of an adapter found, and what 90 days would cost by it."""

from math import ceil
from typing import Literal

from msgspec import Struct, field

from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.tuning import settled_length_ms
from actors.fetch.slice_allocator import is_halved, lengths_of, with_declared
from penstock.admin.trial_client import TrialLog
from penstock.times import span_text
from platforms.adapter import Declaration
from platforms.bounds import Window
from platforms.diagnosis import FieldReading

__all__ = [
    "WORST_FIRST",
    "AdapterTrial",
    "TrialCost",
    "TrialHalves",
    "TrialLimit",
    "cost_of",
    "cost_text",
    "limit_text",
]

HISTORY_MS = 90 * 86_400_000

Verdict = Literal["proven", "unproven", "short", "window ignored", "failed"]
WORST_FIRST: tuple[Verdict, ...] = ("failed", "window ignored", "short", "unproven", "proven")


class TrialHalves(Struct, frozen=True):
    """The same window in two halves: how many orders each has, and how the whole differs from both together."""

    first: int
    second: int
    in_both: int
    only_whole: int
    only_halves: int


class TrialLimit(Struct, frozen=True):
    """What the first answer tells of a limit. None: it does not say."""

    left: int | None
    more_in_ms: int | None
    per_second: float | None
    at_once: int | None


class TrialCost(Struct, frozen=True):
    """What 90 days would cost, if all of it were as busy as this window."""

    slice_ms: int
    windows: int
    orders: int
    requests: int
    seconds: int
    per_second: float


class AdapterTrial(TrialLog, kw_only=True):
    """All that a trial found. `hints`: what to change, the place in the file first. `lists`: the trial of each list, if
    there are several. `orders` are then those of all lists together."""

    adapter: str
    start: str
    end: str
    answer_names: list[str] = field(default_factory=list)
    row_names: list[str] = field(default_factory=list)
    first: dict[str, FieldReading] = field(default_factory=dict)
    listed: int = 0
    orders: int = 0
    total: int | None = None
    missing: int = 0
    bad: list[str] = field(default_factory=list)
    bad_rows: int = 0
    verdict: Verdict = "failed"
    why: str = ""
    limit: TrialLimit | None = None
    halves: TrialHalves | None = None
    cost: TrialCost | None = None
    hints: list[str] = field(default_factory=list)
    lists: dict[str, "AdapterTrial"] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.verdict in ("proven", "unproven") and not self.hints and not self.bad_rows


def cost_of(declared: Declaration, window: Window, orders: int, slice_ms: int, longest_answer_ms: int) -> TrialCost:
    """Return what 90 days would cost with `orders` in each such window, by the engine's own lengths and its usual
    settings. `slice_ms`: the setting `slice`, 0 for `auto`."""
    settings = with_declared(FetchSettings(slice_ms=slice_ms), declared)
    lengths = lengths_of(declared, settings)
    in_all = orders * HISTORY_MS // (window.end_ms - window.start_ms)
    if lengths.is_one_walk:
        slice_ms = HISTORY_MS
    slice_ms = slice_ms or settled_length_ms(lengths, in_all, HISTORY_MS)
    windows = -(-HISTORY_MS // slice_ms)
    requests = max(windows * -(-slice_ms // lengths.longest_ms), windows * _requests_of(declared, in_all / windows))
    requests *= declared.lists
    per_second = lengths.per_s * declared.lists
    if longest_answer_ms:
        per_second = min(per_second, settings.concurrency * 1000 / longest_answer_ms)
    return TrialCost(slice_ms, windows, in_all, requests, round(requests / per_second), round(per_second, 3))


def _requests_of(declared: Declaration, orders: float) -> int:
    """Return how many requests read a window with so many orders: one where they fit a page. Where pages cannot be
    walked, a window that overflows is read again in smaller ones."""
    size = declared.pages.size
    if orders <= size:
        return 1
    return ceil(orders / size) if not is_halved(declared) else 1 + ceil(orders * 4 / (size * 3))


def cost_text(cost: TrialCost) -> str:
    """Return a cost as a sentence."""
    return (
        f"90 days as busy as this: {cost.orders:,} orders, {cost.windows:,} windows of {span_text(cost.slice_ms)}, "
        f"about {cost.requests:,} requests; {span_text(cost.seconds * 1000)} at {cost.per_second:g} a second"
    )


def limit_text(limit: TrialLimit) -> str:
    """Return what an answer tells of a limit as a sentence, in requests."""
    parts = {
        "left": "" if limit.left is None else f"{limit.left:,} left",
        "most": "" if limit.at_once is None else f"{limit.at_once:,} at once",
        "pace": "" if limit.per_second is None else f"{limit.per_second:.3g} a second",
        "more": "" if limit.more_in_ms is None else f"more in {span_text(limit.more_in_ms)}",
    }
    return f"the answer tells of a limit, in requests: {', '.join(part for part in parts.values() if part)}"
