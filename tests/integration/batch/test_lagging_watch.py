"""A worker whose view of the records lags behind: what it knows of before is no reason to stop what is at work now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

import penstock
from actors.batch.instances import Instances
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.messages.batch import Counts
from tests.support.batches import Plant, plant

is_broken: list[bool] = []


@penstock.batch("polite")
class Polite:
    """Code that asks, as it is told to."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        for number in range(100):
            if ctx.is_cancelled:
                return
            await ctx.commit(number)

    async def map(self, item: int) -> None:
        return None


@penstock.batch("polite-reduce", attempts=1)
class PoliteReduce:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(5))

    async def map(self, item: int) -> None:
        return None

    async def reduce(self, ctx: penstock.ReduceContext) -> bool:
        if is_broken:
            raise OSError("the disk is full")
        return ctx.is_cancelled


TASKS = ("polite", "polite-reduce")


@asynccontextmanager
async def two_nodes(connection: Connection, server: EmbeddedServer) -> AsyncIterator[tuple[Plant, Plant]]:
    """Run a conductor and a worker, each with a connection of its own."""
    async with (
        plant(connection, [], roles=("conductor", "desk")) as conductor,
        connect(server.url, name="worker", namespace=connection.namespace) as other,
        plant(other, TASKS, name="n2", roles=("executor",)) as worker,
    ):
        await until(lambda: len(conductor.engine.tasks.known()) == len(TASKS))
        yield conductor, worker


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not is_so():  # noqa: ASYNC110
            await anyio.sleep(0.02)


def freeze(worker: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the worker sees no change of any record."""
    assert isinstance(worker.engine.instances, Instances)
    monkeypatch.setattr(worker.engine.instances._live, "_hear", lambda change: None)


async def test_a_worker_that_has_not_seen_an_instance_does_not_take_it_for_cancelled(
    connection: Connection, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_nodes(connection, server) as (conductor, worker):
        await conductor.run("polite")  # from then on it serves the task
        freeze(worker, monkeypatch)
        view = await conductor.run("polite")
    assert (view.state, view.counts) == ("done", Counts(succeeded=100))


async def test_a_worker_that_saw_the_end_of_a_pass_runs_the_next_one(
    connection: Connection, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_broken[:] = [True]
    async with two_nodes(connection, server) as (conductor, worker):
        view = await conductor.run("polite-reduce")
        assert view.state == "failed"
        seen = partial(worker.engine.instances.seen, view.instance_id)
        await until(lambda: (record := seen()) is not None and record.is_cancelling)
        freeze(worker, monkeypatch)
        is_broken.clear()
        await conductor.desk.retry(view.instance_id, [0, 1, 2])
        view = await conductor.until(view.instance_id, "done", "failed", "cancelled")
    assert (view.state, view.counts, view.result) == ("done", Counts(succeeded=5), False)
