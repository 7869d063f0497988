"""Credentials that a login brought, sealed for all nodes, on a real server."""

import anyio

from actors.fetch.grants import Grants, Values
from actors.fetch.sources import SourceKey
from platforms.adapter import Account
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.loop_turns import longest_turn_ms
from tests.support.server import make_topology, topology_for


async def test_the_dear_keys_of_many_logins_do_not_hold_up_the_event_loop(
    connection: Connection, publisher: Publisher
) -> None:
    await make_topology(connection, topology_for(connection))
    grants = Grants(Bucket(connection, publisher, connection.namespace.bucket("DIGESTS"), bytes))
    brought = dict[str, Values]()

    async def log_in(_was_left: bool, _stored: Values) -> Values:
        return {"token": "new"}

    async def renew(shop: str) -> None:
        account = Account(shop, {"password": shop})
        brought[shop] = await grants.renewed(SourceKey("mall", shop), account, lambda _: True, log_in, timeout_s=5)

    async with longest_turn_ms() as longest_ms:
        for _ in range(2):  # the second time they are read
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(renew, f"s{number}")
        assert longest_ms() < 25
    assert brought == {f"s{number}": {"token": "new"} for number in range(4)}
