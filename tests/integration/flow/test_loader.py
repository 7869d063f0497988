"""A loader calls the code of a flow for so many shards at a time, and adds the rows of others meanwhile. Whatever the
code returns, the rows that can be in flight are."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import msgspec
import pytest

from actors.flow import loader as loader_module
from actors.flow.flows import FlowLimits, ShardState, rows_topic
from actors.flow.handler import FlowContext, FlowHandler, LoadedRow
from actors.flow.loader import Loader
from actors.jobs.row_adds import RowAdds, Since
from penstock.sdk.flows import _async
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.messages.flow import ANY_GROUP, LoadShard, ShardLoaded
from tests.support.job_workers import opened_topics
from tests.support.jobs import open_jobs
from tests.support.moments import a_moment

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

Load = Callable[[FlowContext, str, int], Any]


class Asks(Protocol):
    """Asks the loader for rows."""

    async def __call__(self, *, shard: str = "1", limit: int = 3, after: str = "") -> ShardLoaded: ...


class Slow:
    """A job engine that takes rows only when two shards wait for it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.both = anyio.Event()

    def since(self) -> tuple[float, str]:
        return 0.0, ""

    async def add_rows(self, flow: str, rows: Sequence[LoadedRow], since: tuple[float, str], epoch: int) -> list[bool]:
        self.waiting += 1
        if self.waiting == 2:
            self.both.set()
        await self.both.wait()
        return [True] * len(rows)


class Engine:
    """The job engine's door, as a node has it."""

    def __init__(self, adds: RowAdds) -> None:
        self.since = adds.since
        self._adds = adds

    async def add_rows(
        self, flow: str, rows: Sequence[LoadedRow], since: Since, epoch: int
    ) -> list[bool | StreamError]:
        return await self._adds.add(rows_topic(flow), [(row.id, row.body) for row in rows], since, epoch=epoch)


async def split(ctx: FlowContext) -> Any:
    return []


def handler_of(load: Load, *, at_once: int = 4) -> FlowHandler:
    return FlowHandler(
        key="pay",
        flow="pay",
        limits=FlowLimits(),
        rate=0.0,
        attempts=1,
        split=split,
        load=_async(load),
        loads_at_once=at_once,
    )


async def in_time(_flow: str, _ended: Mapping[str, ShardState]) -> list[str]:
    return []


@asynccontextmanager
async def asking(connection: Connection, load: Load, **limits: Any) -> AsyncIterator[Asks]:
    """Have a loader with a real job engine until the block ends."""
    handler = handler_of(load)
    async with open_jobs(connection) as jobs, opened_topics(connection, jobs, {}) as topics:
        loader = Loader(
            [handler],
            connection=connection,
            door=Engine(RowAdds(connection=connection, store=jobs.store, topics=topics, clock=jobs.clock)),
            limits=lambda _flow: FlowLimits(**limits),
            late=in_time,
            labels=(),
            version="1.0.0",
            stop=anyio.Event(),
        )

        async def ask(*, shard: str = "1", limit: int = 3, after: str = "") -> ShardLoaded:
            return await loader.load(handler, LoadShard(flow="pay", shard=shard, limit=limit, after=after))

        yield ask


async def test_loads_that_end_late_are_told_together(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "LATE_S", 0.0)
    monkeypatch.setattr(loader_module, "LOOK_S", 0.01)
    told, all_ended, is_told = list[Mapping[str, ShardState]](), anyio.Event(), anyio.Event()

    async def load(ctx: FlowContext, shard: str, limit: int) -> Any:
        if shard == "8":
            raise RuntimeError("no database")
        return []

    async def late(_flow: str, ended: Mapping[str, ShardState]) -> list[str]:
        told.append(ended)
        await all_ended.wait()
        if len(told) == 3:
            is_told.set()
        return [shard for shard in ended if shard != "7" or len(told) == 3]

    loader = Loader(
        [handler_of(load)],
        connection=connection,
        door=Slow(),
        limits=lambda _flow: FlowLimits(),
        late=late,
        labels=(),
        version="1.0.0",
        stop=anyio.Event(),
    )
    subject = connection.namespace.flow_loads("pay", ANY_GROUP, "")
    async with anyio.create_task_group() as tasks:
        await tasks.start(loader.run)
        for shard in range(100):
            ask = LoadShard(flow="pay", shard=str(shard), limit=3)
            await connection.request(subject, msgspec.json.encode(ask))
        all_ended.set()
        with anyio.fail_after(60):
            await is_told.wait()
        tasks.cancel_scope.cancel()
    assert [len(ended) for ended in told] == [1, 99, 1]
    assert "7" in told[2]
    assert [shard for shard, state in told[1].items() if state.has_failed] == ["8"], "`why` tells that its load failed"


async def test_one_call_at_a_time_and_adds_beside_one_another(connection: Connection) -> None:
    at_once = most = 0

    async def load(ctx: FlowContext, shard: str, limit: int) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        at_once -= 1
        return [(number, None) for number in range(limit)]

    handler = handler_of(load, at_once=1)
    loader = Loader(
        [handler],
        connection=connection,
        door=Slow(),
        limits=lambda _flow: FlowLimits(),
        late=in_time,
        labels=(),
        version="1.0.0",
        stop=anyio.Event(),
    )
    found = []

    async def ask(shard: str) -> None:
        found.append((await loader.load(handler, LoadShard(flow="pay", shard=shard, limit=3))).new)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "1")
            tasks.start_soon(ask, "2")
    assert (found, most) == ([3, 3], 1)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (("k" * 300, 1), "use 1 to 180"),
        (("", 1), "key ''"),
        ((None, 1), "key 'None'"),
        (("big", "x" * 300_000), "has 300008 bytes, at most 250000"),
        (("a", object()), "cannot be written as JSON"),
        (("first", 1), "'first' is there twice"),
    ],
)
async def test_an_odd_row_keeps_no_other_row_of_its_shard_back(
    connection: Connection, odd: tuple[object, object], why: str
) -> None:
    async with asking(connection, lambda ctx, shard, limit: [("first", 1), odd, ("日本 ünï", 2)]) as ask:
        done = await ask()
        assert done.new == 2
        assert "1 of 3 rows left out: " in done.error
        assert why in done.error
        assert (await ask()).new == 0


async def test_a_page_of_odd_rows_does_not_hide_what_comes_after_it(connection: Connection) -> None:
    """By the range of the key, as `ctx.after` has it. The odd ones stay where they are, since nothing ends them."""
    table = [(number, "x" * 300_000 if number < 3 else number) for number in range(6)]

    def load(ctx: FlowContext, shard: str, limit: int) -> Any:
        return [row for row in table if row[0] > int(ctx.after or -1)][:limit]

    async with asking(connection, load) as ask:
        done = await ask(limit=2)
        assert (done.new, done.after) == (2, "4")
        assert "row '0' has 300008 bytes" in done.error
        done = await ask(limit=2, after=done.after)
        assert done.new == 1


async def test_a_list_of_ids_is_not_taken_for_pairs(connection: Connection) -> None:
    async with asking(connection, lambda ctx, shard, limit: ["12", "34"]) as ask:
        done = await ask()
    assert (done.new, done.error) == (0, "`load` must return pairs of a key and a row: '12' is no pair")


async def test_a_load_that_hangs_takes_one_thread_and_its_own_shard_alone(connection: Connection) -> None:
    may_end, begun = threading.Event(), 0

    def load(ctx: FlowContext, shard: str, limit: int) -> Any:
        nonlocal begun
        if shard == "broken":
            begun += 1
            may_end.wait(60)
        return [(shard, 1)]

    async with asking(connection, load, load_timeout_ms=2_000) as ask:
        assert (await ask(shard="broken")).error == "`load` took more than 2000 ms"
        for _ in range(5):
            assert "the last call ran out of time and runs on" in (await ask(shard="broken")).error
            assert (await ask(shard="sound")).error == ""
        assert begun == 1
        may_end.set()
        with anyio.fail_after(60):
            while (await ask(shard="broken")).error:
                await a_moment()
    assert begun == 2


async def test_a_hundred_thousand_rows_of_one_call_are_in_flight_once(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.jobs.adds.LONGEST_AGE_S", 600.0)  # a busy machine adds what was read long ago
    rows = [(number, {"id": number}) for number in range(100_000)]
    async with asking(connection, lambda ctx, shard, limit: rows) as ask:
        began_s = time.monotonic()
        done = await ask(limit=20_000)
        assert (done.new, done.after, done.error) == (20_000, "19999", "")
        done = await ask(limit=20_000)
    assert (done.new, done.known, done.error) == (20_000, 20_000, ""), time.monotonic() - began_s
