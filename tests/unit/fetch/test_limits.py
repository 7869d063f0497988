"""A platform's limit is learned from its refusals, and tried again later. Refusals by chance teach none."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.fetch.rules.ledger import Limit
from actors.fetch.rules.limits import (
    KEPT,
    LEAST_PER_S,
    MOST_NOISE,
    UNDER_WAY_MS,
    PaceRefusal,
    PaceVerdict,
    RecentAnswers,
    alike,
    allowed,
    heard,
    held,
    met,
    told,
)
from platforms.told_limits import ToldLimit, told_limit
from tests.unit.fetch.limits_world import Platform, both, by_chance, read, token_bucket, window

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
AFTER_MS = 120_000
"""By then each limit has been met."""


def refusal(**facts: Any) -> PaceRefusal:
    """Return the first refusal that a node meets: 120 answers in 12 s, and no wait is named."""
    usual = {"answers": 120, "refused": 1, "span_ms": 12_000, "trial_refused": 1, "later": 0, "later_ms": 0}
    return PaceRefusal(**{**usual, "is_again": False, "named_ms": None, "most_per_s": 10.0, **facts})


def verdict(limit: Limit | None, now_ms: int = NOW_MS, **facts: Any) -> PaceVerdict:
    return met(limit, refusal(**facts), 10_000, now_ms, most_wait_ms=HOUR_MS)


def limit_of(found: PaceVerdict) -> Limit:
    assert found.limit is not None
    return found.limit


def test_the_limit_is_what_the_platform_took_with_its_wait() -> None:
    """120 a minute: ten a second for 12 s, and then a wait until the minute is over."""
    limit = limit_of(verdict(None, named_ms=48_000))
    assert limit.per_s == pytest.approx(0.85 * 2)
    assert limit.until_ms == NOW_MS + 48_000


def test_requests_that_were_sent_together_are_refused_once() -> None:
    limit = limit_of(verdict(None, named_ms=48_000))
    assert verdict(limit, NOW_MS + 500, named_ms=47_500).limit is limit
    assert limit_of(verdict(limit, NOW_MS + 500, named_ms=60_000)).until_ms == NOW_MS + 60_500


@given(
    st.integers(0, 2_000),
    st.integers(0, 60_000),
    st.integers(0, 2 * HOUR_MS),
    st.floats(0.01, 1_000),
    st.floats(0.01, 1),
)
def test_a_limit_falls_and_rises_again_by_itself(
    answers: int, span_ms: int, named_ms: int, most_per_s: float, part: float
) -> None:
    found = verdict(None, answers=answers, span_ms=span_ms, named_ms=named_ms, most_per_s=most_per_s, part=part)
    limit = limit_of(found)
    assert found.wait_ms <= HOUR_MS
    assert LEAST_PER_S <= limit.per_s <= max(LEAST_PER_S, most_per_s)
    rates = [allowed(limit, NOW_MS + minutes * 60_000) or 0.0 for minutes in range(0, 360, 5)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(limit.per_s)
    assert rates[-1] > 2 * limit.per_s


@given(st.data())
def test_whatever_refusals_come_the_limit_stays_sound(data: st.DataObject) -> None:
    """In any order, at any time, from nodes with any part: it never stops a source for good."""
    limit, now_ms, nodes = None, NOW_MS, [RecentAnswers(), RecentAnswers()]
    for _ in range(data.draw(st.integers(1, 40))):
        now_ms += data.draw(st.integers(0, 100_000))
        node = data.draw(st.sampled_from(nodes))
        if data.draw(st.booleans()):
            node.add(now_ms)
            continue
        named_ms = data.draw(st.none() | st.integers(1, 100_000))
        found = met(limit, node.refusal(limit, named_ms, 10.0, 0.5, now_ms), 10_000, now_ms, most_wait_ms=HOUR_MS)
        limit = found.limit
        assert 0 < found.wait_ms <= HOUR_MS
        if limit is not None:
            assert limit.until_ms <= now_ms + HOUR_MS
            assert limit.noise <= MOST_NOISE
            assert limit.per_s == 0 or LEAST_PER_S <= limit.per_s <= 10
            assert limit.per_s == 0 or (allowed(limit, now_ms + 30 * HOUR_MS) or 0.0) > limit.per_s


LIMITS: dict[str, tuple[Callable[[], Platform], float, dict[str, Any]]] = {
    "a minute": (lambda: window(120, 60_000), 2.0, {}),
    "a minute, with its wait": (lambda: window(120, 60_000, is_named=True), 2.0, {}),
    "any minute": (lambda: window(120, 60_000, slides=True), 2.0, {}),
    "any minute, with its wait": (lambda: window(120, 60_000, slides=True, is_named=True), 2.0, {}),
    "three seconds": (lambda: window(30, 3_000), 10.0, {"rate": 40, "own_wait_ms": 500}),
    "a bucket with a large burst": (lambda: token_bucket(2, 120), 2.0, {}),
    "a bucket with a small burst": (lambda: token_bucket(2, 4), 2.0, {}),
    "a bucket just below our rate": (lambda: token_bucket(9.5, 10), 9.5, {}),
}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_met_and_then_kept(name: str, nodes: int) -> None:
    """At four fifths of it or more, with at most 3 of 100 requests refused, and never two in a row."""
    make, per_s, facts = LIMITS[name]
    came = read(make(), 1_800, nodes=nodes, **facts)
    assert 0.8 * per_s <= came.per_s(AFTER_MS) <= 1.01 * per_s
    assert came.refused(AFTER_MS) <= 0.03
    assert came.in_a_row(AFTER_MS) == 0


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("part", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("wait_ms", [-1, 1_000], ids=["no wait is named", "a second"])
def test_refusals_by_chance_are_no_limit(nodes: int, part: float, wait_ms: int) -> None:
    """Three of a hundred, each with a wait of a second, leave 7.7 of 10 a second to a reader that does nothing else
    meanwhile. Over an hour at least seven tenths of the rate are read, whatever chance brings: a run of three refusals,
    a minute with many, or gaps that look even."""
    rates = [read(by_chance(part, wait_ms, seed), 3_600, nodes=nodes).per_s(AFTER_MS) for seed in range(3, 6)]
    assert median(rates) >= 7.3
    assert min(rates) >= (6.9 if part == 0.003 else 7)


SLOW_TO_FIND = 3_600_000
"""An hour: by then also a limit is found that lies far below our rate."""


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.sampled_from(["a minute", "any minute", "a bucket"]),
    st.floats(1, 9).map(lambda per_s: round(per_s, 1)),
    st.booleans(),
)
def test_a_limit_is_found_to_a_tenth_and_never_met_twice_in_a_row(name: str, per_s: float, is_named: bool) -> None:
    """For the same rules that take no chance for a limit, with one node."""
    most = int(per_s * 60)
    platform = {
        "a minute": window(most, 60_000, is_named=is_named),
        "any minute": window(most, 60_000, slides=True, is_named=True),
        "a bucket": token_bucket(per_s, 5),
    }[name]
    came = read(platform, 7_200)
    assert 0.9 * per_s <= came.per_s(SLOW_TO_FIND) <= 1.01 * per_s
    assert came.in_a_row(600_000) == 0


def test_a_run_of_three_is_no_limit_where_refusals_by_chance_are_known() -> None:
    known = Limit(0.0, NOW_MS - HOUR_MS, noise=0.03)
    usual = {"answers": 470, "refused": 14, "trial_refused": 500, "later": 2_000}
    assert verdict(known, **usual, run=3, is_again=True).is_chance
    assert not verdict(known, **usual, run=4, is_again=True).is_chance
    assert verdict(known, **usual, even=7).is_chance
    assert not verdict(known, **usual, even=8).is_chance
    assert verdict(known, **{**usual, "refused": 28}).is_chance
    assert not verdict(known, **{**usual, "refused": 34}).is_chance


@pytest.mark.parametrize("nodes", [1, 2])
def test_rare_refusals_by_chance_leave_most_of_the_rate(nodes: int) -> None:
    """Three of a thousand, and no wait is named: each of them looks like a limit at first."""
    reads = [read(by_chance(0.003, -1, seed), 1_800, nodes=nodes) for seed in range(6)]
    assert min(came.per_s(AFTER_MS) for came in reads) >= 6
    assert min(came.per_s(900_000) for came in reads) >= 7
    assert median(came.per_s(AFTER_MS) for came in reads) >= 8.5


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("burst", [1, 5, 20])
@pytest.mark.parametrize("per_s", [1 / 60, 1 / 20, 1 / 5])
def test_a_slow_bucket_that_nobody_declares_is_never_met_twice_in_a_row(per_s: float, burst: int, nodes: int) -> None:
    came = read(token_bucket(per_s, burst), 14_400, nodes=nodes)
    assert came.in_a_row(AFTER_MS) == 0
    assert came.per_s(AFTER_MS) >= 0.6 * per_s
    assert came.refused(AFTER_MS) <= 0.04


def test_few_requests_a_minute_that_nobody_declares_are_never_met_twice_in_a_row() -> None:
    came = read(window(15, 60_000), 3_600)
    assert came.in_a_row(AFTER_MS) == 0
    assert came.per_s(AFTER_MS) >= 0.8 * 15 / 60


def test_at_a_slow_pace_the_limit_keeps_what_all_nodes_heard() -> None:
    slow, fast = Limit(0.1, NOW_MS, mark=0.2, calm_ms=300_000), Limit(2.0, NOW_MS, mark=3.0, calm_ms=300_000)
    assert heard(fast, NOW_MS) is fast
    assert heard(None, NOW_MS) is None
    limit: Limit | None = slow
    for number in range(1, 50):
        limit = heard(limit, NOW_MS + number if number % 7 else -NOW_MS - number)
    assert limit is not None
    assert len(limit.heard) == KEPT
    told_all = RecentAnswers.of(limit.heard).refusal(slow, None, 10.0, 1.0, NOW_MS + 60)
    assert (told_all.since, told_all.run, told_all.is_again) == (6, 2, True)
    limit = heard(limit, NOW_MS + 55)
    assert limit is not None
    assert RecentAnswers.of(limit.heard).refusal(slow, None, 10.0, 1.0, NOW_MS + 60).since == 1
    refused = limit_of(verdict(limit, NOW_MS + 5_000, answers=3))
    assert refused.heard[-1] == -NOW_MS - 5_000
    assert heard(replace(fast, heard=(1, 2)), NOW_MS) == fast


@pytest.mark.parametrize(
    ("gaps", "count"), [([], 0), ([7], 1), ([9, 30, 31, 40], 3), ([30, 31, 80], 1), ([1, 2, 1], 3), ([10, 16], 2)]
)
def test_gaps_that_are_alike_are_counted_from_the_last_one(gaps: list[int], count: int) -> None:
    assert alike(gaps) == count


def test_a_refused_request_waits_at_least_one_turn_of_a_slow_pace() -> None:
    slow = Limit(0.1, NOW_MS - 30_000, mark=0.2, calm_ms=300_000)
    assert verdict(slow, answers=9).wait_ms == pytest.approx(10_000, rel=0.2)


def test_refusals_by_chance_do_not_hide_a_limit() -> None:
    came = read(both(window(120, 60_000), by_chance(0.03)), 1_800)
    assert 0.5 <= came.per_s(AFTER_MS) <= 2.02
    assert came.refused(AFTER_MS) <= 0.08


def test_a_limit_of_one_a_minute_that_nobody_declares_is_found() -> None:
    came = read(token_bucket(1 / 60, 20), 18_000)
    assert came.per_s(AFTER_MS) >= 0.8 / 60
    assert came.refused(3 * HOUR_MS) <= 0.1


def test_a_limit_that_becomes_larger_is_used() -> None:
    """Ten minutes of 2 a second, and then no limit at all."""
    small = token_bucket(2, 10)
    came = read(lambda now_ms: small(now_ms) if now_ms < 600_000 else None, 3_600)
    assert came.per_s(3_000_000) >= 9.5


def test_what_the_platform_says_itself_neither_rises_nor_falls() -> None:
    limit = told(None, 0.0167)
    assert told(limit, 0.0167) is limit
    assert limit.told == 0.0167
    burst = limit_of(verdict(limit, answers=20, span_ms=5_000, named_ms=60_000))
    assert (burst.told, burst.per_s, burst.met_ms) == (0.0167, 0.0, NOW_MS)
    came = read(token_bucket(0.0167, 20), 18_000, says=0.0167)
    assert came.refused() == 0.0


def test_a_told_mean_that_hardly_changes_is_no_news() -> None:
    limit = told(None, 10.0, 40, is_rough=True)
    assert (limit.told, limit.burst) == (10.0, 40)
    assert told(limit, 12.0, 40, is_rough=True) is told(limit, 8.5, is_rough=True) is limit
    assert told(limit, 13.0, is_rough=True).told == 13.0
    assert told(limit, 7.0, is_rough=True).told == 7.0
    assert told(limit, 9.0).told == 9.0


def test_the_mean_of_told_rates_is_that_of_the_time_each_request_takes() -> None:
    answers = RecentAnswers()
    assert answers.mean_per_s(4.0) == 4.0
    assert answers.mean_per_s(0.5) == pytest.approx(1 / (0.9 / 4 + 0.1 / 0.5))
    for _ in range(100):
        mean = answers.mean_per_s(2.0)
    assert mean == pytest.approx(2.0, rel=0.01)


def test_how_many_may_go_at_once_outlives_a_refusal() -> None:
    limit = told(None, None, 20)
    assert (limit.told, limit.burst, allowed(limit, NOW_MS)) == (0.0, 20, None)
    assert limit_of(verdict(limit, named_ms=60_000)).burst == 20


def test_nothing_is_sent_until_the_platform_has_more() -> None:
    limit = held(None, NOW_MS + 5_000)
    assert held(limit, NOW_MS + 4_000) is limit
    assert limit == Limit(0.0, 0, NOW_MS + 5_000)


MET = Limit(1.7, NOW_MS - 30_000, NOW_MS - 20_000, mark=2.0, over_ms=22_000, calm_ms=300_000, share=0.01)


@pytest.mark.parametrize(
    ("limit", "facts", "wait_ms"),
    [
        (None, {"named_ms": 3_000}, 3_000),
        (None, {}, 10_000),
        (MET, {"answers": 0, "is_again": True}, 60_000 - 22_000 + 1_000),
        (Limit(1.7, NOW_MS - 60_000, NOW_MS), {"answers": 0, "is_again": True}, 120_000),
        (Limit(1.7, NOW_MS - 30_000, NOW_MS), {"answers": 0, "is_again": True, "named_ms": 98}, 98),
        (Limit(1.7, NOW_MS - UNDER_WAY_MS // 2, NOW_MS + 20_000), {}, 20_000),
    ],
    ids=["named", "not named", "a minute", "twice too short", "it counts down", "under way"],
)
def test_the_wait_is_long_enough(limit: Limit | None, facts: dict[str, Any], wait_ms: int) -> None:
    assert verdict(limit, **facts).wait_ms == wait_ms


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({}, ToldLimit()),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"}, ToldLimit(0, 30_000)),
        ({"ratelimit-remaining": "12", "ratelimit-reset": "5"}, ToldLimit(12, 5_000)),
        ({"x-shopify-shop-api-call-limit": "32/40"}, ToldLimit(8)),
        ({"x-shopify-shop-api-call-limit": "40/40"}, ToldLimit(0)),
        ({"x-amzn-ratelimit-limit": "0.0167"}, ToldLimit(per_s=0.0167)),
        (
            {"x-rate-limit-reset": "784111782", "date": "Sun, 06 Nov 1994 08:49:37 GMT"},
            ToldLimit(None, 86_400_000),
        ),
        (
            {"x-ratelimit-reset": "1763978407", "date": "Mon, 24 Nov 2025 10:00:00 GMT"},
            ToldLimit(None, 7_000),
        ),
        ({"x-ratelimit-remaining": "many", "x-amzn-ratelimit-limit": "", "ratelimit-reset": "-1"}, ToldLimit()),
        ({"x-ratelimit-reset": "1763978407"}, ToldLimit()),
    ],
)
def test_headers_tell_what_is_left(headers: dict[str, str], wanted: ToldLimit) -> None:
    assert told_limit(headers) == wanted
