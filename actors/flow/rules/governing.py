"""What the governor replies: who has which share of which rate, so that no second has more than the rate.

For each key and node the governor knows a bound: in no second does the node spend more. **All bounds of a key together
are at most its rate**, so a node gets more only when others surely have less. Bounds are whole numbers, and together at
most the rate rounded up: of 2.9 a second may have three. All seconds together have the rate, since paces (below) are
exact.

- A node reports its bound (`held`): its share, or what it spent in the last second if that is more. A lower share
  becomes free when the node has reported it.
- A share is a pace. With it goes the most that the node may begin in any one second (`most`). Of a higher share the
  pace comes at once, and `most` follows as the others' last second passes. So the sum hardly falls while nodes join.
- A reply may be lost, or come late. Until the node's next request its bound is the larger of what it reported and what
  it was given. Each request makes the replies to earlier ones void.
- A node that goes silent keeps its bound for the life of a share, and for the second after it. The governor counts
  from the receipt of the request, the node from its sending. So wall clocks do not matter.
- A new governor knows no bounds. For as long as an old share may count it lets nodes keep what they report and gives
  no more. What they report has been given by its predecessor, whose sum was right. A share that ended while there was
  no governor is reported as well, for `CLAIM_S`: nobody can have given it to another node in that time.
- Of a lower rate, nodes get their new parts at once. What they held before counts until it has ended.

**Turns.** If a rate is too low for one a second for each node that asks, there are no shares but single turns, one
every 1/rate seconds. A node has one at a time. A turn that a node hands back, or that never arrived, is not lost.
The same holds for a rate whose burst is above one second's worth: the governor knows what is left of the burst, and no
node has a part of it. No second has more turns than the rate or the burst, whichever is larger.

**Weights.** If a key has members, each node reports its own. A member's weight is divided by the number of nodes on
which it has work. A node's part goes by the sum of its members' weights, and it divides the part among them in the same
way. So a member has its weight's part over the whole cluster, on however many nodes its work lies.

Times are seconds of the governor's monotonic clock. Pure but for its memory.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from actors.flow.rules.asked import Asked
from actors.flow.rules.dealing import deal
from actors.runtime.rules.second_cap import SecondCap, whole_above
from streams.messages.rates import LIFE_S, MARGIN_S, SECOND_S, AskShares, KeyAsk, KeyDealt, SharesDealt

AGAIN_S = 1.0
"""How soon a node asks again. With one key that is two messages a second. If one is lost, the next request still comes
within the life of the share."""
CHANGED_AGAIN_S = 0.5
"""The same, while nodes' parts have changed lately."""
CHANGED_S = 2.0
CHANGE, CHANGE_PART = 2.0, 0.1
"""By how many a second a part has changed, at least, and by which part of it. Less is chance."""
SHORT_AGAIN_S = 0.1
"""The same, if it waits for others to give way."""
TURN_AGAIN_S = 0.05
CATCH_UP_S = 0.5
"""A turn that is late by no more does not delay the turns after it."""
STEP_BACK_S = 0.3
"""For so long, or half the time between two turns, a node leaves a turn to those that have waited for longer."""
FIRST_PART = 1 / 8
"""The part of a rate that a node may ask for before it has shown that it uses what it has. Then its part can double
with each request. So a node that only looks whether there is work does not slow down the others."""
FIRST_LEAST = 2.0
"""The same, per second, for low rates."""
MOST_TURNS = 50.0
"""A rate above this many a second has shares even if its burst is larger: its burst is then one second's worth."""
ENOUGH = 2
"""If the rate is so many times the number of nodes, turns become shares again."""
LOOK_S = 0.1
"""How often the governor looks at all nodes of a key. In between it looks at the one that asks."""
LONGEST_S = 86_400.0


class Holding(NamedTuple):
    """What one node has of one key. `bound`: in no second does it spend more. `demand`: what it could use a second,
    until `fresh_until_s`. `share`: the pace that it was given, to which its bound falls. `turn`: the number of the
    request whose reply gave it a turn. `0`: none, or it arrived. `served`: how many turns it was given, divided by its
    weight. One that comes later begins where the others are. `is_waiting`: it waits for a turn, or has just got one and
    then waits for the next."""

    bound: float
    until_s: float
    demand: float = 0.0
    fresh_until_s: float = 0.0
    share: float = 0.0
    turn: int = 0
    served: float = 0.0
    is_waiting: bool = False


NOTHING = Holding(0.0, 0.0)


class KeyBook:
    """What the governor knows of one key. `turn_s`: up to when turns were given. Without a burst the next one may be
    given then. `served`: what a node has had at least, by weight. `bound`: the sum of all bounds, and of some that have
    just ended."""

    __slots__ = (
        "_looked_s",
        "_members",
        "_parts",
        "_rate",
        "bound",
        "cap",
        "changed_s",
        "demands",
        "has_turns",
        "holdings",
        "served",
        "turn_s",
        "weights",
    )

    def __init__(self) -> None:
        self.holdings: dict[str, Holding] = {}
        self.bound = 0.0
        self.demands: dict[str, float] = {}
        self.has_turns = False
        self.turn_s = -math.inf
        self.served = 0.0
        self.cap: SecondCap | None = None
        self.changed_s = -math.inf
        """When a node's part changed."""
        self.weights: dict[str, float] = {}
        self._members: dict[str, tuple[tuple[str, float], ...]] = {}
        self._looked_s = -math.inf
        self._parts: dict[str, float] = {}
        self._rate = 0.0

    def look(self, now_s: float) -> None:
        """Drop what has ended, unless that was done just now."""
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        self.holdings = {run: held for run, held in self.holdings.items() if now_s < held.until_s}
        self.bound = sum(held.bound for held in self.holdings.values())
        demands = {
            run: held.demand for run, held in self.holdings.items() if held.demand and now_s < held.fresh_until_s
        }
        if demands != self.demands:
            self.demands, self._parts = demands, {}
        if gone := self._members.keys() - self.holdings.keys():
            self._members = {run: members for run, members in self._members.items() if run not in gone}
            self._weigh()

    def has_members(self, run: str, members: tuple[tuple[str, float], ...]) -> tuple[tuple[str, int], ...]:
        """Take which members have work on a node. Return those that have work on others too, and on how many nodes."""
        if members != self._members.get(run, ()):
            if members:
                self._members[run] = members
            else:
                del self._members[run]
            self._weigh()
        if len(self._members) < 2:
            return ()
        spread = self._spread()
        return tuple((name, spread[name]) for name, _ in members if spread[name] > 1)

    def _spread(self) -> Counter[str]:
        return Counter(name for members in self._members.values() for name, _ in members)

    def _weigh(self) -> None:
        spread, self._parts = self._spread(), {}
        self.weights = {
            run: sum(weight / spread[name] for name, weight in members) for run, members in self._members.items()
        }

    def want(self, run: str, demand: float) -> None:
        """Take a node's demand."""
        if demand != self.demands.get(run, 0.0):
            self._parts = {}
            if demand:
                self.demands[run] = demand
            else:
                del self.demands[run]

    def part(self, run: str, rate: float) -> float:
        """Return the node's part of the rate, by the demand of all."""
        if not self._parts or self._rate != rate:
            self._parts, self._rate = deal(rate, self.demands, self.weights), rate
        return self._parts[run]

    def to_come(self, run: str, now_s: float) -> float:
        """Return what the others will begin a second, once those that live have given way."""
        return sum(
            held.share if now_s < held.fresh_until_s else held.bound
            for name, held in self.holdings.items()
            if name != run
        )

    def hold(self, run: str, holding: Holding) -> None:
        """Take what a node has."""
        self.bound += holding.bound - self.holdings.get(run, NOTHING).bound
        self.holdings[run] = holding


class Governing:
    """One governor's memory, from its election on. `token`: of its lease."""

    def __init__(self, token: int, since_s: float) -> None:
        self._asked = Asked(token, since_s)
        self._quiet_until_s = since_s + LIFE_S + SECOND_S + MARGIN_S
        self._books: dict[str, KeyBook] = {}

    def go_on(self, token: int) -> None:
        """Be the governor again, after which nobody else has been."""
        self._asked.token = token

    def answer(self, ask: AskShares, rate_of: Callable[[str], float | None], now_s: float) -> SharesDealt | None:
        """Return the reply. `None`: no reply, because the request came late or twice, or there is a newer governor.
        `rate_of(key)`: `None`: no limit."""
        if not self._asked.take(ask.run, ask.number, ask.token, now_s):
            return None
        if self._asked.sweep(now_s):
            self._forget(now_s)
        dealt: list[KeyDealt] = []
        again_s = AGAIN_S
        for key in ask.keys:
            given, soon_s = self._deal(ask, key, key.rate or rate_of(key.key) or 0.0, now_s)
            dealt.append(given)
            again_s = min(again_s, soon_s)
        return SharesDealt(number=ask.number, token=self._asked.token, again_ms=int(again_s * 1000), keys=tuple(dealt))

    def _deal(self, ask: AskShares, key: KeyAsk, rate: float, now_s: float) -> tuple[KeyDealt, float]:
        """Return what the node gets of one key, and when it should ask again."""
        book = self._books.setdefault(key.key, KeyBook())
        before = book.holdings.get(ask.run, NOTHING)
        book.look(now_s)
        demand = _demand(key, rate) if key.is_wanted else 0.0
        if key.is_wanted and now_s < self._quiet_until_s:  # it could spend less for lack of a governor
            demand = max(demand, min(rate, key.share))
        book.want(ask.run, demand)
        spread = book.has_members(ask.run, key.members if key.is_wanted else ())
        is_low = rate < max(1, len(book.demands) * (ENOUGH if book.has_turns else 1))
        book.has_turns = is_low or rate < min(key.burst, MOST_TURNS)
        share, most, turn, again_s = 0.0, 0.0, None, AGAIN_S
        if book.has_turns and rate > 0:
            turn = self._turn(ask, key, book, before, rate, now_s)
            again_s = (
                min(AGAIN_S, max(TURN_AGAIN_S, _free_s(book, key, rate) - now_s))
                if key.is_short and turn is None
                else AGAIN_S
            )
        elif key.is_wanted and rate > 0:
            target = book.part(ask.run, rate)
            others = book.bound - book.holdings.get(ask.run, NOTHING).bound
            most = self._most(key, target, whole_above(rate) - others, before, now_s)
            share = most if most >= target else min(target, max(most, rate - book.to_come(ask.run, now_s)))
            share = share if share >= 1 else 0.0
            if abs(target - before.share) >= max(CHANGE, CHANGE_PART * target):
                book.changed_s = now_s
            is_new = now_s < book.changed_s + CHANGED_S
            again_s = SHORT_AGAIN_S if most < target else CHANGED_AGAIN_S if is_new else AGAIN_S
        lasts_s = (LIFE_S if most or key.share else 0.0) + SECOND_S + MARGIN_S
        mine = Holding(
            bound=math.ceil(max(key.held, most)),
            until_s=now_s + lasts_s,
            demand=demand,
            fresh_until_s=now_s + LIFE_S,
            share=share,
            turn=turn or 0,
            served=max(before.served, book.served) + (1 / book.weights.get(ask.run, 1.0) if turn else 0.0),
            is_waiting=key.is_short and turn != 0,
        )
        if turn:
            book.served = max(before.served, book.served)
        book.hold(ask.run, mine)
        rest_s = min(LONGEST_S, max(0.0, book.turn_s - now_s)) if book.has_turns else 0.0
        return KeyDealt(key.key, share, turn is not None, int(rest_s * 1000), most, spread), again_s

    def _most(self, key: KeyAsk, target: float, free: float, before: Holding, now_s: float) -> float:
        """Return what the node may begin in a second: up to the target, as far as it is free or its own already."""
        if now_s < self._quiet_until_s:
            most = min(target, key.share)
        else:
            most = min(target, max(free, min(key.share, before.bound)))
        return most if most >= 1 else 0.0

    def _turn(
        self,
        ask: AskShares,
        key: KeyAsk,
        book: KeyBook,
        before: Holding,
        rate: float,
        now_s: float,
    ) -> int | None:
        """Return whether the node has a turn: the number of this request if the reply gives it. `0`: it has it already.
        `None`: it has none."""
        interval_s = 1 / rate
        if now_s < self._quiet_until_s:
            book.turn_s = max(book.turn_s, now_s + key.rest_ms / 1000)
        if key.has_turn or before.turn > ask.heard:
            if key.is_wanted:
                return 0 if key.has_turn else ask.number
            book.turn_s -= interval_s
            return None
        free_s = _free_s(book, key, rate)
        if not key.is_short or key.held >= 1 or now_s < max(self._quiet_until_s, free_s):
            return None
        others = [held for run, held in book.holdings.items() if run != ask.run]
        if any(held.bound >= 1 for held in others):
            return None
        had = max(before.served, book.served)
        if now_s < free_s + min(STEP_BACK_S, interval_s / 2) and any(
            held.is_waiting and max(held.served, book.served) < had and now_s < held.fresh_until_s for held in others
        ):
            return None
        if key.burst > 1:
            book.cap = book.cap or SecondCap(SECOND_S)
            if not book.cap.room(max(rate, key.burst), now_s * 1000):
                return None
            book.cap.add(1, now_s * 1000)
        book.turn_s = interval_s + (book.turn_s if now_s - book.turn_s <= CATCH_UP_S else now_s)
        return ask.number

    def _forget(self, now_s: float) -> None:
        """Forget keys that are over."""
        self._books = {
            key: book
            for key, book in self._books.items()
            if now_s < max(book.turn_s, *(held.until_s for held in book.holdings.values()), self._quiet_until_s)
        }


def _free_s(book: KeyBook, key: KeyAsk, rate: float) -> float:
    """Return when the next turn may be given."""
    return book.turn_s - max(0, key.burst - 1) / rate


def _demand(key: KeyAsk, rate: float) -> float:
    """Return what a node could use a second. Without a shortage it is rounded up to a power of two, so that it seldom
    changes."""
    if key.is_short:
        return min(rate, max(FIRST_LEAST, 2 * key.used, rate * FIRST_PART))
    return min(rate, 2.0 ** math.ceil(math.log2(max(1.0, key.used))))
