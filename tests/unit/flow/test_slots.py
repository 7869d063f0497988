"""Who gets the slots of a key."""

from __future__ import annotations

from collections import Counter

import pytest

from actors.flow.rules.slots import Slotting
from actors.runtime.rules.slots_held import HeldSlots, SlotCall, SlotLimit
from streams.messages.rates import LIFE_S, MARGIN_S
from streams.messages.slots import AskSlots, SlotAsk, SlotDealt, SlotsTaken, WhenFull

START_S = 100.0


class Asking:
    """Nodes that ask a governor for slots of one key."""

    def __init__(self, most: int, when_full: WhenFull = "queue") -> None:
        self.governor = Slotting(1, START_S - 60)
        self.now_s = START_S
        self._most, self._when_full = most, when_full
        self._number = 0

    def ask(self, run: str, held: int, wanted: int, *, oldest_ms: int = 0) -> SlotDealt:
        self._number += 1
        self.now_s += 0.001
        asked = SlotAsk("k", held, held, wanted, self._most, self._when_full, oldest_ms)
        reply = self.governor.answer(
            AskSlots(node=run, run=run, number=self._number, token=1, keys=(asked,)), self.now_s
        )
        assert reply is not None
        return reply.keys[0]


def test_a_node_alone_gets_what_it_wants_up_to_the_limit() -> None:
    town = Asking(3)
    assert town.ask("a", 0, 2).slots == 2
    assert town.ask("a", 2, 9).slots == 3
    assert town.ask("b", 0, 1).slots == 0


def test_a_slot_that_is_given_up_goes_to_the_node_that_waits_and_turns_are_taken() -> None:
    town = Asking(1)
    assert town.ask("a", 0, 5).slots == 1
    assert town.ask("b", 0, 5).slots == 0
    assert town.ask("c", 0, 5).slots == 0
    kept = town.ask("a", 1, 5)
    assert (kept.slots, kept.keep) == (1, 0)
    assert town.ask("a", 0, 4).slots == 0
    assert town.ask("c", 0, 5).slots == 0
    assert town.ask("b", 0, 5).slots == 1
    assert town.ask("b", 0, 4).slots == 0
    assert town.ask("a", 0, 4).slots == 0
    assert town.ask("c", 0, 5).slots == 1


@pytest.mark.parametrize(("most", "nodes"), [(1, 2), (1, 5), (2, 3), (3, 2)])
def test_nodes_that_always_have_calls_all_come_to_run_some(most: int, nodes: int) -> None:
    """A slot that is given can be used, though others wait for it."""
    town = Asking(most)
    held = {name: HeldSlots(name, name) for name in "abcde"[:nodes]}
    calls: dict[str, list[SlotCall]] = {name: [] for name in held}
    begun = Counter[str]()
    for _ in range(40 * nodes):
        for name, node in held.items():
            town.now_s += 0.01
            for call in calls[name]:
                node.end(call, town.now_s)
            calls[name].clear()
            node.wait("k", SlotLimit(most), 9)
            (ask,) = node.asks(town.now_s)
            reply = town.governor.answer(ask, town.now_s)
            assert reply is not None
            node.hear(reply, town.now_s, town.now_s)
            while (new := node.begin("k", SlotLimit(most), town.now_s, lambda _why: None)) is not None:
                calls[name].append(new)
                begun[name] += 1
            assert sum(map(len, calls.values())) <= most
    assert min(begun[name] for name in held) >= 10


def test_nodes_with_many_calls_come_to_equal_parts_and_stay_there() -> None:
    town = Asking(5)
    assert town.ask("a", 0, 9).slots == 5
    town.ask("b", 0, 9)
    assert town.ask("a", 5, 9).keep == 3
    town.ask("a", 3, 9)
    assert town.ask("b", 0, 9).slots == 2
    assert town.ask("a", 3, 9).keep == 3
    assert town.ask("b", 2, 9).keep == 2


def test_the_slots_of_a_silent_node_are_free_after_their_life() -> None:
    town = Asking(1)
    town.ask("a", 0, 1)
    town.now_s += LIFE_S + MARGIN_S - 0.01
    assert town.ask("b", 0, 1).slots == 0
    town.now_s += 0.02
    assert town.ask("b", 0, 1).slots == 1


def test_of_a_lower_limit_slots_are_given_up_once() -> None:
    town = Asking(4)
    town.ask("a", 0, 2), town.ask("b", 0, 2)
    town._most = 3
    assert [town.ask("a", 2, 2).keep, town.ask("b", 2, 2).keep] == [1, 2]


def test_the_longest_call_of_all_nodes_is_cut_for_a_newcomer_and_no_other() -> None:
    town = Asking(2, "cancel_running")
    town.ask("b", 0, 1), town.ask("a", 0, 1)  # b has not told yet how long its call has run
    assert town.ask("a", 1, 2).cut == 0
    town.ask("a", 1, 1, oldest_ms=500), town.ask("b", 1, 1, oldest_ms=900)
    assert town.ask("c", 0, 1).slots == 0
    assert town.ask("a", 1, 1, oldest_ms=500).cut == 0
    assert town.ask("b", 1, 1, oldest_ms=900).cut == 1
    assert town.ask("a", 1, 1, oldest_ms=500).cut == 0
    town.ask("b", 0, 0)
    assert town.ask("c", 0, 1).slots == 1


def test_only_what_finds_a_full_key_is_dropped() -> None:
    town = Asking(1, "drop_newest")
    assert not town.ask("a", 0, 1).is_full
    assert town.ask("b", 0, 1).is_full
    assert not town.ask("a", 1, 1).is_full
    new = Slotting(2, START_S)
    asked = SlotAsk("k", 0, 0, 1, 1, "drop_newest")
    reply = new.answer(AskSlots(node="a", run="a", number=1, keys=(asked,)), START_S)
    assert reply is not None
    assert not reply.keys[0].is_full, "a new governor cannot know"


def test_who_has_slots_can_be_seen() -> None:
    town = Asking(2)
    town.ask("a", 0, 1), town.ask("b", 0, 1), town.ask("c", 0, 1)
    seen = town.governor.seen("k", town.now_s)
    assert (seen.most, seen.holders) == (2, (("a", 1), ("b", 1)))
    listed = town.governor.listed(10, town.now_s)
    assert (listed.total, listed.keys) == (1, (SlotsTaken("k", 2, 1, (("a", 1), ("b", 1))),))
    assert town.governor.listed(0, town.now_s).keys == ()
