"""Schedules that submit a batch, or have a source look at a past window, on real nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import msgspec
import pytest
from msgspec.structs import replace

import penstock
from actors.fetch.ledgers import read_ledger
from actors.fetch.rules.ledger import Pass, first_ledger
from actors.fetch.rules.steering import MOST_BACKFILLS
from actors.fetch.sources import SourceKey
from actors.jobs.rules.schedule_views import ScheduleView
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import wanted
from tests.support.command import Running, node
from tests.support.command import penstock as run
from tests.support.engine import add_source, ledger_bucket
from tests.support.moments import a_moment
from tests.support.server import make_topology

LONG_S = 90.0
NIGHTLY = "reports/nightly"
HOUR_MS = 3_600_000


@pytest.fixture
async def ground(connection: Connection) -> Namespace:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    return connection.namespace


@asynccontextmanager
async def worker(server: EmbeddedServer, namespace: Namespace, name: str, **environment: str) -> AsyncIterator[Running]:
    """Run a node that follows schedules, runs their jobs and batches."""
    arguments = ["--nats", server.url, "--namespace", namespace.name, "--sink", "none", "--http", "off", "--name", name]
    arguments += ["--roles", "timer,desk,worker,conductor,executor", "--app", "tests.support.batch_app"]
    async with node(*arguments, environment={"PENSTOCK_LOG_FORM": "json", **environment}) as running:
        yield running


async def shown_when(client: penstock.Client, holds: Callable[[ScheduleView], bool]) -> ScheduleView:
    """Return the schedule as soon as `holds` is true of it."""
    with anyio.fail_after(LONG_S):
        while not holds(view := await client.schedules.show(NIGHTLY)):
            await a_moment()
    return view


def has_ended(view: ScheduleView) -> bool:
    return bool(view.runs) and all(run.outcome for run in view.runs)


async def test_a_killed_node_makes_no_second_batch(server: EmbeddedServer, ground: Namespace) -> None:
    async with penstock.connect(server.url, namespace=ground.name, timeout_s=LONG_S) as client:
        async with worker(server, ground, "first", PENSTOCK_CRASH_AT="job.end:1") as first:
            await first.logged("node.ready", LONG_S)
            at = datetime.now(UTC) + timedelta(seconds=1)
            options = {"batch": "count", "at": at, "data_time": "at", "ttr": "2s"}
            await client.schedules.add(NIGHTLY, {"input": {"n": 3}, "priority": 5}, **options)  # type: ignore[arg-type] # a plain dict
            assert await first.end(within_s=LONG_S) == -9, "killed after the submit, before its job was finished"
        async with worker(server, ground, "second"):
            view = await shown_when(client, has_ended)
            [batch] = await client.batches.list()
            done = await client.batches.wait(batch.instance_id, timeout_s=LONG_S)
    assert [run.outcome for run in view.runs] == ["finished"]
    assert batch.instance_id.startswith(f"nightly-{at:%Y%m%dT%H%M%S}Z-")
    assert (done.state, done.items, done.priority) == ("done", 3, 5)


async def test_what_a_batch_or_a_source_does_not_take_is_refused_at_the_add(
    server: EmbeddedServer, ground: Namespace, connection: Connection, publisher: Publisher
) -> None:
    source = SourceKey("mall", "s1")
    start_ms = now_ms() - 9 * HOUR_MS
    await add_source(connection, publisher, source, adapter="mall", url="http://127.0.0.1:9", start_ms=start_ms)
    async with (
        worker(server, ground, "only") as running,
        penstock.connect(server.url, namespace=ground.name, timeout_s=LONG_S) as client,
    ):
        await running.logged("node.ready", LONG_S)
        for body, target, field, said in (
            (None, {"batch": "count"}, "body", 'write {"input": …}'),
            ({"inptu": 1}, {"batch": "count"}, "body", "unknown field `inptu`"),
            ({"input": "x" * 70_000}, {"batch": "count"}, "body", "at most 65536"),
            ({"input": 1, "weight": 0}, {"batch": "count"}, "body", "use 1 to 1000"),
            ({"input": 1, "callback": "http://elsewhere"}, {"batch": "count"}, "body", "elsewhere"),
            ({"input": 1}, {"batch": "none"}, "batch", "penstock batch tasks"),
            ({"input": 1}, {"batch": "a.b"}, "batch", "is no name of a task"),
            ({"input": [1]}, {"batch": "count", "data_time": "at"}, "data_time", "has fields"),
            ({"input": 1}, {"batch": "cuont"}, "batch", "there is no such task; did you mean count?"),
            ({"last": "2h"}, {"source": "other/none"}, "source", "there is no such source; `penstock sources list`"),
            ({"last": "2h"}, {"source": "mall/s2"}, "source", "there is no such source; did you mean mall/s1?"),
            ({"last": "2h"}, {"source": "mall"}, "source", "write PLATFORM/SOURCE"),
            ({"last": "2 hours"}, {"source": "mall/s1"}, "body", "2 hours"),
            ({"last": "32d"}, {"source": "mall/s1"}, "body", "use 1s to 31d"),
            (None, {"source": "mall/s1"}, "body", 'write {"last": "2h"}'),
            ({"last": "2h"}, {"source": "mall/s1", "batch": "count"}, "source", "give one of them"),
        ):
            with pytest.raises(penstock.NotAccepted) as refused:
                await client.schedules.add(NIGHTLY, body, every="1h", **target)  # type: ignore[arg-type] # a plain dict
            assert (refused.value.code, refused.value.field) == ("bad", field), refused.value
            assert said in str(refused.value), refused.value
        at = ("--nats", server.url, "--namespace", ground.name)
        typed = await run("schedules", "add", NIGHTLY, '{"input":1}', "--every", "1h", "--batch", "cuont", *at)
        said = "penstock: batch 'cuont': there is no such task; did you mean count?\n"
        assert (typed.code, typed.err) == (2, said)
        assert await client.schedules.list() == []
        await client.schedules.add(NIGHTLY, {"last": "2h"}, source="mall/s1", cron="0 0 1 1 *")
        with pytest.raises(penstock.NotAccepted, match="remove it, and add this one then") as other:
            await client.schedules.add(NIGHTLY, 1, every="1h", replace=True)
        assert other.value.code == "state"
        told = await client.schedules.trigger(NIGHTLY)
        assert (told.topic, told.id[:17]) == ("schedule-targets", "reports.nightly.2")
        view = await shown_when(client, has_ended)
    assert [run.outcome for run in view.runs] == ["finished"]
    entry = await ledger_bucket(connection, publisher).get(source.key)
    assert entry is not None
    [look] = read_ledger(source, entry.raw).passes
    assert (look.kind, look.start_ms, look.end_ms) == ("b", view.runs[0].due_ms - 2 * HOUR_MS, view.runs[0].due_ms)


async def test_a_look_waits_for_room_among_the_backfills_of_its_source(
    server: EmbeddedServer, ground: Namespace, connection: Connection, publisher: Publisher
) -> None:
    """As while the source is paused or down for days. A ledger that was too long for a message held its source up."""
    source, start_ms = SourceKey("mall", "s1"), now_ms() - 9 * HOUR_MS
    waiting = tuple(Pass(f"s-{at}", "b", at, start_ms + at, start_ms + HOUR_MS) for at in range(MOST_BACKFILLS))
    full = replace(first_ledger(start_ms), passes=waiting)
    await add_source(
        connection, publisher, source, adapter="mall", url="http://127.0.0.1:9", start_ms=start_ms, ledger=full
    )
    async with (
        worker(server, ground, "only") as running,
        penstock.connect(server.url, namespace=ground.name, timeout_s=LONG_S) as client,
    ):
        await running.logged("node.ready", LONG_S)
        await client.schedules.add(NIGHTLY, {"last": "2h"}, source="mall/s1", cron="0 0 1 1 *")
        told = await client.schedules.trigger(NIGHTLY)
        with anyio.fail_after(LONG_S):
            while "1000 others have not ended" not in str(await client.jobs.why(told.id)):
                await a_moment()
        bucket = ledger_bucket(connection, publisher)
        await bucket.put(source.key, msgspec.json.encode(replace(full, passes=waiting[1:])))
        await client.jobs.kick(told.topic, told.id)
        view = await shown_when(client, has_ended)
    assert [run.outcome for run in view.runs] == ["finished"]
    entry = await bucket.get(source.key)
    assert entry is not None
    assert len(read_ledger(source, entry.raw).passes) == MOST_BACKFILLS


async def test_a_batch_is_scheduled_and_shown_by_command(server: EmbeddedServer, ground: Namespace) -> None:
    where = {"PENSTOCK_NATS": server.url, "PENSTOCK_NAMESPACE": ground.name}
    async with worker(server, ground, "only") as running:
        await running.logged("node.ready", LONG_S)
        line = ["schedules", "add", NIGHTLY, '{"input": {"n": 2}}', "--batch", "count", "--every", "1h"]
        added = await run(*line, "--json", **where)
        assert (added.code, added.json()["batch"]) == (0, "count"), added.err
        told = await run("schedules", "trigger", NIGHTLY, "--json", **where)
        assert told.json()["topic"] == "schedule-targets"
        with anyio.fail_after(LONG_S):
            while not (batches := (await run("batch", "list", "--json", **where)).json()):
                await a_moment()
        shown = (await run("schedules", "show", NIGHTLY, **where)).out
        assert 'batch: count\nbody: {"input":' in shown
        assert len(batches) == 1
        refused = await run("schedules", "add", "reports/other", "1", "--batch", "count", "--every", "1h", **where)
        assert (refused.code, "is not what the target takes" in refused.err) == (2, True)
    assert batches[0]["task"] == "count"
