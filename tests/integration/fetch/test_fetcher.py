"""Reading a platform that misbehaves: nothing is lost, nobody else suffers, and the ledger and the events say so."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from actors.fetch.fetcher import session, window
from actors.fetch.ledgers import open_ledgers
from actors.fetch.rules import steering
from actors.fetch.sources import SourceKey
from platforms.mall.faults import FaultName
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.messages.fetch import (
    SliceCompleted,
    SliceFailed,
    SliceSplit,
    SourceParked,
    SourceThrottled,
)
from streams.publish.publisher import Publisher
from tests.integration.fetch.fetched import ONE_BY_ONE, PAST_MS, all_is_stored, attempts
from tests.support.engine import (
    a_mall,
    adapter_table,
    add_source,
    faults,
    hearing,
    history_start_ms,
    ledger_bucket,
    ledger_when,
    put_setting,
    running_node,
    stored_orders,
    stored_versions,
    truth_of,
)
from tests.support.server import connected
from tests.support.shops import SHOP, add_shop, last_ms, read_up

CALM = SourceKey("calm", "s1")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give slices back, and try a full server again, sooner than production does."""
    monkeypatch.setattr(session, "IN_PLACE_MS", 500)
    monkeypatch.setattr(window, "STORE_AGAIN_MS", 200)


async def test_a_figure_counts_the_windows_that_nothing_proves(connection: Connection, publisher: Publisher) -> None:
    counted: list[float] = []
    for platform, totals in (("counts", "orders"), ("counts-not", "none")):
        async with a_mall(ago_ms=PAST_MS, totals=totals) as mall, running_node(connection, publisher) as node:
            source = SourceKey(platform, "s1")
            await add_shop(connection, publisher, mall, source)
            await read_up(node, mall, source)
            figures, labels = node.measures.registry, {"platform": platform}
            unproven = figures.get_sample_value("penstock_slices_unproven_total", labels) or 0
            stored = figures.get_sample_value("penstock_slices_total", {**labels, "outcome": "stored"}) or 0
            assert unproven <= stored
            counted.append(unproven)
    assert counted[0] == 0 < counted[1]


# ---- answers that are none


@pytest.mark.parametrize("fault", ["throttle", "error", "cut", "html", "half", "object", "late", "drift"])
async def test_what_passes_at_once_costs_no_attempt(
    connection: Connection, publisher: Publisher, fault: FaultName
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        mall.dealer.set(faults(fault, fault, retry_after_s=0, late_ms=50))
        await add_shop(connection, publisher, mall, **ONE_BY_ONE)
        ledger = await read_up(node, mall)
    assert mall.dealer.dealt[fault] == 2
    assert (ledger.holes, set(attempts(heard)), heard.of(SliceFailed)) == ((), {1}, [])
    assert await all_is_stored(connection, mall)


@pytest.mark.parametrize("fault", ["error", "cut", "html", "half", "object"])
async def test_what_lasts_is_told_and_costs_no_attempt_while_nothing_else_is_read(
    connection: Connection, publisher: Publisher, fault: FaultName
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        a_mall(ago_ms=PAST_MS) as calm,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        mall.dealer.set(faults(*[fault] * 8))
        await add_shop(connection, publisher, mall, **ONE_BY_ONE)
        await add_shop(connection, publisher, calm, CALM, adapter="mall")
        ledger = await read_up(node, mall)
        await read_up(node, calm, CALM)
    failed = heard.of(SliceFailed)
    assert [event.attempt for event in failed] == [1, 1]
    assert {(event.source, event.platform, event.node) for event in failed} == {("s1", "mall", "n1")}
    assert all(event.reason for event in failed)
    assert ledger.holes == ()
    assert set(attempts(heard, CALM)) == {1}
    assert await all_is_stored(connection, mall)
    assert await all_is_stored(connection, calm, CALM)


async def test_a_throttled_source_is_held_for_all_and_spends_no_attempt(
    connection: Connection, publisher: Publisher
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        a_mall(ago_ms=PAST_MS) as calm,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        mall.dealer.set(faults("throttle", "throttle", retry_after_s=1))
        await add_shop(connection, publisher, mall, concurrency=8)
        told = await heard.first(SourceThrottled)
        held = await ledger_when(node.engine, SHOP, lambda ledger: ledger.hold_until_ms >= told.hold_until_ms)
        await add_shop(connection, publisher, calm, CALM)
        await read_up(node, calm, CALM)
        ledger = await read_up(node, mall)
    first_taken = min(event.started_ms for event in heard.of(SliceCompleted, platform="mall", attempt=1))
    assert 900 <= told.hold_until_ms - told.at_ms <= 5_000
    assert {piece.attempt for piece in held.open} == {1}
    assert (set(attempts(heard)), ledger.holes, heard.of(SliceFailed)) == ({1}, (), [])
    assert first_taken >= told.at_ms or mall.dealer.dealt["throttle"] == 2
    last = max(event.started_ms for event in heard.of(SliceCompleted, platform="mall"))
    assert last >= told.hold_until_ms
    assert await all_is_stored(connection, mall)


async def test_a_platform_that_hangs_has_its_window_split(connection: Connection, publisher: Publisher) -> None:
    async with (
        a_mall(ago_ms=PAST_MS, orders=80) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        mall.dealer.set(faults("hang", "hang", hang_s=30))
        own: Mapping[str, Any] = {
            "timeout": "1s",
            "request_timeout": "1s",
            "max_open": 1,
            "split_after": 1,
            **ONE_BY_ONE,
        }
        await add_shop(connection, publisher, mall, **own)
        ledger = await read_up(node, mall)
    (failed,), (split,) = heard.of(SliceFailed), heard.of(SliceSplit)
    assert (failed.slice_id, failed.reason) == (split.slice_id, "not read within 1 s")
    read = {event.slice_id for event in heard.of(SliceCompleted)}
    assert set(split.parts) <= read
    assert split.slice_id not in read
    assert ledger.holes == ()
    assert await all_is_stored(connection, mall)


async def test_an_answer_over_the_limit_is_not_read_to_its_end(connection: Connection, publisher: Publisher) -> None:
    served: list[str] = []

    async def huge(request: web.Request) -> web.StreamResponse | None:
        served.append(request.query_string)
        if len(served) > 1:
            return None
        answer = web.StreamResponse(headers={"Content-Length": str(10**9)})
        await answer.prepare(request)
        return answer

    async with (
        a_mall(ago_ms=PAST_MS, gate=huge) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        await add_shop(connection, publisher, mall, max_open=1, **ONE_BY_ONE)
        await read_up(node, mall)
    assert (set(attempts(heard)), heard.of(SliceFailed)) == ({1}, [])
    assert served[0] != served[1]
    assert await all_is_stored(connection, mall)


# ---- who has to act


async def resume(connection: Connection, publisher: Publisher, source: SourceKey, now_ms: int) -> None:
    async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
        await ledgers.move(source, lambda ledger: (steering.resume(ledger, now_ms), None))


async def test_a_redirect_parks_the_source_and_resuming_heals(connection: Connection, publisher: Publisher) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        a_mall(ago_ms=PAST_MS) as calm,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        mall.dealer.set(faults("redirect"))
        await add_shop(connection, publisher, mall, **ONE_BY_ONE)
        told = await heard.first(SourceParked)
        await ledger_when(node.engine, SHOP, lambda ledger: ledger.state == "parked")
        await add_shop(connection, publisher, calm, CALM)
        await read_up(node, calm, CALM)
        assert node.engine.ledgers.peek(SHOP).state == "parked"  # type: ignore[union-attr]  # it is there
        await resume(connection, publisher, SHOP, told.at_ms)
        ledger = await read_up(node, mall)
    assert "elsewhere.invalid" in told.reason
    assert (len(heard.of(SourceParked)), set(attempts(heard)), ledger.holes) == (1, {1}, ())
    assert await all_is_stored(connection, mall)


SEALED = {"auth": {"kind": "header", "name": "authorization", "value": "Bearer {account.token}"}}


async def test_a_credential_rotated_in_its_file_is_taken_up(
    connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    secret = tmp_path / "token"

    async def rotate(request: web.Request) -> web.StreamResponse | None:
        """With the fifth request the old token is void, and the new one is in the file."""
        served.append(request.path)
        if len(served) == 5:
            mall._token_no += 1
            secret.write_text(mall._token())
        return None

    served: list[str] = []
    secret.touch(0o600)
    async with (
        a_mall(ago_ms=PAST_MS, needs_token=True, paging="link", gate=rotate) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        secret.write_text(mall._token())
        await put_setting(connection, publisher, "adapter.own", adapter_table(**SEALED))
        account = {"token": f"file:{secret}"}
        await add_shop(connection, publisher, mall, adapter="own", account=account, **ONE_BY_ONE)
        await read_up(node, mall)
    assert mall._token_no == 2
    assert (set(attempts(heard)), heard.of(SourceParked)) == ({1}, [])
    assert await all_is_stored(connection, mall)


async def test_a_credential_that_nobody_renews_parks_its_source_alone(
    connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.touch(0o600)
    secret.write_text("token-of-yesterday")
    async with (
        a_mall(ago_ms=PAST_MS, needs_token=True, paging="link") as mall,
        a_mall(ago_ms=PAST_MS) as calm,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        await put_setting(connection, publisher, "adapter.own", adapter_table(**SEALED))
        account = {"token": f"file:{secret}"}
        await add_shop(connection, publisher, mall, adapter="own", account=account, concurrency=8)
        await add_shop(connection, publisher, calm, CALM)
        told = await heard.first(SourceParked)
        await read_up(node, calm, CALM)
        parked = await ledger_when(node.engine, SHOP, lambda ledger: not any(piece.is_taken for piece in ledger.open))
        secret.write_text(mall._token())
        await resume(connection, publisher, SHOP, told.at_ms)
        ledger = await read_up(node, mall)
    assert "refuses the credentials" in told.reason
    assert (parked.state, {piece.attempt for piece in parked.open}, parked.holes) == ("parked", {1}, ())
    assert (len(heard.of(SourceParked)), ledger.holes) == (1, ())
    assert "token-of-yesterday" not in str(heard.all)
    assert await all_is_stored(connection, mall)


async def test_a_missing_secret_parks_the_source_and_names_it(connection: Connection, publisher: Publisher) -> None:
    async with a_mall(ago_ms=PAST_MS) as mall, running_node(connection, publisher), hearing(connection) as heard:
        await add_shop(connection, publisher, mall, account={"token": "env:NO_SUCH_VARIABLE_HERE"})
        told = await heard.first(SourceParked)
    assert "env:NO_SUCH_VARIABLE_HERE" in told.reason


async def test_an_adapter_that_can_log_in_does_so_once_for_all_slices(
    connection: Connection, publisher: Publisher
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS, needs_token=True) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        await add_shop(connection, publisher, mall, slice="2s", concurrency=8)
        await read_up(node, mall)
        assert mall._logins == 1
        mall._token_no += 1  # it runs out
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            await ledgers.move(SHOP, lambda ledger: (steering.rewind(ledger, history_start_ms(mall)), None))
        await ledger_when(node.engine, SHOP, lambda ledger: ledger.epoch == 2 and ledger.watermark_ms > last_ms(mall))
        assert mall._logins == 2
    assert (set(attempts(heard)), heard.of(SourceParked)) == ({1}, [])
    assert await all_is_stored(connection, mall)


# ---- when all goes well


@pytest.mark.three_servers
async def test_each_order_is_stored_once_when_all_goes_well(connection: Connection, publisher: Publisher) -> None:
    async with a_mall(ago_ms=PAST_MS) as mall, running_node(connection, publisher) as node:
        own: Mapping[str, Any] = {"overlap_before": "0s", "overlap_after": "0s"}
        await put_setting(connection, publisher, "adapter.own", adapter_table(overlap="0s", settle="0s"))
        await add_shop(connection, publisher, mall, concurrency=8, **own)
        await read_up(node, mall)
    keys = [(order.order_key, order.version) for order in await stored_orders(connection)]
    assert len(keys) <= len(set(keys)) * 1.2  # the adapter's own overlap of a second repeats a few


async def test_a_node_that_only_fetches_follows_no_ledger_and_reads_all(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        connected(server, connection.namespace) as far,
        Publisher(far) as far_publisher,
        running_node(connection, publisher, roles=("allocator", "monitor")) as near,
        running_node(far, far_publisher, node="n2", roles=("fetcher",), sees_ledgers=False) as plain,
    ):
        await add_source(
            connection, publisher, SHOP, adapter="mall", url=mall.url, start_ms=history_start_ms(mall), slice="5s"
        )
        end_ms = mall.start_ms
        await ledger_when(near.engine, SHOP, lambda ledger: ledger.watermark_ms >= end_ms)
        assert not plain.engine.ledgers.is_followed
        assert plain.engine.ledgers.known() == [SHOP]
        assert await stored_versions(connection, SHOP) == truth_of(mall, SHOP.source)
