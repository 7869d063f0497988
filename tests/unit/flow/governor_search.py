"""An exhaustive search: two nodes, a governor and its successor, and messages that are lost, late, or come twice.

Time goes in steps of half a second. In each step a node may ask, and begins as much as its share allows, or nothing.
A request may be lost, or come in this step or a later one. The same holds for its reply. A node may die, or hand back
what it has. Once, another governor may be elected, and once the rate may change. Nothing may take both nodes together
above the rate in any second. After a rate was lowered, shares of the higher one may count until they have ended.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from actors.flow.rules.governing import Governing, Holding, KeyBook
from actors.runtime.rules.leased import LeasedShares
from actors.runtime.rules.second_cap import whole_above
from streams.messages.rates import LIFE_S, SECOND_S, AskShares, SharesDealt
from tests.support.copies import copied

STEP_S = 0.5
KEY = "k"
NODES = ("a", "b")
START_S = 100.0
WAITS_S = 0.5
"""How long a node waits for a reply: longer than a real one does."""


class GovernorRules(NamedTuple):
    """What is searched. `rates`: the first one, and what it may become. `late`: by how many steps a message may come
    late."""

    rates: tuple[float, ...] = (2.0,)
    fates: tuple[tuple[bool, int | None], ...] = ((False, 0), (False, None))
    replies: tuple[int | None, ...] = (0, None)
    is_lazy: bool = False
    steps: int = 8
    has_successor: bool = False
    governing: type[Governing] = Governing
    leased: type[LeasedShares] = LeasedShares
    does_old_one_answer: bool = False
    most: int = 400_000


class SearchFound(NamedTuple):
    states: int
    violation: list[str]


class SearchedNode:
    """A node: its shares, what it began in this step and in the one before, and the request that it waits for."""

    def __init__(self, name: str, leased: type[LeasedShares]) -> None:
        self.name = name
        self.sent_s = 0.0
        self.now, self.before = 0.0, 0.0
        self.leased = leased(name, name, self.spent)

    def spent(self, _key: str) -> int:
        return int(self.now + self.before)

    def copy(self) -> SearchedNode:
        new = copied(self)
        new.leased = copied(self.leased)
        new.leased._spent = new.spent
        new.leased._keys = {key: copied(lease) for key, lease in self.leased._keys.items()}
        return new

    def frozen(self, now_s: float) -> tuple[object, ...]:
        leased = self.leased
        keys = [
            (
                round(max(-LIFE_S, lease.until_s - now_s), 3),
                now_s < lease.claim_until_s < math.inf,
                lease.share,
                lease.most,
                lease.bound,
            )
            for lease in leased._keys.values()
        ]
        waits_s = round(now_s - self.sent_s, 3) if self.is_waiting(now_s) else None
        return waits_s, self.now, self.before, leased._token, tuple(keys)

    def is_waiting(self, now_s: float) -> bool:
        return now_s - self.sent_s <= WAITS_S


class SearchedWorld:
    def __init__(self, rules: GovernorRules) -> None:
        self.rules = rules
        self.now_s = START_S
        self.rate = rules.rates[0]
        self.allowed = self.rate
        self.allowed_until_s = 0.0
        self.changes = 0
        self.place = 0
        """In a step, first a and then b may ask, and then a and b may begin something."""
        self.nodes = {name: SearchedNode(name, rules.leased) for name in NODES}
        self.governors = [rules.governing(1, 0.0)]
        self.asks: tuple[tuple[float, AskShares], ...] = ()
        self.replies: tuple[tuple[float, str, SharesDealt], ...] = ()

    def copy(self) -> SearchedWorld:
        new = copied(self)
        new.nodes = {name: node.copy() for name, node in self.nodes.items()}
        new.governors = [_copied(governor) for governor in self.governors]
        return new

    def drop_void(self) -> None:
        """Drop messages that change nothing any more."""
        self.asks = tuple(
            (at_s, ask)
            for at_s, ask in self.asks
            if any(ask.number > each._asked._last.get(ask.run, (0, 0.0))[0] for each in self.governors[-1:])
        )
        if self.rules.leased is LeasedShares:
            self.replies = tuple(
                reply for reply in self.replies if reply[2].number == self.nodes[reply[1]].leased._number
            )

    def frozen(self) -> tuple[object, ...]:
        """Return what makes two worlds the same: times and numbers count from now."""
        numbers = {name: node.leased._number for name, node in self.nodes.items()}
        return (
            self.now_s,
            self.place,
            tuple(node.frozen(self.now_s) for node in self.nodes.values()),
            tuple(_frozen(governor, self.now_s, numbers) for governor in self.governors),
            self.rate,
            self.changes,
            self.allowed if self.now_s < self.allowed_until_s else 0,
            round(max(0.0, self.allowed_until_s - self.now_s), 3),
            tuple(
                (round(at_s - self.now_s, 3), ask.run, ask.number - numbers[ask.run], ask.token, ask.keys)
                for at_s, ask in self.asks
            ),
            tuple(
                (round(at_s - self.now_s, 3), name, reply.number - numbers[name], reply.token, reply.keys)
                for at_s, name, reply in self.replies
            ),
        )

    # ---- what may happen

    def moves(self) -> Iterator[tuple[str, SearchedWorld]]:
        if self.place == 0 and self.changes < len(self.rules.rates) - 1:
            new = self.copy()
            new.changes += 1
            new.rate = self.rules.rates[new.changes]
            new.allowed, new.allowed_until_s = max(self.rate, new.rate), self.now_s + LIFE_S + SECOND_S + STEP_S
            yield f"the rate is {new.rate}", new
        if self.place == 0 and self.rules.has_successor and len(self.governors) == 1:
            new = self.copy()
            new.governors.append(self.rules.governing(2, self.now_s))
            yield "another governor", new
        for place, name in enumerate(NODES):
            if self.place <= place:
                yield from self._asks(name, place + 1)
        begun = [
            each for place, name in enumerate(NODES, 2) if self.place <= place for each in self._begins(name, place + 1)
        ]
        yield from begun if self.rules.is_lazy else begun[:1]
        if (self.rules.is_lazy or not begun) and self.now_s - START_S < self.rules.steps * STEP_S:
            yield "time", self._later()

    def _asks(self, name: str, place: int) -> Iterator[tuple[str, SearchedWorld]]:
        for is_last, late in self.rules.fates:
            new = self.copy()
            new.place = place
            node = new.nodes[name]
            node.sent_s = self.now_s
            lease, _ = node.leased.lease(KEY, self.now_s)
            lease.short_s, lease.used, lease.spent = self.now_s, 9.0, 0
            (ask,) = node.leased.asks(self.now_s, is_last=is_last)
            told = f"{name} {'hands back' if is_last else 'asks'}"
            if late is None:
                yield f"{told}, in vain", new
                continue
            if late and self.asks:
                continue
            new.asks = (*self.asks, (self.now_s + late * STEP_S, ask))
            yield f"{told}, {late} late", new

    def _delivered(self, told: str) -> Iterator[tuple[str, SearchedWorld]]:
        """Deliver the requests that are due. The reply to each may be lost, or come now or later."""
        due = [asked for asked in self.asks if asked[0] <= self.now_s]
        if not due:
            yield told, self
            return
        _, ask = due[0]
        rest = tuple(asked for asked in self.asks if asked is not due[0])
        answering = range(len(self.governors)) if self.rules.does_old_one_answer else [len(self.governors) - 1]
        for governor in answering:
            for late in self.rules.replies:
                new = self.copy()
                new.asks = rest
                reply = new.governors[governor].answer(ask, lambda _key: self.rate, self.now_s)
                line = f"{told}; governor {governor + 1} answers {ask.run}"
                if reply is not None and late is not None:
                    new.replies = (*new.replies, (self.now_s + late * STEP_S, ask.run, reply))
                    line += f" {reply.keys[0].share} and {reply.keys[0].most}, {late} late"
                new._heard()
                yield from new._delivered(line)
                if reply is None:
                    break

    def _heard(self) -> None:
        due = [reply for reply in self.replies if reply[0] <= self.now_s]
        self.replies = tuple(reply for reply in self.replies if reply[0] > self.now_s)
        for _, name, reply in due:
            node = self.nodes[name]
            if node.is_waiting(self.now_s) or self.rules.leased is not LeasedShares:
                node.leased.hear(reply, node.sent_s, self.now_s)

    def _begins(self, name: str, place: int) -> Iterator[tuple[str, SearchedWorld]]:
        node = self.nodes[name]
        can = node.leased.share(KEY, self.now_s) > 0
        room = whole_above(node.leased.bound(KEY)) - node.before - node.now if can else 0.0
        if room > 0:
            new = self.copy()
            new.place = place
            new.nodes[name].now += room
            yield f"{name} begins {room}", new

    def _later(self) -> SearchedWorld:
        new = self.copy()
        new.now_s += STEP_S
        new.place = 0
        for node in new.nodes.values():
            node.before, node.now = node.now, 0.0
        new._heard()
        return new

    def is_above(self) -> bool:
        most = whole_above(max(self.rate, self.allowed if self.now_s < self.allowed_until_s else 0.0))
        return sum(node.now + node.before for node in self.nodes.values()) > most


def search(rules: GovernorRules) -> SearchFound:
    """Look at all worlds, up to `most`, the nearest first. Return how many there are, and the way to the first one that
    is above the rate."""
    first = SearchedWorld(rules)
    seen = {first.frozen()}
    waiting: deque[tuple[SearchedWorld, tuple[object, ...]]] = deque([(first, ())])
    while waiting and len(seen) < rules.most:
        world, way = waiting.popleft()
        for move, new in _settled(world):
            if new.is_above():
                return SearchFound(len(seen), [*_lines(way), move])
            new.drop_void()
            key = new.frozen()
            if key not in seen:
                seen.add(key)
                waiting.append((new, (way, move)))
    return SearchFound(len(seen), [] if not waiting else ["not all searched"])


def walk(rules: GovernorRules, seed: int, *, moves: int) -> list[str]:
    """Take moves at random. Return the way to the first world above the rate, if there is one."""
    chance, world, way = random.Random(seed), SearchedWorld(rules), list[str]()
    for _ in range(moves):
        move, world = chance.choice(list(_settled(world)))
        way.append(move)
        if world.is_above():
            return way
        world.drop_void()
    return []


def _settled(world: SearchedWorld) -> Iterator[tuple[str, SearchedWorld]]:
    for move, new in world.moves():
        if any(at_s <= new.now_s for at_s, _ in new.asks):
            yield from new._delivered(move)
        else:
            yield move, new


def _lines(way: tuple[object, ...]) -> list[str]:
    lines: list[str] = []
    while way:
        before, move = way
        lines.append(str(move))
        assert isinstance(before, tuple)
        way = before
    return lines[::-1]


def _copied(governor: Governing) -> Governing:
    new = copied(governor)
    new._asked = copied(governor._asked)
    new._asked._last = dict(governor._asked._last)
    new._books = {key: _copied_book(book) for key, book in governor._books.items()}
    return new


def _copied_book(book: KeyBook) -> KeyBook:
    new = copied(book)
    new.holdings, new.demands = dict(book.holdings), dict(book.demands)
    return new


def _frozen(governor: Governing, now_s: float, numbers: dict[str, int]) -> tuple[object, ...]:
    def held(holding: Holding) -> tuple[object, ...]:
        left_s = (holding.until_s - now_s, holding.fresh_until_s - now_s)
        return holding.bound, holding.demand, holding.share, *(round(max(0.0, left), 3) for left in left_s)

    return (
        round(max(0.0, governor._quiet_until_s - now_s), 3),
        tuple(sorted((run, number - numbers[run]) for run, (number, _) in governor._asked._last.items())),
        tuple(
            (
                book.has_turns,
                tuple(sorted((run, *held(each)) for run, each in book.holdings.items() if now_s < each.until_s)),
            )
            for book in governor._books.values()
        ),
    )
