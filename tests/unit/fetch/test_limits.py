"""A platform's limit is learned from its refusals, and tried again later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.rules.ledger import Limit, first_ledger
from actors.fetch.rules.limits import LEAST_PER_S, allowed, held, met, next_wait_ms, told
from platforms.told_limits import ToldLimit, told_limit

NOW_MS = 1_700_000_000_000
EMPTY = first_ledger(0)


def limit_of(ledger_limit: Limit | None) -> Limit:
    assert ledger_limit is not None
    return ledger_limit


def test_the_limit_is_what_the_platform_took_with_its_wait() -> None:
    """120 a minute: ten a second for 12 s, and then a wait until the minute is over."""
    limit = limit_of(met(EMPTY, 120, 12_000, 48_000, 10.0, NOW_MS).limit)
    assert limit.per_s == pytest.approx(0.85 * 2)
    assert limit.until_ms == NOW_MS + 48_000


def test_requests_that_were_sent_together_are_refused_once() -> None:
    ledger = met(EMPTY, 120, 12_000, 48_000, 10.0, NOW_MS)
    assert met(ledger, 0, 0, 47_500, 10.0, NOW_MS + 500) is ledger
    assert limit_of(met(ledger, 0, 0, 60_000, 10.0, NOW_MS + 500).limit).until_ms == NOW_MS + 60_500


@given(st.integers(1, 5_000), st.integers(0, 60_000), st.integers(0, 3_600_000), st.floats(0.01, 1_000))
def test_a_limit_falls_stands_and_rises(taken: int, span_ms: int, wait_ms: int, most_per_s: float) -> None:
    limit = limit_of(met(EMPTY, taken, span_ms, wait_ms, most_per_s, NOW_MS).limit)
    assert limit.per_s >= LEAST_PER_S
    rates = [allowed(limit, NOW_MS + hours * 3_600_000) for hours in range(0, 48, 4)]
    assert rates == sorted(rates)
    assert allowed(limit, NOW_MS + max(1_000, min(60_000, wait_ms)) * 10 - 1) == limit.per_s
    assert rates[-1] > 2 * limit.per_s


def test_a_platform_that_refuses_at_any_rate_does_not_stop_the_source() -> None:
    ledger, at_ms = EMPTY, NOW_MS
    for _ in range(200):
        at_ms += 5_000
        ledger = met(ledger, 20, 2_000, 0, 10.0, at_ms)
    assert limit_of(ledger.limit).per_s >= 4


def test_what_the_platform_says_itself_does_not_rise() -> None:
    ledger = told(EMPTY, 0.0167, NOW_MS)
    assert told(ledger, 0.0167, NOW_MS + 1) is ledger
    assert allowed(limit_of(ledger.limit), NOW_MS + 10**9) == 0.0167


def test_nothing_is_sent_until_the_platform_has_more() -> None:
    ledger = held(EMPTY, NOW_MS + 5_000, NOW_MS)
    assert held(ledger, NOW_MS + 4_000, NOW_MS) is ledger
    assert limit_of(ledger.limit) == Limit(0.0, NOW_MS, NOW_MS + 5_000)


@pytest.mark.parametrize(
    ("limit", "taken", "span_ms", "named", "wait_ms"),
    [
        (None, 120, 12_000, 3_000, 3_000),
        (None, 120, 12_000, None, 48_000),
        (Limit(1.7, NOW_MS - 90_000, NOW_MS - 60_000), 50, 30_000, None, 10_000),
        (Limit(1.7, NOW_MS - 30_000, NOW_MS), 0, 0, None, 60_000),
        (Limit(1.7, NOW_MS - 100, NOW_MS + 20_000), 0, 0, None, 20_000),
    ],
    ids=["named", "not named, at first", "later", "the wait was too short", "under way"],
)
def test_the_wait_is_long_enough(
    limit: Limit | None, taken: int, span_ms: int, named: int | None, wait_ms: int
) -> None:
    own_ms = 10_000 if named is None else named
    assert next_wait_ms(limit, taken, span_ms, own_ms, NOW_MS, is_named=named is not None) == wait_ms


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
