"""What tests of commands ask for."""

from collections.abc import AsyncIterator

import pytest

from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.cli import CommandLine, command_line


@pytest.fixture
async def cli(server: EmbeddedServer, connection: Connection, publisher: Publisher) -> AsyncIterator[CommandLine]:
    async with command_line(server, connection, publisher) as opened:
        yield opened
