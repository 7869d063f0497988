"""A sink on a real server: stored, then acknowledged; what fails comes again, what cannot be stored is set aside."""

import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.fetch import sink
from actors.fetch.sink import Settings, run
from actors.fetch.stores.function import FunctionStore
from actors.fetch.stores.sqlite import SqliteStore
from actors.fetch.stores.store import OrderRefused
from actors.runtime.rules.notices import Notice
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import Connection
from streams.messages.fetch import Order, SinkDown, SinkUp, dead_payload, decode_orders, encode
from streams.publish.publisher import Publisher
from streams.pull.puller import Puller
from streams.topology.specs import sink_consumer
from tests.support.orders import order, page_of
from tests.support.server import connected, stream_state
from tests.support.sinks import (
    Seen,
    Watched,
    add_sink_streams,
    changes,
    publish_orders,
    stored,
    told,
    unsettled,
    until_settled,
)


@pytest.fixture
async def streams(connection: Connection) -> None:
    await add_sink_streams(connection)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def store(path: Path) -> Watched:
    return Watched(SqliteStore(path, history=True))


class Running:
    """A sink named `main`, and the event that stops it."""

    def __init__(self, connection: Connection, publisher: Publisher, store: Watched, **settings: int) -> None:
        self.stop = anyio.Event()
        self.run = partial(
            run,
            Settings(name="main", **{"wait_ms": 5, "batch": 500, **settings}),
            connection=connection,
            publisher=publisher,
            store=store,
            stop=self.stop,
        )


def of(function: Any) -> Watched:
    return Watched(FunctionStore(function))


@pytest.mark.three_servers
@pytest.mark.usefixtures("streams")
async def test_orders_reach_the_store_and_are_acknowledged(
    connection: Connection, publisher: Publisher, store: Watched, path: Path
) -> None:
    sent = [order(f"{at:04}") for at in range(1_200)]
    await publish_orders(connection, publisher, sent)
    running = Running(connection, publisher, store)
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await store.taken.until(lambda taken: len(taken) >= 1_200)
        running.stop.set()
    assert stored(path) == {o.order_key: 1 for o in sent}
    await until_settled(connection)
    assert max(store.batches) <= 500


@pytest.mark.usefixtures("streams")
async def test_versions_in_any_order_and_repeats_end_in_the_highest_each_applied_once(
    connection: Connection, publisher: Publisher, store: Watched, path: Path
) -> None:
    sent = [order(f"{at}", version) for version in (3, 1, 5, 2, 4) for at in range(40)]
    running = Running(connection, publisher, store, batch=30)
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await publish_orders(connection, publisher, sent)
        names = connection.namespace
        for again in sent:  # under no message id: the broker lets them all in
            await publisher.publish(names.order(again.platform, again.source, again.order_key), encode(again))
        await publish_orders(connection, publisher, [order("last")])
        await store.taken.until(lambda taken: any(o.order_key == "last" for o in taken))
        running.stop.set()
    applied = changes(path)
    assert stored(path) == {**{f"{at}": 5 for at in range(40)}, "last": 1}
    assert len(applied) == len(set(applied))
    assert await unsettled(connection) == (0, 0)


@pytest.mark.three_servers
@pytest.mark.usefixtures("streams")
async def test_order_that_the_store_refuses_is_set_aside_and_the_others_go_on(
    connection: Connection, publisher: Publisher, store: Watched, path: Path
) -> None:
    await store.open()
    forbid_versions_from(path, 9)
    sent = [order(f"{at:03}", 9 if at == 77 else 1, body=b'{"n": %d}' % at) for at in range(300)]
    running = Running(connection, publisher, store)
    await publish_orders(connection, publisher, sent)
    async with told(connection) as heard, anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await heard.events.until(lambda events: events)
        await store.taken.until(lambda taken: len(taken) >= 299)
        running.stop.set()
    (letter,) = heard.letters.all
    assert (letter.engine, letter.name, letter.id, letter.reason) == ("sink", "main", "78", "forbidden")
    assert dead_payload(letter) == encode(sent[77])
    assert heard.tags() == ["order_buried"]
    assert len(stored(path)) == 299
    await until_settled(connection)


def forbid_versions_from(path: Path, least: int) -> None:
    """Have the database refuse versions from `least`, as a constraint of the user's own would."""
    connection = sqlite3.connect(path)
    connection.execute(
        f"CREATE TRIGGER own BEFORE INSERT ON orders WHEN NEW.version >= {least} "
        "BEGIN SELECT RAISE(ABORT, 'forbidden'); END"
    )
    connection.close()


@pytest.mark.usefixtures("streams")
async def test_older_version_is_stored_when_the_newest_is_refused(
    connection: Connection, publisher: Publisher, store: Watched, path: Path
) -> None:
    await store.open()
    forbid_versions_from(path, 9)
    await publish_orders(connection, publisher, [order("a", 7), order("a", 10), order("a", 8), order("a", 9)])
    running = Running(connection, publisher, store)
    async with told(connection) as heard, anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await store.taken.until(lambda taken: taken)
        running.stop.set()
    assert stored(path) == {"a": 8}
    assert [letter.id for letter in heard.letters.all] == ["2", "4"]
    assert await unsettled(connection) == (0, 0)


@pytest.mark.usefixtures("streams")
async def test_malformed_message_is_set_aside_as_it_is(
    connection: Connection, publisher: Publisher, store: Watched, path: Path
) -> None:
    subject = connection.namespace.order("taobao", "shop1", "x")
    for payload in (b"\x00\xff", b'{"type":"order"}', b""):
        await publisher.publish(subject, payload)
    await publish_orders(connection, publisher, [order("good")])
    running = Running(connection, publisher, store)
    async with told(connection) as heard, anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await heard.letters.until(lambda letters: len(letters) == 3)
        await store.taken.until(lambda taken: taken)
        running.stop.set()
    assert {dead_payload(letter) for letter in heard.letters.all} == {b"\x00\xff", b'{"type":"order"}', b""}
    assert all(letter.reason.startswith("malformed") for letter in heard.letters.all)
    assert stored(path) == {"good": 1}
    assert await unsettled(connection) == (0, 0)


@pytest.mark.usefixtures("streams")
async def test_message_too_large_for_a_letter_is_set_aside_without_its_body(
    connection: Connection, publisher: Publisher, store: Watched
) -> None:
    await publisher.publish(connection.namespace.order("taobao", "shop1", "x"), b"\xff" * 1_000_000)
    running = Running(connection, publisher, store)
    async with told(connection) as heard, anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await heard.letters.until(lambda letters: letters)
        running.stop.set()
    assert dead_payload(heard.letters.all[0]) == b"null"
    assert "message 1 of the stream of orders" in heard.letters.all[0].reason
    assert await unsettled(connection) == (0, 0)


async def test_store_that_is_down_keeps_its_orders_alive_and_is_told_once(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outage is longer than the ack wait; another sink of the same consumer must not get the orders meanwhile."""
    monkeypatch.setattr(sink, "KEEP_ALIVE_S", 0.1)
    await add_sink_streams(connection, ack_wait_s=2.0)
    is_up = False

    async def take(_orders: Sequence[Order]) -> None:
        if not is_up:
            raise ConnectionRefusedError(111, "refused")

    store = of(take)
    await publish_orders(connection, publisher, [order(f"{at}") for at in range(20)])
    running, notices = Running(connection, publisher, store), list[Notice]()
    spec = sink_consumer(connection.namespace, "main")
    async with told(connection) as heard, anyio.create_task_group() as tasks:
        await tasks.start(partial(running.run, tell=notices.append))
        await heard.events.until(lambda events: events)
        async with Puller(connection, spec.stream, spec.name, capacity=10) as other:
            with anyio.move_on_after(3.0) as waited:
                await other.receive()
        assert waited.cancelled_caught
        assert await unsettled(connection) == (0, 20)
        is_up = True
        await heard.events.until(lambda events: len(events) >= 2)
        running.stop.set()
    down, up = heard.events.all
    assert isinstance(down, SinkDown)
    assert isinstance(up, SinkUp)
    assert "refused" in down.reason
    assert [(notice.kind, notice.source) for notice in notices] == [
        ("sink_down", "sink main"),
        ("sink_up", "sink main"),
    ]
    assert (up.down_ms, down.pending) == (down.at_ms, 0)
    assert len(store.taken.all) == 20
    assert heard.letters.all == []
    assert await unsettled(connection) == (0, 0)


@pytest.mark.usefixtures("streams")
async def test_order_for_which_alone_a_function_fails_is_set_aside_when_others_pass(
    connection: Connection, publisher: Publisher
) -> None:
    async def take(orders: Sequence[Order]) -> None:
        if any(o.order_key == "bad" for o in orders):
            raise KeyError("sku")

    store = of(take)
    await publish_orders(connection, publisher, [order("a"), order("bad"), order("c")])
    running = Running(connection, publisher, store)
    async with told(connection) as heard, anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await heard.letters.until(lambda letters: letters)
        running.stop.set()
    assert {o.order_key for o in store.taken.all} == {"a", "c"}
    assert "KeyError" in heard.letters.all[0].reason
    assert heard.tags() == ["order_buried"]
    assert await unsettled(connection) == (0, 0)


@pytest.mark.usefixtures("streams")
async def test_function_that_fails_for_all_loses_nothing_and_a_later_order_tells_whose_fault_it_was(
    connection: Connection, publisher: Publisher
) -> None:
    async def take(orders: Sequence[Order]) -> None:
        if any(o.order_key == "bad" for o in orders):
            raise KeyError("sku")

    store = of(take)
    await publish_orders(connection, publisher, [order("bad")])
    running = Running(connection, publisher, store)
    async with told(connection) as heard, anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await heard.events.until(lambda events: events)
        assert heard.tags() == ["sink_down"]
        assert heard.letters.all == []
        await publish_orders(connection, publisher, [order("good")])
        await heard.letters.until(lambda letters: letters)
        running.stop.set()
    assert [o.order_key for o in store.taken.all] == ["good"]
    assert await unsettled(connection) == (0, 0)


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("is_page", [False, True], ids=["three messages", "one page"])
async def test_full_stream_of_dead_letters_keeps_the_order_and_lets_the_others_go_on(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, *, is_page: bool
) -> None:
    monkeypatch.setattr(sink, "BURY_AGAIN_S", 0.1)
    name, names = connection.namespace.stream("DEAD"), connection.namespace
    config = {"name": name, "subjects": [names.pattern("dead", ">")], "discard": "new", "max_msgs": 1}
    await connection.api(f"STREAM.UPDATE.{name}", config)
    await publisher.publish(names.dead("sink", "main", "filler"), b"x")
    refusals: Seen[str] = Seen()

    async def take(orders: Sequence[Order]) -> None:
        for each in orders:
            if each.order_key == "bad":
                refusals.add(each.order_key)
                raise OrderRefused("no")

    store, sent = of(take), [order("a"), order("bad"), order("c")]
    if is_page:
        await publisher.publish(names.orders("taobao", "shop1"), encode(page_of(sent)))
    else:
        await publish_orders(connection, publisher, sent)
    running = Running(connection, publisher, store)
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await refusals.until(lambda all_: len(all_) >= 6)  # it comes back again and again
        assert {o.order_key for o in store.taken.all} == {"a", "c"}
        assert sum(await unsettled(connection)) == 1
        async with told(connection) as heard:
            await connection.api(f"STREAM.PURGE.{name}")
            await heard.events.until(lambda events: events)
        running.stop.set()
    assert (await stream_state(connection, name))["messages"] == 1
    assert await unsettled(connection) == (0, 0)


@pytest.mark.usefixtures("streams")
async def test_stop_finishes_the_batch_in_hand_and_gives_the_rest_back_at_once(
    connection: Connection, publisher: Publisher
) -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    async def take(_orders: Sequence[Order]) -> None:
        begun.set()
        await go_on.wait()

    store = of(take)
    await publish_orders(connection, publisher, [order(f"{at:02}") for at in range(30)])
    running = Running(connection, publisher, store, batch=10)
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await begun.wait()
        running.stop.set()
        go_on.set()
    left = 30 - len(store.taken.all)
    assert len(store.taken.all) == 10
    assert len(await received(connection, left)) == left  # long before the ack wait of 30 s


async def received(connection: Connection, count: int) -> list[str]:
    """Take `count` orders from the consumer, and give them back."""
    spec = sink_consumer(connection.namespace, "main")
    subjects: list[str] = []
    async with Puller(connection, spec.stream, spec.name, capacity=count) as puller:
        with anyio.fail_after(20):
            while len(subjects) < count:
                for delivery in await puller.receive_many(count, 0):
                    subjects.append(delivery.subject)
                    await delivery.nak(30)
    return subjects


@pytest.mark.usefixtures("streams")
async def test_stop_in_an_outage_does_not_wait_for_its_end(connection: Connection, publisher: Publisher) -> None:
    async def take(_orders: Sequence[Order]) -> None:
        raise ConnectionRefusedError(111, "refused")

    store = of(take)
    await publish_orders(connection, publisher, [order(f"{at}") for at in range(5)])
    running = Running(connection, publisher, store)
    async with told(connection) as heard:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                await tasks.start(running.run)
                await heard.events.until(lambda events: events)
                running.stop.set()
    assert len(await received(connection, 5)) == 5


@pytest.mark.usefixtures("streams")
async def test_cancelled_sink_gives_back_what_is_in_hand(connection: Connection, publisher: Publisher) -> None:
    begun = anyio.Event()

    async def take(_orders: Sequence[Order]) -> None:
        begun.set()
        await anyio.sleep_forever()

    await publish_orders(connection, publisher, [order(f"{at}") for at in range(5)])
    running = Running(connection, publisher, of(take))
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await begun.wait()
        tasks.cancel_scope.cancel()
    assert len(await received(connection, 5)) == 5


@pytest.mark.usefixtures("streams")
async def test_store_that_cannot_be_opened_is_told_before_the_first_order(
    connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    path = tmp_path / "later" / "orders.db"
    store = Watched(SqliteStore(path))
    running = Running(connection, publisher, store)
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        path.parent.mkdir()
        await publish_orders(connection, publisher, [order("a")])
        await store.taken.until(lambda taken: taken)
        running.stop.set()
    assert stored(path) == {"a": 1}


@pytest.mark.three_servers
@pytest.mark.usefixtures("streams")
async def test_two_sinks_share_a_consumer_and_a_file(connection: Connection, publisher: Publisher, path: Path) -> None:
    taken: Seen[Order] = Seen()
    stores = [Watched(SqliteStore(path, history=True)) for _ in range(2)]
    for each in stores:
        each.taken = taken
    sinks = [Running(connection, publisher, each, batch=50) for each in stores]
    async with anyio.create_task_group() as tasks:
        for running in sinks:
            await tasks.start(running.run)
        await publish_orders(connection, publisher, [order(f"{at:03}") for at in range(600)])
        await taken.until(lambda all_: len(all_) >= 600)
        for running in sinks:
            running.stop.set()
    assert sorted(changes(path)) == [(f"{at:03}", 1) for at in range(600)]
    assert all(each.batches for each in stores)


@pytest.fixture
async def own_server(tmp_path: Path) -> Any:
    async with embedded_server(tmp_path / "server") as running:
        yield running


async def test_broker_killed_while_a_batch_is_stored_costs_no_order_and_doubles_none(
    own_server: EmbeddedServer, path: Path
) -> None:
    """Its acknowledgements are sent after the reconnect, or are lost and the batch comes again: the same either way."""
    commits, go_on = anyio.Event(), anyio.Event()
    real = SqliteStore(path, history=True)

    class Slow(Watched):
        async def store(self, orders: Sequence[Order]) -> int:
            changed = await super().store(orders)
            commits.set()
            await go_on.wait()
            return changed

    store = Slow(real)
    async with connected(own_server) as connection, Publisher(connection) as publisher:
        await add_sink_streams(connection, ack_wait_s=0.5)
        await publish_orders(connection, publisher, [order(f"{at:03}") for at in range(400)])
        running = Running(connection, publisher, store, batch=100)
        async with anyio.create_task_group() as tasks:
            await tasks.start(running.run)
            await commits.wait()
            await own_server.kill()
            go_on.set()
            await own_server.restart()
            await publish_orders(connection, publisher, [order("last")])
            await store.taken.until(lambda taken: len({o.order_key for o in taken}) == 401, within_s=20)
            running.stop.set()
        assert sorted(changes(path)) == [*((f"{at:03}", 1) for at in range(400)), ("last", 1)]


@pytest.mark.usefixtures("streams")
async def test_page_with_an_order_that_is_refused_is_acknowledged_when_the_order_is_buried(
    connection: Connection, publisher: Publisher
) -> None:
    async def take(orders: Sequence[Order]) -> None:
        if any(o.order_key == "bad" for o in orders):
            raise OrderRefused("no such sku")

    store = of(take)
    page = page_of([order("a"), order("bad"), order("c")])
    await publisher.publish(connection.namespace.orders("taobao", "shop1"), encode(page))
    running = Running(connection, publisher, store)
    async with told(connection) as heard, anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await heard.letters.until(lambda letters: letters)
        running.stop.set()
    assert {o.order_key for o in store.taken.all} == {"a", "c"}
    [letter] = heard.letters.all
    assert decode_orders(dead_payload(letter)) == [order("bad")]
    assert await unsettled(connection) == (0, 0)
