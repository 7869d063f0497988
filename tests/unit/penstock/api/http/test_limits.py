"""Limits: rates over time, debts of batches, and who is shed first."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.api.http.limits import (
    AT_ONCE,
    AT_ONCE_PER_TOKEN,
    LOOKS,
    MOST_LINGERING,
    MOST_UNREAD,
    MOST_UNREAD_PER_TOKEN,
    PARTS,
    POLLS_PER_TOKEN,
    Census,
    Kind,
    Load,
    Rates,
    TokenBucket,
)
from penstock.api.http.problems import RefusedRequest


@given(
    rate=some.floats(1, 1000),
    burst=some.floats(1, 1000),
    gaps=some.lists(some.floats(0, 0.5), min_size=1, max_size=200),
)
def test_over_any_time_a_bucket_lets_in_its_rate_and_its_burst_at_most(
    rate: float, burst: float, gaps: list[float]
) -> None:
    bucket, now_s, taken = TokenBucket(rate, burst, 0.0), 0.0, 0
    for gap in gaps:
        now_s += gap
        taken += bucket.take(1, now_s) == 0
    assert taken <= burst + rate * now_s + 1e-6


@given(rate=some.floats(0.1, 1000), count=some.integers(1, 5000))
def test_the_wait_that_a_bucket_names_is_enough(rate: float, count: int) -> None:
    bucket = TokenBucket(rate, 1.0, 0.0)
    assert bucket.take(1, 0.0) == 0
    bucket.owe(count - 1)
    wait_s = bucket.take(1, 0.0)
    assert wait_s > 0
    assert bucket.take(1, wait_s + 1e-6) == 0


def test_a_batch_is_let_in_whole_and_the_next_call_pays_for_it() -> None:
    bucket = TokenBucket(100, 200, 0.0)
    assert bucket.take(1, 0.0) == 0
    bucket.owe(499)
    assert bucket.take(1, 1.0) == pytest.approx(2.01)
    assert bucket.take(1, 3.02) == 0


def test_of_many_addresses_the_longest_unseen_is_forgotten() -> None:
    rates = Rates(most=2)
    first = rates.bucket("a", 1, 1, 0.0)
    rates.bucket("b", 1, 1, 0.0)
    assert rates.bucket("a", 1, 1, 0.0) is first
    rates.bucket("c", 1, 1, 0.0)
    assert rates.bucket("a", 1, 1, 0.0) is first
    assert rates.bucket("a", 5, 1, 0.0) is not first, "a changed rate starts anew"


def test_what_hands_out_work_is_shed_before_what_ends_it() -> None:
    load = Load()
    order: tuple[Kind, ...] = ("reserve", "add", "settle")
    shed: list[Kind] = []
    with ExitStack() as at_work:
        for number in range(AT_ONCE):
            for kind in order:
                if kind not in shed and _is_refused(load, kind):
                    shed.append(kind)
                    assert load.working == pytest.approx(AT_ONCE * PARTS[kind], abs=1)
            at_work.enter_context(load.work("settle", f"token{number % 4}"))
        assert _is_refused(load, "settle")
    assert shed == ["reserve", "add"]
    assert load.working == 0
    assert not _is_refused(load, "reserve")


def test_one_token_does_not_take_every_place() -> None:
    load = Load()
    with ExitStack() as at_work:
        for _ in range(AT_ONCE_PER_TOKEN):
            at_work.enter_context(load.work("settle", "greedy"))
        with pytest.raises(RefusedRequest) as told:
            at_work.enter_context(load.work("settle", "greedy"))
        assert (told.value.problem.status, told.value.problem.retry_after_s) == (429, 1)
        with load.work("settle", "modest"):
            assert load.working == AT_ONCE_PER_TOKEN + 1


def test_long_polls_have_places_of_their_own() -> None:
    load = Load()
    with ExitStack() as waiting:
        for _ in range(POLLS_PER_TOKEN):
            waiting.enter_context(load.poll("t"))
        with pytest.raises(RefusedRequest) as told:
            waiting.enter_context(load.poll("t"))
        assert told.value.problem.status == 429
        assert load.working == 0
    assert load.polling == 0


def test_connections_are_counted_in_all_and_by_address() -> None:
    census = Census(most=3, most_per_address=2)
    assert [census.enter("a"), census.enter("a"), census.enter("a")] == [True, True, False]
    assert [census.enter("b"), census.enter("c")] == [True, False]
    census.leave("a")
    assert census.enter("c")
    assert census.count == 3
    assert [census.linger() for _ in range(MOST_LINGERING + 1)] == [True] * MOST_LINGERING + [False]
    census.end_linger()
    assert census.linger()


def test_answers_that_are_not_read_are_counted_in_all_and_by_token() -> None:
    census = Census(most=3, most_per_address=2)
    census.hold("a", MOST_UNREAD_PER_TOKEN)
    assert (census.has_room("a", 1), census.has_room("b", 1)) == (False, True)
    census.hold("a", -1)
    assert census.has_room("a", 1)
    for other in range(MOST_UNREAD // MOST_UNREAD_PER_TOKEN):
        census.hold(f"other {other}", MOST_UNREAD_PER_TOKEN)
    assert not census.has_room("b", 1)


def _is_refused(load: Load, kind: Kind) -> bool:
    try:
        with load.work(kind, "probe"):
            return False
    except RefusedRequest as told:
        return told.problem.status == 503


def test_few_files_are_looked_at_at_a_time() -> None:
    load = Load()
    with ExitStack() as looks:
        for _ in range(LOOKS):
            looks.enter_context(load.look())
        with pytest.raises(RefusedRequest) as refused:
            looks.enter_context(load.look())
        assert (refused.value.problem.status, refused.value.problem.retry_after_s) == (503, 2)
    with load.look():
        pass
