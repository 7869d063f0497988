"""The ground of zones on one server or a cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.zone_land import Land


@pytest_asyncio.fixture
async def land(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, tmp_path: Path
) -> AsyncIterator[Land]:
    found = Land(connection, publisher, server.url, tmp_path)
    await found.open()
    yield found
