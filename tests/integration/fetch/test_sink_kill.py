"""kill -9 of a sink's process in the middle: everything is stored in the end, and nothing is applied twice."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import Process

from actors.fetch.sink import Settings, run
from actors.fetch.stores.sqlite import SqliteStore
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.publish.publisher import Publisher
from streams.pull.delivery import read_reply
from streams.topology.specs import sink_consumer
from tests.support.orders import order
from tests.support.sinks import Seen, add_sink_streams, changes, publish_orders, stored, unsettled

ROOT = Path(__file__).parents[3]
COUNT = 5_000


async def start(server: EmbeddedServer, connection: Connection, path: Path, *, crash_at: str = "") -> Process:
    arguments = [server.url, connection.namespace.name, str(path)]
    environment = {**os.environ, "PENSTOCK_CRASH_AT": crash_at}
    command = [sys.executable, "-m", "tests.support.sink_process", *arguments]
    return await anyio.open_process(command, cwd=ROOT, env=environment, stderr=None)


async def kill_after(process: Process, lines: int) -> None:
    """Kill a process once it has printed so many lines, wherever it is by then."""
    assert process.stdout is not None
    seen = 0
    async for text in process.stdout:
        seen += text.count(b"\n")
        if seen >= lines:
            break
    process.kill()


@asynccontextmanager
async def acknowledged(connection: Connection) -> AsyncIterator[Seen[int]]:
    """Hear the sequences that any sink acknowledges; one that is only kept alive is none."""
    seen: Seen[int] = Seen()
    spec = sink_consumer(connection.namespace, "main")

    def hear(message: Message) -> None:
        if not message.payload:
            seen.add(read_reply(message.subject.encode()).seq)

    subscription = await connection.subscribe(f"$JS.ACK.{spec.stream}.{spec.name}.>", hear)
    yield seen
    await subscription.unsubscribe()


async def test_killed_sink_loses_no_order_and_applies_none_twice(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    path = tmp_path / "orders.db"
    await add_sink_streams(connection, ack_wait_s=0.5)
    sent = [order(f"{at:04}", version) for version in (1, 2) for at in range(COUNT // 2)]
    await publish_orders(connection, publisher, sent)
    async with acknowledged(connection) as acked:
        for crash_at in ("sink.store:2", "sink.commit:3", "sink.ack:2", "sink.commit:1", ""):
            async with await start(server, connection, path, crash_at=crash_at) as process:
                if not crash_at:
                    await kill_after(process, 2)
                assert await process.wait() == -signal.SIGKILL
        assert 0 < len(set(acked.all)) < COUNT
        await finish(connection, publisher, path, acked)
    applied = changes(path)
    assert stored(path) == {f"{at:04}": 2 for at in range(COUNT // 2)}
    assert len(applied) == len(set(applied))
    assert await unsettled(connection) == (0, 0)


async def finish(connection: Connection, publisher: Publisher, path: Path, acked: Seen[int]) -> None:
    """Run a sink until every order is acknowledged."""
    store, stop = SqliteStore(path, history=True), anyio.Event()
    settings = Settings(name="main", wait_ms=5)
    sink = partial(run, settings, connection=connection, publisher=publisher, store=store, stop=stop)
    async with anyio.create_task_group() as tasks:
        await tasks.start(sink)
        await acked.until(lambda all_: len(set(all_)) == COUNT, within_s=20)
        stop.set()
