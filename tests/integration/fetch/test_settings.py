"""Settings that change under a running engine: open slices keep their windows, nodes agree, bad ones change nothing."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.ledger import faults as broken_rules
from actors.fetch.settings import watch
from actors.fetch.sources import SourceKey
from streams.clock import monotonic_s, now_ms
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.messages.fetch import SettingsRefused, SliceCompleted
from streams.publish.publisher import Publisher
from tests.support.engine import (
    QUICK,
    Node,
    a_mall,
    add_source,
    hearing,
    history_start_ms,
    ledger_when,
    put_setting,
    running_node,
    stored_versions,
    truth_of,
)

SHOP = SourceKey("mall", "s1")
PAST_MS = 10_000
NOWHERE = "http://127.0.0.1:1"


GAP_S = watch.GAP_S


@pytest.fixture(autouse=True)
def _as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "GAP_S", GAP_S)


async def in_force(node: Node, name: str, value: object, within_s: float = 30) -> None:
    """Wait until a setting of the shop has a value on a node."""
    changed = anyio.Event()
    node.settings.on_change(lambda _source: changed.set())
    with anyio.fail_after(within_s):
        while getattr(node.settings.current(SHOP.platform, SHOP.source), name) != value:
            await changed.wait()
            changed = anyio.Event()


def windows(ledger: Ledger) -> dict[str, tuple[int, int]]:
    return {piece.slice_id: (piece.start_ms, piece.end_ms) for piece in ledger.open}


async def test_open_slices_keep_their_windows_when_the_length_changes(
    connection: Connection, publisher: Publisher
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS, history_ms=30_000) as mall,
        running_node(connection, publisher, roles=("allocator",)) as node,
    ):
        own: dict[str, Any] = {"adapter": "mall", "url": mall.url, "start_ms": history_start_ms(mall)}
        await add_source(connection, publisher, SHOP, slice="3s", max_open=3, **own)
        before = await ledger_when(node.engine, SHOP, lambda ledger: len(ledger.open) == 3)
        for length, most in (("7s", 5), ("2s", 40)):
            await put_setting(connection, publisher, "fetch.mall", {**QUICK, "slice": length, "max_open": most})
            await ledger_when(node.engine, SHOP, lambda ledger, most=most: len(ledger.open) >= min(most, 12))  # type: ignore[misc]
        after = await ledger_when(node.engine, SHOP, lambda ledger: True)
        async with running_node(connection, publisher, node="n2", roles=("fetcher",)), hearing(connection) as heard:
            end_ms = max(event.modified_ms for event in mall.shops["s1"].events)
            await ledger_when(node.engine, SHOP, lambda ledger: ledger.watermark_ms > end_ms)
    assert windows(before).items() <= windows(after).items()
    assert broken_rules(after) == []
    tiles = sorted(windows(after).values())
    assert [end for _, end in tiles[:-1]] == [start for start, _ in tiles[1:]]
    assert tiles[0][0] == history_start_ms(mall)
    lengths = [end - start for start, end in tiles]
    assert lengths[:3] == [3_000] * 3
    assert 7_000 in lengths
    assert lengths[-1] == 2_000
    assert set(windows(before)) <= {event.slice_id for event in heard.of(SliceCompleted)}
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


async def test_two_nodes_agree_within_a_second(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(running_node(connection, publisher, node="n1"))]
        far = await stack.enter_async_context(connect(server.url, name="far", namespace=connection.namespace))
        far_publisher = await stack.enter_async_context(Publisher(far))
        nodes.append(await stack.enter_async_context(running_node(far, far_publisher, node="n2")))
        took_s = []
        for seconds in range(3, 6):
            await put_setting(connection, publisher, "fetch.mall", {"slice": f"{seconds}s", "overlap_before": "1s"})
            began_s = monotonic_s()
            for node in nodes:
                await in_force(node, "slice_ms", seconds * 1_000)
            took_s.append(monotonic_s() - began_s)
        assert min(took_s) < 1 + 4  # a second, and what a busy machine adds


async def test_a_bad_value_put_by_hand_leaves_the_last_good_one(connection: Connection, publisher: Publisher) -> None:
    """Also on a node that starts while it stands there."""
    bad = {
        "no JSON": b"slice = 60s",
        "no UTF-8": b'{"slice":"\xff"}',
        "a misspelt name": {"slize": "60s"},
        "no unit": {"slice": 60},
        "out of range": {"slice": "0s"},
        "overlaps longer than the slice": {"slice": "1s", "overlap_before": "5s"},
    }
    async with running_node(connection, publisher, roles=("allocator",)) as node, hearing(connection) as heard:
        await add_source(
            connection, publisher, SHOP, adapter="mall", url=NOWHERE, start_ms=now_ms() - 20_000, slice="4s", max_open=2
        )
        await ledger_when(node.engine, SHOP, lambda ledger: len(ledger.open) == 2)
        for value in bad.values():
            revision = await put_setting(connection, publisher, "fetch.mall", value)
            await heard.first(SettingsRefused, key="fetch.mall", revision=revision)
            assert node.settings.current("mall", "s1").slice_ms == 4_000
        async with running_node(connection, publisher, node="n2", roles=("allocator",)) as fresh:
            assert fresh.settings.current("mall", "s1").slice_ms == 4_000
        await put_setting(connection, publisher, "fetch.mall", {**QUICK, "slice": "3s", "max_open": 4})
        ledger = await ledger_when(node.engine, SHOP, lambda ledger: len(ledger.open) == 4)
        assert node.settings.refused() == ()
    assert {end - start for start, end in windows(ledger).values()} <= {4_000, 3_000, 1_000, 2_000}
    assert broken_rules(ledger) == []


async def test_a_source_that_was_stopped_by_its_settings_goes_on_by_them(
    connection: Connection, publisher: Publisher
) -> None:
    """A raised limit is heard: nothing else would make the allocator look."""
    async with running_node(connection, publisher, roles=("allocator",)) as node:
        start_ms = now_ms() - 20_000
        await add_source(connection, publisher, SHOP, adapter="mall", url=NOWHERE, start_ms=start_ms, max_open=1)
        await ledger_when(node.engine, SHOP, lambda ledger: len(ledger.open) == 1)
        await put_setting(connection, publisher, f"fetch.{SHOP.key}", {"max_open": 5})
        await ledger_when(node.engine, SHOP, lambda ledger: len(ledger.open) == 5)
