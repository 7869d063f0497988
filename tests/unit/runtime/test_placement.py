"""Every node computes the same owner, and few keys move when the members change."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules.placement import owner, ranking, serves

NODES = st.lists(st.text("abcdefgh0123-", min_size=1, max_size=8), min_size=1, max_size=8, unique=True)
KEYS = [f"mall.shop{i}" for i in range(200)]


@given(NODES, st.data())
def test_the_order_of_the_nodes_is_of_no_matter(nodes: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(nodes))
    assert [owner(key, nodes) for key in KEYS] == [owner(key, shuffled) for key in KEYS]


@given(NODES, st.data())
def test_only_the_keys_of_a_leaving_node_move_and_to_the_next_in_their_ranking(
    nodes: list[str], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(nodes))
    left = [node for node in nodes if node != gone]
    for key in KEYS:
        before, after = owner(key, nodes), owner(key, left)
        if before != gone:
            assert after == before
        else:
            assert after == (ranking(key, nodes)[1] if left else None)


def test_nobody_owns_anything_without_nodes() -> None:
    assert owner("mall.shop", []) is None


def test_keys_are_spread_evenly() -> None:
    counts = Counter(owner(f"mall.shop{i}", ["n1", "n2", "n3", "n4"]) for i in range(4000))
    assert all(850 <= count <= 1150 for count in counts.values()), counts


def test_the_owner_is_the_same_in_every_release() -> None:
    nodes = ["n1", "n2", "n3"]
    assert [owner(f"mall.shop{i}", nodes) for i in range(6)] == ["n2", "n3", "n2", "n2", "n2", "n2"]


@pytest.mark.parametrize(
    ("pin", "expected"), [("", True), ("cn", True), ("node-1", True), ("eu", False), ("node", False)]
)
def test_a_pin_names_a_label_or_a_node(pin: str, expected: bool) -> None:
    assert serves(["cn", "disk"], "node-1", pin) is expected
