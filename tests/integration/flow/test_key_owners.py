"""A key belongs to one application: a node of another one does not start while a live node serves the key."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import anyio
import pytest

from actors.batch.tasks import MOST_IN_ALL
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.publish.outcomes import Outgoing
from streams.publish.publisher import Publisher
from tests.support.command import WITHIN_S, Running, node, penstock
from tests.support.server import make_topology, topology_for

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the nodes are processes of their own

FLOW = """
@penstock.flow("owned-flow", every="60s")
class Owned:
    def split(self, ctx): return []
    def load(self, ctx, shard, limit): return []
    def execute(self, ctx, row): pass
"""
TWO = """
@penstock.batch("raced-task")
class RacedTask:
    def split(self, ctx): pass
    def map(self, item): pass
    def reduce(self, ctx): pass

@penstock.flow("raced-flow", every="60s")
class Raced:
    def split(self, ctx): return []
    def load(self, ctx, shard, limit): return []
    def execute(self, ctx, row): pass
"""
TASK = """
@penstock.batch("owned-task")
class OwnedTask:
    def split(self, ctx): pass
    def map(self, item): pass
    def reduce(self, ctx): pass
"""
EXTERNAL = """
penstock.external_batch("owned-external", "http://127.0.0.1:1/items")
"""


async def test_a_key_of_a_live_application_is_refused_and_a_free_one_is_taken_over(
    server: EmbeddedServer, connection: Connection, tmp_path: Path
) -> None:
    await make_topology(connection, topology_for(connection))
    for name, code in {
        "shop": FLOW + TASK + EXTERNAL,
        "rival_flow": FLOW,
        "rival_task": TASK,
        "rival_external": EXTERNAL,
    }.items():
        (tmp_path / f"{name}.py").write_text(f"import penstock\n{code}")
    environment = {
        "PENSTOCK_NAMESPACE": connection.namespace.name,
        "PENSTOCK_LOG_FORM": "json",
        "PENSTOCK_HTTP": "off",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}",
    }

    def run(name: str, app: str) -> AbstractAsyncContextManager[Running]:
        where = ("--nats", server.url, "--name", name, "--sink", "none")
        return node(*where, "--app", app, environment=environment)

    async with run("n1", "shop") as first:
        await first.logged("node.ready")
        for app, what in (
            ("rival_flow", "flow owned-flow"),
            ("rival_task", "task owned-task"),
            ("rival_external", "task owned-external"),
        ):
            async with run("n2", app) as rival:
                assert await rival.end() == 1
            assert f"{what}: this node's application is '{app}'" in rival.text
            assert "live nodes serve it for 'shop' (n1); give it another key, or stop those nodes" in rival.text
        listed = await penstock("batch", "tasks", "--json", PENSTOCK_NATS=server.url, **environment)
        assert {task["task"]: task["app"] for task in listed.json()} == {"owned-task": "shop", "owned-external": "shop"}
        async with run("n3", "shop") as same:
            await same.logged("node.ready")
            await same.end(signal.SIGTERM)
        await first.end(signal.SIGTERM)
    async with run("n4", "rival_flow") as heir:
        await heir.logged("key.owner_changed", kind="flow", key="owned-flow", before="shop", app="rival_flow")
        await heir.logged("node.ready")


async def test_of_two_applications_that_start_at_once_with_fresh_keys_one_is_refused(
    server: EmbeddedServer, connection: Connection, tmp_path: Path
) -> None:
    await make_topology(connection, topology_for(connection))
    environment = {
        "PENSTOCK_NAMESPACE": connection.namespace.name,
        "PENSTOCK_LOG_FORM": "json",
        "PENSTOCK_HTTP": "off",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}",
    }
    for app in ("left", "right"):
        (tmp_path / f"{app}.py").write_text(f"import penstock\n{TWO}")
    where = ("--nats", server.url, "--sink", "none")
    async with AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(node(*where, "--name", app, "--app", app, environment=environment))
            for app in ("left", "right")
        ]
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:

                async def ended(running: Running) -> None:
                    await running.process.wait()
                    tasks.cancel_scope.cancel()

                for each in both:
                    tasks.start_soon(ended, each)
        [loser] = [each for each in both if each.process.returncode is not None]
        [winner] = [each for each in both if each is not loser]
        app, other = ("left", "right") if loser is both[0] else ("right", "left")
        assert await loser.end() == 1
        told = f"flow raced-flow: this node's application is '{app}', and live nodes serve it for '{other}' ({other})"
        assert told in loser.text
        await winner.logged("node.ready")
        await winner.end(signal.SIGTERM)


async def test_a_task_above_the_limit_is_refused_by_its_number_and_those_that_are_there_are_served(
    server: EmbeddedServer, connection: Connection, tmp_path: Path
) -> None:
    await make_topology(connection, topology_for(connection))
    bucket = connection.namespace.bucket("TASKS")
    tasks = [f"many{number}" for number in range(MOST_IN_ALL - 1)]
    async with Publisher(connection) as publisher:
        await publisher.publish_many(
            [Outgoing(f"$KV.{bucket}.{task}", b'{"task":"%s"}' % task.encode()) for task in tasks]
        )
    environment = {
        "PENSTOCK_NAMESPACE": connection.namespace.name,
        "PENSTOCK_LOG_FORM": "json",
        "PENSTOCK_HTTP": "off",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}",
    }
    (tmp_path / "last.py").write_text(f"import penstock\n{TASK}")
    (tmp_path / "beyond.py").write_text(f"import penstock\n{TASK}{EXTERNAL.replace('owned-external', 'owned-task-2')}")
    where = ("--nats", server.url, "--sink", "none", "--roles", "executor")
    async with node(*where, "--name", "n1", "--app", "last", environment=environment) as last:
        await last.logged("node.ready")
        async with node(*where, "--name", "n2", "--app", "beyond", environment=environment) as beyond:
            assert await beyond.end() == 1
        assert "task owned-task-2 would be one too many: an installation has at most 10,000" in beyond.text
        async with node(*where, "--name", "n3", "--app", "last", environment=environment) as again:
            await again.logged("node.ready")
            await again.end(signal.SIGTERM)
        await last.end(signal.SIGTERM)


async def test_a_node_with_many_keys_reads_their_owners_at_once(
    server: EmbeddedServer, connection: Connection, tmp_path: Path
) -> None:
    await make_topology(connection, topology_for(connection))
    many = "".join(
        f"""
@penstock.flow("owned-many-{number}", every="60s")
class Many{number}:
    def split(self, ctx): return []
    def load(self, ctx, shard, limit): return []
    def execute(self, ctx, row): pass
"""
        for number in range(40)
    )
    (tmp_path / "many_owned.py").write_text(f"import penstock\n{many}")
    environment = {
        "PENSTOCK_NAMESPACE": connection.namespace.name,
        "PENSTOCK_LOG_FORM": "json",
        "PENSTOCK_HTTP": "off",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}",
    }
    reads: list[Message] = []
    leases = f"KV_{connection.namespace.bucket('LEASES')}"
    heard = await connection.subscribe(f"$JS.API.STREAM.MSG.GET.{leases}", reads.append)
    where = ("--nats", server.url, "--name", "n1", "--sink", "none", "--roles", "worker")
    async with node(*where, "--app", "many_owned", environment=environment) as first:
        await first.logged("node.ready")
        await first.end(signal.SIGTERM)
    await heard.unsubscribe()
    assert len([each for each in reads if b"owner." in each.payload]) < 10
