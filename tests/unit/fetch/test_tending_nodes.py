"""Which live nodes tend sources."""

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.slice_allocator import tending_nodes
from actors.runtime.membership import PLACEMENT, NodeRecord
from actors.runtime.rules.placement import chosen

NODES = st.lists(
    st.builds(
        NodeRecord,
        node=st.integers(0, 99).map(lambda number: f"n{number}"),
        run=st.just(""),
        roles=st.sampled_from([(), ("allocator",), ("fetcher",)]),
        placement=st.sampled_from([0, PLACEMENT]),
    ),
    unique_by=lambda node: node.node,
    max_size=40,
)


@given(NODES)
def test_beside_an_allocator_of_an_earlier_version_all_of_them_tend(nodes: list[NodeRecord]) -> None:
    allocating = [node for node in nodes if node.has_role("allocator")]
    names = {node.node for node in allocating}
    is_mixed = any(node.placement == 0 for node in allocating)
    assert set(tending_nodes(nodes)) == (names if is_mixed else set(chosen("allocator", names)))
