"""What a fetcher has stored, and by which attempts."""

from collections.abc import Mapping
from typing import Any

from actors.fetch.sources import SourceKey
from platforms.mall.server import Mall
from streams.link.connection import Connection
from streams.messages.fetch import (
    SliceCompleted,
)
from tests.support.engine import (
    Heard,
    stored_versions,
    truth_of,
)
from tests.support.shops import SHOP

PAST_MS = 10_000
"""The history ends so long ago that all of it has settled."""
ONE_BY_ONE: Mapping[str, Any] = {"concurrency": 1}
"""One request at a time, so that what the mall deals next hits a known one."""


async def all_is_stored(connection: Connection, mall: Mall, source: SourceKey = SHOP) -> bool:
    return await stored_versions(connection, source) == truth_of(mall, source.source)


def attempts(heard: Heard, source: SourceKey = SHOP) -> list[int]:
    """Return by which attempt the source's slices were read."""
    return [event.attempt for event in heard.of(SliceCompleted, platform=source.platform)]
