"""Cutting and offering on a real server: lost offers, several nodes, nodes that die, and many sources."""

import resource
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec import structs

from actors.fetch.ledgers import open_ledgers, read_ledger
from actors.fetch.rules.cutting import OfferKey
from actors.fetch.rules.ledger import Ledger, first_ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.slice_allocator import SliceAllocator, tending_nodes
from actors.fetch.sources import SourceKey, SourceRecord
from actors.runtime.membership import PLACEMENT, NodeRecord
from actors.runtime.rules.placement import ranking
from streams.buckets.bucket import Bucket
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.messages.fetch import SliceOffer, decode_slice_offer
from streams.publish.publisher import Publisher
from streams.reads.log import extent_of, read_log
from streams.topology.specs import wanted
from tests.support.engine import (
    QUICK,
    Node,
    add_source,
    ledger_bucket,
    ledger_when,
    put_setting,
    running_node,
)
from tests.support.moments import a_moment
from tests.support.server import connected, make_topology

SHOP = SourceKey("mall", "s1")
NOWHERE = "http://127.0.0.1:1"
ALLOCATES = ("allocator",)
"""Without a fetcher offers stay in the queue, where a test can look at them."""


async def offers(connection: Connection, least: int) -> dict[str, SliceOffer]:
    """Return what waits in the queue by subject, the namespace left out, once there are so many. An offer is heard
    before it is stored."""
    namespace = connection.namespace
    found: dict[str, SliceOffer] = {}
    with anyio.fail_after(30):
        while len(found) < least:
            found = {
                ".".join(namespace.parse(entry.subject)): decode_slice_offer(entry.payload)
                async for entry in read_log(connection, namespace.stream("SLICES"), namespace.pattern("slices", ">"))
            }
    return found


class Queue:
    """Waits for offers to be published."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self._news = anyio.Event()

    def take(self, subject: str) -> None:
        self.subjects.append(subject)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, count: int, within_s: float = 30) -> list[str]:
        """Return what was offered, as soon as there are so many; offers that the queue refused count too."""
        with anyio.fail_after(within_s):
            while len(self.subjects) < count:
                await self._news.wait()
        return self.subjects


@asynccontextmanager
async def queueing(connection: Connection) -> AsyncIterator[Queue]:
    queue = Queue()
    pattern = connection.namespace.pattern("slices", ">")
    subscription = await connection.subscribe(pattern, lambda message: queue.take(message.subject))
    await connection.flush()
    yield queue
    await subscription.unsubscribe()


async def add_shop(connection: Connection, publisher: Publisher, source: SourceKey = SHOP, **own: Any) -> None:
    """Add a shop with 20 s of past to cut."""
    start_ms = now_ms() - 20_000
    await add_source(connection, publisher, source, adapter="mall", url=NOWHERE, start_ms=start_ms, **own)


def is_cut(ledger: Ledger) -> bool:
    return len(ledger.open) >= 4


async def test_what_is_cut_is_offered_on_its_lane(connection: Connection, publisher: Publisher) -> None:
    async with running_node(connection, publisher, roles=ALLOCATES) as node:
        await add_shop(connection, publisher, max_open=4)
        ledger = await ledger_when(node.engine, SHOP, is_cut)
        found = await offers(connection, 4)
    ids = [piece.slice_id for piece in ledger.open]
    assert list(found) == [f"slices.mall.tail.s1.{slice_id}" for slice_id in ids]
    assert [offer.slice_id for offer in found.values()] == ids
    assert {(offer.revision, bytes(offer.ledger)) for offer in found.values()} == {(0, b"")}


async def test_the_offer_of_the_only_open_slice_carries_the_ledger(
    connection: Connection, publisher: Publisher
) -> None:
    async with running_node(connection, publisher, roles=ALLOCATES) as node:
        await add_shop(connection, publisher, max_open=1)
        ledger = await ledger_when(node.engine, SHOP, lambda ledger: len(ledger.open) == 1)
        [offer] = (await offers(connection, 1)).values()
        stored = await ledger_bucket(connection, publisher).get(SHOP.key)
    assert stored is not None
    assert (offer.revision, read_ledger(SHOP, bytes(offer.ledger))) == (stored.revision, ledger)


@pytest.mark.parametrize("how", ["one message", "the whole stream"])
async def test_a_lost_offer_is_made_again_within_reoffer(
    connection: Connection, publisher: Publisher, how: str
) -> None:
    async with running_node(connection, publisher, roles=ALLOCATES) as node, queueing(connection) as queue:
        await add_shop(connection, publisher, max_open=4, reoffer="1s")
        await ledger_when(node.engine, SHOP, is_cut)
        subjects = list(await queue.until(4))
        await offers(connection, 4)
        stream = connection.namespace.stream("SLICES")
        await connection.api(f"STREAM.PURGE.{stream}", {"filter": subjects[1]} if how == "one message" else None)
        queue.subjects.clear()
        with anyio.fail_after(20):
            while (await extent_of(connection, stream)).messages < 4:
                await queue.until(1)
        assert set(queue.subjects) <= set(subjects)


async def test_a_crash_between_cut_and_offer_is_mended_by_the_next_look(
    connection: Connection, publisher: Publisher
) -> None:
    """A node that dies right after its cut leaves open slices that nobody was offered; here they were never."""
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    start_ms = now_ms() - 20_000
    async with running_node(connection, publisher, roles=ALLOCATES) as dying:
        await add_shop(connection, publisher, max_open=4)
        ledger = await ledger_when(dying.engine, SHOP, is_cut)
    await connection.api(f"STREAM.PURGE.{connection.namespace.stream('SLICES')}")
    async with running_node(connection, publisher, node="n2", roles=ALLOCATES):
        found = await offers(connection, 4)
    assert {offer.slice_id for offer in found.values()} == {piece.slice_id for piece in ledger.open}
    assert ledger.start_ms >= start_ms


async def test_a_bad_source_holds_up_no_other(
    connection: Connection, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(connection, publisher, roles=ALLOCATES) as node, queueing(connection) as queue:
        await make_topology(connection, wanted(connection.namespace, profile="fast"))
        ledgers = ledger_bucket(connection, publisher)
        async with open_ledgers(ledgers) as opened:
            await opened.create(SourceKey("mall", "no_adapter"), first_ledger(0))
        await ledgers.put("mall.broken", b'{"reason":"\xff"}')
        for name, adapter in {"no_ledger": "mall", "no_adapter": "mail", "broken": "mall"}.items():
            await put_setting(connection, publisher, f"source.mall.{name}", SourceRecord(adapter, {}))
        await put_setting(connection, publisher, "source.mall.garbage", b'{"adapter":"\xff"}')
        await put_setting(connection, publisher, "source.mall", b"{}")
        await put_setting(connection, publisher, "adapter.odd", b'{"name": ["odd"], "request": 7}')
        await add_shop(connection, publisher, max_open=4, reoffer="1s")
        await ledger_when(node.engine, SHOP, is_cut)
        await queue.until(4)
        await queue.until(8)  # a second round: the others have been looked at more than once by now
    said = [str(record.__dict__["fields"]) for record in caplog.records if record.message == "allocator.look_failed"]
    assert len(said) == 3, said
    assert ["did you mean 'mall'" in line for line in said].count(True) == 1
    assert ["has no ledger" in line for line in said].count(True) == 1
    assert ["cannot be read" in line for line in said].count(True) == 1


async def test_a_removed_source_is_left_alone(
    connection: Connection, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(connection, publisher, roles=ALLOCATES) as node, queueing(connection) as queue:
        await add_shop(connection, publisher, max_open=4)
        await queue.until(4)
        gone = anyio.Event()
        node.engine.sources.on_change(lambda source: gone.set() if source == SHOP else None)
        await node.settings._live._bucket.delete(f"source.{SHOP.key}")
        with anyio.fail_after(20):
            await gone.wait()
        queue.subjects.clear()
        await add_shop(connection, publisher, SourceKey("mall", "s2"), max_open=4)
        assert all(".s2." in subject for subject in await queue.until(4))
    assert not [record for record in caplog.records if record.message == "allocator.look_failed"]


async def test_a_changed_adapter_is_taken_up_and_a_broken_one_is_not(
    connection: Connection, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    table = {
        "name": "own",
        "settle": "1h",
        "request": {"path": "/orders", "params": {"from": "{window.start}", "to": "{window.end}"}},
        "window": {"time": "updated", "lower": "includes", "upper": "excludes", "format": "unix_ms"},
        "pages": {"style": "one", "size": 100, "total": "total"},
        "record": {"rows": "orders", "key": "id", "version": {"kind": "number", "path": "version"}},
    }
    async with running_node(connection, publisher, roles=ALLOCATES) as node, queueing(connection) as queue:
        await put_setting(connection, publisher, "adapter.own", table)
        await add_source(
            connection, publisher, SHOP, adapter="own", url=NOWHERE, start_ms=now_ms() - 20_000, max_open=4
        )
        await ledger_when(node.engine, SHOP, lambda ledger: True)
        assert queue.subjects == []  # nothing has settled for an hour
        await put_setting(connection, publisher, "adapter.own", b'{"name": "own"}')
        await put_setting(connection, publisher, "adapter.own", {**table, "settle": "1s"})
        await queue.until(4)
    bad = [record for record in caplog.records if record.message == "source.bad_record"]
    assert [record.__dict__["fields"]["keeps_last"] for record in bad] == [True]


class Cluster:
    """Nodes with connections of their own, each to be ended by itself."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}

    def tended(self) -> dict[str, set[SourceKey]]:
        return {name: set(node.engine.allocator.tended()) for name, node in self.nodes.items()}


async def run_node(
    server: EmbeddedServer,
    near: Connection,
    cluster: Cluster,
    name: str,
    roles: tuple[str, ...],
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    """Run a node until its scope is cancelled; then it falls silent without a good-bye."""
    with anyio.CancelScope() as scope:
        async with (
            connect(server.url, name=name, namespace=near.namespace) as connection,
            Publisher(connection) as publisher,
            running_node(connection, publisher, node=name, roles=roles, sees_ledgers=False) as node,
        ):
            cluster.nodes[name], cluster.scopes[name] = node, scope
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                node.members._bucket = _Silent()  # type: ignore[assignment]  # a killed process says no good-bye


class _Silent:
    async def put(self, *_args: object, **_more: object) -> int:
        return 0


def all_know(cluster: Cluster, names: set[str]) -> bool:
    return all(set(node.members.names()) == names for node in cluster.nodes.values())


async def wait_until(cluster: Cluster, names: set[str]) -> None:
    """Wait until every node of the cluster knows exactly these nodes."""
    changed = anyio.Event()
    for node in cluster.nodes.values():
        node.members.on_change(lambda: changed.set())
    with anyio.fail_after(20):
        while not all_know(cluster, names):
            await changed.wait()
            changed = anyio.Event()


async def until_all_know(cluster: Cluster, shops: set[SourceKey], within_s: float = 30) -> None:
    """Wait until every node of the cluster knows exactly these sources."""
    changed = anyio.Event()
    for node in cluster.nodes.values():
        node.engine.sources.on_change(lambda _source: changed.set())
    with anyio.fail_after(within_s):
        while any(set(node.engine.sources.known()) != shops for node in cluster.nodes.values()):
            await changed.wait()
            changed = anyio.Event()


async def test_nodes_tend_disjoint_sets_and_take_over_from_a_dead_one(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    shops = [SourceKey("mall", f"s{number}") for number in range(12)]
    cluster = Cluster()
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    async with anyio.create_task_group() as tasks:
        for name, roles in (("n1", ALLOCATES), ("n2", ()), ("n3", ("monitor",))):
            await tasks.start(run_node, server, connection, cluster, name, roles)
        for shop in shops:
            await add_shop(connection, publisher, shop, max_open=1, concurrency=1, rate=0.001, burst=1)
        await wait_until(cluster, {"n1", "n2", "n3"})
        await until_all_know(cluster, set(shops))
        tended = cluster.tended()
        assert tended["n1"] | tended["n2"] == set(shops)
        assert not tended["n1"] & tended["n2"]
        assert tended["n3"] == set()  # it allocates nothing, and must not be thought to
        assert tended["n1"]
        assert tended["n2"]
        orphans = tended["n2"]
        cluster.scopes["n2"].cancel()
        del cluster.nodes["n2"]
        await wait_until(cluster, {"n1", "n3"})
        assert orphans <= cluster.tended()["n1"] == set(shops)
        tasks.cancel_scope.cancel()


def followers(cluster: Cluster) -> set[str]:
    return {name for name, node in cluster.nodes.items() if node.engine.ledgers.is_followed}


async def until_follow(cluster: Cluster, names: set[str], within_s: float = 30) -> None:
    """Wait until exactly these nodes follow the ledgers."""
    with anyio.fail_after(within_s):
        while followers(cluster) != names:
            await a_moment()


def allocators(names: Iterable[str]) -> list[NodeRecord]:
    return [NodeRecord(node=name, run=name, roles=("allocator",), placement=PLACEMENT) for name in names]


async def test_of_six_nodes_two_follow_the_ledgers_and_the_next_one_replaces_a_dead_one(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    shops, names = {SourceKey("mall", f"s{number}") for number in range(12)}, [f"n{number}" for number in range(6)]
    cluster = Cluster()
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    async with anyio.create_task_group() as tasks:
        for name in names:
            await tasks.start(run_node, server, connection, cluster, name, ALLOCATES)
        for shop in shops:
            await add_shop(connection, publisher, shop, max_open=1, concurrency=1, rate=0.001, burst=1)
        await wait_until(cluster, set(names))
        await until_all_know(cluster, shops)
        tending = tending_nodes(allocators(names))
        others = set(names) - set(tending)
        await until_follow(cluster, set(tending))
        assert len(tending) == 2
        tended = cluster.tended()
        assert set.union(*tended.values()) == shops
        assert sum(map(len, tended.values())) == len(shops)
        assert not any(tended[name] for name in others)

        dead = max(tending, key=lambda name: len(tended[name]))
        cluster.scopes[dead].cancel()
        del cluster.nodes[dead]
        left = [name for name in names if name != dead]
        await wait_until(cluster, set(left))
        await until_follow(cluster, set(tending_nodes(allocators(left))))
        after = cluster.tended()
        assert set.union(*after.values()) == shops
        assert sum(map(len, after.values())) == len(shops)
        tasks.cancel_scope.cancel()


async def test_the_leader_of_the_monitor_tends_sources_before_others_and_so_does_its_successor(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    names = [f"n{number}" for number in range(5)]
    cluster = Cluster()

    def led() -> str:
        return next((name for name, node in cluster.nodes.items() if node.engine.monitor.is_leading), "")

    async def until_led_and_followed_by_two() -> str:
        with anyio.fail_after(60):
            while len(followers(cluster)) != 2 or led() not in followers(cluster):
                await a_moment()
        return led()

    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    async with anyio.create_task_group() as tasks:
        for name in sorted(names, key=ranking("allocator", names).index, reverse=True):  # the last in rank leads
            await tasks.start(run_node, server, connection, cluster, name, ("allocator", "monitor"))
        await wait_until(cluster, set(names))
        leader = await until_led_and_followed_by_two()
        cluster.scopes[leader].cancel()
        del cluster.nodes[leader]
        await wait_until(cluster, set(cluster.nodes))
        assert await until_led_and_followed_by_two() != leader
        tasks.cancel_scope.cancel()


async def test_while_a_node_of_an_earlier_version_lives_all_nodes_tend_as_it_believes(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    names = [f"n{number}" for number in range(6)]
    cluster, old = Cluster(), b'{"node": "old", "run": "r", "roles": ["allocator"]}'
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    nodes = Bucket(connection, publisher, connection.namespace.bucket("NODES"), bytes)
    async with anyio.create_task_group() as tasks:
        for name in names:
            await tasks.start(run_node, server, connection, cluster, name, ALLOCATES)
        await wait_until(cluster, set(names))
        await until_follow(cluster, set(tending_nodes(allocators(names))))
        await nodes.put("old", old, ttl_s=5)
        await until_follow(cluster, set(names))
        await until_follow(cluster, set(tending_nodes(allocators(names))))  # it is silent, and taken for dead
        tasks.cancel_scope.cancel()


async def test_two_hundred_sources_cost_little(connection: Connection, publisher: Publisher) -> None:
    shops = [SourceKey("mall", f"s{number:03}") for number in range(200)]
    async with running_node(connection, publisher, roles=ALLOCATES) as node, queueing(connection) as queue:
        await put_setting(connection, publisher, "fetch.default", {})
        await put_setting(connection, publisher, "fetch.mall", {**QUICK, "max_open": 2, "reoffer": "1s"})
        start_ms = now_ms() - 20_000
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            for shop in shops:
                await ledgers.create(shop, first_ledger(start_ms))
        for shop in shops:
            record = SourceRecord("mall", {"base_url": NOWHERE, "shop": shop.source})
            await put_setting(connection, publisher, f"source.{shop.key}", record)
        await queue.until(400, within_s=20)
        queue.subjects.clear()
        used_s, began_ms = cpu_s(), now_ms()
        await queue.until(400, within_s=20)  # a round of offers that the queue refuses
        share = (cpu_s() - used_s) / ((now_ms() - began_ms) / 1000)
        assert len(node.engine.allocator.tended()) == 200
    assert share < 0.5, f"{share:.0%} of a core for 400 offers a second"


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def test_offers_go_on_after_the_server_was_killed(own_server: EmbeddedServer) -> None:
    """An offer whose answer was lost with the link is repeated at once, not waited for."""
    async with (
        connected(own_server) as connection,
        Publisher(connection) as publisher,
        running_node(connection, publisher, roles=ALLOCATES),
        queueing(connection) as queue,
    ):
        await add_shop(connection, publisher, max_open=4, reoffer="1s")
        await queue.until(4)
        for _ in range(2):
            await own_server.kill()
            await own_server.restart()
            queue.subjects.clear()
            await queue.until(4, within_s=20)


async def test_an_allocator_that_is_started_again_goes_on(connection: Connection, publisher: Publisher) -> None:
    """As after a failure: the supervisor calls `run` once more; what was under way is forgotten."""
    async with running_node(connection, publisher, roles=("monitor",)) as node, queueing(connection) as queue:
        allocator = node.engine.allocator
        nobody = anyio.Event()

        async def hangs(_source: SourceKey) -> int | None:
            nobody.set()
            await anyio.sleep_forever()
            return None

        tend, allocator._tend = allocator._tend, hangs  # type: ignore[method-assign,assignment]  # as if the server said nothing
        allocator._is_ours = lambda _source: True  # the node has not the role, so nobody tends
        await add_shop(connection, publisher, max_open=4)
        async with anyio.create_task_group() as tasks:
            await tasks.start(run_actor, allocator)
            await nobody.wait()
            tasks.cancel_scope.cancel()
        allocator._tend = tend  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            await tasks.start(run_actor, allocator)
            await queue.until(4)
            tasks.cancel_scope.cancel()
        await node.engine.monitor.elected.wait()
        assert len(node.engine.ledgers._live._listeners) == 2  # the allocator's, and that of the monitor that leads


async def run_actor(allocator: SliceAllocator, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await allocator.run(task_status=task_status)


async def test_what_changes_during_a_look_is_looked_at_after_it(connection: Connection, publisher: Publisher) -> None:
    """A look does not follow its own cut, so it has to notice what others wrote meanwhile."""
    began, goes_on, looked_again = anyio.Event(), anyio.Event(), anyio.Event()
    async with running_node(connection, publisher, roles=ALLOCATES) as node:
        allocator = node.engine.allocator
        offer = allocator._offer

        async def held(source: SourceKey, ledger: Ledger, settings: FetchSettings) -> Mapping[OfferKey, int]:
            if ledger.reason == "changed":
                looked_again.set()
            elif not began.is_set():
                began.set()
                await goes_on.wait()
            return await offer(source, ledger, settings)

        allocator._offer = held  # type: ignore[method-assign]
        await add_shop(connection, publisher, max_open=1, reoffer="10m")
        with anyio.fail_after(60):
            await began.wait()
            async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
                await ledgers.move(SHOP, lambda ledger: (structs.replace(ledger, reason="changed"), None))
            await ledger_when(node.engine, SHOP, lambda ledger: ledger.reason == "changed")
            goes_on.set()
            await looked_again.wait()
