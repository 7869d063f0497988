"""One server of three is cut off from the others. Its clients still reach it, and leave it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest

from actors.runtime.cluster_watch import ClusterWatch
from penstock.errors import PenstockError
from penstock.sdk.calls import ServiceClient
from streams.connection import Connection, connect
from streams.frames import Message, publish_frame
from tests.support.processes import Links, ServerProcess, cluster, open_links
from tests.support.server import once_it_is_led

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # three servers and an election: once is enough


@pytest.fixture
async def links() -> AsyncIterator[Links]:
    async with open_links() as wires:
        yield wires


@pytest.fixture
async def servers(tmp_path: Path, links: Links) -> AsyncIterator[list[ServerProcess]]:
    async with cluster(tmp_path, links=links) as running:
        yield running


@asynccontextmanager
async def reconnected(connection: Connection) -> AsyncIterator[None]:
    """Wait, at the end of the block, until the link has changed since its beginning."""
    resumed = anyio.Event()
    remove = connection.on_reconnect(resumed.set)
    yield
    await resumed.wait()
    remove()


async def test_a_node_leaves_a_server_that_is_cut_off(servers: list[ServerProcess], links: Links) -> None:
    """If it finds no better one, since no server has a leader any more, it goes on with what it finds."""
    async with connect(servers[0].url, name="node") as connection, anyio.create_task_group() as tasks:
        await tasks.start(ClusterWatch(connection).run)
        with anyio.fail_after(180):
            async with reconnected(connection):
                links.cut_off(0)
            await once_it_is_led(partial(connection.api, "INFO"))
            assert connection.client.server in ("n2", "n3")
            links.join()
            others = [server for server in servers if server.name != connection.client.server]
            async with reconnected(connection):
                for server in others:
                    server.kill()
            for server in others:
                server.start()
            await once_it_is_led(partial(connection.api, "INFO"))
        tasks.cancel_scope.cancel()


async def test_a_client_leaves_a_server_at_which_no_node_answers(servers: list[ServerProcess], links: Links) -> None:
    async with connect(servers[0].url, name="client") as here, connect(servers[1].url, name="node") as there:
        service = ServiceClient(here, "jobs", 5.0)

        def answer(message: Message) -> None:
            there.client.send(publish_frame(message.reply, "", b"", b"here"))

        await there.subscribe(service.subject("add"), answer)
        with anyio.fail_after(120):
            assert (await service.request("add", b"")).payload == b"here"
            links.cut_off(0)
            while here.client.server == "n1":
                with suppress(PenstockError):
                    await service.request("add", b"", timeout_s=3.0)
            assert (await service.request("add", b"")).payload == b"here"
