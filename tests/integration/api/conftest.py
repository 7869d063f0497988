"""Gateways that tests share: one open to this machine, one with tokens. Each test has its own topics."""

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest
from aiohttp import ClientSession, TCPConnector

from streams.embedded.server import EmbeddedServer
from streams.publish.publisher import Publisher
from tests.support.answers import Recorder
from tests.support.batch_node import BatchNode, batch_node
from tests.support.gateway import SharedGateway, gateway_thread


@pytest.fixture(autouse=True)
def _lists_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the jobs of one list may come to the desk a moment apart."""
    monkeypatch.setattr("streams.pull.once.LINGER_S", 2.0)


@pytest.fixture(scope="session")
def open_gateway(server: EmbeddedServer) -> Iterator[SharedGateway]:
    """A gateway without tokens."""
    with gateway_thread(server) as running:
        yield running


@pytest.fixture(scope="session")
def guarded_gateway(server: EmbeddedServer) -> Iterator[SharedGateway]:
    """A gateway that asks for tokens."""
    with gateway_thread(server) as running:
        running.token("first")
        yield running


@pytest.fixture(scope="module")
def node(server: EmbeddedServer) -> Iterator[BatchNode]:
    """A node with all doors, in a process of its own."""
    with batch_node(server) as running:
        yield running


@pytest.fixture
async def client(open_gateway: SharedGateway) -> AsyncIterator[ClientSession]:
    """A client of the open gateway."""
    async with ClientSession(open_gateway.url) as session:
        yield session


@pytest.fixture
def topic() -> str:
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
async def asker(node: BatchNode) -> AsyncIterator[Recorder]:
    """Asks the node at every door, and writes down what it answers."""
    async with (
        node.connected() as link,
        Publisher(link) as publisher,
        ClientSession(node.url, connector=TCPConnector(force_close=False)) as session,
    ):
        yield Recorder(session, link, publisher, node.tokens)
