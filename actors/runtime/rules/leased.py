"""What one node has of the cluster's rates: shares and turns that end unless the governor renews them.

A share ends `LIFE_S` after the node sent the request for it, by the node's own clock. So a share that is not renewed is
not spent, and a node that is cut off spends nothing. A reply counts only if it answers the last request, and comes from
no earlier governor than the last reply did. The node reports what it may still spend, and what it has spent in the last
second if that is more.

A key is in demand for `DEMAND_S` after a call for it. Then the node reports that it needs it no longer.

Times are seconds of the node's monotonic clock. Pure but for its memory.
"""

import math
from collections.abc import Callable, Iterator

from actors.runtime.rules.second_cap import whole_above
from streams.messages.rates import CLAIM_S, LIFE_S, MOST_KEYS, AskShares, KeyAsk, SharesDealt

DEMAND_S = 2.0
SHORT_S = 1.0
"""How long a shortage is reported."""
FADE = 0.7
"""What of the use counted last counts at the next time."""
COUNT_S = 0.25
"""Over how long the use is counted, at least."""
CONFIRM_S = 0.02
"""How soon the node reports that a share is lower. Others wait for it."""
GATHER_S = 0.01
"""Begin this much of a second's worth together: two cost as much as ten, and handlers of lists get lists. It is small,
so that each tenth of a second has its part."""
LOWER_S = 0.1
"""The same, while what it spent in the last second is more than the lower share."""


class KeyLease:
    """One key's share, or turn, and what was asked of it."""

    __slots__ = (
        "asked_s",
        "bound",
        "burst",
        "claim_until_s",
        "has_turn",
        "held_s",
        "members",
        "most",
        "rate",
        "rest_until_s",
        "share",
        "short_s",
        "spent",
        "spread",
        "told_turn",
        "turn_used",
        "until_s",
        "used",
    )

    def __init__(self) -> None:
        self.share = 0.0
        self.most = 0.0
        self.bound = 0.0
        """In no second from now on does the node begin more. While it gives way it is what it began in the last one."""
        self.until_s = -math.inf
        self.claim_until_s = math.inf
        """Until then a reply to the last request counts, because that claims a share. Later another node may have the
        share, too."""
        self.has_turn = False
        self.turn_used = False
        """It may still be given back."""
        self.told_turn = False
        """The last request said that the node has a turn."""
        self.rest_until_s = -math.inf
        self.asked_s = -math.inf
        self.short_s = -math.inf
        self.held_s = -math.inf
        """When the rate held something back last. A shortage is also that the first reply has not come."""
        self.spent = 0
        """Since it was counted last."""
        self.used = 0.0
        self.rate = 0.0
        self.burst = 0
        """The cluster's, where only the nodes with work know them."""
        self.members: dict[str, tuple[float, float]] = {}
        """Their weights, and when they asked last."""
        self.spread: dict[str, int] = {}
        """Members that have work on several nodes, and on how many."""

    def free_s(self) -> float:
        """Return when the next turn can be given, as far as the node knows."""
        return self.rest_until_s - (self.burst - 1) / self.rate if self.burst > 1 else self.rest_until_s

    def part_of_burst(self) -> float:
        """Return how many of the burst the node may begin at once. 0: there is no burst."""
        return max(1.0, self.burst * min(1.0, self.share / self.rate)) if self.burst else 0.0


class LeasedShares:
    """The keys of one node. `spent(key)`: how many the node began in the last second."""

    def __init__(self, node: str, run: str, spent: Callable[[str], int]) -> None:
        self._node = node
        self._run = run
        self._spent = spent
        self._keys: dict[str, KeyLease] = {}
        self._number = 0
        self._heard = 0
        self._token = 0
        self._counted_s = -math.inf

    def __len__(self) -> int:
        return len(self._keys)

    def lease(self, key: str, now_s: float) -> tuple[KeyLease, bool]:
        """Return the key's lease, and whether it is new. The key is in demand from now on."""
        lease = self._keys.get(key)
        is_new = lease is None
        if lease is None:
            lease = self._keys[key] = KeyLease()
        lease.asked_s = now_s
        return lease, is_new

    def find(self, key: str) -> KeyLease | None:
        """Return the key's lease, if it is in demand."""
        return self._keys.get(key)

    def share(self, key: str, now_s: float) -> float:
        """Return what the node may spend a second. `0`: nothing."""
        lease = self._keys.get(key)
        return lease.share if lease is not None and now_s < lease.until_s else 0.0

    def bound(self, key: str) -> float:
        """Return what the node may begin in any one second, while it has a share. As it gives way, this falls with what
        it began in the last second."""
        lease = self._keys.get(key)
        if lease is None:
            return 0.0
        if lease.bound > lease.most:
            lease.bound = max(lease.most, min(lease.bound, self._spent(key) + max(1, int(lease.share * GATHER_S))))
        return lease.bound

    def asks(self, now_s: float, *, is_last: bool = False) -> Iterator[AskShares]:
        """Yield requests for all keys. Send each, and take its reply, before the next. `is_last`: the node stops and
        hands back what it has."""
        since_s = now_s - self._counted_s
        if since_s >= COUNT_S:
            self._counted_s = now_s
        names = list(self._keys)
        for first in range(0, len(names), MOST_KEYS):
            self._number += 1
            yield AskShares(
                node=self._node,
                run=self._run,
                number=self._number,
                heard=self._heard,
                token=self._token,
                keys=tuple(self._ask(key, now_s, since_s, is_last) for key in names[first : first + MOST_KEYS]),
            )

    def _ask(self, key: str, now_s: float, since_s: float, is_last: bool) -> KeyAsk:
        lease = self._keys[key]
        is_wanted = not is_last and now_s - lease.asked_s < DEMAND_S
        if since_s >= COUNT_S:
            lease.used = max(lease.spent / since_s, FADE * lease.used)
            lease.spent = 0
        lease.told_turn = lease.has_turn
        if not is_wanted:
            del self._keys[key]
        if lease.members:
            lease.members = {name: each for name, each in lease.members.items() if now_s - each[1] < DEMAND_S}
        ends_s = lease.until_s - LIFE_S + CLAIM_S
        claimed = lease.most if is_wanted and now_s < ends_s else 0.0
        lease.claim_until_s = ends_s if claimed else math.inf
        lease.bound = self._bound(key, claimed)
        return KeyAsk(
            key,
            claimed,
            lease.bound,
            round(lease.used, 3),
            is_wanted,
            now_s - lease.short_s < SHORT_S,
            lease.has_turn,
            int(max(0.0, lease.rest_until_s - now_s) * 1000),
            lease.rate,
            lease.burst,
            tuple((name, weight) for name, (weight, _) in sorted(lease.members.items())),
        )

    def _bound(self, key: str, most: float) -> float:
        """Return what the node may begin in a second, or what it began in the last one if that is more. Of a share that
        is no whole number it may begin the next one."""
        spent = self._spent(key)
        return spent if spent > whole_above(most) else most

    def hear(self, reply: SharesDealt, sent_s: float, now_s: float) -> float | None:
        """Take the reply to the request sent at `sent_s`. Return in how many seconds the node should ask again. `None`:
        the reply does not count."""
        if reply.number != self._number or reply.token < self._token:
            return None
        self._heard, self._token = reply.number, reply.token
        again_s = reply.again_ms / 1000
        for key in reply.keys:
            lease = self._keys.get(key.key)
            if lease is None or now_s >= lease.claim_until_s:
                continue
            most = key.share if key.most < 0 else key.most
            bound = self._bound(key.key, most)
            if bound > most:
                again_s = min(again_s, LOWER_S)
            elif most < lease.most:
                again_s = min(again_s, CONFIRM_S)
            lease.share, lease.most, lease.until_s = key.share, most, sent_s + LIFE_S
            lease.bound = bound
            lease.has_turn = key.has_turn and (lease.has_turn or not lease.told_turn)
            lease.rest_until_s = now_s + key.rest_ms / 1000
            lease.spread = dict(key.spread)
        return again_s
