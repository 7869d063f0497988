"""kill -9 between two steps, again and again: nothing is lost, nothing is doubled, no time is left out."""

from collections import Counter
from pathlib import Path

import anyio
import pytest

from actors.fetch.sources import SourceKey
from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, World, open_world
from tests.support.chaos_nodes import ChaosNode
from tests.support.letters import dead_letters

POINTS = ("cut", "offer", "take", "fetch", "publish", "tell", "complete", "ack", "sink.commit", "sink.ack", "sink.bury")
"""Every point there is, in the order in which an order passes them."""
PATIENCE_S = 8.0
"""A node that has not come to its point by then is killed where it is, unless the machine is so busy that it has not
even started: then it may take so long once more."""
WORK_LEFT = 60
"""Slices that have to be left; with fewer, more shops are opened."""
SETTINGS = {"max_open": 4, "losses": 1_000, "concurrency": 4}
"""Few open slices, so that there is always one to be cut; and no limit to how many holders a slice may take down."""


class Killing:
    """Crashes nodes at every point, `each` times, where the world has work for them."""

    def __init__(self, world: World, form: Form) -> None:
        self.world = world
        self.each = form.pick(2, 50)
        self.is_mixed = form.is_long
        self.chance = form.chance("failpoints")
        self.crashes: Counter[str] = Counter()
        self.garbage = 0
        self.waves = 0
        self._aimed: Counter[str] = Counter()
        self._closed: set[SourceKey] = set()

    @property
    def is_over(self) -> bool:
        return all(self.crashes[point] >= self.each for point in POINTS)

    async def crash(self, node: ChaosNode) -> None:
        """Start the node again and again, each time armed with one of the points that were reached least."""
        while (point := self._aim()) is not None:
            starts = len(list(node.lines("node.ready")))
            await node.start(crash_at=f"{point}:{self.chance.randint(1, 3)}")
            code = await node.ended(PATIENCE_S)
            if code is None and len(list(node.lines("node.ready"))) == starts:
                code = await node.ended(PATIENCE_S)
            if code is None:
                await node.kill()
            else:
                assert code == -9, f"{node.name} ended with {code} on its way to {point}"
                self.crashes[point] += 1
            self._aimed[point] -= 1

    def _aim(self) -> str | None:
        """Return one of the points that were reached least; in the short form the sink's first, since what they leave
        comes again only after the sink's ack wait. None if no other node is needed."""
        counts = {point: self.crashes[point] + self._aimed[point] for point in POINTS}
        left = [point for point in POINTS if counts[point] < self.each]
        if not left:
            return None

        def later(point: str) -> tuple[bool, int, float]:
            return not (self.is_mixed or point.startswith("sink")), counts[point], self.chance.random()

        point = min(left, key=later)
        self._aimed[point] += 1
        return point

    async def _put_garbage(self) -> None:
        """Put messages among the orders that no sink can store, while a node waits for them."""
        for _ in range(2 if self._aimed["sink.bury"] else 0):
            self.garbage += 1
            subject = self.world.connection.namespace.orders("mall", "garbage")
            body = f"garbage {self.garbage}".encode()
            await self.world.publisher.publish(subject, body, message_id=f"garbage-{self.garbage}")

    async def feed(self) -> None:
        """Open more shops whenever little is left to read, and close those that are read."""
        while not self.is_over:
            ledgers = await self.world.ledgers()
            read = {shop.source for shop in self.world.shops if ledgers[shop.source].watermark_ms >= shop.end_ms}
            if len(read) == len(self.world.shops) or await self._left() < WORK_LEFT:
                await self._open_shops()
            for source in read - self._closed:
                self._closed.add(source)
                await self.world.retire(source)
            await self._put_garbage()
            await anyio.sleep(0.2)

    async def _open_shops(self) -> None:
        self.waves += 1
        paging = ("one", "token", "link")[self.waves % 3]
        await self.world.add_mall(
            wave=f"w{self.waves}-", shops=4, orders=200, paging=paging, seed=self.waves, settings=dict(SETTINGS)
        )

    async def _left(self) -> int:
        ledgers = await self.world.ledgers()
        return sum(max(0, shop.end_ms - ledgers[shop.source].watermark_ms) for shop in self.world.shops) // 1000


async def buried(world: World) -> Counter[bytes]:
    """Return the bodies of all dead letters of the sink, with how often each is there."""
    return Counter(bytes(letter.body) for letter in await dead_letters(world.connection))


@pytest.mark.timeout(1800)
async def test_killed_at_every_point_nothing_is_lost_or_doubled(
    tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    async with open_world(tmp_path) as world:
        killing = Killing(world, form)
        await world.node("steady", "--roles", "allocator,fetcher,monitor")
        nodes = [world.new_node(f"frail{number}") for number in (1, 2, 3)]
        async with anyio.create_task_group() as tasks:
            tasks.cancel_scope.deadline = anyio.current_time() + form.pick(60, 1_500)
            tasks.start_soon(killing.feed)
            for node in nodes:
                tasks.start_soon(killing.crash, node)
        for node in nodes:
            await node.kill()
            await node.start()
        world.facts |= {"crashes": dict(killing.crashes), "garbage": killing.garbage, "shops": len(world.shops)}
        verdict = await world.verdict("failpoints", form)
        letters = await buried(world)
        assert_whole(verdict)
        assert sum(letters.values()) == len(letters) == killing.garbage
