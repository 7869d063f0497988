"""Nodes that spend a rate of the cluster on a real server, and what they began."""

from __future__ import annotations

import bisect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup, TaskStatus

from actors.flow.governor import Governor
from actors.runtime.rates.client import KindRates, LeasedRates
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.topology.specs import Topology
from streams.topology.topology import apply
from tests.support.proxy import Proxy, proxy
from tests.support.server import Reachable, topology_for

WITHIN_S = 90.0
TINY_S = 1e-6
"""What seconds in milliseconds and back may be wrong by."""


class FlowHand:
    """One node: its part of the governor, its rates, and when it began something."""

    link: Proxy

    def __init__(self, name: str, governor: Governor, rates: KindRates) -> None:
        self.name = name
        self.governor = governor
        self.rates = rates
        self.began: list[float] = []
        self.life = anyio.CancelScope()
        self._more = anyio.Event()
        self._work = anyio.CancelScope()

    async def spend(self, key: str = "t") -> None:
        """Begin as many as the node may, until it is idle."""
        with anyio.CancelScope() as self._work:
            while True:
                granted, wait_ms = self.rates.take(key, 50)
                self.began += [self.rates._rates._now_s] * granted  # when it was permitted: a busy machine notes later
                if granted:
                    self._more.set()
                    self._more = anyio.Event()
                await anyio.sleep(wait_ms / 1000)

    def idle(self) -> None:
        """Begin nothing any more."""
        self._work.cancel()

    def leave(self) -> None:
        """Stop in order."""
        self.idle()
        self.life.cancel()

    def die(self) -> None:
        """Be gone without a word."""
        self.idle()
        self.link.freeze()

    def between(self, from_s: float, to_s: float) -> int:
        return sum(from_s <= at_s < to_s for at_s in self.began)

    async def has_begun(self, count: int, within_s: float = WITHIN_S) -> None:
        """Wait until it has begun so many."""
        with anyio.fail_after(within_s):
            while len(self.began) < count:
                await self._more.wait()

    async def begins(self, count: int, within_s: float = WITHIN_S) -> None:
        """Wait until it has begun so many more."""
        await self.has_begun(len(self.began) + count, within_s)


class FlowTown:
    """Nodes that spend one rate, each over a link of its own that can be cut."""

    def __init__(self, server: Reachable, connection: Connection, tasks: TaskGroup) -> None:
        self.rate = 0.0
        self.hands: list[FlowHand] = []
        self._server = server
        self._namespace = connection.namespace
        self._tasks = tasks

    async def join(self, name: str, *, governs: bool = True, spends: bool = True) -> FlowHand:
        """Have one more node, which spends what it may. Without `governs` it never becomes the governor."""
        hand: FlowHand = await self._tasks.start(self._live, name, governs)
        self.hands.append(hand)
        if spends:
            self._tasks.start_soon(hand.spend)
        return hand

    async def _live(self, name: str, governs: bool, *, task_status: TaskStatus[FlowHand]) -> None:
        urls = self._server.url.split(",")  # each node is at the next one of three servers
        async with proxy(int(urls[len(self.hands) % len(urls)].rpartition(":")[2])) as link:
            async with connect(link.url, name=name, namespace=self._namespace) as connection:
                async with flow_hand(connection, name, lambda _key: self.rate, governs=governs) as hand:
                    hand.link = link
                    with hand.life:
                        task_status.started(hand)
                        await anyio.sleep_forever()
                link.heal()

    async def governor(self) -> FlowHand:
        """Return the node that is the governor, once one is."""
        found: list[FlowHand] = []

        async def wait(hand: FlowHand) -> None:
            await hand.governor.elected.wait()
            found.append(hand)
            tasks.cancel_scope.cancel()

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                for hand in self.hands:
                    tasks.start_soon(wait, hand)
        return found[0]

    def fullest(self, since_s: float = 0.0) -> int:
        """Return how many they began together in the fullest second."""
        began = sorted(at_s for hand in self.hands for at_s in hand.began if at_s >= since_s)
        return max(bisect.bisect_left(began, at_s + 1.0 - TINY_S) - place for place, at_s in enumerate(began))


@asynccontextmanager
async def flow_town(server: Reachable, connection: Connection, rate: float) -> AsyncIterator[FlowTown]:
    """Make the bucket of leases, and have a town of nodes under one rate until the block ends."""
    full, name = topology_for(connection), connection.namespace.bucket("LEASES")
    buckets = tuple(spec for spec in full.buckets if spec.name == name)
    await apply(connection, Topology(buckets=buckets, profile="fast"))
    async with anyio.create_task_group() as tasks:
        town = FlowTown(server, connection, tasks)
        town.rate = rate
        yield town
        for hand in town.hands:
            hand.link.heal()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def flow_hand(
    connection: Connection, name: str, rate: Callable[[str], float], *, governs: bool = True
) -> AsyncIterator[FlowHand]:
    """Run one node until the block ends. It then hands back what it has."""
    async with Publisher(connection) as publisher:
        leases = Bucket(connection, publisher, connection.namespace.bucket("LEASES"), bytes)
        rates = LeasedRates(connection, name)
        governor = Governor(node=name, connection=connection, leases=leases, rate_of=rates.rate_of)
        if governs:
            rates.on_silence(governor.missing)
        hand = FlowHand(name, governor, rates.of("t", rate))
        async with anyio.create_task_group() as tasks:
            if governs:
                await tasks.start(governor.run)
            await tasks.start(rates.run)
            yield hand
            tasks.cancel_scope.cancel()
