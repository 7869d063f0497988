"""A node with batches in a process of its own, for a whole session of clients: its namespace, its gateway, tokens."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from actors.batch.tasks import TaskRecord, Tasks
from penstock.api.http.tokens import VERBS, TokenWish, create_token
from streams.buckets.bucket import Bucket
from streams.clock import now_ms
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from tests.support.command import plain_environment
from tests.support.processes import free_ports
from tests.support.server import Reachable, fresh_namespace, make_topology, topology_for

WITHIN_S = 90.0
UNSERVED = "unserved"
"""A task whose application does not run: its instances go on for ever, until somebody cancels them."""
CALLBACKS = {
    "PENSTOCK_CALLBACK_HOSTS": "shop.example.com",
    "PENSTOCK_CALLBACK_SECRET": "env:OUR_CALLBACK_KEY",
    "OUR_CALLBACK_KEY": "a secret of the tests, long enough",
}
"""Who may be called. The node has no handlers of jobs: calls wait for one that has."""
WISHES = {
    "operator": TokenWish(name="operator", verbs=("add", "read", "admin")),
    "acme": TokenWish(name="acme", namespace="acme", verbs=("add", "read", "admin")),
    "other": TokenWish(name="other", namespace="other", verbs=("add", "read")),
    "reader": TokenWish(name="reader", verbs=("read",)),
    "all": TokenWish(name="all", verbs=VERBS),
    "tenant": TokenWish(name="tenant", namespace="tenant", verbs=VERBS),
    "hook": TokenWish(name="hook", topics=("hint/s1",), verbs=("look",)),
    "counter": TokenWish(name="counter", topics=("cou*",), verbs=("add", "read")),
}


class BatchNode(NamedTuple):
    """Where the node is, and the tokens that its gateway takes, by name."""

    server: Reachable
    namespace: Namespace
    url: str
    tokens: dict[str, str]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """Connect to the node's namespace."""
        async with connect(self.server.url, name="test", namespace=self.namespace) as connection:
            yield connection


@contextmanager
def batch_node(server: Reachable) -> Iterator[BatchNode]:
    """Run a node with tests/support/batch_app.py until the block ends."""
    namespace, [port] = fresh_namespace(), free_ports(1)
    tokens = asyncio.run(_prepared(server, namespace))
    arguments = ["--nats", server.url, "--namespace", namespace.name, "--sink", "none"]
    roles = "conductor,executor,desk,gateway"
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "up", *arguments, "--roles", roles, "--app", "tests.support.batch_app"],
        env=plain_environment(PENSTOCK_HTTP=f"127.0.0.1:{port}", PENSTOCK_LOG_FORM="json", **CALLBACKS),
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    is_ready = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if '"node.ready"' in line:
                is_ready.set()

    reading = threading.Thread(target=read)
    reading.start()
    try:
        assert is_ready.wait(WITHIN_S), lines
        yield BatchNode(server, namespace, f"http://127.0.0.1:{port}", tokens)
    finally:
        process.terminate()
        code = process.wait(WITHIN_S)
        reading.join(WITHIN_S)
        assert process.stderr is not None
        process.stderr.close()
    told = "".join(line for line in lines if '"level": "error"' in line or '"level":"error"' in line)
    assert (code, told) == (0, ""), told


async def _prepared(server: Reachable, namespace: Namespace) -> dict[str, str]:
    """Make the topology, and tokens before the gateway looks."""
    async with connect(server.url, name="test", namespace=namespace) as connection, Publisher(connection) as publisher:
        await make_topology(connection, topology_for(connection))
        bucket = Bucket(connection, publisher, namespace.bucket("TOKENS"), bytes)
        await Tasks(Bucket(connection, publisher, namespace.bucket("TASKS"), bytes)).declare(TaskRecord(task=UNSERVED))
        made = {name: await create_token(bucket, wish, now_ms=now_ms()) for name, wish in WISHES.items()}
    return {name: text for name, (text, _) in made.items()}
