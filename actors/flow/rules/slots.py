"""What the governor replies about slots: which node may run how many calls under a key, so that no more run than the
limit.

For each key and node the governor knows a bound: the node runs no more calls under the key. **All bounds of a key
together are at most its limit.** The bounds live as those of rates do (governing.py): a node lowers its bound by a
report, a lost reply counts as arrived until the node's next request, a silent node keeps its bound for the life of a
slot, and a new governor lets nodes keep what they report and gives nothing for as long.

A free slot goes to the node with the fewest slots of the key, and among those to the one that has waited longest. If a
node waits while others have more, they give up slots as their calls end (`SlotDealt.keep`). So nodes that always have
calls come to equal parts, and take turns where there are fewer slots than nodes.

A call whose slot has ended may run on, in a thread. Its node reports it (`SlotAsk.running`), and it counts as long as
it runs.

The limit of a key is what the asking node knows of it. So the governor needs no settings. Of a lower limit, calls that
run are not cancelled. Their slots are given up when they end.

Times are seconds of the governor's monotonic clock. Pure but for its memory.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from actors.flow.rules.asked import Asked
from streams.messages.rates import LIFE_S, MARGIN_S
from streams.messages.slots import AskSlots, SlotAsk, SlotDealt, SlotsDealt, SlotsListed, SlotsSeen, SlotsTaken

AGAIN_S = 0.5
"""How soon a node asks again: three times in the life of a slot."""
CUT_AGAIN_S = 0.1
"""The same, if a newcomer may take the slot of a running call."""
FIRST_AGAIN_S = 0.05
"""The same for a node that waits, if none waits before it. Each that does makes it that much longer."""
WAITS_S = 0.75
"""How long after its last request a node counts as waiting."""


class SlotHolder(NamedTuple):
    """What one node has of one key. `bound`: it runs no more calls. `wanted`: its calls that run or wait, until
    `waits_until_s`. `since_s`: since when it waits for its next slot. `leaving`: how many slots it was told to give up.
    `oldest_s`: when its longest call began."""

    node: str = ""
    bound: int = 0
    until_s: float = -math.inf
    wanted: int = 0
    waits_until_s: float = -math.inf
    since_s: float = math.inf
    leaving: int = 0
    oldest_s: float = math.inf
    most: int = 0

    @property
    def missing(self) -> int:
        return max(0, self.wanted - self.bound)


NOBODY = SlotHolder()


class Slotting:
    """One governor's memory of slots, from its election on. `token`: of its lease."""

    def __init__(self, token: int, since_s: float) -> None:
        self._asked = Asked(token, since_s)
        self._quiet_until_s = since_s + LIFE_S + MARGIN_S
        self._books: dict[str, dict[str, SlotHolder]] = {}

    def go_on(self, token: int) -> None:
        """Be the governor again, after which nobody else has been."""
        self._asked.token = token

    def answer(self, ask: AskSlots, now_s: float) -> SlotsDealt | None:
        """Return the reply. `None`: no reply, because the request came late or twice, or there is a newer governor."""
        if not self._asked.take(ask.run, ask.number, ask.token, now_s):
            return None
        if self._asked.sweep(now_s):
            self._forget(now_s)
        dealt: list[SlotDealt] = []
        again_s = AGAIN_S
        for key in ask.keys:
            given, soon_s = self._deal(ask, key, now_s)
            dealt.append(given)
            again_s = min(again_s, soon_s)
        return SlotsDealt(number=ask.number, token=self._asked.token, again_ms=int(again_s * 1000), keys=tuple(dealt))

    def seen(self, key: str, now_s: float) -> SlotsSeen:
        """Return who has slots of a key."""
        living = [one for one in self._books.get(key, {}).values() if one.bound and now_s < one.until_s]
        most = max((one.most for one in living), default=0)
        return SlotsSeen(most=most, holders=tuple(sorted((one.node, one.bound) for one in living)))

    def listed(self, most: int, now_s: float) -> SlotsListed:
        """Return under which keys slots are taken."""
        found: list[SlotsTaken] = []
        for key, book in self._books.items():
            living = [one for one in book.values() if now_s < one.until_s]
            holders = tuple(sorted((one.node, one.bound) for one in living if one.bound))
            waiting = sum(one.missing for one in living if now_s < one.waits_until_s)
            if holders or waiting:
                found.append(SlotsTaken(key, max(one.most for one in living), waiting, holders))
        found.sort(key=lambda one: (-one.waiting, one.key))
        return SlotsListed(total=len(found), keys=tuple(found[:most]))

    def _deal(self, ask: AskSlots, key: SlotAsk, now_s: float) -> tuple[SlotDealt, float]:
        """Return what the node gets of one key, and when it should ask again."""
        book = self._books.setdefault(key.key, {})
        for run in [run for run, one in book.items() if now_s >= one.until_s]:
            del book[run]
        before = book.pop(ask.run, NOBODY)
        others = list(book.values())
        is_quiet = now_s < self._quiet_until_s
        own = key.held if is_quiet else min(max(key.held, key.running), before.bound)
        free = 0 if is_quiet else max(0, key.most - own - _bounds(others))
        is_late = before.missing and own >= before.bound
        mine = before._replace(
            node=ask.node, bound=own, wanted=key.wanted, since_s=before.since_s if is_late else now_s, leaving=0
        )
        waiting = [one for one in others if one.missing and now_s < one.waits_until_s]
        slots = own + _granted(mine, waiting, free)
        left = free - (slots - own)
        dealt = SlotDealt(key.key, slots, slots)
        oldest_s = now_s - key.oldest_ms / 1000
        if not is_quiet:
            missing = max(0, key.wanted - slots)
            unmet = missing + sum(one.missing for one in waiting) - left - sum(one.leaving for one in others)
            match key.when_full:
                case "queue":
                    above = slots + _bounds(others) - key.most - sum(one.leaving for one in others)
                    # of `own`: a slot that is new is used once, else nodes that all wait hand it on for ever
                    leaving = min(own, max(above, min(_due(slots, waiting), unmet - missing), 0))
                    dealt = SlotDealt(key.key, slots, slots - leaving)
                case "cancel_running":
                    is_oldest = all(oldest_s <= one.oldest_s for one in others if one.bound > one.leaving)
                    leaving = 1 if unmet > 0 and own and is_oldest else 0
                    dealt = SlotDealt(key.key, slots, slots, cut=leaving)
                case "drop_newest":
                    leaving = 0
                    dealt = SlotDealt(key.key, slots, slots, is_full=missing > 0 and left <= 0)
            mine = mine._replace(leaving=leaving)
        bound = max(key.held, key.running, slots)
        if bound or key.wanted:
            book[ask.run] = mine._replace(
                bound=bound,
                until_s=now_s + LIFE_S + MARGIN_S,
                waits_until_s=now_s + WAITS_S,
                since_s=now_s if slots > own else mine.since_s,
                oldest_s=oldest_s if own else now_s,
                most=key.most,
            )
        elif not book:
            del self._books[key.key]
        return dealt, _again_s(key, slots, mine, waiting)

    def _forget(self, now_s: float) -> None:
        """Forget keys that are over."""
        self._books = {
            key: book for key, book in self._books.items() if any(now_s < one.until_s for one in book.values())
        }


def _bounds(holders: Iterable[SlotHolder]) -> int:
    return sum(one.bound for one in holders)


def _granted(mine: SlotHolder, waiting: list[SlotHolder], free: int) -> int:
    """Return how many of the free slots the node gets: each goes to the one that has the fewest, and among those to the
    one that has waited longest."""
    if not waiting:
        return min(free, mine.missing)
    claims = [(one.bound, one.since_s, place, one.missing) for place, one in enumerate([mine, *waiting]) if one.missing]
    granted = 0
    while free > 0 and claims:
        bound, since_s, place, missing = claims.pop(claims.index(min(claims)))
        free -= 1
        granted += place == 0
        if missing > 1:
            claims.append((bound + 1, since_s, place, missing - 1))
    return granted


def _due(slots: int, waiting: list[SlotHolder]) -> int:
    """Return how many slots the node should give up for the others that wait: half of what it has more than another,
    and one at least for a node that has none."""
    return max((max((slots - one.bound) // 2, 0 if one.bound else 1) for one in waiting), default=0)


def _again_s(key: SlotAsk, slots: int, mine: SlotHolder, waiting: list[SlotHolder]) -> float:
    """Return when the node should ask again."""
    if key.wanted > slots and key.when_full != "drop_newest":
        before = sum((one.bound, one.since_s) < (mine.bound, mine.since_s) for one in waiting)
        return min(AGAIN_S, FIRST_AGAIN_S * (1 + before))
    return CUT_AGAIN_S if key.when_full == "cancel_running" and slots else AGAIN_S
