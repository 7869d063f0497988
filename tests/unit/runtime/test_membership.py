"""Who lives, by beats and our own clock alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.membership import MembershipView, NodeRecord, decode_node
from streams.errors import MalformedMessage


def record(node: str) -> NodeRecord:
    return NodeRecord(node=node, run="r")


def test_a_node_lives_while_its_revision_changes() -> None:
    view = MembershipView(ttl_s=5)
    assert view.hear(record("a"), 1, 0.0)
    assert not view.hear(record("a"), 2, 4.0)
    assert view.expire(8.9) == []
    assert [gone.node for gone in view.expire(9.0)] == ["a"]
    assert view.live() == {}


def test_an_old_revision_told_again_is_no_beat() -> None:
    view = MembershipView(ttl_s=5)
    view.hear(record("a"), 7, 0.0)
    view.hear(record("a"), 7, 4.0)
    view.hear(record("a"), 6, 4.5)
    assert [gone.node for gone in view.expire(5.0)] == ["a"]


def test_time_in_which_nobody_could_be_heard_does_not_count() -> None:
    view = MembershipView(ttl_s=5)
    view.hear(record("a"), 1, 0.0)
    view.forgive(60.0)
    assert view.expire(64.9) == []
    assert [gone.node for gone in view.expire(65.0)] == ["a"]


def test_a_node_that_left_can_come_back() -> None:
    view = MembershipView(ttl_s=5)
    view.hear(record("a"), 1, 0.0)
    assert view.leave("a") == record("a")
    assert view.leave("a") is None
    assert view.hear(record("a"), 2, 1.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6), st.floats(0, 3)), max_size=40))
def test_the_view_is_what_a_naive_model_says(beats: list[tuple[str, int, float]]) -> None:
    view, model, at_s = MembershipView(ttl_s=5), dict[str, tuple[int, float]](), 0.0
    for node, revision, later_s in beats:
        at_s += later_s
        for gone in view.expire(at_s):
            assert at_s - model.pop(gone.node)[1] >= 5
        assert set(view.live()) == set(model)
        assert all(at_s - heard_s < 5 for _, heard_s in model.values())
        view.hear(record(node), revision, at_s)
        if node not in model or revision > model[node][0]:
            model[node] = (revision, at_s)


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"null", b'{"node":"a b","run":"r"}', b'{"node":"other","run":"r"}', b'{"run":"r"}', b"\xff", b"[]"],
)
def test_what_is_no_record_of_this_node_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedMessage, match="node a"):
        decode_node("a", value)


def test_a_record_of_a_later_release_is_read() -> None:
    later = b'{"node":"a","run":"r","colour":"red","actors":[{"name":"x","role":"y","status":"dreaming","since_ms":1}]}'
    assert decode_node("a", later).actors[0].status == "dreaming"
