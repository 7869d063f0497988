"""The accounts on three servers: what crosses from one account to another also crosses from one server to another."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import permutations
from pathlib import Path

import pytest
from anyio import fail_after

from streams.errors import NoStream
from streams.link.connection import Connection, connect
from streams.link.frames import Message, publish_frame
from streams.publish.publisher import Publisher
from streams.reads.direct_get import get_batch
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.accounts import Users
from tests.support.moments import a_moment
from tests.support.processes import cluster, include_line

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # three servers: once is enough

NS = Namespace()
LEDGERS = "KV_PENSTOCK_LEDGERS"


async def test_whoever_asks_is_answered_on_whichever_server_he_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = Users()
    for name, value in users.environment().items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "nats.conf"
    files = ("cluster/server.conf", "accounts.conf")
    config.write_text("\n".join([*(include_line(name, tmp_path) for name in files), ""]))
    with fail_after(150):
        async with cluster(tmp_path, config=config, credentials=users.credentials("admin")) as servers:
            async with connect(servers[0].url, name="admin", credentials=users.credentials("admin")) as admin:
                await apply(admin, wanted(NS, profile="fast", replicas=3))
            for order in permutations(servers):
                async with AsyncExitStack() as stack:
                    node, app, console = [
                        await stack.enter_async_context(
                            connect(each.url, name=role, credentials=users.credentials(role))
                        )
                        for each, role in zip(order, ("node", "app", "console"), strict=True)
                    ]
                    await _all_that_crosses(node, app, console)


async def _all_that_crosses(node: Connection, app: Connection, console: Connection) -> None:
    await node.subscribe("penstock.api.>", _echo(node))
    await app.subscribe("penstock.ask.app.>", _echo(app))
    await node.flush()
    await app.flush()
    assert (await _answer(lambda: app.request("penstock.api.jobs.add", b"1"))).payload == b"1"
    assert (await _answer(lambda: node.request("penstock.ask.app.tags", b"2"))).payload == b"2"
    assert b'"seq"' in (await _answer(lambda: app.request("penstock.submit.job.mail", b"3"))).payload
    async with Publisher(node) as publisher:
        for source in ("a", "b"):
            await publisher.publish(f"$KV.PENSTOCK_LEDGERS.mall.{source}", b"4", message_id=f"{node.new_inbox()}")
    assert (await console.api(f"STREAM.INFO.{LEDGERS}"))["state"]["num_subjects"] == 2
    found, _ = await get_batch(console, LEDGERS, {"multi_last": ["$KV.PENSTOCK_LEDGERS.>"]}, timeout_s=10.0)
    assert [message.payload for message in found] == [b"4", b"4"]


def _echo(connection: Connection) -> Callable[[Message], None]:
    return lambda message: connection.client.send(publish_frame(message.reply, "", b"", message.payload))


async def _answer(ask: Callable[[], Awaitable[Message]]) -> Message:
    """Ask until the servers have told each other who listens."""
    while True:
        try:
            return await ask()
        except NoStream:
            await a_moment()
