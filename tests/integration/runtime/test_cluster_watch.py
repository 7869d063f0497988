"""One server of three is cut off from the others. Its clients still reach it, and leave it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from actors.runtime.broker.cluster_watch import ClusterWatch
from penstock.errors import NotAccepted, PenstockError
from penstock.sdk.calls import ServiceClient
from streams.clock import monotonic_s
from streams.link.connection import Connection, connect
from streams.link.frames import Message, publish_frame
from streams.micro import WHO, Endpoint, RequestRefused, Service
from tests.support.moments import a_moment
from tests.support.processes import Links, ServerProcess, cluster, open_links
from tests.support.server import Reachable, once_it_is_led

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


@pytest.mark.parametrize("server", ["three"], indirect=True, scope="session")
@pytest.mark.parametrize("how", ["answers", "refuses", "is at it"])
async def test_a_client_stays_where_a_node_answers_some_of_its_requests(
    server: Reachable, connection: Connection, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Another service has no node. What is under way at this server would be lost."""
    for name, seconds in (("streams.link.contact.LEAVE_S", 1.5), ("penstock.sdk.calls.AT_IT_S", 0.1)):
        monkeypatch.setattr(name, seconds)
    goes_on, left = anyio.Event(), anyio.Event()

    async def answer(_message: Message) -> bytes:
        if how == "is at it":
            await goes_on.wait()
        elif how == "refuses":
            raise RequestRefused(404, "there is none")
        return b"here"

    async with connect(server.url, name="client", namespace=connection.namespace) as here:
        here.on_disconnect(left.set)
        served, unserved = ServiceClient(here, "jobs", 120.0), ServiceClient(here, "flow", 0.2)
        endpoint, who = Endpoint("add", served.subject("add"), answer), served.subject(WHO)
        service = Service(connection, name="jobs", version="1.0.0", about="for tests", endpoints=[endpoint], who=who)
        async with anyio.create_task_group() as tasks:
            stop = anyio.Event()
            await tasks.start(service.serve, stop)
            if how == "is at it":
                tasks.start_soon(served.request, "add", b"")
            until_s = monotonic_s() + 4.0
            while monotonic_s() < until_s and not left.is_set():
                with suppress(PenstockError):
                    await unserved.request("why", b"")
                if how != "is at it":
                    with suppress(NotAccepted):
                        await served.request("add", b"")
            goes_on.set()
            stop.set()
        assert not left.is_set()


@pytest.mark.parametrize("server", ["three"], indirect=True, scope="session")
async def test_a_server_that_reaches_a_leader_is_not_left_because_no_node_answers(
    server: Reachable, connection: Connection
) -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(ClusterWatch(connection).run)
        assert not connection.contact.alone(monotonic_s())
        with anyio.fail_after(60):
            while connection.contact._alone is not None:
                await a_moment()
        tasks.cancel_scope.cancel()
