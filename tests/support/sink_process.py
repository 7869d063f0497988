"""A sink in a process of its own, for tests that kill it: `python -m tests.support.sink_process URL NAMESPACE FILE`.

Prints a line for each batch that it has stored, and runs until it is killed; at `sink.store` that is before a batch is
stored, with all that was said of it until then at the server.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from actors.fetch.sink import Settings, run
from actors.fetch.stores.sqlite import SqliteStore
from actors.runtime.failpoints import reach
from streams.link.connection import Connection, connect
from streams.messages.fetch import Order
from streams.publish.publisher import Publisher
from streams.subjects import Namespace


class Printing(SqliteStore):
    """Says so when a batch is stored."""

    def __init__(self, path: Path, connection: Connection) -> None:
        super().__init__(path, history=True)
        self._link = connection

    async def store(self, orders: Sequence[Order]) -> int:
        await self._link.flush()
        reach("sink.store")
        changed = await super().store(orders)
        print("stored", changed, flush=True)
        return changed


async def main(url: str, namespace: str, file: str) -> None:
    async with (
        connect(url, name="sink", namespace=Namespace(namespace)) as connection,
        Publisher(connection) as publisher,
    ):
        await run(
            Settings(name="main", batch=250, wait_ms=5),
            connection=connection,
            publisher=publisher,
            store=Printing(Path(file), connection),
            stop=anyio.Event(),
        )


if __name__ == "__main__":
    _, url_, namespace_, file_ = sys.argv
    anyio.run(main, url_, namespace_, file_)
