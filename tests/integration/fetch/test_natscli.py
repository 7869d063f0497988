"""What a person sees of the fetch engine with the server's own command: everything is there, and all of it is JSON."""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.fetch import hole_notices
from actors.fetch.ledgers import read_ledger
from actors.fetch.sources import SourceKey
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.messages.fetch import HoleMade
from streams.publish.publisher import Publisher
from tests.support.engine import (
    a_mall,
    add_source,
    faults,
    hearing,
    history_start_ms,
    ledger_bucket,
    ledger_when,
    running_node,
)
from tests.support.natscli import NatsCli

SHOP = SourceKey("mall", "s1")


async def test_the_nats_command_reads_ledgers_settings_streams_and_dead_letters(
    server: EmbeddedServer,
    connection: Connection,
    publisher: Publisher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hole_notices, "TOGETHER_MS", 0)
    nats = NatsCli.or_skip(server.url, tmp_path)
    space = connection.namespace
    async with (
        a_mall(ago_ms=10_000, orders=50) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        mall.dealer.set(faults(bad_at_ms=history_start_ms(mall) + 30_000))
        await add_source(
            connection,
            publisher,
            SHOP,
            adapter="mall",
            url=mall.url,
            start_ms=history_start_ms(mall),
            default={"scan_every": "100ms"},
            slice="20s",
            concurrency=1,
            retries=0,
        )
        hole = await heard.first(HoleMade)
        await ledger_when(node.engine, SHOP, lambda ledger: bool(ledger.holes) and ledger.holes[0].is_told)
        await ledger_when(node.engine, SHOP, lambda ledger: not ledger.open)
        consumers = await nats.json("consumer", "ls", space.stream("SLICES"))
    ledger = read_ledger(SHOP, (await nats.run("kv", "get", space.bucket("LEDGERS"), SHOP.key, "--raw")).encode())
    assert [one.slice_id for one in ledger.holes] == [hole.slice_id]
    source = json.loads(await nats.run("kv", "get", space.bucket("SETTINGS"), f"source.{SHOP.key}", "--raw"))
    assert (source["adapter"], source["account"]["shop"]) == ("mall", "s1")
    settings = json.loads(await nats.run("kv", "get", space.bucket("SETTINGS"), "fetch.mall", "--raw"))
    assert settings["slice"] == "20s"
    assert {name for name in consumers if name.startswith("fetch_mall")} == {"fetch_mall_tail", "fetch_mall_back"}
    letter = await last_message(nats, space.stream("DEAD"), space.pattern("dead", "fetch", "mall", ">"))
    assert (letter["type"], letter["body"]["slice_id"]) == ("dead_letter", hole.slice_id)
    told = await last_message(nats, space.stream("EVENTS"), space.event("fetch", "hole_made", "mall", "s1"))
    assert (told["type"], told["slice_id"]) == ("hole_made", hole.slice_id)
    page = await last_message(nats, space.stream("ORDERS"), space.pattern("orders", "mall", "s1"))
    assert (page["type"], page["orders"][0]["body"]["id"][:3]) == ("order_page", "s1-")


async def last_message(nats: NatsCli, stream: str, subject: str) -> dict[str, Any]:
    """Return the body of a stream's last message on a subject, as a person reads it."""

    found = await nats.json("stream", "get", stream, "--last-for", subject)
    body: dict[str, Any] = json.loads(base64.b64decode(found["data"]))
    return body


async def test_a_ledger_changed_with_the_nats_command_is_taken_up(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    """By hand, as a person would pause a source where there is no penstock command at hand."""
    nats = NatsCli.or_skip(server.url, tmp_path)
    async with a_mall(ago_ms=10_000, orders=50) as mall, running_node(connection, publisher) as node:
        await add_source(
            connection, publisher, SHOP, adapter="mall", url=mall.url, start_ms=history_start_ms(mall), slice="20s"
        )
        before = await ledger_when(node.engine, SHOP, lambda ledger: ledger.watermark_ms >= mall.start_ms)
        paused = msgspec.structs.replace(before, state="paused", open=())
        bucket = connection.namespace.bucket("LEDGERS")
        await nats.run("kv", "put", bucket, SHOP.key, msgspec.json.encode(paused).decode())
        after = await ledger_when(node.engine, SHOP, lambda ledger: ledger.state == "paused")
        entry = await ledger_bucket(connection, publisher).get(SHOP.key)
    assert after == paused
    assert entry is not None
    assert read_ledger(SHOP, entry.value) == paused
