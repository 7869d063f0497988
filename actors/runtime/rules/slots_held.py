"""What one node has of the cluster's slots, and which of its calls run in them.

A slot ends `LIFE_S` after the node sent the request for it, by the node's own clock. So a slot that is not renewed is
not used, and the calls in it are lost: the node cancels them. A reply counts only if it answers the last request, and
comes from no earlier governor than the last reply did. While a node has a slot, it runs one call after the other in it
without a request. It gives the slot up when it has had no call for `IDLE_S`, or when another node waits.

A lost call may run on, if it is in a thread. Until it ends the node begins no other call in its place.

Times are seconds of the node's monotonic clock. Pure but for its memory.
"""

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from streams.messages.rates import LIFE_S, MOST_KEYS
from streams.messages.slots import AskSlots, SlotAsk, SlotsDealt, WhenFull

IDLE_S = 0.05
"""How long a node keeps a slot without a call. Only where calls wait for a slot: elsewhere it gives it up at once."""

SlotCut = Literal["lost", "replaced"]
"""Why a call must end. `lost`: its slot was not renewed. `replaced`: a newcomer takes its slot."""


class SlotLimit(NamedTuple):
    """`most` calls at once under a key, and what becomes of others."""

    most: int
    when_full: WhenFull = "queue"


class SlotCall:
    """A call in a slot. `on_cut(why)` is called when it must end."""

    __slots__ = ("began_s", "cut", "key", "on_cut")

    def __init__(self, key: str, began_s: float, on_cut: Callable[[SlotCut], None]) -> None:
        self.key = key
        self.began_s = began_s
        self.on_cut = on_cut
        self.cut: SlotCut | None = None


class KeySlots:
    """One key: its slots and calls, how many calls wait, and how many did at the last request."""

    __slots__ = ("asked", "calls", "idle_s", "keep", "limit", "slots", "until_s", "waiting")

    def __init__(self, limit: SlotLimit) -> None:
        self.limit = limit
        self.slots = self.keep = 0
        self.until_s = -math.inf
        self.calls: dict[SlotCall, None] = {}
        self.waiting = self.asked = 0
        self.idle_s = -math.inf

    def own(self) -> list[SlotCall]:
        """Return the calls that have their slots, the longest first."""
        return [call for call in self.calls if call.cut != "lost"]

    def room(self, now_s: float) -> int:
        """Return how many calls may begin."""
        return max(0, min(self.slots, self.keep) - len(self.calls)) if now_s < self.until_s else 0


class HeardSlots(NamedTuple):
    """What a reply changes. `more`: keys in which calls may begin. `full`: keys and how many of their waiting calls are
    to be dropped, after those that may begin. `cut`: calls that must end. `again_s`: when to ask again."""

    again_s: float
    more: list[str]
    full: list[tuple[str, int]]
    cut: list[SlotCall]


class HeldSlots:
    """The keys of one node."""

    def __init__(self, node: str, run: str) -> None:
        self._node = node
        self._run = run
        self._keys: dict[str, KeySlots] = {}
        self._number = 0
        self._token = 0

    def __len__(self) -> int:
        return len(self._keys)

    def begin(self, key: str, limit: SlotLimit, now_s: float, on_cut: Callable[[SlotCut], None]) -> SlotCall | None:
        """Begin a call. `None`: there is no free slot, and `wait` is to be called."""
        held = self._keys.get(key)
        if held is None:
            return None
        held.limit = limit
        if not held.room(now_s):
            return None
        held.asked = max(0, held.asked - 1)
        call = SlotCall(key, now_s, on_cut)
        held.calls[call] = None
        return call

    def room(self, key: str, now_s: float) -> int:
        """Return how many calls may begin."""
        held = self._keys.get(key)
        return held.room(now_s) if held is not None else 0

    def wait(self, key: str, limit: SlotLimit, count: int) -> bool:
        """Take how many calls wait for a slot. Return whether to ask at once: more wait than the governor knows of."""
        held = self._keys.get(key)
        if held is None:
            if not count:
                return False
            held = self._keys[key] = KeySlots(limit)
        held.limit, held.waiting = limit, count
        return count > held.asked and held.asked < limit.most

    def end(self, call: SlotCall, now_s: float) -> float:
        """End a call. Return when to ask: others may wait for the slot."""
        held = self._keys.get(call.key)
        if held is None or call not in held.calls:
            return math.inf
        del held.calls[call]
        if held.keep < held.slots:
            return now_s
        if held.waiting:
            return math.inf
        held.idle_s = now_s
        return now_s + IDLE_S if held.limit.when_full == "queue" else now_s

    def asks(self, now_s: float, *, is_last: bool = False) -> Iterator[AskSlots]:
        """Yield requests for all keys. Send each, and take its reply, before the next. `is_last`: the node stops and
        hands back the slots without a call. Call `end_slots` before."""
        names = list(self._keys)
        for first in range(0, len(names), MOST_KEYS):
            self._number += 1
            yield AskSlots(
                node=self._node,
                run=self._run,
                number=self._number,
                token=self._token,
                keys=tuple(self._ask(key, now_s, is_last) for key in names[first : first + MOST_KEYS]),
            )

    def _ask(self, key: str, now_s: float, is_last: bool) -> SlotAsk:
        held = self._keys[key]
        own = held.own()
        if is_last:
            held.slots = min(held.slots, len(held.calls))
        elif now_s >= held.until_s:
            held.slots = 0
        elif not held.waiting and now_s >= held.idle_s + (IDLE_S if held.limit.when_full == "queue" else 0.0):
            held.slots = min(held.slots, len(own))
        else:
            held.slots = min(held.slots, max(held.keep, len(own)))
        held.asked = held.waiting
        wanted = 0 if is_last else len(held.calls) + held.waiting
        oldest_ms = int((now_s - own[0].began_s) * 1000) if own else 0
        return SlotAsk(key, held.slots, len(held.calls), wanted, held.limit.most, held.limit.when_full, oldest_ms)

    def hear(self, reply: SlotsDealt, sent_s: float, now_s: float) -> HeardSlots | None:
        """Take the reply to the request sent at `sent_s`. `None`: it does not count."""
        if reply.number != self._number or reply.token < self._token:
            return None
        self._token = reply.token
        heard = HeardSlots(reply.again_ms / 1000, [], [], [])
        for dealt in reply.keys:
            held = self._keys.get(dealt.key)
            if held is None:
                continue
            held.slots, held.keep, held.until_s = dealt.slots, dealt.keep, sent_s + LIFE_S
            own = held.own()
            heard.cut.extend(_cut(own[dealt.slots :], "lost"))
            heard.cut.extend(_cut(own[: dealt.cut], "replaced"))
            room = held.room(now_s)
            if room and held.waiting:
                heard.more.append(dealt.key)
            if dealt.is_full and held.asked > room:
                heard.full.append((dealt.key, held.asked - room))
            if not (held.slots or held.calls or held.waiting):
                del self._keys[dealt.key]
        return heard

    def next_end_s(self) -> float:
        """Return when the first slot with a call in it ends."""
        return min((held.until_s for held in self._keys.values() if held.own()), default=math.inf)

    def end_slots(self, now_s: float) -> list[SlotCall]:
        """End the slots that were not renewed. Return the calls that are lost."""
        lost: list[SlotCall] = []
        for held in self._keys.values():
            if now_s >= held.until_s:
                held.slots = 0
                lost += _cut(held.own(), "lost")
        return lost


def _cut(calls: list[SlotCall], why: SlotCut) -> list[SlotCall]:
    """Mark calls that must end, and return those that did not know it."""
    found = [call for call in calls if call.cut != why]
    for call in found:
        call.cut = why
    return found
