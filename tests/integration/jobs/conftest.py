"""A job store, and a desk, on a real server."""

from collections.abc import AsyncIterator

import pytest

import penstock
from penstock.sdk.client import Client
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.desks import Office, open_office
from tests.support.jobs import Jobs, open_jobs
from tests.support.schedule_ground import Ground, open_ground


@pytest.fixture(autouse=True)
def _lists_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the jobs of one list may come to the desk a moment apart."""
    monkeypatch.setattr("streams.pull.once.LINGER_S", 2.0)


@pytest.fixture
async def jobs(connection: Connection) -> AsyncIterator[Jobs]:
    async with open_jobs(connection) as opened:
        yield opened


@pytest.fixture
async def office(connection: Connection) -> AsyncIterator[Office]:
    """A desk that no client asks: it has no service."""
    async with open_office(connection) as opened:
        yield opened


@pytest.fixture
async def client(server: EmbeddedServer, office: Office) -> AsyncIterator[Client]:
    async with penstock.connect(server.url, namespace=office.namespace.name) as opened:
        yield opened


@pytest.fixture
async def ground(connection: Connection, publisher: Publisher) -> Ground:
    """A scheduler's streams and desk."""
    return await open_ground(connection, publisher)
