"""Which live nodes tend sources, by what they report of themselves."""

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.slice_allocator import tending_nodes
from actors.runtime.membership import PLACEMENT, NodeRecord
from actors.runtime.rules.placement import FEWEST, LEAST_CHOSEN, chosen, ranking

NAMES = [f"n{number}" for number in range(9)]
RANKED = ranking("allocator", NAMES)
NODES = st.lists(
    st.builds(
        NodeRecord,
        node=st.integers(0, 99).map(lambda number: f"n{number}"),
        run=st.just(""),
        roles=st.sampled_from([(), ("allocator",), ("fetcher",)]),
        placement=st.sampled_from([0, 1, PLACEMENT]),
        crowd=st.integers(0, 3),
    ),
    unique_by=lambda node: node.node,
    max_size=40,
)


def records(*, placement: int = PLACEMENT, crowd: int = 0, leads: str = "", also: str = "monitor") -> list[NodeRecord]:
    return [
        NodeRecord(
            node=name,
            run="r",
            placement=placement,
            crowd=crowd,
            leads=(also,) if name == leads else (),
            roles=("allocator",),
        )
        for name in NAMES
    ]


@given(NODES)
def test_beside_an_allocator_of_an_earlier_version_they_tend_as_it_believes(nodes: list[NodeRecord]) -> None:
    allocating = [node for node in nodes if node.has_role("allocator")]
    names = {node.node for node in allocating}
    most = FEWEST + max((node.crowd for node in allocating), default=0)
    known = min((node.placement for node in allocating), default=PLACEMENT)
    of_rules = {0: names, 1: set(chosen("allocator", names)), PLACEMENT: set(chosen("allocator", names, most=most))}
    assert set(tending_nodes(nodes)) == of_rules[known]


def test_two_tend_few_sources_and_more_of_them_tend_more() -> None:
    assert tending_nodes(records()) == RANKED[:2]
    assert tending_nodes(records(crowd=1)) == RANKED[:3]
    assert tending_nodes(records(crowd=50)) == RANKED[:LEAST_CHOSEN]


def test_the_leader_of_the_monitor_is_one_of_them() -> None:
    last = RANKED[-1]
    assert tending_nodes(records(leads=last)) == [last, RANKED[0]]
    assert tending_nodes(records(leads=last, also="other")) == RANKED[:2]


def test_while_a_node_lives_that_knows_an_earlier_rule_that_rule_holds() -> None:
    known = records(leads=RANKED[-1])
    assert tending_nodes([*known[1:], *records(placement=1)[:1]]) == RANKED[:LEAST_CHOSEN]
    assert set(tending_nodes([*known[1:], *records(placement=0)[:1]])) == set(NAMES)
    assert tending_nodes([*known, NodeRecord(node="old", run="r", roles=("fetcher",))]) == [RANKED[-1], RANKED[0]]


def test_without_nodes_nobody_tends() -> None:
    assert tending_nodes([]) == []
