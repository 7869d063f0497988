"""This node's shares of the cluster's rates, as the governor deals them (ADR 39), and how the node spends them.

In: calls for keys, and replies of the governor. Out: one request for all keys in demand, each half a second, and at
once for a key that is new. State: the shares, in memory. A node without demand sends nothing.

Under redelivery: each request has a number, and only the reply to the last one counts. When it cannot go on: a share
that is not renewed ends, and the node spends nothing until a governor replies. When it stops, it hands back its shares.
"""

import asyncio
import math
import secrets
from collections.abc import Callable
from contextlib import suppress

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL
from actors.runtime.rates.governor_link import LEAVE_S, RETRY_S, GovernorLink
from actors.runtime.rates.requests import WantedRate
from actors.runtime.rates.shares import LOOK_MS, Shares
from actors.runtime.rules.begun import BegunCounts
from actors.runtime.rules.leased import SHORT_S, LeasedShares
from actors.runtime.rules.waiting_line import WaitingLine
from actors.runtime.rules.waits import Waits
from streams.clock import SYSTEM, Clock, monotonic_s
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.messages.rates import ANSWER_S, LIFE_S, SharesDealt, decode_rates

REPLY_MS, LATE_MS = 5, 50
"""How soon a caller looks whether a reply has come: at first, and when it is late."""
FEW = 2
"""Begun in a second: a quiet source's window is one request, or two."""


class LeasedRates:
    """The rates of one node, of all kinds of keys."""

    def __init__(self, connection: Connection, node: str) -> None:
        self._connection = connection
        self._shares = Shares(self._share, most=self._bound, burst=self._burst, now_ms=lambda: self._now_s * 1000)
        self.lines: dict[str, WaitingLine] = {}
        """The requests that wait, by key (actors/runtime/rates/requests.py)."""
        self._leased = LeasedShares(node, secrets.token_hex(8), self._shares.spent)
        self.begun = BegunCounts()
        """What this node began, by the seconds of `clock`."""
        self.clock: Clock = SYSTEM
        """The server's, once the engine that has it is open."""
        self._second = 0
        self._second_ends_s = -math.inf
        self._kinds: dict[str, Callable[[str], float]] = {}
        self._put_off: Waits[str] = Waits()
        self._governor = GovernorLink(silent="rates.no_governor", back="rates.governed_again")
        self._now_s = 0.0
        self._is_asking = False
        self._told: dict[str, asyncio.Future[None]] = {}
        """Done once the node may begin something under a key of which it has no share."""

    def of(self, kind: str, rate: Callable[[str], float]) -> "KindRates":
        """Return the rates of one kind of keys. `rate(name)`: the cluster's rate, per second. `0`: no limit."""
        self._kinds[kind] = rate
        return KindRates(self, kind, rate)

    def rate_of(self, key: str) -> float | None:
        """Return the rate of the cluster under a key of any kind. `None`: no limit."""
        kind, _, name = key.partition(".")
        rate = self._kinds.get(kind)
        return (rate(name) or None) if rate is not None else None

    def standing(self, key: str) -> tuple[float, bool]:
        """Return what the node may begin a second now, and whether its share held something back lately."""
        lease, now_s = self._leased.find(key), monotonic_s()
        is_held = lease is not None and now_s - lease.held_s < SHORT_S
        return self._leased.share(key, now_s), is_held or self._put_off.left(key, now_s) > 0

    def is_wanted(self, key: str) -> bool:
        """Return whether something waits for the key, or did so lately."""
        return self._leased.find(key) is not None or self._put_off.left(key, monotonic_s()) > 0

    def free_ms(self, key: str) -> int:
        """Return in how many milliseconds the next one may begin, as far as this node knows: not before the next
        request, if no governor replies."""
        put_off_ms, expected_ms = self._put_off.left(key, monotonic_s()) * 1000, self.expected_ms(key, 1)
        return math.ceil(max(put_off_ms, RETRY_S * 1000 if expected_ms is None else expected_ms))

    def put_off(self, key: str, wait_ms: float) -> None:
        """Note that something which waited for the key comes again later."""
        self._put_off.put(key, monotonic_s(), wait_ms / 1000)

    def on_silence(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each request that no governor answers."""
        self._governor.on_silence = listener

    def want(self, wanted: WantedRate) -> None:
        """Have a rate in demand that only the nodes with work know."""
        self._now_s = now_s = monotonic_s()
        lease, is_new = self._leased.lease(wanted.key, now_s)
        lease.rate, lease.burst = wanted.rate.per_s, int(wanted.rate.burst)
        if wanted.member:
            lease.members[wanted.member] = wanted.weight, now_s
        if is_new:
            self._governor.ask_at(now_s)

    def part_of(self, wanted: WantedRate) -> float:
        """Return the part of the member's weight that counts on this node: it may have work on others, too."""
        lease = self._leased.find(wanted.key)
        return 1 / lease.spread.get(wanted.member, 1) if lease is not None else 1.0

    def part(self, key: str) -> float:
        """Return the part of the rate that this node may begin now. 1: all of it, or nobody knows: a low rate has
        single turns, and no shares."""
        lease = self._leased.find(key)
        if lease is None or not lease.rate:
            return 1.0
        return min(1.0, self._leased.share(key, monotonic_s()) / lease.rate) or 1.0

    def expected_ms(self, key: str, count: int) -> float | None:
        """Return how long it takes until so many have begun, as things are. `None`: nobody knows, because no governor
        replies."""
        self._now_s = now_s = monotonic_s()
        lease = self._leased.find(key)
        if lease is None or now_s >= lease.until_s:
            return 0.0 if now_s - self._governor.heard_s < LIFE_S else None
        if lease.share > 0:
            return self._shares.expected_ms(key, count)
        interval_ms = 1000 / lease.rate if lease.rate else 0.0
        return max(0.0, lease.free_s() - now_s) * 1000 + (count - 1) * interval_ms

    def hold(self, key: str, wait_ms: float) -> None:
        """Begin nothing for so long, and go on without a burst."""
        self._now_s = monotonic_s()
        self._shares.hold(key, wait_ms)

    def take(self, key: str, most: int) -> tuple[int, int]:
        """Return how many of `most` may begin now. If none may, return also how many milliseconds to wait at least."""
        self._now_s = now_s = monotonic_s()
        lease, is_new = self._leased.lease(key, now_s)
        if now_s < lease.until_s:
            if lease.share > 0:
                granted, wait_ms = self._shares.take(key, most)
                lease.spent += granted
                if granted:
                    self._count(key, granted, now_s)
                else:
                    lease.short_s = lease.held_s = now_s
                return granted, wait_ms
            if lease.has_turn:
                lease.has_turn, lease.turn_used = False, True
                lease.spent += 1
                self._count(key, 1, now_s)
                self._governor.ask_at(max(now_s, lease.free_s()))
                return 1, 0
        self._shares.lapse(key)
        lease.short_s = now_s
        if now_s < lease.until_s or self._governor.is_silent:
            lease.held_s = now_s
        if is_new:
            self._governor.ask_at(now_s)
        return 0, self._wait_ms(now_s)

    def has_share(self, key: str) -> bool:
        """Return whether the node has a share of the rate now, and so knows when the next one may begin."""
        return self._leased.share(key, monotonic_s()) > 0

    async def told(self, key: str, wait_s: float) -> None:
        """Wait until a reply gives the node something to begin under the key, for `wait_s` at most."""
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = asyncio.get_running_loop().create_future()
        await asyncio.wait([told], timeout=wait_s)

    def rest(self, key: str) -> None:
        """Note that the work under the key is over for now. If it seldom begins anything, its share goes back with the
        next request, in place of after two seconds: then the governor deals it twice and not five times."""
        self._now_s = monotonic_s()
        lease = self._leased.find(key)
        if lease is not None and lease.share and key not in self.lines and self._shares.spent(key) <= FEW:
            lease.asked_s = -math.inf

    def give_back(self, key: str, count: int) -> None:
        """Take back what was granted last and not used."""
        lease = self._leased.find(key)
        if lease is None or count <= 0:
            return
        lease.spent = max(0, lease.spent - count)
        if lease.share > 0:
            self._shares.give_back(key, count)
            self.begun.take_back(key, count)
        elif lease.turn_used:
            lease.has_turn, lease.turn_used = True, False
            self.begun.take_back(key, 1)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Ask for shares until cancelled, and hand them back."""
        task_status.started()
        try:
            while True:
                await self._governor.until_due()
                await self._ask()
        finally:
            with anyio.move_on_after(LEAVE_S, shield=True), suppress(StreamError):
                await self._hand_back()

    async def _ask(self) -> None:
        self._governor.begin(monotonic_s())
        self._is_asking = True
        again_s = math.inf
        try:
            for ask in self._leased.asks(self._take_now()):
                sent_s = self._take_now()
                payload = msgspec.json.encode(ask)
                message = await self._connection.request(
                    self._connection.namespace.rates(), payload, timeout_s=ANSWER_S
                )
                reply = decode_rates(message.payload, SharesDealt)
                heard_s = self._leased.hear(reply, sent_s, self._take_now())
                again_s = min(again_s, RETRY_S if heard_s is None else heard_s)
                self._governor.hear()
            self._tell()
        except FATAL:
            raise
        except StreamError as error:
            again_s = RETRY_S
            self._governor.miss(error)
        finally:
            self._is_asking = False
        if self._leased:
            self._governor.ask_at(self._governor.asked_s + again_s)

    async def _hand_back(self) -> None:
        for ask in self._leased.asks(self._take_now(), is_last=True):
            await self._connection.publish_core(self._connection.namespace.rates(), msgspec.json.encode(ask))

    def _tell(self) -> None:
        """Wake those that wait for a reply which has come. A key that is not in demand any more has none."""
        for key in [*self._told]:
            lease = self._leased.find(key)
            if lease is None or lease.has_turn or self._leased.share(key, self._now_s) > 0:
                self._told.pop(key).set_result(None)

    def _wait_ms(self, now_s: float) -> int:
        """Return when a caller without a share should look again."""
        if self._is_asking:
            return REPLY_MS if now_s - self._governor.asked_s < LATE_MS / 1000 else LATE_MS
        wait_s = self._governor.next_s - now_s
        return max(REPLY_MS, int(min(LOOK_MS, wait_s * 1000 + REPLY_MS)))

    def _take_now(self) -> float:
        self._now_s = monotonic_s()
        return self._now_s

    def _count(self, key: str, count: int, now_s: float) -> None:
        if now_s >= self._second_ends_s:  # the server's clock is read once a second: this is called for each item
            now_ms = self.clock.now_ms()
            self._second, self._second_ends_s = now_ms // 1000, now_s + (1000 - now_ms % 1000) / 1000
        self.begun.add(key, count, self._second)

    def _share(self, key: str) -> float:
        return self._leased.share(key, self._now_s)

    def _bound(self, key: str) -> float:
        return self._leased.bound(key)

    def _burst(self, key: str) -> float:
        lease = self._leased.find(key)
        return lease.part_of_burst() if lease is not None else 0.0


class KindRates:
    """The rates of one kind of keys, by name: the topics of jobs, or the tasks of batches."""

    def __init__(self, rates: LeasedRates, kind: str, rate: Callable[[str], float]) -> None:
        self._rates = rates
        self._rate = rate
        self._prefix = f"{kind}."

    def take(self, key: str, most: int) -> tuple[int, int]:
        """Return how many of `most` may begin now. If none may, return also how many milliseconds to wait at least."""
        if self._rate(key) <= 0:
            return most, 0
        return self._rates.take(self._prefix + key, most)

    def give_back(self, key: str, count: int) -> None:
        """Take back what was granted last and not used."""
        self._rates.give_back(self._prefix + key, count)

    def share(self, key: str) -> float:
        """Return what the node may begin a second now. Infinite: no limit."""
        return math.inf if self._rate(key) <= 0 else self._rates.standing(self._prefix + key)[0]
