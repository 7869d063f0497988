"""A job store on a real server."""

from collections.abc import AsyncIterator

import pytest

from streams.connection import Connection
from tests.support.jobs import Jobs, open_jobs


@pytest.fixture
async def jobs(connection: Connection) -> AsyncIterator[Jobs]:
    async with open_jobs(connection) as opened:
        yield opened
