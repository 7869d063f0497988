"""The monitor on a real server: who leads, what is told to whom, and what of it is told once."""

from typing import Any

import anyio
import msgspec
import pytest

from actors.fetch import hole_notices
from actors.fetch.ledgers import open_ledgers
from actors.fetch.monitor import Monitor
from actors.fetch.rules import steering
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, first_ledger, revised
from actors.fetch.sources import SourceKey, SourceRecord
from actors.runtime.notices import notify
from streams.backoff import Backoff
from streams.clock import now_ms
from streams.link.connection import Connection
from streams.messages.fetch import (
    ConsumerStuck,
    HoleMade,
    LedgerUnusable,
    SliceFailed,
    SliceOffer,
    WatermarkLag,
    encode,
)
from streams.publish.publisher import Publisher
from streams.topology.specs import fetch_consumer
from streams.topology.topology import ensure_consumer
from tests.integration.fetch.leading import WATCHES, until_leading
from tests.support.engine import (
    add_source,
    hearing,
    ledger_bucket,
    ledger_when,
    logging_of,
    put_setting,
    running_node,
)
from tests.support.letters import dead_letters
from tests.support.moments import a_moment
from tests.support.office import an_office
from tests.support.server import full

SHOP, OTHER = SourceKey("mall", "s1"), SourceKey("mall", "s2")
NOWHERE = "http://127.0.0.1:1"
OFTEN = {"scan_every": "100ms"}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hole_notices, "TOGETHER_MS", 0)


def with_hole(now: int, **changes: object) -> Ledger:
    """Return a ledger with one slice given up on, and one that is open."""
    start_ms = now - 20_000
    hole = Hole("t", 1, start_ms, start_ms + 2_000, since_ms=now, attempts=6, reason="HTTP 500")
    piece = OpenSlice("t", 1, start_ms + 2_000, start_ms + 4_000, cut_ms=now)
    ledger = Ledger(start_ms, start_ms + 4_000, start_ms, open=(piece,), holes=(hole,))
    return msgspec.structs.replace(ledger, **changes)


async def add_shop(
    connection: Connection, publisher: Publisher, ledger: Ledger, source: SourceKey = SHOP, **own: Any
) -> None:
    default = {**OFTEN, **own.pop("default", {})}
    await add_source(
        connection, publisher, source, adapter="mall", url=NOWHERE, start_ms=0, ledger=ledger, default=default, **own
    )


def all_told(ledger: Ledger) -> bool:
    return bool(ledger.holes) and all(hole.is_told for hole in ledger.holes)


# ---- holes


async def test_a_hole_is_one_dead_letter_one_notice_and_then_told(connection: Connection, publisher: Publisher) -> None:
    async with an_office() as office, running_node(connection, publisher, roles=WATCHES) as node:
        ledger = with_hole(now_ms())
        await add_shop(connection, publisher, ledger, webhook=office.url)
        await ledger_when(node.engine, SHOP, all_told)
        await add_shop(connection, publisher, with_hole(now_ms()), OTHER, webhook=office.url)
        await ledger_when(node.engine, OTHER, all_told)  # scans went on meanwhile
    (hole,) = ledger.holes
    letters, notices = await dead_letters(connection), office.taken
    assert [letter.id for letter in letters] == [f"{name}_{hole.slice_id}" for name in ("s1",)] + [letters[1].id]
    assert (letters[0].engine, letters[0].name, letters[0].reason, letters[0].attempts) == (
        "fetch",
        "mall",
        "HTTP 500",
        6,
    )
    assert [notice.source for notice in notices] == ["mall/s1", "mall/s2"]
    assert (notices[0].kind, notices[0].facts) == ("hole", {"start_ms": hole.start_ms, "end_ms": hole.end_ms})
    assert f"penstock holes redrive mall/s1 {hole.slice_id}" in notices[0].what_to_do


async def test_a_hole_is_told_though_its_letter_is_refused_and_is_unmarked_until_it_has_one(
    connection: Connection, publisher: Publisher
) -> None:
    async with (
        an_office() as office,
        running_node(connection, publisher, roles=WATCHES) as node,
        logging_of() as logged,
    ):
        async with full(connection, connection.namespace.stream("DEAD")):
            await add_shop(connection, publisher, with_hole(now_ms()), webhook=office.url)
            await office.until(1)
            await logged.first("monitor.look_failed")
            assert not all_told(await ledger_when(node.engine, SHOP, lambda ledger: True))
        await ledger_when(node.engine, SHOP, all_told)
    assert (len(office.taken), len(await dead_letters(connection))) == (1, 1)


async def test_a_webhook_is_tried_until_it_takes_the_notice(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.runtime.notices.alerts.AGAIN", Backoff(growth="exponential", base_ms=50))
    async with (
        an_office() as office,
        running_node(connection, publisher, roles=WATCHES) as node,
        logging_of() as logged,
    ):
        office.refuse = 3
        await add_shop(connection, publisher, with_hole(now_ms()), webhook=office.url)
        before = await ledger_when(node.engine, SHOP, lambda ledger: True)
        assert not all_told(before)
        await ledger_when(node.engine, SHOP, all_told)
    assert (office.refused, len(office.taken), len(await dead_letters(connection))) == (3, 1, 1)
    assert len(logged.of("notice")) == 1
    assert len(logged.of("notice.webhook_refused")) == 3


async def test_a_webhook_that_was_mended_is_used_at_the_next_try(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.runtime.notices.alerts.AGAIN", Backoff(growth="exponential", base_ms=50))
    monkeypatch.setenv("OUR_OFFICE", "http://127.0.0.1:1/of-a-secret-name")
    async with (
        an_office() as office,
        running_node(connection, publisher, roles=WATCHES) as node,
        logging_of() as logged,
    ):
        await add_shop(connection, publisher, with_hole(now_ms()), webhook="env:OUR_OFFICE")
        failed = await logged.first("notice.webhook_failed")
        monkeypatch.setenv("OUR_OFFICE", office.url)
        await ledger_when(node.engine, SHOP, all_told)
    assert "env:OUR_OFFICE" in failed["error"]
    assert "secret-name" not in str(logged.lines)
    assert len(office.taken) == 1


async def test_a_webhook_that_hangs_holds_up_nothing_else(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "TIMEOUT_S", 50.0)
    async with an_office() as office, running_node(connection, publisher, roles=WATCHES) as node:
        office.hang = anyio.Event()
        await add_shop(connection, publisher, with_hole(now_ms()), webhook=office.url)
        with anyio.fail_after(20):
            await office.asked.wait()
        await add_shop(connection, publisher, with_hole(now_ms()), OTHER, webhook="", source_settings={"webhook": ""})
        await ledger_when(node.engine, OTHER, all_told, within_s=20)  # the webhook is waited for all this time
        office.hang.set()
        await ledger_when(node.engine, SHOP, all_told)


async def test_a_new_leader_stores_no_second_letter(connection: Connection, publisher: Publisher) -> None:
    """Also long after the server has forgotten the first one's id."""
    ledger = with_hole(now_ms())
    async with running_node(connection, publisher, roles=WATCHES) as node:
        await add_shop(connection, publisher, ledger)
        await ledger_when(node.engine, SHOP, all_told)
    stream = connection.namespace.stream("DEAD")
    (letter,) = await dead_letters(connection)
    await connection.api(f"STREAM.PURGE.{stream}")
    subject = connection.namespace.dead(letter.engine, letter.name, letter.id)
    await publisher.publish(subject, encode(letter), message_id="under-another-id")
    bucket = ledger_bucket(connection, publisher)
    await bucket.put(SHOP.key, msgspec.json.encode(ledger))  # untold again: the leader died before its mark
    async with running_node(connection, publisher, roles=WATCHES, node="n2") as heir:
        await ledger_when(heir.engine, SHOP, all_told)
        again = msgspec.structs.replace(ledger.holes[0], since_ms=ledger.holes[0].since_ms + 1)
        async with open_ledgers(bucket) as ledgers:
            await ledgers.move(SHOP, lambda ledger: (msgspec.structs.replace(ledger, holes=(again,)), None))
        await ledger_when(
            heir.engine, SHOP, lambda ledger: ledger.holes[0].since_ms == again.since_ms and all_told(ledger)
        )
    assert [found.first_ms for found in await dead_letters(connection)] == [letter.first_ms, again.since_ms]


async def test_a_full_stream_of_dead_letters_keeps_nobody_from_being_told(
    connection: Connection, publisher: Publisher
) -> None:
    async with an_office() as office, running_node(connection, publisher, roles=WATCHES) as node:
        stream = connection.namespace.stream("DEAD")
        config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
        await publisher.publish(connection.namespace.dead("x", "y", "z"), b"{}", message_id="full")
        await connection.api(f"STREAM.UPDATE.{stream}", {**config, "max_msgs": 1})
        await add_shop(connection, publisher, with_hole(now_ms()), webhook=office.url)
        await office.until(1)
        ledger = node.engine.ledgers.peek(SHOP)
        assert ledger is not None
        assert not all_told(ledger)  # it has no letter yet
        await connection.api(f"STREAM.UPDATE.{stream}", config)
        await ledger_when(node.engine, SHOP, all_told)
    assert len(office.taken) == 1


class Scans:
    """The monitor's own scans. One by a test would run beside them, which no node does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun = self._ended = 0
        scan = Monitor.scan

        async def counted(monitor: Monitor) -> None:
            self._begun += 1
            await scan(monitor)
            self._ended += 1

        monkeypatch.setattr(Monitor, "scan", counted)

    async def one(self) -> None:
        """Wait for the end of a scan that begins after now."""
        wanted = self._begun + 1
        with anyio.fail_after(30):
            while self._ended < wanted:  # noqa: ASYNC110 # a scan tells nobody
                await anyio.sleep(0.01)


async def test_many_holes_of_a_platform_are_one_notice_and_so_is_their_end(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hole_notices, "TOGETHER_MS", 3_600_000)
    scans = Scans(monkeypatch)
    async with (
        an_office() as office,
        running_node(connection, publisher, roles=WATCHES) as node,
        logging_of() as logged,
    ):
        ledger = with_hole(now_ms())
        more = tuple(
            msgspec.structs.replace(ledger.holes[0], kind="b", start_ms=start_ms, end_ms=start_ms + 1_000)
            for start_ms in range(0, 20_000, 1_000)
        )
        ledger = msgspec.structs.replace(ledger, holes=(*more, *ledger.holes))
        for source in (SHOP, OTHER):
            await add_shop(connection, publisher, ledger, source, webhook=office.url)
        for source in (SHOP, OTHER):
            await ledger_when(node.engine, source, lambda ledger: bool(ledger.holes))
        await scans.one()
        monkeypatch.setattr(hole_notices, "TOGETHER_MS", 0)
        for source in (SHOP, OTHER):
            await ledger_when(node.engine, source, all_told)
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            for source in (SHOP, OTHER):
                await scans.one()
                assert len(logged.of("notice")) == 1  # a hole is left
                await ledgers.move(source, lambda ledger: (accepted(ledger), None))
                await ledger_when(node.engine, source, lambda ledger: bool(ledger.holes[0].accepted_by))
        await office.until(2)
    assert [(notice.kind, notice.source, notice.facts.get("holes")) for notice in office.taken] == [
        ("hole", "mall", 42),
        ("holes_over", "mall", None),
    ]
    assert len(await dead_letters(connection)) == 42


async def test_that_no_hole_is_left_is_told_once_though_nobody_led_when_the_last_one_went(
    connection: Connection, publisher: Publisher
) -> None:
    async with an_office() as office:
        async with running_node(connection, publisher, roles=WATCHES) as node:
            for source in (SHOP, OTHER):
                await add_shop(connection, publisher, with_hole(now_ms()), source, webhook=office.url)
                await ledger_when(node.engine, source, all_told)
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            for source in (SHOP, OTHER):
                await ledgers.move(source, lambda ledger: (accepted(ledger), None))
        for name in ("heir", "third"):
            async with running_node(connection, publisher, roles=WATCHES, node=name) as node:
                for source in (SHOP, OTHER):
                    await ledger_when(node.engine, source, lambda ledger: not ledger.owes_end)
                await node.engine.monitor.elected.wait()
                await node.engine.monitor.scan()
    assert [notice.kind for notice in office.taken] == ["hole", "hole", "holes_over"]


def accepted(ledger: Ledger) -> Ledger:
    holes = tuple(msgspec.structs.replace(hole, accepted_by="ann") for hole in ledger.holes)
    return revised(ledger, holes=holes)


# ---- holders that vanished


async def test_a_slice_held_for_too_long_goes_round_again_and_then_is_given_up(
    connection: Connection, publisher: Publisher
) -> None:
    now = now_ms()
    held = OpenSlice("t", 1, now - 20_000, now - 18_000, fence=1, holder="ghost", taken_ms=now - 5_000)
    ledger = Ledger(now - 20_000, now - 18_000, now - 20_000, fence=1, open=(held,))
    async with running_node(connection, publisher, roles=WATCHES) as node, hearing(connection) as heard:
        own: dict[str, Any] = {"timeout": "1s", "request_timeout": "1s", "stale_after": "1s", "retries": 1}
        await add_shop(connection, publisher, ledger, **own)
        failed = await heard.first(SliceFailed)
        again = await ledger_when(node.engine, SHOP, lambda ledger: ledger.open[0].attempt == 2)
        assert (again.open[0].fence, again.open[0].holder) == (0, "")
        taken = msgspec.structs.replace(again.open[0], fence=2, holder="ghost", taken_ms=now - 5_000)
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            await ledgers.move(SHOP, lambda ledger: (msgspec.structs.replace(ledger, fence=2, open=(taken,)), None))
        hole = await heard.first(HoleMade)
        given_up = await ledger_when(node.engine, SHOP, all_told)
    assert (failed.attempt, failed.node, failed.fence) == (1, "ghost", 1)
    assert "ghost held it for" in failed.reason
    assert (hole.slice_id, hole.attempts) == (held.slice_id, 2)
    assert (given_up.watermark_ms, given_up.open) == (held.start_ms, ())
    assert len(await dead_letters(connection)) == 1


# ---- what is told


async def test_a_lagging_watermark_is_told_when_it_begins_and_when_it_is_over(
    connection: Connection, publisher: Publisher
) -> None:
    now = now_ms()
    ledger = Ledger(0, now, now - 60_000, open=(OpenSlice("t", 1, now - 60_000, now, cut_ms=now),))
    async with running_node(connection, publisher, roles=WATCHES) as node, hearing(connection) as heard:
        await add_shop(connection, publisher, ledger, lag_alarm="30s")
        lags = await heard.first(WatermarkLag, is_over=False)
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            await ledgers.move(SHOP, lambda ledger: (msgspec.structs.replace(ledger, open=(), watermark_ms=now), None))
        over = await heard.first(WatermarkLag, is_over=True)
        figures = node.measures.registry
        labels = {"platform": "mall", "source": "s1"}
        assert figures.get_sample_value("penstock_watermark_lag_seconds", labels) is not None
    assert 59_000 < lags.lag_ms < 90_000
    assert lags.watermark_ms == now - 60_000
    assert over.lag_ms < 30_000
    assert len(heard.of(WatermarkLag)) == 2


async def test_figures_name_the_leader_and_a_source_that_a_person_paused(
    connection: Connection, publisher: Publisher
) -> None:
    now = now_ms()
    async with running_node(connection, publisher, roles=WATCHES) as node:
        figures, labels = node.measures.registry, {"platform": "mall", "source": "s1"}
        await until_leading(node)
        assert figures.get_sample_value("penstock_monitor_elected") == 1
        await add_shop(connection, publisher, Ledger(0, now, now, state="paused"))
        with anyio.fail_after(30):
            while figures.get_sample_value("penstock_source_paused", labels) != 1:
                await a_moment()
        assert figures.get_sample_value("penstock_source_parked", labels) == 0
    assert figures.get_sample_value("penstock_monitor_elected") == 0
    assert figures.get_sample_value("penstock_source_paused", labels) is None


async def test_a_parked_source_is_told_once_for_each_parking_and_so_is_its_end(
    connection: Connection, publisher: Publisher
) -> None:
    parked = msgspec.structs.replace(first_ledger(0), state="parked", reason="the secret is void")
    async with an_office() as office, running_node(connection, publisher, roles=WATCHES):
        await add_shop(connection, publisher, parked, webhook=office.url)
        await office.until(1)
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            await ledgers.move(SHOP, lambda ledger: (steering.resume(ledger, 1), None))
            await office.until(2)  # a scan has seen it running
            await ledgers.move(SHOP, lambda ledger: (msgspec.structs.replace(parked, epoch=ledger.epoch), None))
        notices = await office.until(3)
    assert [(notice.kind, notice.source) for notice in notices] == [
        ("parked", "mall/s1"),
        ("parked_over", "mall/s1"),
        ("parked", "mall/s1"),
    ]
    assert "the secret is void" in notices[0].text
    assert "penstock sources resume mall/s1" in notices[0].what_to_do


async def test_a_missing_or_broken_ledger_is_told_once_and_when_it_is_whole_again(
    connection: Connection, publisher: Publisher
) -> None:
    async with (
        an_office() as office,
        running_node(connection, publisher, roles=WATCHES) as node,
        hearing(connection) as heard,
        logging_of() as logged,
    ):
        await put_setting(connection, publisher, "fetch.default", OFTEN)
        await put_setting(connection, publisher, "fetch.mall", {"webhook": office.url})
        await put_setting(connection, publisher, f"source.{SHOP.key}", SourceRecord("mall"))
        missing = await heard.first(LedgerUnusable, is_over=False)
        bucket = ledger_bucket(connection, publisher)
        await bucket.put(SHOP.key, b"garbage")
        await office.until(2)
        _, broken = await heard.many(LedgerUnusable, 2, is_over=False)
        await bucket.put(SHOP.key, msgspec.json.encode(with_hole(now_ms())))
        await heard.first(LedgerUnusable, is_over=True)
        await ledger_when(node.engine, SHOP, all_told)
        await office.until(4)
    assert "has no ledger" in missing.reason
    assert "cannot be read" in broken.reason
    assert len(heard.of(LedgerUnusable)) == 3
    assert sorted(notice.kind for notice in office.taken) == ["hole", "ledger", "ledger", "ledger_over"]
    assert logged.of("monitor.look_failed") == []


async def test_a_source_without_record_is_nobodys(connection: Connection, publisher: Publisher) -> None:
    async with running_node(connection, publisher, roles=WATCHES) as node, hearing(connection) as heard:
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            await ledgers.create(SHOP, with_hole(now_ms()))
        await add_shop(connection, publisher, with_hole(now_ms()), OTHER)
        await ledger_when(node.engine, OTHER, all_told)
        ledger = node.engine.ledgers.peek(SHOP)
    assert ledger is not None
    assert not all_told(ledger)
    assert heard.of(LedgerUnusable) == []


async def test_a_stuck_consumer_is_told_and_so_is_its_end(connection: Connection, publisher: Publisher) -> None:
    spec = fetch_consumer(connection.namespace, "mall", "tail")
    async with running_node(connection, publisher, roles=(*WATCHES, "fetcher")) as node, hearing(connection) as heard:
        node.engine.monitor.progress.stuck_s = 0.3
        await ensure_consumer(connection, spec)
        pause = {"pause_until": "2099-01-01T00:00:00Z"}
        await connection.api(f"CONSUMER.PAUSE.{spec.stream}.{spec.name}", pause)  # as `nats consumer pause` does
        await add_shop(connection, publisher, msgspec.structs.replace(first_ledger(now_ms()), state="paused"))
        await offer_nothing(connection, publisher, "t1-0-1")
        stuck = await heard.first(ConsumerStuck)
        await connection.api(f"CONSUMER.PAUSE.{spec.stream}.{spec.name}", {})
        await offer_nothing(connection, publisher, "t1-1-2")  # the server serves a waiting pull with the next message
        await heard.first(ConsumerStuck, is_over=True)
    assert (stuck.stream, stuck.consumer, stuck.pending, stuck.is_over) == (spec.stream, spec.name, 1, False)
    assert stuck.at_ms - stuck.since_ms >= 300
    assert len(heard.of(ConsumerStuck)) == 2


async def offer_nothing(connection: Connection, publisher: Publisher, slice_id: str) -> None:
    subject = connection.namespace.slice_offer("mall", "tail", "s1", slice_id)
    await publisher.publish(subject, encode(SliceOffer(platform="mall", source="s1", slice_id=slice_id)))
