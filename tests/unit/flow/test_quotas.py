"""How many rows a round loads, and from which shard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.flow.flows import FlowLimits
from actors.flow.rules.quotas import (
    MOST_SHARDS,
    deal,
    default_lead_ms,
    missing,
    next_every_ms,
    next_first,
    next_least,
    shards_of,
    spread_s,
    target,
)
from streams.topology.specs import job_ack_wait_s

names = st.lists(st.text("abcdef0123", min_size=1, max_size=5), min_size=1, max_size=60, unique=True)


@given(st.integers(0, 10_000), names, st.integers(0, 1_000), st.integers(1, 200))
def test_all_rows_are_dealt_and_no_row_more(total: int, shards: list[str], first: int, least: int) -> None:
    quotas = deal(total, shards, first, least)
    assert sum(quotas.values()) == total
    assert min(quotas.values(), default=1) >= min(1 if total >= len(shards) * least else least, max(1, total))
    assert quotas.keys() <= set(shards)


@given(st.integers(1, 10_000), names)
def test_no_two_shards_differ_by_more_than_one(total: int, shards: list[str]) -> None:
    quotas = deal(total, shards, 0)
    each = [quotas.get(shard, 0) for shard in shards]
    assert max(each) - min(each) <= 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 30))
def test_over_the_rounds_all_shards_get_the_same(totals: list[int], count: int) -> None:
    """Nothing is floored to one, and no remainder always goes to the same shards (FLOW-46)."""
    shards, first, got = [f"s{n}" for n in range(count)], 0, dict.fromkeys((f"s{n}" for n in range(count)), 0)
    for total in totals:
        for shard, quota in deal(total, shards, first).items():
            got[shard] += quota
        first = next_first(total, count, first)
    assert sum(got.values()) == sum(totals)
    assert max(got.values()) - min(got.values()) <= 1


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 100))
def test_all_shards_have_their_turn_however_many_rows_each_is_asked_for(total: int, count: int, least: int) -> None:
    shards, first, got = [f"s{n}" for n in range(count)], 0, set[str]()
    for _ in range(count):
        got.update(deal(total, shards, first, least))
        first = next_first(total, count, first, least)
    assert got == set(shards)


def test_a_round_that_is_cut_is_followed_by_one_with_fewer_requests_and_the_way_back_is_slower() -> None:
    least, seen = 1, list[int]()
    for is_cut in (True, True, False, False, True, True, True):
        least = next_least(least, is_cut=is_cut)
        seen.append(least)
    assert seen == [4, 16, 14, 12, 48, 128, 128]
    rounds = 0
    while least > 1:
        least, rounds = next_least(least, is_cut=False), rounds + 1
    assert rounds < 40
    assert next_least(1, is_cut=False) == 1


def test_fewer_rows_than_shards_are_not_one_for_each() -> None:
    """1,000 tables at 10 a second, each 5 s, are 50 rows and not 1,000."""
    assert sum(deal(target(10, 5_000, 0, most=1_000), [str(n) for n in range(1_000)], 0).values()) == 50


def test_the_target_lasts_until_the_next_rows_are_there() -> None:
    assert target(8_000, 5_000, 2_500, most=100_000) == 60_000
    assert target(8_000, 5_000, 2_500, most=7) == 7
    assert target(1 / 60, 5_000, 2_500, most=7) == 1
    assert target(0, 5_000, 2_500, most=7) == 7


@given(st.integers(1_000, 60_000))
def test_rows_last_until_a_round_is_made_up_for_whose_node_stands_still(every_ms: int) -> None:
    last_ms = target(500, every_ms, default_lead_ms(every_ms), most=100_000) * 1000 / 500
    next_ms = every_ms + min(every_ms, round(job_ack_wait_s(is_clustered=False) * 1000))
    assert last_ms >= next_ms + 500


def test_a_flow_of_default_interval_has_the_default_lead() -> None:
    assert default_lead_ms(FlowLimits().every_ms) == FlowLimits().lead_ms


def test_rows_that_wait_make_no_round_smaller_and_count_among_the_most() -> None:
    assert missing(75, 5, 0, most=1_000) == 70
    assert missing(75, 5, 900, most=1_000) == 70
    assert missing(75, 5, 960, most=1_000) == 35
    assert missing(75, 5, 2_000, most=1_000) == 0
    assert missing(75, 90, 0, most=1_000) == 0


def test_requests_are_spread_for_as_long_as_there_are_rows() -> None:
    assert spread_s(8_000, 5_000, 20_000) == 2.5
    assert spread_s(8_000, 5_000, 100_000) == 3.0
    assert spread_s(8_000, 5_000, 0) == 0
    assert spread_s(0, 5_000, 9) == 0


@given(st.integers(1_000, 60_000), st.integers(0, 100), st.integers(0, 100), st.booleans())
def test_the_interval_stays_within_its_bounds(every_ms: int, asked: int, new: int, was_empty: bool) -> None:
    assert 1_000 <= next_every_ms(every_ms, 1_000, 60_000, asked=asked, new=new, was_empty=was_empty) <= 60_000


def test_the_interval_follows_the_work() -> None:
    assert next_every_ms(4_000, 1_000, 30_000, asked=100, new=10, was_empty=False) == 8_000
    assert next_every_ms(4_000, 1_000, 30_000, asked=100, new=100, was_empty=False) == 2_000
    assert next_every_ms(4_000, 1_000, 30_000, asked=100, new=100, was_empty=True) == 1_000
    assert next_every_ms(4_000, 1_000, 30_000, asked=100, new=60, was_empty=False) == 4_000
    assert next_every_ms(4_000, 1_000, 30_000, asked=0, new=0, was_empty=False) == 4_000


def test_shards_are_names_or_numbers_each_once() -> None:
    assert shards_of([0, 1, "x"]) == ["0", "1", "x"]
    with pytest.raises(ValueError, match="shard '1' is there twice; list each once"):
        shards_of([1, "1"])
    for bad in (True, None, "", "a\n", "x" * 65, 1.5):
        with pytest.raises(ValueError, match="is no name"):
            shards_of([bad])
    for letters in ("07", b"07", None):
        with pytest.raises(ValueError, match="is no list of shards"):
            shards_of(letters)
    assert shards_of(["x", "y:a"]) == ["x", "y:a"]
    with pytest.raises(ValueError, match="begins with the name of shard 'x' and a colon"):
        shards_of(["x:a", "x"])
    with pytest.raises(ValueError, match="too many"):
        shards_of(range(MOST_SHARDS + 1))
