"""Which lanes a node pulls from."""

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.fetcher.lanes import Lane, lanes_of

PINS = st.sets(st.tuples(st.sampled_from(["mall", "shop"]), st.sampled_from(["", "cn", "eu", "n1"])))


def test_a_platform_has_a_lane_for_the_tail_and_one_for_all_that_can_wait() -> None:
    assert lanes_of([("mall", "")], labels=(), node="n1") == {Lane("mall", "tail"), Lane("mall", "back")}


def test_a_pinned_platform_has_lanes_of_its_own_for_nodes_with_the_label() -> None:
    pinned = {Lane("mall", "tail_cn"), Lane("mall", "back_cn")}
    assert lanes_of([("mall", "cn")], labels=("cn",), node="n1") == pinned
    assert lanes_of([("mall", "cn")], labels=("eu",), node="n1") == set()
    assert lanes_of([("mall", "n1")], labels=(), node="n1") == {Lane("mall", "tail_n1"), Lane("mall", "back_n1")}


@given(PINS, st.sets(st.sampled_from(["cn", "eu"])))
def test_every_pin_is_served_by_some_node_and_no_lane_by_a_node_without_it(
    pins: set[tuple[str, str]], labels: set[str]
) -> None:
    ours = lanes_of(pins, labels=labels, node="n1")
    assert {lane.platform for lane in ours} <= {platform for platform, _ in pins}
    everywhere = lanes_of(pins, labels={"cn", "eu"}, node="n1")
    assert len(everywhere) == 2 * len(pins)
    assert ours <= everywhere
    assert all(lane.name.partition("_")[2] in {"", "n1", *labels} for lane in ours)
    assert {lane.is_tail for lane in ours} == ({True, False} if ours else set())
