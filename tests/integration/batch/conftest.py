"""One node with batches for all tests of its doors, and ways to it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_batches import Batches
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from tests.support.batch_node import BatchNode, batch_node


@pytest.fixture(scope="session")
def node(server: EmbeddedServer) -> Iterator[BatchNode]:
    with batch_node(server) as running:
        yield running


@pytest.fixture
async def link(node: BatchNode) -> AsyncIterator[Connection]:
    """A connection in the node's namespace."""
    async with node.connected() as connection:
        yield connection


@pytest.fixture
def batches(link: Connection) -> Batches:
    """The Python client's batches."""
    return Batches(ServiceClient(link, "batch", 30.0), link)
