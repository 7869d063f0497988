"""What a history would cost follows the engine's own lengths."""

import pytest

from actors.fetch.rules.ledger import Tuning
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.tuning import judged, read, settled_length_ms
from actors.fetch.slice_allocator import lengths_of
from penstock.admin.trial_result import HISTORY_MS, cost_of
from platforms.adapter import Declaration, PageRules, RateBucket, WindowRules
from platforms.bounds import Bounds, Window

HOUR = Window(0, 3_600_000)
WALKED = Declaration(name="walked", pages=PageRules(size=100, has_total=True))
HALVED = Declaration(name="halved", pages=PageRules(size=100))


@pytest.mark.parametrize("rows", [0, 1, 500, 30_000, 5_000_000])
@pytest.mark.parametrize("declared", [WALKED, HALVED])
def test_the_length_is_the_one_to_which_the_engine_comes(declared: Declaration, rows: int) -> None:
    lengths = lengths_of(declared, FetchSettings())
    tuning: Tuning = judged(None, lengths)
    for _ in range(50):
        tuning = judged(read(tuning, tuning.length_ms, rows * tuning.length_ms // HISTORY_MS), lengths)
    length_ms = settled_length_ms(lengths, rows, HISTORY_MS)
    assert length_ms == pytest.approx(tuning.length_ms, rel=0.1)
    assert cost_of(declared, HOUR, rows * HOUR.end_ms // HISTORY_MS, 0, 0).slice_ms >= length_ms


def test_a_list_that_is_walked_costs_a_request_a_page() -> None:
    cost = cost_of(WALKED, HOUR, 100, 0, 0)
    assert cost.orders == 216_000
    assert 2_160 <= cost.requests <= 2_400


def test_a_quiet_shop_costs_a_request_a_day_and_a_list_without_an_end_one_walk() -> None:
    assert cost_of(WALKED, HOUR, 0, 0, 0).requests in range(90, 92)
    endless = Declaration(
        name="endless", window=WindowRules(bounds=Bounds(upper="absent")), pages=PageRules(size=100, has_total=True)
    )
    assert cost_of(endless, HOUR, 10, 0, 0).windows == 1
    assert cost_of(endless, HOUR, 10, 0, 0).requests == 216


def test_a_slice_of_a_person_counts_and_the_slowest_of_rate_and_answers() -> None:
    assert cost_of(WALKED, HOUR, 10, 60_000, 0).windows == 129_600
    slow = Declaration(name="slow", pages=WALKED.pages, rate=(RateBucket(0.5),), lists=2)
    assert cost_of(slow, HOUR, 0, 0, 0).per_second == 0.5
    assert cost_of(slow, HOUR, 0, 0, 0).requests in range(180, 184)
    assert cost_of(WALKED, HOUR, 0, 0, 4_000).per_second == 2.0
