"""Members of one bucket see each other come and go."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from actors.runtime.broker.store_notices import turn_of
from actors.runtime.membership import ANEW_S, Members, NameTaken, NodeRecord, Status, decode_node, living
from actors.runtime.membership import TTL_S as TTL_S_OF_ALL
from actors.runtime.supervisor import ActorState
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.clock import SYSTEM, monotonic_s
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import Connection, connect
from streams.messages.fetch import FetchEvent, NodeJoined, NodeLeft
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import wanted
from tests.support.moments import a_moment
from tests.support.proxy import proxy
from tests.support.server import Reachable, make_topology, topology_for

TTL_S = 2


class Node:
    """One member with its own connection, and what it told."""

    def __init__(self, connection: Connection, publisher: Publisher, name: str, *, run: str, started_ms: int) -> None:
        self.bucket = Bucket(connection, publisher, connection.namespace.bucket("NODES"), bytes)
        self.events: list[FetchEvent] = []
        self.changed = anyio.Event()
        self.status = Status()
        self.members = Members(
            self.bucket,
            NodeRecord(node=name, run=run, zone="eu", started_ms=started_ms),
            clock=SYSTEM,
            is_connected=lambda: connection.is_connected,
            status=lambda: self.status,
            tell=self.events.append,
            ttl_s=TTL_S,
        )
        self.members.on_change(self._on_change)

    def _on_change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, is_so: Callable[[], bool], within_s: float = 30) -> None:
        with anyio.fail_after(within_s):
            while not is_so():
                await self.changed.wait()

    async def sees(self, *names: str, within_s: float = 30) -> None:
        await self.until(lambda: self.members.names() == names, within_s)


@asynccontextmanager
async def node(
    server: Reachable, namespace: Namespace, name: str, *, run: str = "", started_ms: int = 1
) -> AsyncIterator[Node]:
    """Make a node; its `members.run` is the test's to start."""
    async with connect(server.url, name=name, namespace=namespace) as connection, Publisher(connection) as publisher:
        made = Node(connection, publisher, name, run=run or name, started_ms=started_ms)
        connection.on_reconnect(made.members.beat_soon)
        yield made


@pytest.fixture
async def ready(connection: Connection, namespace: Namespace) -> Namespace:
    await make_topology(connection, wanted(namespace, profile="fast"))
    return namespace


async def test_a_node_is_seen_when_it_comes_and_gone_at_once_when_it_leaves(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with node(server, ready, "a") as a, node(server, ready, "b") as b, anyio.create_task_group() as tasks:
        await tasks.start(a.members.run)
        async with anyio.create_task_group() as shorter:
            await shorter.start(b.members.run)
            assert b.members.names() == ("a", "b")
            await a.sees("a", "b")
            assert a.members.live()["b"].zone == "eu"
            shorter.cancel_scope.cancel()
        last = await a.bucket.get("b")  # told by the node that left, not by its silence
        assert last is None or b'"is_leaving":true' in last.raw
        await a.sees("a")
        tasks.cancel_scope.cancel()
    assert [(type(event), event.node) for event in a.events if isinstance(event, NodeJoined | NodeLeft)] == [
        (NodeJoined, "b"),
        (NodeLeft, "b"),
    ]
    assert b.events == []


async def test_the_others_are_told_when_a_nodes_duties_change(server: EmbeddedServer, ready: Namespace) -> None:
    async with node(server, ready, "a") as a, node(server, ready, "b") as b, anyio.create_task_group() as tasks:
        await tasks.start(a.members.run)
        await tasks.start(b.members.run)
        await a.sees("a", "b")
        b.status = Status(topics=("mail",))
        b.members.beat_soon()
        await a.until(lambda: a.members.live()["b"].topics == ("mail",))
        tasks.cancel_scope.cancel()


async def test_a_second_run_starts_as_the_first_did(server: EmbeddedServer, ready: Namespace) -> None:
    async with node(server, ready, "a") as a, node(server, ready, "b") as b, anyio.create_task_group() as tasks:
        for others in (["a"], ["a", "b"]):
            async with anyio.create_task_group() as shorter:
                with anyio.fail_after(20):
                    await shorter.start(a.members.run)
                assert list(a.members.names()) == others
                shorter.cancel_scope.cancel()
            if others == ["a"]:
                await tasks.start(b.members.run)
        tasks.cancel_scope.cancel()


async def test_each_monitor_has_a_turn_of_its_own(server: EmbeddedServer, ready: Namespace) -> None:
    async with node(server, ready, "a") as a, node(server, ready, "b") as b, anyio.create_task_group() as tasks:
        await tasks.start(a.members.run)
        assert turn_of(a.members) == 0
        await tasks.start(b.members.run)
        await a.sees("a", "b")
        assert sorted(turn_of(each.members) for each in (a, b)) == [0, 1]
        tasks.cancel_scope.cancel()


async def test_a_node_whose_beats_stay_out_is_dropped_after_the_ttl(server: EmbeddedServer, ready: Namespace) -> None:
    async with node(server, ready, "a") as a, anyio.create_task_group() as tasks:
        await tasks.start(a.members.run)
        started_s = anyio.current_time()
        await a.bucket.put("dead", msgspec.json.encode(NodeRecord(node="dead", run="x")))  # no TTL of its own
        await a.sees("a", "dead")
        await a.sees("a")
        assert anyio.current_time() - started_s >= TTL_S
        tasks.cancel_scope.cancel()


async def a_ghost(node: Node, ttl_s: float) -> None:
    """Put a record that nobody renews and that never expires, as one that had expired can stand there again after its
    server was killed; return when no node would live by it."""
    stored = await node.bucket.put("ghost", msgspec.json.encode(NodeRecord(node="ghost", run="x")))
    entry = await node.bucket.get("ghost")
    assert entry is not None
    assert (entry.revision, entry.stored_ms > 0) == (stored, True)
    with anyio.fail_after(30):
        while await node.bucket.server_now_ms() <= entry.stored_ms + ttl_s * 1000:
            await a_moment()


async def test_a_node_that_starts_takes_no_record_of_the_dead_for_a_node(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with node(server, ready, "a") as a, node(server, ready, "b") as b, anyio.create_task_group() as tasks:
        await a_ghost(a, TTL_S)
        await tasks.start(a.members.run)
        assert a.members.names() == ("a",)
        await tasks.start(b.members.run)
        assert b.members.names() == ("a", "b")
        tasks.cancel_scope.cancel()


async def test_a_record_of_the_dead_that_is_told_again_after_a_restart_of_the_server_is_no_node(
    tmp_path: Path, namespace: Namespace
) -> None:
    async with embedded_server(tmp_path) as server, node(server, namespace, "a") as a:
        async with connect(server.url, name="init", namespace=namespace) as connection:
            await make_topology(connection, wanted(namespace, profile="fast"))
        async with anyio.create_task_group() as tasks:
            await tasks.start(a.members.run)
            await a_ghost(a, TTL_S)
            await a.sees("a")
            told = [event for event in a.events if isinstance(event, NodeJoined)]
            await server.kill()
            await server.restart()
            async with node(server, namespace, "b") as b:
                await tasks.start(b.members.run)
                await a.sees("a", "b")  # by now all was read anew
            assert [event.node for event in told] == ["ghost"]
            assert [event.node for event in a.events if isinstance(event, NodeJoined)] == ["ghost", "b"]
            tasks.cancel_scope.cancel()


async def test_who_reads_once_is_told_of_the_living_alone(server: EmbeddedServer, ready: Namespace) -> None:
    async with node(server, ready, "a") as a, anyio.create_task_group() as tasks:
        await a.bucket.put("junk", b"{")
        await a_ghost(a, TTL_S_OF_ALL)
        await tasks.start(a.members.run)
        assert [record.node for record in await living(a.bucket)] == ["a"]
        tasks.cancel_scope.cancel()


class BehindAtFirst(Bucket[bytes]):
    """As a former leader reads it that has stood still: what was stored before has expired."""

    reads = 0

    async def entries(self, pattern: str = ">", *, timeout_s: float = 30.0) -> list[Entry[bytes]]:
        self.reads += 1
        return [] if self.reads <= 2 else await super().entries(pattern, timeout_s=timeout_s)


@pytest.mark.parametrize("server", ["three"], indirect=True, scope="session")
async def test_on_three_servers_no_node_is_said_to_live_only_if_none_writes_anew(
    server: Reachable, connection: Connection, publisher: Publisher, namespace: Namespace
) -> None:
    await make_topology(connection, topology_for(connection))
    bucket = BehindAtFirst(connection, publisher, namespace.bucket("NODES"), bytes)
    began_s = monotonic_s()
    assert await living(bucket) == []
    assert monotonic_s() - began_s >= ANEW_S
    async with node(server, namespace, "a") as a, anyio.create_task_group() as tasks:
        await tasks.start(a.members.run)
        bucket.reads = 0
        assert [record.node for record in await living(bucket)] == ["a"]
        tasks.cancel_scope.cancel()


async def test_the_record_tells_load_and_platforms_and_is_gone_after_the_end(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with node(server, ready, "a") as a, anyio.create_task_group() as tasks:
        await tasks.start(a.members.run)
        well = ActorState(name="x", role="r", status="running", since_ms=1)
        troubled = ActorState(name="y", role="", status="parked", since_ms=6, failures=2, last_error="so")
        a.status = Status(load=0.5, platforms=("mall",), actors=(well, troubled))
        a.members.beat_soon()
        with anyio.fail_after(20):
            async with a.bucket.watch("a") as changes:
                async for change in changes:
                    entry = getattr(change, "entry", None)
                    if entry is not None and msgspec.json.decode(entry.value)["load"] == 0.5:
                        stored = msgspec.json.decode(entry.value)
                        break
        assert ([each["name"] for each in stored["actors"]], stored["steady"]) == (["y"], ["r/x"])
        assert [record.actors for record in await living(a.bucket)] == [(troubled, well)]
        tasks.cancel_scope.cancel()
    async with node(server, ready, "b") as b:
        with anyio.fail_after(20):
            while await b.bucket.get("a") is not None:
                await a_moment()


async def test_a_record_of_somebody_elses_making_is_left_alone(server: EmbeddedServer, ready: Namespace) -> None:
    async with node(server, ready, "a") as a, anyio.create_task_group() as tasks:
        await tasks.start(a.members.run)
        for value in (b"{", b'{"node":"q"}', b""):
            await a.bucket.put("junk", value)
        await a.bucket.put("b", msgspec.json.encode(NodeRecord(node="b", run="x")))
        await a.sees("a", "b")
        tasks.cancel_scope.cancel()


async def test_of_two_living_nodes_with_one_name_the_later_one_gives_way(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with node(server, ready, "a", run="first", started_ms=1) as first:
        async with node(server, ready, "a", run="second", started_ms=2) as second:
            async with anyio.create_task_group() as tasks:
                await tasks.start(first.members.run)
                with anyio.fail_after(20), pytest.RaisesGroup(pytest.RaisesExc(NameTaken, match="--name of its own")):
                    await second.members.run(task_status=anyio.TASK_STATUS_IGNORED)
                entry = await first.bucket.get("a")
                assert entry is not None
                assert not decode_node("a", entry.value).is_leaving  # nobody takes the first one for gone
                assert first.members.names() == ("a",)
                tasks.cancel_scope.cancel()


async def test_a_node_that_was_killed_may_start_again_under_its_name_at_once(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with node(server, ready, "a", run="second", started_ms=2) as second, anyio.create_task_group() as tasks:
        before = NodeRecord(node="a", run="first", started_ms=1)
        await second.bucket.put("a", msgspec.json.encode(before), ttl_s=TTL_S)
        await tasks.start(second.members.run)
        assert second.members.live()["a"].run == "second"
        tasks.cancel_scope.cancel()


async def test_a_node_that_was_blocked_itself_blames_nobody_else_for_it(
    server: EmbeddedServer, ready: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(server, ready, "a") as a, anyio.create_task_group() as tasks:
        await tasks.start(a.members.run)
        await a.bucket.put("b", msgspec.json.encode(NodeRecord(node="b", run="x")))
        await a.sees("a", "b")
        time.sleep(TTL_S + 0.5)  # noqa: ASYNC251 # the fault itself: code that does not await
        with anyio.move_on_after(1):
            await a.until(lambda: a.members.names() != ("a", "b"))
        assert a.members.names() == ("a", "b")
        assert "node.was_blocked" in caplog.messages
        tasks.cancel_scope.cancel()


async def test_who_hears_nothing_drops_nobody(server: EmbeddedServer, ready: Namespace) -> None:
    """A link that is silent in one direction: our own beats do not come back either. A delete that asks the nodes with
    handlers would ask nobody then, and say that none holds the job."""
    async with (
        proxy(server.port) as link,
        node(server, ready, "b") as b,
        connect(link.url, name="a", namespace=ready) as connection,
        Publisher(connection) as publisher,
        anyio.create_task_group() as tasks,
    ):
        a = Node(connection, publisher, "a", run="a", started_ms=1)
        await tasks.start(b.members.run)
        await tasks.start(a.members.run)
        await a.sees("a", "b")
        link.hold("client")
        with anyio.move_on_after(2.5 * TTL_S):
            await a.changed.wait()
        assert a.members.names() == ("a", "b")
        link.heal()
        tasks.cancel_scope.cancel()


async def test_nobody_is_dropped_while_the_server_is_away(tmp_path: Path, namespace: Namespace) -> None:
    async with embedded_server(tmp_path) as server:
        async with node(server, namespace, "a") as a, node(server, namespace, "b") as b:
            async with connect(server.url, name="init", namespace=namespace) as connection:
                await make_topology(connection, wanted(namespace, profile="fast"))
            async with anyio.create_task_group() as tasks:
                await tasks.start(a.members.run)
                await tasks.start(b.members.run)
                await a.sees("a", "b")
                await server.kill()
                with anyio.move_on_after(TTL_S + 1):
                    await a.until(lambda: a.members.names() != ("a", "b"))
                assert a.members.names() == ("a", "b")
                await server.restart()
                with anyio.move_on_after(1.5):
                    await a.until(lambda: a.members.names() != ("a", "b"))
                assert a.members.names() == ("a", "b")
                tasks.cancel_scope.cancel()
