"""Which nodes of a role tend keys."""

from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules.placement import LEAST_CHOSEN, ONE_IN, chosen

NODES = st.sets(st.integers(0, 400).map(lambda number: f"n{number}"), max_size=80)
MOST = st.none() | st.integers(2, 12)


@given(NODES, MOST)
def test_of_few_nodes_all_tend_and_of_many_one_in_eight_but_no_more_than_are_needed(
    nodes: set[str], most: int | None
) -> None:
    found = chosen("allocator", nodes, most=most)
    assert set(found) <= nodes
    assert len(found) == min(len(nodes), most or len(nodes), max(LEAST_CHOSEN, len(nodes) // ONE_IN))
    assert chosen("allocator", sorted(nodes), most=most) == found


@given(NODES, MOST, st.data())
def test_a_node_that_comes_or_goes_moves_at_most_one_other(
    nodes: set[str], most: int | None, data: st.DataObject
) -> None:
    other = data.draw(st.sampled_from([*nodes, "new"]))
    first = data.draw(st.sets(st.sampled_from([*nodes, "new"]), max_size=2))
    before = set(chosen("allocator", nodes, most=most, first=first))
    after = set(chosen("allocator", nodes ^ {other}, most=most, first=first))
    assert len((before ^ after) - {other}) <= 1


@given(NODES, st.data())
def test_who_follows_the_records_anyway_is_chosen_before_others(nodes: set[str], data: st.DataObject) -> None:
    first = data.draw(st.sets(st.sampled_from([*nodes, "gone"]), max_size=2))
    assert first & nodes <= set(chosen("allocator", nodes, most=2, first=first))
