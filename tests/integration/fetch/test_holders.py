"""Who holds a slice: silent holders, nodes that stop, pins, and a gate that closes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from aiohttp import web
from msgspec.structs import replace

from actors.fetch.ledgers import open_ledgers
from actors.fetch.sources import SourceKey
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.messages.fetch import SliceCompleted
from streams.publish.publisher import Outgoing, Publisher
from streams.reads.log import extent_of
from streams.topology.specs import sink_consumer
from streams.topology.topology import ensure_consumer
from tests.support.engine import (
    Node,
    a_mall,
    hearing,
    history_start_ms,
    ledger_bucket,
    ledger_when,
    logging_of,
    put_setting,
    running_node,
    stored_versions,
    truth_of,
)
from tests.support.moments import a_moment
from tests.support.proxy import proxy
from tests.support.shops import SHOP, add_shop, read_up

PAST_MS = 10_000


class Door:
    """Holds up the platform's requests, each until it is let in."""

    def __init__(self) -> None:
        self.waiting = 0
        self.is_open = False
        self._turns: list[anyio.Event] = []
        self._news = anyio.Event()

    async def pass_by(self, _request: web.Request) -> web.StreamResponse | None:
        if not self.is_open:
            turn = anyio.Event()
            self._turns.append(turn)
            self.waiting += 1
            self._news.set()
            await turn.wait()
        return None

    async def until_waiting(self, count: int, within_s: float = 30) -> None:
        """Wait until so many requests stand before the door, or have been let in."""
        with anyio.fail_after(within_s):
            while self.waiting < count:
                await self._news.wait()
                self._news = anyio.Event()

    def let_in(self, number: int) -> None:
        """Let in the request of this number, from 0."""
        self._turns[number].set()

    def open(self) -> None:
        """Let in all that wait and all that come."""
        self.is_open = True
        for turn in self._turns:
            turn.set()


@asynccontextmanager
async def far_node(url: str, near: Connection, **own: Any) -> AsyncIterator[Node]:
    """Run a node on a connection of its own."""
    async with (
        connect(url, name=own.get("node", "far"), namespace=near.namespace) as connection,
        Publisher(connection) as publisher,
        running_node(connection, publisher, **own) as node,
    ):
        yield node


def first_taken_by(holder: str, fence: int = 0) -> Any:
    return lambda ledger: any(piece.holder == holder and piece.fence > fence for piece in ledger.open)


async def test_a_silent_holder_is_followed_after_the_ack_wait_and_its_late_end_changes_nothing(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    door = Door()
    stream = connection.namespace.stream("SLICES")
    async with (
        a_mall(ago_ms=PAST_MS, orders=9, gate=door.pass_by) as mall,  # one request a window: so few need no check
        proxy(int(server.url.rpartition(":")[2])) as between,
        far_node(between.url, connection, node="silent") as silent,
        hearing(connection) as heard,
    ):
        await add_shop(connection, publisher, mall, slice="1m", max_open=1, concurrency=1)
        old = (await ledger_when(silent.engine, SHOP, first_taken_by("silent"))).open[0]
        await door.until_waiting(1)
        between.freeze()
        began_s = monotonic_s()
        async with running_node(connection, publisher, node="heir") as heir:
            await ledger_when(heir.engine, SHOP, first_taken_by("heir", old.fence))
            assert monotonic_s() - began_s < 20  # the slice itself may take a minute
            await door.until_waiting(2)
            between.heal()
            door.let_in(0)
            late = await heard.first(SliceCompleted, node="silent")
            await silent_has_forgotten(silent)
            ledger = heir.engine.ledgers.peek(SHOP)
            assert ledger is not None
            assert (ledger.open[0].holder, ledger.open[0].losses, ledger.watermark_ms) == ("heir", 1, old.start_ms)
            assert (await extent_of(connection, stream)).messages == 1  # it did not acknowledge what is the heir's
            door.open()
            await read_up(heir, mall)
    completed = heard.of(SliceCompleted, slice_id=old.slice_id)
    assert late.fence == old.fence
    assert {event.node: event.attempt for event in completed} == {"silent": 1, "heir": 1}
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


async def silent_has_forgotten(node: Node) -> None:
    """Wait until the node holds nothing that it has not settled."""
    (running,) = [one for lane, one in node.engine.fetcher._running.items() if lane.is_tail]
    with anyio.fail_after(30):
        while running.puller is None or running.puller.held:
            await a_moment()


async def test_a_stop_finishes_what_is_in_hand_and_begins_nothing(connection: Connection, publisher: Publisher) -> None:
    door = Door()
    async with (
        a_mall(ago_ms=PAST_MS, orders=50, gate=door.pass_by) as mall,
        hearing(connection) as heard,
        running_node(connection, publisher) as node,
    ):
        await add_shop(connection, publisher, mall, slice="10s", concurrency=2, max_open=6)
        await door.until_waiting(2)
        node.stop.set()
        door.open()
        with anyio.fail_after(20):
            await node.has_ended.wait()
    async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
        ledger = await ledgers.move(SHOP, lambda ledger: (ledger, ledger))
    assert ledger.fence == 2
    assert [piece for piece in ledger.open if piece.is_taken] == []
    assert len(heard.of(SliceCompleted)) == 2


async def test_past_the_drain_deadline_all_is_given_back_at_once(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    door, given_back = Door(), list[bytes]()
    advisories = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.{connection.namespace.stream('SLICES')}.>"
    async with (
        a_mall(ago_ms=PAST_MS, orders=50, gate=door.pass_by) as mall,
        hearing(connection) as heard,
        far_node(server.url, connection, node="leaver", drain_s=0.2) as leaver,
    ):
        await connection.subscribe(advisories, lambda message: given_back.append(message.payload))
        await add_shop(connection, publisher, mall, slice="10s", concurrency=4, max_open=4)
        await door.until_waiting(4)
        leaver.stop.set()
        with anyio.fail_after(20):
            await leaver.has_ended.wait()
            while len(given_back) < 4:
                await a_moment()
        door.open()
        async with running_node(connection, publisher, node="heir") as heir:
            await read_up(heir, mall)
    assert {event.attempt for event in heard.of(SliceCompleted)} == {1}
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


async def test_a_pinned_source_is_read_by_nodes_with_the_label_alone(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    free = SourceKey("mall", "s2")
    async with (
        a_mall(ago_ms=PAST_MS, shops=2) as mall,
        running_node(connection, publisher, node="plain") as plain,
        hearing(connection) as heard,
    ):
        await add_shop(connection, publisher, mall, source_settings={"pin": "cn"}, slice="5s")
        await add_shop(connection, publisher, mall, free, slice="5s")
        await read_up(plain, mall, free)
        held = plain.engine.ledgers.peek(SHOP)
        assert held is not None
        assert held.fence == 0
        async with far_node(server.url, connection, node="labelled", labels=("cn",)) as labelled:
            await read_up(labelled, mall)
    assert {event.node for event in heard.of(SliceCompleted, source="s1")} == {"labelled"}
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


async def test_a_pin_that_changes_moves_what_waits_and_leaves_what_is_in_hand(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    door = Door()
    async with (
        a_mall(ago_ms=PAST_MS, orders=50, gate=door.pass_by) as mall,
        running_node(connection, publisher, node="plain") as plain,
        far_node(server.url, connection, node="labelled", labels=("cn",), roles=("fetcher",)) as labelled,
        hearing(connection) as heard,
    ):
        for node in (plain, labelled):
            await until_known(node, 2)
        await add_shop(connection, publisher, mall, slice="5s", concurrency=1, max_open=6, reoffer="1m")
        await door.until_waiting(2)  # one slice in the hands of each
        await put_setting(connection, publisher, f"fetch.{SHOP.key}", {"pin": "cn"})
        await until_pinned(plain, "cn")
        door.open()
        ledger = await read_up(labelled, mall)
    by_plain = heard.of(SliceCompleted, node="plain")
    assert len(by_plain) <= 2  # what it had in hand, and what it took before it heard
    assert {event.attempt for event in heard.of(SliceCompleted)} == {1}
    assert ledger.holes == ()
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


async def until_known(node: Node, count: int) -> None:
    changed = anyio.Event()
    node.members.on_change(lambda: changed.set())
    with anyio.fail_after(20):
        while len(node.members.names()) < count:
            await changed.wait()
            changed = anyio.Event()


async def until_pinned(node: Node, pin: str) -> None:
    changed = anyio.Event()
    node.settings.on_change(lambda _source: changed.set())
    with anyio.fail_after(20):
        while node.settings.current(SHOP.platform, SHOP.source).pin != pin:
            await changed.wait()
            changed = anyio.Event()


async def test_a_full_sink_stops_the_fetching_until_it_has_caught_up(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.fetch.fetcher.lanes.GATE_PERIOD_S", 0.05)
    monkeypatch.setattr("actors.fetch.rules.sink_backlogs.LONGEST_S", 0.1)
    spec = sink_consumer(connection.namespace, "books")
    subject = connection.namespace.orders("elsewhere", "s1")
    waiting = [Outgoing(subject, b"{}", str(number)) for number in range(50)]
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        running_node(connection, publisher) as node,
        logging_of() as logged,
    ):
        await ensure_consumer(connection, spec)
        await ensure_consumer(connection, replace(spec, name="somebodys_own"))
        await put_setting(connection, publisher, "fetch.default", {"sink_backlog": 49})
        await publisher.publish_many(waiting)
        closed = await logged.first("fetcher.gate_closed")
        await add_shop(connection, publisher, mall, slice="5s", default={"sink_backlog": 49})
        ledger = await ledger_when(node.engine, SHOP, lambda ledger: len(ledger.open) > 5)
        assert ledger.fence == 0
        await connection.api(f"CONSUMER.DELETE.{spec.stream}.{spec.name}")  # caught up, all at once
        await read_up(node, mall)
    (opened,) = logged.of("fetcher.gate_opened")
    assert (closed["consumer"], closed["backlog"], closed["sink_backlog"]) == ("sink_books", 50, 49)
    assert opened["backlog"] == 0  # what others do with the orders is their own affair


async def test_a_consumer_deleted_by_hand_is_made_again(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.fetch.fetcher.lanes.CONSUMERS_PERIOD_S", 0.2)
    stream = connection.namespace.stream("SLICES")
    async with a_mall(ago_ms=PAST_MS, shops=2) as mall, running_node(connection, publisher) as node:
        await add_shop(connection, publisher, mall)
        await read_up(node, mall)
        await connection.api(f"CONSUMER.DELETE.{stream}.fetch_mall_tail")
        await add_shop(connection, publisher, mall, SourceKey("mall", "s2"))
        await read_up(node, mall, SourceKey("mall", "s2"))


async def test_a_fetcher_that_is_started_again_goes_on(connection: Connection, publisher: Publisher) -> None:
    """As after a failure: the supervisor calls `run` once more."""
    door = Door()
    async with (
        a_mall(ago_ms=PAST_MS, orders=50, gate=door.pass_by) as mall,
        running_node(connection, publisher, roles=("allocator",)) as node,
        hearing(connection) as heard,
    ):
        await add_shop(connection, publisher, mall, slice="5s", concurrency=2, max_open=4)
        for attempt in range(2):
            async with anyio.create_task_group() as tasks:
                for actor in node.engine.actors():
                    if actor.name in ("fetcher", "monitor"):
                        await tasks.start(lambda *, task_status, run=actor.run: run(task_status=task_status))
                if attempt == 0:
                    await door.until_waiting(2)
                else:
                    door.open()
                    await read_up(node, mall)
                tasks.cancel_scope.cancel()
    assert len(node.engine.sources._listeners) == 2  # the allocator's and the fetcher's, once each
    assert {event.attempt for event in heard.of(SliceCompleted)} == {1}
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


async def test_slices_go_on_through_the_death_of_the_server(own_server: EmbeddedServer) -> None:
    async with (
        connect(own_server.url, name="test") as connection,
        Publisher(connection) as publisher,
        a_mall(ago_ms=PAST_MS, orders=2_000, faults={"late": 1.0, "late_ms": 50}) as mall,
        running_node(connection, publisher) as node,
    ):
        await add_shop(connection, publisher, mall, slice="2s", concurrency=8)
        for at_ms in (10_000, 20_000):
            start_ms = history_start_ms(mall)
            await ledger_when(node.engine, SHOP, lambda ledger, to_ms=start_ms + at_ms: ledger.watermark_ms > to_ms)  # type: ignore[misc]
            await own_server.kill()
            await own_server.restart()
        ledger = await read_up(node, mall, within_s=40)
        assert ledger.holes == ()
        assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")
