"""What tests of commands ask for."""

from collections.abc import AsyncIterator

import pytest

from streams.connection import Connection
from streams.publisher import Publisher
from streams.server import EmbeddedServer
from tests.support.cli import CommandLine, command_line


@pytest.fixture
async def cli(server: EmbeddedServer, connection: Connection, publisher: Publisher) -> AsyncIterator[CommandLine]:
    async with command_line(server, connection, publisher) as opened:
        yield opened
