"""Who gets what of a rate: by demand, whole, one turn at a time where it is low, and nothing twice."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.flow.rules.governing import Governing
from actors.runtime.rules.leased import DEMAND_S, LeasedShares
from streams.messages.rates import LIFE_S, MARGIN_S, SECOND_S, AskShares, KeyAsk

STEP_S = 0.05


class FlowNode:
    """A node that begins one whenever it may, up to so many a second."""

    def __init__(self, name: str, most: float = 1e9) -> None:
        self.name = name
        self.most = most
        self.began: list[float] = []
        self.is_alive = True
        self.ask_s = 0.0
        self.leased = LeasedShares(name, name, lambda _key: self.lately(self.now_s))
        self.shared: list[float] = []
        self.now_s = 0.0

    def lately(self, now_s: float) -> int:
        return sum(at_s > now_s - SECOND_S for at_s in self.shared[-2000:])

    def begin(self, now_s: float) -> None:
        lease, is_new = self.leased.lease("k", now_s)
        if is_new:
            self.ask_s = now_s
        wanted = int(min(self.most, 1e6) * STEP_S) or (now_s * self.most) // 1 > ((now_s - STEP_S) * self.most) // 1
        for _ in range(int(wanted)):
            if self.leased.share("k", now_s) and self.leased.bound("k") >= self.lately(now_s) + 1:
                self.shared.append(now_s)
            elif lease.has_turn and now_s < lease.until_s:
                lease.has_turn = False
            else:
                lease.short_s = now_s
                return
            lease.spent += 1
            self.began.append(now_s)


class Flow:
    """Nodes and a governor, on one clock that goes in small steps. Messages come at once."""

    def __init__(self, rate: float, *nodes: FlowNode, since_s: float = 0.0) -> None:
        self.rate = rate
        self.nodes = {node.name: node for node in nodes}
        self.governing = Governing(1, since_s)
        self.now_s = 0.0

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            self.now_s = round(self.now_s + STEP_S, 3)
            for node in self.nodes.values():
                node.now_s = self.now_s
                if node.is_alive:
                    node.begin(self.now_s)
                    if self.now_s >= node.ask_s:
                        self.ask(node)

    def ask(self, node: FlowNode) -> None:
        for ask in node.leased.asks(self.now_s):
            reply = self.governing.answer(ask, lambda _key: self.rate, self.now_s)
            if reply is not None:
                node.ask_s = self.now_s + (node.leased.hear(reply, self.now_s, self.now_s) or STEP_S)

    def between(self, from_s: float, to_s: float) -> dict[str, int]:
        return {name: sum(from_s < at_s <= to_s for at_s in node.began) for name, node in self.nodes.items()}

    def began(self) -> list[float]:
        return sorted(at_s for node in self.nodes.values() for at_s in node.began)

    def most_in_a_second(self) -> int:
        began = self.began()
        return max(sum(at_s - 1e-9 <= each < at_s + SECOND_S - 1e-9 for each in began) for at_s in began)


QUIET_S = LIFE_S + SECOND_S + MARGIN_S


def test_one_node_alone_has_the_whole_rate_once_nobody_can_hold_an_older_share() -> None:
    flow = Flow(100, FlowNode("a"))
    flow.run(QUIET_S - STEP_S)
    assert flow.between(0, 99) == {"a": 0}
    flow.run(13)
    assert flow.between(3, 13)["a"] >= 985
    assert flow.most_in_a_second() <= 100


def test_two_with_work_come_to_equal_parts_and_one_that_needs_little_gets_that() -> None:
    flow = Flow(100, FlowNode("a"), FlowNode("b"), FlowNode("c", most=8), since_s=-9)
    flow.run(20)
    found = flow.between(10, 20)
    assert found["c"] >= 75
    assert abs(found["a"] - found["b"]) <= 40
    assert sum(found.values()) >= 950
    assert flow.most_in_a_second() <= 100


def test_a_node_that_joins_gets_its_part_within_seconds_and_a_dead_ones_part_is_used_again() -> None:
    flow = Flow(100, FlowNode("a"), since_s=-9)
    flow.run(5)
    flow.nodes["b"] = FlowNode("b")
    flow.run(15)
    assert sum(flow.between(5, 10).values()) >= 5 * 75
    assert all(45 * 5 <= each <= 55 * 5 for each in flow.between(10, 15).values())
    flow.nodes["a"].is_alive = False
    flow.run(25)
    assert flow.between(18.5, 24.5)["b"] >= 6 * 97
    assert flow.most_in_a_second() <= 100


def test_a_lower_rate_holds_after_the_old_shares_have_ended_and_a_higher_one_is_used() -> None:
    flow = Flow(100, FlowNode("a"), FlowNode("b"), since_s=-9)
    flow.run(5)
    flow.rate = 20
    flow.run(10)
    assert sum(flow.between(8, 10).values()) <= 40
    flow.rate = 200
    flow.run(20)
    assert sum(flow.between(15, 20).values()) >= 5 * 190


@pytest.mark.parametrize("count", [1, 3])
def test_a_rate_of_one_in_four_seconds_is_exact_over_time(count: int) -> None:
    nodes = [FlowNode(name) for name in "abc"[:count]]
    flow = Flow(0.25, *nodes, since_s=-9)
    flow.run(400)
    assert 99 <= sum(flow.between(0, 400).values()) <= 101
    began = sorted(at_s for node in nodes for at_s in node.began)
    assert all(later - earlier > 3 for earlier, later in itertools.pairwise(began))
    assert all(len(node.began) >= 100 / count / 2 for node in nodes)


def test_more_nodes_than_the_rate_has_ones_take_turns() -> None:
    flow = Flow(4, *[FlowNode(name) for name in "abcdefg"], since_s=-9)
    flow.run(60)
    assert sum(flow.between(10, 60).values()) >= 50 * 4 * 0.9
    assert all(each >= 10 for each in flow.between(10, 60).values())
    assert flow.most_in_a_second() <= 4 + 7


def test_a_turn_that_is_not_used_goes_to_another_node() -> None:
    flow = Flow(0.01, FlowNode("a"), FlowNode("b"), since_s=-9)
    flow.nodes["b"].is_alive = False
    lease, _ = flow.nodes["a"].leased.lease("k", 0.0)
    lease.short_s = 0.0
    flow.ask(flow.nodes["a"])
    assert lease.has_turn
    flow.now_s = DEMAND_S + 1
    flow.nodes["a"].now_s = flow.now_s
    flow.ask(flow.nodes["a"])  # which needs it no longer
    flow.nodes["b"].is_alive = True
    flow.nodes["a"].is_alive = False
    flow.run(DEMAND_S + 3)
    assert flow.between(0, 99) == {"a": 0, "b": 1}


def test_a_turn_whose_reply_was_lost_is_given_again() -> None:
    flow = Flow(0.01, FlowNode("a"), since_s=-9)
    lease, _ = flow.nodes["a"].leased.lease("k", 0.0)
    lease.short_s = 0.0
    (lost,) = flow.nodes["a"].leased.asks(0.0)
    answer = flow.governing.answer(lost, lambda _key: 0.01, 0.0)
    assert answer is not None
    assert answer.keys[0].has_turn
    flow.run(1)
    assert flow.between(0, 99) == {"a": 1}


def test_a_request_that_comes_twice_or_late_or_to_an_old_governor_has_no_reply() -> None:
    leased, governing = LeasedShares("a", "a", lambda _key: 0), Governing(5, 0.0)
    leased.lease("k", 0.0)
    (first,), (second,) = leased.asks(0.0), leased.asks(0.1)
    assert governing.answer(second, lambda _key: 5, 0.2) is not None
    assert governing.answer(second, lambda _key: 5, 0.2) is None
    assert governing.answer(first, lambda _key: 5, 0.2) is None
    (third,) = leased.asks(0.3)
    assert Governing(4, 0.0).answer(third, lambda _key: 5, 0.4) is not None
    reply = governing.answer(third, lambda _key: 5, 0.4)
    assert reply is not None
    assert leased.hear(reply, 0.3, 0.4) is not None
    (fourth,) = leased.asks(0.5)
    assert Governing(4, 0.0).answer(fourth, lambda _key: 5, 0.6) is None


@pytest.mark.parametrize(("heard_s", "share"), [(2.49, 5.0), (2.51, 0.0)])
def test_a_share_is_claimed_of_a_successor_only_while_no_other_node_can_have_it(heard_s: float, share: float) -> None:
    leased = LeasedShares("a", "a", lambda _key: 0)
    leased.lease("k", 0.0)
    (first,) = leased.asks(0.0)
    reply = Governing(1, -9.0).answer(first, lambda _key: 5, 0.0)
    assert reply is not None
    leased.hear(reply, 0.0, 0.1)
    leased.lease("k", 2.4)
    (claim,) = leased.asks(2.4)
    assert claim.keys[0].share == 5
    reply = Governing(2, 2.0).answer(claim, lambda _key: 5, 2.4)
    assert reply is not None
    assert reply.keys[0].most == 5
    leased.hear(reply, 2.4, heard_s)
    assert leased.share("k", heard_s) == share


def test_a_successor_does_not_lower_a_share_because_the_node_had_none_meanwhile() -> None:
    governing = Governing(2, 0.0)
    asks = [KeyAsk("k", 50.0, 50.0, 90.0, is_wanted=True, is_short=True), KeyAsk("k", 50.0, 50.0, 10.0, is_wanted=True)]
    for run, ask in zip("ab", asks, strict=True):
        for number in (1, 2):
            asked = AskShares(node=run, run=run, number=number, keys=(ask,))
            reply = governing.answer(asked, lambda _key: 100, 0.1 * number)
            assert reply is not None
            assert reply.keys[0].most == 50


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["joins", "dies", "idles", "works"])), max_size=12),
)
def test_whoever_joins_dies_and_idles_no_second_has_more_than_the_rate_and_one_a_node(
    rate: int, events: list[tuple[str, str]]
) -> None:
    flow = Flow(rate, FlowNode("a"), FlowNode("b"), since_s=-9)
    for name, event in events:
        flow.run(flow.now_s + 0.8)
        node = flow.nodes.setdefault(name, FlowNode(name))
        node.is_alive = event != "dies"
        node.most = 0.1 if event == "idles" else 1e9
    flow.run(flow.now_s + 3)
    assert flow.most_in_a_second() <= rate + len(flow.nodes)


@given(
    st.integers(3, 40),
    st.lists(
        st.tuples(st.sampled_from(["takeover", "restart", "restart all", "dies", "joins"]), st.floats(0.1, 2.0)),
        max_size=10,
    ),
)
def test_governors_that_follow_each_other_while_nodes_restart_keep_the_rate(
    rate: int, events: list[tuple[str, float]]
) -> None:
    flow, token = Flow(rate, FlowNode("0"), FlowNode("1"), FlowNode("2"), since_s=-9), 1
    for event, wait_s in events:
        flow.run(flow.now_s + wait_s)
        alive = [node for node in flow.nodes.values() if node.is_alive]
        gone = alive if event == "restart all" else alive[:1] if event in ("restart", "dies") else []
        for node in gone:
            node.is_alive = False
        for _ in range(0 if event in ("dies", "takeover") else max(1, len(gone))):
            flow.nodes[f"{len(flow.nodes)}"] = FlowNode(f"{len(flow.nodes)}")
        if event in ("takeover", "restart all"):
            token += 1
            flow.governing = Governing(token, flow.now_s)
    flow.run(flow.now_s + 3)
    assert not flow.began() or flow.most_in_a_second() <= rate + len(flow.nodes)
