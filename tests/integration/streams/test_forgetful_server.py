"""What nats-server 2.15.1 does when it is killed: it finds messages again that it had removed (ADR 35).

When this fails, the server has mended it, and the guarantees can promise more.
"""

import json
from pathlib import Path

import anyio
import pytest

from streams.embedded.server import embedded_server
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.reads.log import delete_entry, extent_of
from tests.support.moments import a_moment

SIZE = 40_000
"""A block of this stream has 4 MB."""
A_BLOCK = 104
SETTINGS = {
    "name": "THINGS",
    "subjects": ["things.>"],
    "retention": "workqueue",
    "max_msgs_per_subject": 1,
    "discard": "old",
    "storage": "file",
}


async def fill(publisher: Publisher, count: int, after: int) -> None:
    for number in range(after + 1, after + count + 1):
        await publisher.publish(f"things.{number}", b"x" * SIZE)


async def remove(connection: Connection, first: int, last: int) -> None:
    for seq in range(first, last + 1):
        assert await delete_entry(connection, "THINGS", seq)


def blocks(store: Path) -> dict[str, int]:
    return {block.name: block.stat().st_size for block in store.glob("**/streams/THINGS/msgs/*.blk")}


@pytest.mark.parametrize("erase", [False, True])
async def test_it_forgets_that_it_removed_the_first_messages_of_a_block(tmp_path: Path, erase: bool) -> None:
    """Their tombstones stand in a later block. When that is mostly empty, the server writes it anew without them.
    Erased messages have no need of a tombstone."""
    store = tmp_path / "server"
    config = f'jetstream {{\n  store_dir: {json.dumps(str(store / "jetstream"))}\n  sync_interval: "1s"\n}}'
    async with embedded_server(store, config=config) as server, connect(server.url, name="test") as connection:
        await connection.api("STREAM.CREATE.THINGS", SETTINGS)
        async with Publisher(connection) as publisher:
            await fill(publisher, 230, 0)  # two blocks and some
            for seq in range(1, 41):
                assert await delete_entry(connection, "THINGS", seq, erase=erase)
            await fill(publisher, 230, 230)
            full = blocks(store)
            await remove(connection, 3 * A_BLOCK - 100, 4 * A_BLOCK - 10)
            before = await extent_of(connection, "THINGS")
            with anyio.fail_after(20):
                while blocks(store).get("3.blk", 0) > full["3.blk"] / 2:
                    await a_moment()
            await publisher.publish("things.last", b"")
            await server.kill()
            await server.start()
            after = await extent_of(connection, "THINGS")
    assert after.last_seq == before.last_seq + 1
    assert after.messages - before.messages - 1 == (0 if erase else 40)
