"""All nodes follow the settings within a second, and a bad one changes nothing but what people are told."""

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from actors.fetch.settings import watch as watching
from actors.fetch.settings.history import kept_values
from actors.fetch.settings.levels import DEFAULT, LevelName
from actors.fetch.settings.replay import InForce, Kept, newest_together
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.sources import SourceKey
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import Connection, connect
from streams.messages.fetch import FetchEvent, SettingsRefused
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import wanted
from tests.support.moments import a_moment
from tests.support.server import make_topology

MALL, ONE = LevelName("mall"), LevelName("mall", "one")


class Follower:
    """One node's live settings, and what it told."""

    def __init__(self, connection: Connection, publisher: Publisher) -> None:
        name = connection.namespace.bucket("SETTINGS")
        self.bucket = Bucket(connection, publisher, name, bytes)
        self.events: list[FetchEvent] = []
        self.changes: list[SourceKey] = []
        self.news = anyio.Event()
        self.live = LiveSettings(self.bucket, clock=SYSTEM, history=kept_values(connection, name), tell=self._tell)
        self.live.on_change(self._changed)

    def _tell(self, event: FetchEvent) -> None:
        self.events.append(event)
        self._wake()

    def _changed(self, source: SourceKey) -> None:
        self.changes.append(source)
        self._wake()

    def _wake(self) -> None:
        self.news.set()
        self.news = anyio.Event()

    @property
    def refused(self) -> list[str]:
        return [event.key for event in self.events if isinstance(event, SettingsRefused)]

    def retries(self) -> int:
        return self.live.current("mall", "one").retries

    async def until(self, is_so: Callable[[], bool], within_s: float = 30) -> None:
        with anyio.fail_after(within_s):
            while not is_so():
                await self.news.wait()

    async def until_retries(self, retries: int) -> None:
        await self.until(lambda: self.retries() == retries)

    async def set(self, name: LevelName, text: str | None = None, **values: object) -> int:
        raw = json.dumps(values) if text is None else text
        return await self.bucket.put(name.key, raw.encode())


@asynccontextmanager
async def follower(server: EmbeddedServer, namespace: Namespace) -> AsyncIterator[Follower]:
    async with connect(server.url, name="node", namespace=namespace) as connection, Publisher(connection) as publisher:
        made = Follower(connection, publisher)
        assert made.retries() == 5
        yield made


@pytest.fixture
async def ready(connection: Connection, namespace: Namespace) -> Namespace:
    await make_topology(connection, wanted(namespace, profile="fast"))
    return namespace


async def test_two_nodes_follow_a_change_within_a_second(server: EmbeddedServer, ready: Namespace) -> None:
    async with follower(server, ready) as a, follower(server, ready) as b, anyio.create_task_group() as tasks:
        await tasks.start(a.live.run)
        await tasks.start(b.live.run)
        took_s = []
        for retries, level in [(7, DEFAULT), (8, MALL), (9, ONE)]:
            began_s = anyio.current_time()
            await a.set(level, retries=retries)
            for node in (a, b):
                await node.until_retries(retries)
            took_s.append(anyio.current_time() - began_s)
        assert min(took_s) < 1 + 4  # a second, and what a busy machine adds
        await a.bucket.delete(ONE.key)
        await b.until(lambda: b.retries() == 8)
        assert b.changes == [SourceKey("mall", "one")] * 4
        tasks.cancel_scope.cancel()


async def test_a_revision_is_told_together_with_the_levels_it_belongs_to(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with follower(server, ready) as a, anyio.create_task_group() as tasks:
        first = await a.set(MALL, retries=1)
        await tasks.start(a.live.run)
        second = await a.set(MALL, retries=2)
        seen = set()
        while (told := a.live.revisions()[MALL.key]) != second:
            seen.add((told, a.live.levels.values(MALL)["retries"]))
            await anyio.lowlevel.checkpoint()
        assert (seen, a.live.levels.values(MALL)) == ({(first, 1)}, {"retries": 2})
        tasks.cancel_scope.cancel()


async def test_what_stands_there_at_the_start_is_in_force_once_started(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with follower(server, ready) as a, anyio.create_task_group() as tasks:
        await a.set(MALL, retries=3)
        await tasks.start(a.live.run)
        assert a.retries() == 3
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "text",
    ["{", '{"retries":-1}', "\ufeff{}"],
)
async def test_a_bad_level_is_told_and_the_last_good_one_stays(
    server: EmbeddedServer, ready: Namespace, text: str
) -> None:
    async with follower(server, ready) as a, anyio.create_task_group() as tasks:
        await a.set(MALL, retries=7)
        await tasks.start(a.live.run)
        revision = await a.set(MALL, text)
        await a.until(lambda: a.refused == ["fetch.mall"])
        assert a.retries() == 7
        assert [refusal.revision for refusal in a.live.refused()] == [revision]
        await a.set(MALL, retries=8)
        await a.until(lambda: a.retries() == 8)
        assert a.live.refused() == ()
        tasks.cancel_scope.cancel()


async def test_levels_that_do_not_fit_together_leave_the_last_good_one_and_are_tried_again(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with follower(server, ready) as a, anyio.create_task_group() as tasks:
        await a.set(ONE, slice="5s")
        await tasks.start(a.live.run)
        await a.set(DEFAULT, overlap_before="30s", retries=9)
        await a.until(lambda: a.refused == ["fetch.default"])
        assert a.live.current("mall", "two").retries == 5
        await a.set(ONE, slice="60s")
        await a.until(lambda: a.retries() == 9)
        assert a.live.current("mall", "two").overlap_before_ms == 30_000
        assert a.live.refused() == ()
        tasks.cancel_scope.cancel()


async def test_a_node_that_starts_later_finds_the_last_good_value_in_the_history(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with follower(server, ready) as a, anyio.create_task_group() as tasks:
        await a.set(MALL, retries=6)
        await a.set(MALL, retries=7)
        await a.set(MALL, "{")
        await a.set(MALL, retries=-1)
        await tasks.start(a.live.run)
        assert a.retries() == 7
        assert a.refused == ["fetch.mall"]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "writes",
    [
        [(MALL, '{"slice":"10s"}'), (MALL, None), (MALL, "{")],
        [(MALL, '{"slice":"10s"}'), (MALL, '{"slice":"45s"}'), (ONE, '{"overlap_before":"40s"}'), (MALL, "{")],
        [(ONE, '{"slice":"5s"}'), (DEFAULT, '{"overlap_before":"30s"}'), (MALL, "{"), (ONE, None)],
        [(DEFAULT, '{"slice":"5m"}'), (MALL, '{"overlap_before":"2m"}'), (DEFAULT, None), (DEFAULT, "{")],
        [(DEFAULT, '{"slice":"5m"}'), (ONE, '{"overlap_before":"2m"}'), (DEFAULT, None)],
        [(MALL, '{"slice":"45s"}'), *[(MALL, f'{{"slice":{number}}}') for number in range(12)]],
        [(MALL, '{"slice":"10s","overlap_before":"1s"}'), (ONE, '{"overlap_before":"8s"}'), (MALL, '{"slice":"5s"}')],
    ],
)
async def test_nodes_hold_the_same_whenever_they_started(
    server: EmbeddedServer, ready: Namespace, writes: list[tuple[LevelName, str | None]]
) -> None:
    async with (
        follower(server, ready) as first,
        follower(server, ready) as second,
        follower(server, ready) as last,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(first.live.run)
        for number, (name, text) in enumerate(writes, start=1):
            if text is None:
                await first.bucket.delete(name.key)
            else:
                await first.set(name, text)
            if number == len(writes) // 2:
                await tasks.start(second.live.run)
        mark = await first.set(LevelName("mark"), retries=1)
        await tasks.start(last.live.run)
        held = []
        for node in (first, second, last):
            with anyio.fail_after(30):
                while not node.live.has_seen("mark", "", mark) or node.live.revisions().get("fetch.mark") != mark:
                    await a_moment()
            names = (DEFAULT, MALL, ONE)
            held.append(
                ([node.live.levels.settings(name) for name in names], sorted(each.key for each in node.live.refused()))
            )
        assert held[0] == held[2]
        assert held[1] == held[2]
        tasks.cancel_scope.cancel()


async def test_keys_that_are_no_level_are_told_once_and_harm_nobody(server: EmbeddedServer, ready: Namespace) -> None:
    async with follower(server, ready) as a, anyio.create_task_group() as tasks:
        await tasks.start(a.live.run)
        await a.bucket.put("fetch.mall.one.two", b"{}")
        await a.until(lambda: a.refused == ["fetch.mall.one.two"])
        await a.bucket.delete("fetch.mall.one.two")
        await a.set(ONE, retries=9)
        await a.until(lambda: a.retries() == 9)
        assert a.live.refused() == ()
        tasks.cancel_scope.cancel()


async def test_a_flapping_level_costs_a_few_recomputations_a_second_and_ends_right(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with follower(server, ready) as a, anyio.create_task_group() as tasks:
        await tasks.start(a.live.run)
        started_s = anyio.current_time()
        for turn in range(200):
            await a.set(MALL, retries=turn % 2)
        await a.set(MALL, retries=42)
        await a.until(lambda: a.retries() == 42)
        assert len(a.changes) <= 2 + (anyio.current_time() - started_s) / watching.GAP_S
        tasks.cancel_scope.cancel()


async def test_followed_again_after_it_failed_it_knows_what_was_deleted_meanwhile(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with follower(server, ready) as a:
        await a.set(ONE, retries=9)
        async with anyio.create_task_group() as tasks:
            await tasks.start(a.live.run)
            assert a.retries() == 9
            tasks.cancel_scope.cancel()
        await a.bucket.delete(ONE.key)
        await a.set(DEFAULT, retries=3)
        async with anyio.create_task_group() as tasks:
            await tasks.start(a.live.run)
            assert a.retries() == 3
            tasks.cancel_scope.cancel()


async def test_settings_converge_over_a_restart_of_the_server(tmp_path: Path, namespace: Namespace) -> None:
    async with (
        embedded_server(tmp_path) as server,
        follower(server, namespace) as a,
        follower(server, namespace) as b,
    ):
        async with connect(server.url, name="init", namespace=namespace) as connection:
            await make_topology(connection, wanted(namespace, profile="fast"))
        async with anyio.create_task_group() as tasks:
            await a.set(DEFAULT, retries=7)
            await tasks.start(a.live.run)
            await tasks.start(b.live.run)
            await server.kill()
            assert (a.retries(), b.retries()) == (7, 7)
            await server.restart()
            async with connect(server.url, name="third", namespace=namespace) as third, Publisher(third) as publisher:
                bucket = Bucket(third, publisher, namespace.bucket("SETTINGS"), bytes)
                await bucket.put(ONE.key, b'{"retries":8}')
            await a.until(lambda: a.retries() == 8)
            await b.until(lambda: b.retries() == 8)
            tasks.cancel_scope.cancel()


async def test_a_thousand_sources_with_settings_of_their_own_stay_cheap(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with follower(server, ready) as a, anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as writers:
            for number in range(1000):
                writers.start_soon(partial(a.set, LevelName("mall", f"s{number}"), retries=number % 100))
        with anyio.fail_after(20):
            await tasks.start(a.live.run)
        assert a.live.current("mall", "s77").retries == 77
        await a.set(DEFAULT, settle="45s")
        await a.until(lambda: a.live.current("mall", "s77").settle_ms == 45_000)
        tasks.cancel_scope.cancel()


async def test_a_change_of_a_source_costs_that_source_and_a_wider_one_is_computed_beside_the_loop(
    server: EmbeddedServer, ready: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a source that is refused, and mended, has all looked at again."""
    monkeypatch.setattr(watching, "MANY", 2)
    computed: list[int] = []

    def counted(newest: list[Kept]) -> InForce | None:
        computed.append(threading.get_ident())
        return newest_together(newest)

    monkeypatch.setattr(watching, "newest_together", counted)
    async with follower(server, ready) as a, anyio.create_task_group() as tasks:
        for shop in ("one", "two", "three"):
            await a.set(LevelName("mall", shop), retries=1)
        await tasks.start(a.live.run)
        two = a.live.current("mall", "two")
        await a.until_retries(1)
        await a.set(ONE, retries=2)
        await a.until_retries(2)
        await a.bucket.delete(ONE.key)
        await a.until_retries(5)
        assert (len(computed), a.live.current("mall", "two") is two) == (1, True)
        assert a.changes == [SourceKey("mall", "one")] * 3
        assert a.live.revisions().keys() == {"fetch.mall.two", "fetch.mall.three"}
        await a.set(MALL, overlap_before="30s")
        await a.until(lambda: a.live.current("mall", "two").overlap_before_ms == 30_000)
        await a.set(ONE, slice="5s")
        await a.until(lambda: a.refused == [ONE.key])
        await a.set(ONE, slice="5m")
        await a.until(lambda: a.live.current("mall", "one").slice_ms == 300_000)
        assert len(computed) >= 4
        assert threading.get_ident() not in computed
        tasks.cancel_scope.cancel()
