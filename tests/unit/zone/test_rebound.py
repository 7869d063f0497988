"""What a person has bound to a zone by a setting: when the other zones have left it, and when this one says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actors.runtime.membership import NodeRecord
from actors.zone.rebound import Rebound


class View:
    """Settings of topics."""

    def __init__(self) -> None:
        self.seen = 1
        self.revision = 1
        self.bound = ""
        self.listener: Callable[[str], None] = lambda _name: None

    def revision_of(self, name: str) -> int:
        return self.revision

    def bound_of(self, name: str) -> str:
        return self.bound

    def on_change(self, listener: Callable[[str], None]) -> None:
        self.listener = listener

    async def refresh(self) -> None:
        self.seen = self.revision

    def change(self, bound: str) -> None:
        """Change where the topic runs. The watch of the bucket has not reported it yet."""
        self.bound, self.revision = bound, self.revision + 1
        self.listener("mail")


class Node:
    """A node of zone a, beside one of zone b."""

    def __init__(self, drain_ms: int = 60_000) -> None:
        self.live: dict[str, NodeRecord] = {}
        self.view = View()
        self.may_be_here = True
        self.heard = 0
        self.rebound = Rebound(
            zone="a",
            live=lambda: self.live,
            may_be_here=lambda bound: self.may_be_here and bound == "a",
            drain_ms=lambda: drain_ms,
            hear=self.hear,
        )
        self.rebound.follow("topics", self.view)
        self.other_says(1)

    def hear(self) -> None:
        self.heard += 1

    def other_says(self, settled: int) -> None:
        self.live["b1"] = NodeRecord(node="b1", run="b1", zone="b", topics=("mail",), settled={"topics": settled})

    def waits(self) -> bool:
        return self.rebound.waits

    def has_news(self) -> bool:
        return self.rebound.has_news

    def is_ours(self) -> bool:
        return self.rebound.is_ours("topics", "mail", "a")


def test_what_waits_is_looked_at_until_the_other_zone_has_left_it_and_that_is_reported_once() -> None:
    node = Node()
    node.view.change("a")
    heard = node.heard
    assert not node.is_ours()
    assert node.heard == heard + 1, "the loop is woken: it may sleep until there is news"
    assert node.waits()
    assert not node.rebound.look()
    node.other_says(2)
    assert not node.is_ours(), "to ask again takes nothing away from those who are told"
    assert node.rebound.look()
    assert node.is_ours()
    assert not node.waits()
    assert not node.rebound.look()


def test_what_the_other_zone_has_left_before_it_is_asked_for_begins_at_once() -> None:
    node = Node()
    node.view.change("a")
    node.other_says(2)
    assert node.is_ours()


def test_a_zone_that_says_nothing_is_not_waited_for_longer_than_the_drain() -> None:
    node = Node(drain_ms=0)
    node.view.change("a")
    assert not node.is_ours()
    assert node.rebound.look()
    assert node.is_ours()


def test_what_may_not_be_here_for_a_while_is_asked_for_anew() -> None:
    node = Node()
    node.view.change("a")
    assert not node.is_ours()
    node.may_be_here = False
    node.other_says(2)
    assert not node.rebound.look()
    assert not node.waits()
    node.may_be_here = True
    assert node.is_ours()


@pytest.mark.parametrize("bound", ["a", "b"])
def test_the_others_are_told_of_a_change_once_the_watch_has_reported_it(bound: str) -> None:
    """A node that writes the setting itself knows it before. A heartbeat of then would name the revision before."""
    node = Node()
    assert not node.has_news()
    node.view.change(bound)
    assert node.has_news()
    assert not node.rebound.take_news()
    node.view.seen = 2
    assert node.rebound.take_news()
    assert not node.has_news()
    node.rebound.settle()
    assert node.rebound.settled == {"topics": 2}
