"""Tasks whose consumers are there only while instances are at work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

import penstock
from actors.batch.rules.obstacles import BatchWhy
from actors.batch.rules.record import Instance
from penstock.sdk.batches import task_handlers
from streams.errors import Refused
from streams.link.connection import Connection
from streams.messages.batch import Counts, Pointer, encode_message
from streams.publish.publisher import Outgoing, Publisher
from streams.pull.backlog import consumer_states, consumers_pending
from streams.reads.log import count_of
from streams.subjects import Namespace
from streams.topology.specs import ConsumerSpec, batch_consumers, wanted
from streams.topology.topology import ensure_consumer
from tests.support.batches import LONG_S, Plant, plant
from tests.support.moments import a_moment
from tests.support.server import forbidding, make_topology

TASKS = ("idle-a", "idle-b")
may_end: list[anyio.Event] = []


class Short:
    """One item, which ends at once, but for `wait`."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(ctx.input)

    async def map(self, item: str | None) -> None:
        if item == "wait":
            await may_end[0].wait()


for name in TASKS:
    penstock.batch(name)(type(name, (Short,), {}))


def consumers_of(connection: Connection, task: str) -> set[str]:
    return {spec.name for spec in batch_consumers(connection.namespace, task)}


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(LONG_S):
        while not await is_so():
            await a_moment()


async def test_only_a_task_with_an_instance_at_work_has_consumers(connection: Connection) -> None:
    work = connection.namespace.stream("WORK")
    async with plant(connection, TASKS) as node:
        assert await consumers_pending(connection, work) == {}
        assert (await node.run("idle-b")).state == "done"
        assert set(await consumers_pending(connection, work)) == consumers_of(connection, "idle-b")


async def test_a_node_no_longer_pulls_for_a_quiet_task_and_serves_it_again(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.executor.executor.QUIET_S", 0.0)
    work = connection.namespace.stream("WORK")

    async def is_quiet() -> bool:
        return not any(state.pulls for state in await consumer_states(connection, work))

    async with plant(connection, TASKS) as node:
        for _ in range(3):
            assert (await node.run("idle-a")).counts == Counts(succeeded=1)
            await until(is_quiet)


async def test_a_task_at_work_is_not_left(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.batch.executor.executor.QUIET_S", 0.0)
    may_end[:] = [anyio.Event()]
    _, maps = batch_consumers(connection.namespace, "idle-a")

    async def is_held() -> bool:
        return bool((await consumers_pending(connection, maps.stream)).get(maps.name))

    async with plant(connection, TASKS) as node:
        waits = await node.submit("idle-a", "wait")
        await until(is_held)
        for _ in range(3):  # each takes several looks at what is quiet
            assert (await node.run("idle-a")).state == "done"
        assert (await node.record(waits.instance_id)).state == "running"
        may_end[0].set()
        assert (await node.until(waits.instance_id, "done")).counts == Counts(succeeded=1)


async def test_consumers_that_the_server_removed_are_made_again(connection: Connection) -> None:
    async with plant(connection, TASKS) as node:
        assert (await node.run("idle-a")).state == "done"
        for spec in batch_consumers(connection.namespace, "idle-a"):
            await connection.api(f"CONSUMER.DELETE.{spec.stream}.{spec.name}")
        assert (await node.run("idle-a")).counts == Counts(succeeded=1)


@pytest.mark.parametrize("is_served", [False, True])
async def test_what_keeps_a_task_from_its_consumers_is_told_until_it_is_gone(
    connection: Connection, caplog: pytest.LogCaptureFixture, is_served: bool
) -> None:
    """Somebody looks at the stream by a consumer of his own, which the server lets nobody share."""
    look = ConsumerSpec(
        stream=connection.namespace.stream("WORK"),
        name="look",
        filter_subject=connection.namespace.pattern("work", ">"),
        about="a look",
        ack_wait_s=30.0,
        max_ack_pending=1,
    )

    def why_not() -> set[str]:
        told = [record for record in caplog.records if record.message == "executor.no_consumer"]
        facts = [vars(record)["fields"] for record in told if record.levelname == "WARNING"]
        return {each["consumer"] for each in facts if "unique" in each["error"]}

    async def is_told() -> bool:
        return why_not() == consumers_of(connection, "idle-a")

    async with plant(connection, TASKS) as node:
        if is_served:
            await node.run("idle-a")
        await until(partial(takes_over, connection, look, list(await consumers_pending(connection, look.stream))))
        waits = await node.submit("idle-a")
        await until(is_told)
        told = await until_why(node, waits.instance_id, "consumer")
        assert "splits and reduces" in told.reason
        assert "unique" in told.reason
        await connection.api(f"CONSUMER.DELETE.{look.stream}.{look.name}")
        assert (await node.until(waits.instance_id, "done")).counts == Counts(succeeded=1)


async def takes_over(connection: Connection, look: ConsumerSpec, names: Sequence[str]) -> bool:
    """Make a consumer in the place of these. A node makes its own again at once, and not so soon a second time."""
    for name in names:
        with suppress(Refused):
            await connection.api(f"CONSUMER.DELETE.{look.stream}.{name}")
    try:
        await ensure_consumer(connection, look)
    except Refused:
        return False
    return True


async def until_why(node: Plant, instance_id: str, code: str, item: int | None = None) -> BatchWhy:
    with anyio.fail_after(LONG_S):
        while (told := await node.desk.why(instance_id, item)).code != code:
            await a_moment()
    return told


async def test_chunks_that_no_node_gets_are_not_told_to_be_at_work(connection: Connection) -> None:
    _, maps = batch_consumers(connection.namespace, "idle-a")
    look = replace(maps, name="look", about="a look")
    async with plant(connection, TASKS) as node, plant(connection, TASKS, name="n2") as other:
        assert (await node.run("idle-a")).state == "done"
        await until(partial(takes_over, connection, look, [maps.name]))
        waits = await node.submit("idle-a")
        told = [await until_why(each, waits.instance_id, "consumer") for each in (node, other)]
        told.append(await until_why(other, waits.instance_id, "consumer", item=0))
        assert all("chunks" in each.reason and "unique" in each.reason for each in told)
        await connection.api(f"CONSUMER.DELETE.{look.stream}.{look.name}")
        assert (await node.until(waits.instance_id, "done")).counts == Counts(succeeded=1)


async def test_a_consumer_that_somebody_made_otherwise_stops_its_task_alone(connection: Connection) -> None:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    steps, _ = batch_consumers(connection.namespace, "idle-a")
    await ensure_consumer(connection, replace(steps, max_ack_pending=7))
    async with plant(connection, TASKS) as node:
        waits = await node.submit("idle-a")
        assert (await node.run("idle-b")).state == "done"
        assert "consumer rm" in (await until_why(node, waits.instance_id, "consumer")).reason
        await connection.api(f"CONSUMER.DELETE.{steps.stream}.{steps.name}")
        assert (await node.until(waits.instance_id, "done")).counts == Counts(succeeded=1)


async def test_a_right_that_the_node_does_not_have_stops_its_task_alone(
    tmp_path_factory: pytest.TempPathFactory, namespace: Namespace
) -> None:
    forbidden = batch_consumers(namespace, "idle-a")
    async with forbidding(tmp_path_factory.mktemp("own"), namespace, *forbidden) as connection:
        async with plant(connection, TASKS) as node:
            waits = await node.submit("idle-a")
            told = await until_why(node, waits.instance_id, "consumer")
            assert "check this user's permissions" in told.reason
            assert (await node.run("idle-b")).counts == Counts(succeeded=1)


async def test_pointers_of_an_instance_that_is_over_do_not_stay(connection: Connection) -> None:
    """As if a killed node had run it, and had not settled."""
    namespace = connection.namespace
    subject = namespace.subject("work", "batch", "idle-a", "split", "over", "1")
    async with plant(connection, [], name="n0", roles=("conductor", "desk")):
        pointer = Pointer(step="split", task="idle-a", instance_id="over", fence=1)
        async with Publisher(connection) as publisher:
            await publisher.publish_many([Outgoing(subject, encode_message(pointer))])
        async with plant(connection, TASKS, name="n1", roles=("executor",)):

            async def is_gone() -> bool:
                return not await count_of(connection, namespace.stream("WORK"), subject)

            await until(is_gone)


async def test_what_waits_under_an_older_versions_consumers_is_done_beside_it(connection: Connection) -> None:
    """An older version makes them as it starts, with no end, and expects the same."""
    older = [replace(spec, idle_s=0.0) for spec in batch_consumers(connection.namespace, "idle-a")]
    stream = connection.namespace.stream("WORK")
    async with plant(connection, [], name="n0", roles=("conductor", "desk")) as node:
        await node.engine.tasks.declare(task_handlers()["idle-a"].record)
        await node.engine.instances.create(Instance(instance_id="i", task="idle-a", created_ms=0))
        for spec in older:
            await ensure_consumer(connection, spec)

        async def is_offered() -> bool:
            return (await consumers_pending(connection, stream))[older[0].name] == 1

        await until(is_offered)
        async with plant(connection, TASKS, name="n1", roles=("executor",)):
            assert (await node.until("i", "done")).counts == Counts(succeeded=1)
            assert (await node.run("idle-b")).state == "done"
            for task in TASKS:
                for spec in batch_consumers(connection.namespace, task):
                    await ensure_consumer(connection, replace(spec, idle_s=0.0))
