"""An exhaustive search: two nodes, a governor and its successor, slots of one key, and messages that are lost or late.

Time goes in steps of half a second. In each step a node may ask, have a call begin, and have one end. A request may be
lost, or come in this step or a later one. The same holds for its reply. A node may hand back what it has. A call whose
slot has ended may run on, as one in a thread does. Once, another governor may be elected. Never may more calls have a
slot than the limit allows.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from actors.flow.rules.slots import Slotting
from actors.runtime.rules.slots_held import HeldSlots, KeySlots, SlotCall, SlotCut, SlotLimit
from streams.messages.slots import AskSlots, SlotsDealt
from tests.support.copies import copied

STEP_S = 0.5
KEY = "k"
NODES = ("a", "b")
START_S = 100.0
WAITS_S = 0.5
"""How long a node waits for a reply: longer than a real one does."""


def ignore(_why: SlotCut) -> None:
    """Take no notice."""


class SlotRules(NamedTuple):
    """What is searched. `fates` of requests: whether a node hands back, and by how many steps the request is late.
    `None`: it is lost. `replies`: the same of replies."""

    limit: SlotLimit = SlotLimit(1)
    fates: tuple[tuple[bool, int | None], ...] = ((False, 0), (False, None))
    replies: tuple[int | None, ...] = (0, None)
    steps: int = 4
    has_successor: bool = False
    slotting: type[Slotting] = Slotting
    held: type[HeldSlots] = HeldSlots
    most: int = 400_000


class SlotsFound(NamedTuple):
    states: int
    violation: list[str]


class SlotNode:
    """A node, and the request that it waits for."""

    def __init__(self, name: str, held: type[HeldSlots]) -> None:
        self.sent_s = 0.0
        self.held = held(name, name)

    def copy(self) -> SlotNode:
        new = copied(self)
        new.held = copied(self.held)
        new.held._keys = {key: _copied_key(each) for key, each in self.held._keys.items()}
        return new

    def frozen(self, now_s: float) -> tuple[object, ...]:
        held = self.held
        keys = [
            (
                each.slots,
                each.keep,
                round(max(0.0, each.until_s - now_s), 3),
                tuple((call.cut, round(now_s - call.began_s, 3)) for call in each.calls),
                each.waiting,
            )
            for each in held._keys.values()
        ]
        return round(now_s - self.sent_s, 3) if self.is_waiting(now_s) else None, held._token, tuple(keys)

    def is_waiting(self, now_s: float) -> bool:
        return now_s - self.sent_s <= WAITS_S

    def calls(self) -> list[SlotCall]:
        each = self.held._keys.get(KEY)
        return list(each.calls) if each is not None else []


class SlotWorld:
    def __init__(self, rules: SlotRules) -> None:
        self.rules = rules
        self.now_s = START_S
        self.place = 0
        """In a step, first each node may ask, and then calls of each may end or begin."""
        self.nodes = {name: SlotNode(name, rules.held) for name in NODES}
        self.governors = [rules.slotting(1, 0.0)]
        self.asks: tuple[tuple[float, AskSlots], ...] = ()
        self.replies: tuple[tuple[float, str, SlotsDealt], ...] = ()

    def copy(self) -> SlotWorld:
        new = copied(self)
        new.nodes = {name: node.copy() for name, node in self.nodes.items()}
        new.governors = [_copied(governor) for governor in self.governors]
        return new

    def frozen(self) -> tuple[object, ...]:
        """Return what makes two worlds the same: numbers count from now."""
        numbers = {name: node.held._number for name, node in self.nodes.items()}
        return (
            self.now_s,
            self.place,
            tuple(node.frozen(self.now_s) for node in self.nodes.values()),
            tuple(_frozen(governor, self.now_s, numbers) for governor in self.governors),
            tuple((at_s, ask.run, ask.number - numbers[ask.run], ask.token, ask.keys) for at_s, ask in self.asks),
            tuple(
                (at_s, name, reply.number - numbers[name], reply.token, reply.keys)
                for at_s, name, reply in self.replies
            ),
        )

    # ---- what may happen

    def moves(self) -> Iterator[tuple[str, SlotWorld]]:
        if self.place == 0 and self.rules.has_successor and len(self.governors) == 1:
            new = self.copy()
            new.governors.append(self.rules.slotting(2, self.now_s))
            yield "another governor", new
        for place, name in enumerate(NODES):
            if self.place <= place:
                yield from self._asks(name, place + 1)
        for place, name in enumerate(NODES, 2):
            if self.place <= place:
                yield from self._calls(name, place)
        if self.now_s - START_S < self.rules.steps * STEP_S:
            yield "time", self._later()

    def _asks(self, name: str, place: int) -> Iterator[tuple[str, SlotWorld]]:
        for is_last, late in self.rules.fates:
            if late and self.asks:
                continue
            new = self.copy()
            new.place = place
            node = new.nodes[name]
            node.sent_s = self.now_s
            node.held.wait(KEY, self.rules.limit, 0 if is_last else 1)
            asks = list(node.held.asks(self.now_s, is_last=is_last))
            told = f"{name} {'hands back' if is_last else 'asks'}"
            if asks and late is not None:
                new.asks = (*self.asks, (self.now_s + late * STEP_S, asks[0]))
                told += f", {late} late"
            yield told, new

    def _calls(self, name: str, place: int) -> Iterator[tuple[str, SlotWorld]]:
        new = self.copy()
        new.place = place
        if new.nodes[name].held.begin(KEY, self.rules.limit, self.now_s, ignore) is not None:
            yield f"{name} begins", new
        for at in range(len(self.nodes[name].calls())):
            new = self.copy()
            new.place = place
            new.nodes[name].held.end(new.nodes[name].calls()[at], self.now_s)
            yield f"a call of {name} ends", new

    def delivered(self, told: str) -> Iterator[tuple[str, SlotWorld]]:
        """Deliver the requests that are due. The reply to each may be lost, or come now or later."""
        due = [asked for asked in self.asks if asked[0] <= self.now_s]
        if not due:
            yield told, self
            return
        _, ask = due[0]
        rest = tuple(asked for asked in self.asks if asked is not due[0])
        for late in self.rules.replies:
            new = self.copy()
            new.asks = rest
            reply = new.governors[-1].answer(ask, self.now_s)
            line = told
            if reply is not None and late is not None:
                new.replies = (*new.replies, (self.now_s + late * STEP_S, ask.run, reply))
                line += f"; {ask.run} gets {reply.keys}, {late} late"
            new._heard()
            yield from new.delivered(line)
            if reply is None:
                break

    def _heard(self) -> None:
        due = [reply for reply in self.replies if reply[0] <= self.now_s]
        self.replies = tuple(reply for reply in self.replies if reply[0] > self.now_s)
        for _, name, reply in due:
            node = self.nodes[name]
            if node.is_waiting(self.now_s) or self.rules.held is not HeldSlots:
                node.held.hear(reply, node.sent_s, self.now_s)

    def _later(self) -> SlotWorld:
        new = self.copy()
        new.now_s += STEP_S
        new.place = 0
        for node in new.nodes.values():
            node.held.end_slots(new.now_s)
        new._heard()
        return new

    def is_above(self) -> bool:
        return sum(call.cut != "lost" for node in self.nodes.values() for call in node.calls()) > self.rules.limit.most


def search_slots(rules: SlotRules) -> SlotsFound:
    """Look at all worlds, up to `most`, the nearest first. Return how many there are, and the way to the first one that
    is above the limit."""
    first = SlotWorld(rules)
    seen = {first.frozen()}
    waiting: deque[tuple[SlotWorld, tuple[object, ...]]] = deque([(first, ())])
    while waiting and len(seen) < rules.most:
        world, way = waiting.popleft()
        for move, new in _settled(world):
            if new.is_above():
                return SlotsFound(len(seen), [*_lines(way), move])
            key = new.frozen()
            if key not in seen:
                seen.add(key)
                waiting.append((new, (way, move)))
    return SlotsFound(len(seen), [] if not waiting else ["not all searched"])


def walk_slots(rules: SlotRules, seed: int, *, moves: int) -> list[str]:
    """Take moves at random. Return the way to the first world above the limit, if there is one."""
    chance, world, way = random.Random(seed), SlotWorld(rules._replace(steps=999)), list[str]()
    for _ in range(moves):
        move, world = chance.choice(list(_settled(world)))
        way.append(move)
        if world.is_above():
            return way
    return []


def _settled(world: SlotWorld) -> Iterator[tuple[str, SlotWorld]]:
    for move, new in world.moves():
        yield from new.delivered(move)


def _lines(way: tuple[object, ...]) -> list[str]:
    lines: list[str] = []
    while way:
        before, move = way
        lines.append(str(move))
        assert isinstance(before, tuple)
        way = before
    return lines[::-1]


def _copied_key(held: KeySlots) -> KeySlots:
    new = copied(held)
    new.calls = {copied(call): None for call in held.calls}
    return new


def _copied(governor: Slotting) -> Slotting:
    new = copied(governor)
    new._asked = copied(governor._asked)
    new._asked._last = dict(governor._asked._last)
    new._books = {key: dict(book) for key, book in governor._books.items()}
    return new


def _frozen(governor: Slotting, now_s: float, numbers: dict[str, int]) -> tuple[object, ...]:
    return (
        round(max(0.0, governor._quiet_until_s - now_s), 3),
        tuple(sorted((run, number - numbers[run]) for run, (number, _) in governor._asked._last.items())),
        tuple(
            (run, one.bound, one.wanted, one.leaving, one.oldest_s, one.since_s, round(one.until_s - now_s, 3))
            for book in governor._books.values()
            for run, one in sorted(book.items())
            if now_s < one.until_s
        ),
    )
