"""Every node computes the same owner, and few keys move when the members change."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules import placement
from actors.runtime.rules.placement import Owners, owner, ranking, serves

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


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcdefgh")), st.sets(st.sampled_from(KEYS[:9]))), max_size=12))
def test_owners_that_are_remembered_are_those_of_the_nodes_now(course: list[tuple[set[str], set[str]]]) -> None:
    owners = Owners()
    for nodes, asked in course:
        owners.become(nodes)
        assert {key: owners.owner(key) for key in asked} == {key: owner(key, nodes) for key in asked}


def test_a_node_that_comes_or_goes_costs_a_few_scores_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, owners, scored = {f"n{i}" for i in range(100)}, Owners(), [0]
    score = placement.score

    def counted(key: str, node: str) -> int:
        scored[0] += 1
        return score(key, node)

    owners.become(nodes)
    for key in KEYS:
        owners.owner(key)
    monkeypatch.setattr(placement, "score", counted)
    for after in (nodes | {"new"}, nodes):
        owners.become(after)
        scored[0] = 0
        for key in KEYS:
            owners.owner(key)
        assert scored[0] <= 5 * len(KEYS)


def test_the_memory_of_owners_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MOST_KEYS", 10)
    owners = Owners()
    owners.become(["a", "b"])
    assert [owners.owner(key) for key in KEYS] == [owner(key, ["a", "b"]) for key in KEYS]
    assert len(owners._known) <= 10
