"""Which nodes of a role tend keys."""

from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules.placement import LEAST_CHOSEN, ONE_IN, chosen

NODES = st.sets(st.integers(0, 400).map(lambda number: f"n{number}"), max_size=80)


@given(NODES)
def test_of_few_nodes_all_tend_and_of_many_one_in_eight(nodes: set[str]) -> None:
    found = chosen("allocator", nodes)
    assert set(found) <= nodes
    assert len(found) == min(len(nodes), max(LEAST_CHOSEN, len(nodes) // ONE_IN))
    assert chosen("allocator", sorted(nodes)) == found


@given(NODES, st.data())
def test_a_node_that_comes_or_goes_moves_at_most_one_other(nodes: set[str], data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([*nodes, "new"]))
    before, after = set(chosen("allocator", nodes)), set(chosen("allocator", nodes ^ {other}))
    assert len((before ^ after) - {other}) <= 1
