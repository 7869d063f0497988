"""The server's clock, measured on a real server: never ahead of it, and close behind."""

import logging

import anyio
import pytest

from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.link import server_clock
from streams.link.connection import Connection, connect
from streams.link.server_clock import ServerClock
from streams.publish.publisher import Publisher
from streams.reads.log import read_log
from tests.support.moments import a_moment
from tests.support.proxy import proxy
from tests.support.server import add_stream, fresh_namespace

pytestmark = pytest.mark.timeout(300)


async def test_it_is_the_local_clock_before_it_was_measured(connection: Connection) -> None:
    clock = ServerClock(connection, ["NONE"])
    before = now_ms()
    assert before <= clock.now_ms() <= now_ms()
    assert not clock.is_measured
    assert clock.offset_ms == 0
    assert clock.seconds_until(now_ms() + 60_000) == pytest.approx(60, abs=5)


async def test_it_is_never_ahead_of_the_servers_stamps(connection: Connection, publisher: Publisher) -> None:
    stream = await add_stream(connection, "ONE", allow_direct=True)
    clock = ServerClock(connection, [stream])
    await clock.measure()
    told = []
    for _ in range(50):
        told.append(clock.now_ms())
        await publisher.publish(connection.namespace.subject("one", "a"), b"")
    stamps = [entry.stored_ms async for entry in read_log(connection, stream, ">")]
    assert len(stamps) == 50
    assert all(ours <= theirs for ours, theirs in zip(told, stamps, strict=True))
    assert clock.is_measured
    assert -5_000 < clock.offset_ms <= 1  # one machine, one clock; the answer's way back on a busy one


async def test_a_local_clock_that_is_off_does_not_matter(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ServerClock(connection, [await add_stream(connection, "ONE")])
    monkeypatch.setattr(server_clock, "now_ms", lambda: now_ms() + 90_000)
    await clock.measure()
    assert clock.now_ms() <= now_ms()
    assert clock.offset_ms < -80_000
    assert clock.seconds_until(now_ms() + 30_000) >= 29.9


async def test_it_never_steps_back_a_little(connection: Connection) -> None:
    clock = ServerClock(connection, [await add_stream(connection, "ONE")])
    last = 0
    for _ in range(20):
        await clock.measure()
        told = clock.now_ms()
        assert told >= last
        last = told


async def test_a_missing_stream_leaves_the_local_clock_and_is_told_once(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ServerClock(connection, [connection.namespace.stream("NONE")])

    def told() -> list[str]:
        return [record.message for record in caplog.records if record.name == "streams.link.server_clock"]

    with caplog.at_level(logging.WARNING), anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await tasks.start(clock.run)
            assert told() == ["clock.not_measured"]
            assert clock.offset_ms == 0
            await add_stream(connection, "NONE")
            while clock.offset_ms == 0:  # it keeps trying
                await a_moment()
            tasks.cancel_scope.cancel()
    assert told() == ["clock.not_measured"]


async def test_it_is_measured_again_after_a_reconnect(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="clock", namespace=fresh_namespace()) as connection:
        clock = ServerClock(connection, [await add_stream(connection, "ONE")])
        measured = 0

        async def counted() -> None:
            nonlocal measured
            await ServerClock.measure(clock)
            measured += 1

        clock.measure = counted  # type: ignore[method-assign] # counts, and measures
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                await tasks.start(clock.run)
                assert measured == 1
                await own_server.restart()
                while measured < 2:
                    await a_moment()
                tasks.cancel_scope.cancel()
        assert clock.now_ms() <= now_ms()


async def test_a_clock_that_is_measured_by_slow_answers_is_measured_better_when_they_are_fast(
    own_server: EmbeddedServer,
) -> None:
    """A node that starts answers itself late, too. A receipt that has run out would count there."""
    async with proxy(own_server.port) as wire:
        async with connect(wire.url, name="clock", namespace=fresh_namespace()) as connection:
            clock = ServerClock(connection, [await add_stream(connection, "ONE")])
            wire.delay(0.15)
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(clock.measure)
                    while not clock.is_measured:
                        await a_moment()
                    assert clock.offset_ms < -100
                    wire.heal()
                while clock.offset_ms <= -60:  # a busy machine answers late, too
                    await clock.measure()
            assert clock.offset_ms <= 1
            wire.delay(0.15)
            await clock.measure()
            assert -60 < clock.offset_ms <= 1  # what was known is not given up
