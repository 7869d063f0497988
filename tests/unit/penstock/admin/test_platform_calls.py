"""A person's patience with a platform."""

import pytest

from actors.fetch.budget import NO_SHARES
from actors.fetch.fetcher.decisions import Failed, Hopeless, NotNow, Outcome, PlatformRefused, Throttled
from penstock.admin.platform_calls import TRIES, wait_of


@pytest.mark.parametrize(
    ("outcome", "tried", "wait_ms"),
    [
        (Throttled("slow down", 7_000), 9, 7_000),
        (Throttled("slow down", 61_000), 0, None),
        (NotNow("our own rate", 60_000), 0, 60_000),
        (Failed("reset"), 0, 500),
        (Failed("reset"), 2, 2_000),
        (Failed("reset"), 3, None),
        (Failed("busy", 9_000), 0, 9_000),
        (Failed("busy", 61_000), 0, None),
        (PlatformRefused("401"), 0, None),
        (Hopeless("400"), 0, None),
    ],
)
def test_what_passes_is_waited_for_and_the_rest_is_told(outcome: Outcome, tried: int, wait_ms: int | None) -> None:
    assert wait_of(outcome, tried) == wait_ms


def test_where_no_governor_answers_a_person_hears_so_after_some_tries() -> None:
    outcome = NotNow(NO_SHARES, 20)
    assert [wait_of(outcome, tried) for tried in range(TRIES)] == [20, 20, 20, None]
