"""Requests of whole nodes under a platform's rate, as the platform counts them."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from aiohttp import web

from actors.fetch.sources import SourceKey
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_rates import RateCalls
from streams.clock import monotonic_s, now_ms
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.command import node, penstock
from tests.support.engine import a_mall, add_source
from tests.support.moments import a_moment
from tests.support.server import make_topology, topology_for

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the nodes are processes of their own

PAST_MS = 7_200_000
ON_THE_WAY = 1.25
"""This process counts when it comes to it. On a busy machine that is later for some requests than for others. What the
nodes themselves begin is told to the second, and the rules are searched (tests/unit/flow)."""


class CountingMall:
    """A platform that counts the requests of each shop."""

    def __init__(self) -> None:
        self.url = ""
        self._came: list[tuple[float, str]] = []
        self._more = anyio.Event()

    async def gate(self, request: web.Request) -> None:
        self._came.append((monotonic_s(), request.query.get("shop", "")))
        self._more.set()
        self._more = anyio.Event()

    async def counts(self, lasts_s: float) -> Counter[str]:
        """Return how many requests of each shop come in so many seconds from now."""
        first, until_s = len(self._came), monotonic_s() + lasts_s
        with anyio.fail_after(lasts_s + 30):
            while not self._came or self._came[-1][0] < until_s:
                await self._more.wait()
        return Counter(shop for at_s, shop in self._came[first:] if at_s < until_s)

    async def comes(self, count: int, within_s: float) -> None:
        """Wait until so many requests have come in as many seconds. A busy machine has slow seconds, too."""
        first = len(self._came)
        with anyio.fail_after(180):
            while len(self._came) - first < count or self._came[-1][0] - self._came[-count][0] > within_s:
                await self._more.wait()

    def fullest(self) -> int:
        moments = [at_s for at_s, _ in self._came]
        return max(bisect.bisect_left(moments, at_s + 1) - place for place, at_s in enumerate(moments))


@asynccontextmanager
async def town(
    server: EmbeddedServer,
    connection: Connection,
    publisher: Publisher,
    sources: dict[str, dict[str, object]],
    rate: float,
) -> AsyncIterator[CountingMall]:
    """Have two nodes with the label `a`, and one without, read the past of sources that are pinned to `a`."""
    await make_topology(connection, topology_for(connection))
    counting = CountingMall()
    reached = {"PENSTOCK_NATS": server.url, "PENSTOCK_NAMESPACE": connection.namespace.name, "PENSTOCK_HTTP": "off"}
    async with AsyncExitStack() as stack:
        mall = await stack.enter_async_context(a_mall(gate=counting.gate, shops=len(sources), history_ms=PAST_MS))
        for name, its in sources.items():
            await add_source(
                connection,
                publisher,
                SourceKey("mall", name),
                adapter="mall",
                url=mall.url,
                start_ms=now_ms() - PAST_MS,
                source_settings=its,
                slice="5s",
                pin="a",
                burst=1,
                concurrency=64,
                platform_rate=rate,
            )
        for name, labels in (("n1", "a"), ("n2", "a"), ("n3", "b")):
            running = await stack.enter_async_context(node("--name", name, "--labels", labels, environment=reached))
            await running.logged("node.ready")
        yield counting


async def test_a_node_without_work_wastes_nothing_of_a_platforms_rate(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    async with town(server, connection, publisher, {"s1": {}, "s2": {}}, 20) as mall:
        await mall.comes(90, 5)
        rates = RateCalls(ServiceClient(connection, "rates", 10.0))
        with anyio.fail_after(120):
            while True:
                listed = {(each.kind, each.name): each for each in (await rates.list(5)).rates}
                if listed["platform", "mall"].mean >= 15:
                    break
                await a_moment()
        assert set(listed) == {("platform", "mall"), ("source", "mall/s1"), ("source", "mall/s2")}
        platform = listed["platform", "mall"]
        assert (platform.rate, max(platform.begun) <= 20) == (20, True)
        assert sorted(each.node for each in platform.nodes if each.share) == ["n1", "n2"]
        changed = await rates.set("mall", 40, kind="platform")
        assert (changed.before, changed.rate) == (20, 40)
        assert mall.fullest() <= 20 * ON_THE_WAY
        await mall.comes(4 * 35, 4)
        assert (await rates.set("mall/s1", 5, kind="source")).rate == 5
        told = await why_of_a_slice(connection, server.url)
        assert "`platform_rate` of mall, 40 a second over all nodes, is spent" in told or "the source's `rate`" in told
        assert (await rates.set("mall/s1", None, kind="source")).before == 5


async def why_of_a_slice(connection: Connection, url: str) -> str:
    """Return what `penstock why` says of a slice that waits for a rate."""
    where = {"PENSTOCK_NATS": url, "PENSTOCK_NAMESPACE": connection.namespace.name}
    with anyio.fail_after(120):
        while True:
            shown = (await penstock("sources", "show", "mall/s1", "--json", **where)).json()
            for held in shown["ledger"]["open"][-1:]:
                ended = await penstock("why", f"mall/s1/{held['slice_id']}", "--json", **where)
                assert not ended.err, ended.err
                for one in ended.json():
                    if one["code"] == "rate":
                        return str(one["reason"])
            await a_moment()


async def test_a_source_with_three_times_the_weight_has_three_times_the_requests(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    sources: dict[str, dict[str, object]] = {"s1": {"weight": 3}, "s2": {}}
    async with town(server, connection, publisher, sources, 24) as mall:
        await mall.comes(200, 10)
        counts = await mall.counts(10)
        assert 0.68 <= counts["s1"] / counts.total() <= 0.82
        assert mall.fullest() <= 24 * ON_THE_WAY
