"""Which group of nodes loads which shard."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.flow.rules.groups import check_groups, split_shards, warnings_of

TABLES = [f"{n:02}" for n in range(25)]


def counts(groups: dict[str, float | str], *living: str, shards: list[str] = TABLES) -> Counter[str]:
    return Counter(split_shards(shards, check_groups(groups), living).values())


@given(st.dictionaries(st.sampled_from("abcde"), st.floats(0.1, 100), min_size=1), st.integers(1, 200))
def test_weights_deal_each_shard_to_one_group(weights: dict[str, float], count: int) -> None:
    shards = [str(n) for n in range(count)]
    dealt = split_shards(shards, check_groups(weights), weights.keys())
    assert list(dealt) == shards
    got, whole = Counter(dealt.values()), sum(weights.values())
    assert all(abs(got[name] - count * weight / whole) <= 1 for name, weight in weights.items())


def test_a_group_without_a_node_leaves_its_shards_to_the_others() -> None:
    assert counts({"a": 1, "b": 1}, "a", "b") == {"a": 13, "b": 12} or counts({"a": 1, "b": 1}, "a", "b") == {
        "a": 12,
        "b": 13,
    }
    assert counts({"a": 1, "b": 1}, "a") == {"a": 25}
    assert counts({"a": 1, "b": 1}) == {}


def test_odd_and_even_take_their_tables_whatever_the_case() -> None:
    dealt = split_shards(TABLES, check_groups({"a": "Odd", "b": "EVEN"}), ["a", "b"])
    assert {shard for shard, group in dealt.items() if group == "a"} == set(TABLES[1::2])
    assert counts({"a": "odd", "b": "even"}, "a", "b") == {"a": 12, "b": 13}


def test_the_other_parity_waits_for_its_group() -> None:
    assert counts({"a": "odd", "b": "even"}, "a") == {"a": 12}
    assert counts({"a": "all", "b": "even"}, "a", "b") == {"a": 12 + 7, "b": 6}


def test_names_without_a_number_go_by_their_place() -> None:
    assert split_shards(["x", "y", "z1"], {"a": "ODD"}, ["a"]) == {"y": "a"}


@pytest.mark.parametrize("part", ["sometimes", 0, -1, True, None, 2_000_000])
def test_what_is_no_part_is_refused(part: object) -> None:
    with pytest.raises(ValueError, match=r"group 'a'.*use ALL, ODD, EVEN or a weight"):
        check_groups({"a": part})


@pytest.mark.parametrize("name", ["", "a b", "early,late", "é", "x" * 65])
def test_what_no_node_can_have_as_a_label_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no node can have this label"):
        check_groups({name: 1})


def test_a_group_that_no_node_has_is_a_warning() -> None:
    weights, words = check_groups({"a": 1, "b": 2}), check_groups({"a": "odd", "b": "even"})
    assert warnings_of(weights, ["a", "b", "c"]) == []
    assert warnings_of({}, []) == []
    [one] = warnings_of(weights, ["a"])
    assert ("'b'" in one, one.endswith("the other groups take its shards")) == (True, True)
    assert all(each.endswith("no shard is loaded") for each in warnings_of(weights, []))
    [one] = warnings_of(words, ["b"])
    assert ("'a'" in one, one.endswith("shards of its parity may wait")) == (True, True)


def test_words_and_weights_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="one of the two for all"):
        check_groups({"a": "odd", "b": 2})
