"""What a killed server brings back below the ack floor is removed, and nothing else."""

from collections import Counter

import anyio
import pytest

from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.publish.outcomes import Outgoing
from streams.publish.publisher import Publisher
from streams.pull.once import PullOnce
from streams.pull.puller import Puller
from streams.reads.log import read_log
from streams.resurrected import hand_out_again, remove_resurrected
from streams.topology.specs import submit_batch_consumer, submit_consumer
from streams.topology.topology import ensure_consumer
from tests.support.server import add_consumer, add_stream, until_written

CONSUMERS = {"a": "c", "b": "d"}
"""The consumer of each kind of work."""


async def work_queue(connection: Connection) -> str:
    stream = await add_stream(connection, "WORK", retention="workqueue", max_msgs_per_subject=1, allow_direct=True)
    for kind, consumer in CONSUMERS.items():
        pattern = connection.namespace.pattern("work", kind, ">")
        await add_consumer(connection, stream, consumer, filter_subject=pattern, ack_wait=600 * 10**9)
    return stream


async def publish(publisher: Publisher, connection: Connection, *names: str) -> None:
    subjects = [connection.namespace.subject("work", *name.split(".")) for name in names]
    await publisher.publish_many([Outgoing(subject, b"") for subject in subjects])


async def settle(connection: Connection, stream: str, consumer: str, count: int) -> list[str]:
    """Return the subjects of what was acknowledged."""
    subjects: list[str] = []
    async with PullOnce(connection) as pulls:
        for _ in range(count):
            [delivery] = await pulls.pull(stream, consumer, most=1, wait_s=20)
            await delivery.ack_sync()
            subjects.append(delivery.subject)
    return subjects


async def left(connection: Connection, stream: str) -> list[str]:
    """Return what the stream holds, kind and name, in order."""
    entries = read_log(connection, stream, connection.namespace.pattern("work", ">"))
    return [".".join(entry.subject.split(".")[2:]) async for entry in entries]


async def test_what_was_acknowledged_and_is_back_after_a_crash_is_removed(own_server: EmbeddedServer) -> None:
    """What was replaced and acknowledged comes back each time (ADR 20), and so serves as an example for the rest."""
    with anyio.fail_after(60):
        async with connect(own_server.url, name="test") as connection, Publisher(connection) as publisher:
            stream = await work_queue(connection)
            await publish(publisher, connection, "a.back", "b.waits", "a.back", "a.done")
            await settle(connection, stream, CONSUMERS["a"], 2)
            await publish(publisher, connection, "a.waits")
            await until_written(own_server)
            await own_server.kill()
            await own_server.start()
            assert await left(connection, stream) == ["a.back", "b.waits", "a.waits"]

            assert await remove_resurrected(connection, stream) == 1
            assert await left(connection, stream) == ["b.waits", "a.waits"]
            assert await remove_resurrected(connection, stream) == 0
            await settle(connection, stream, CONSUMERS["a"], 1)
            await settle(connection, stream, CONSUMERS["b"], 1)


@pytest.mark.parametrize("settled", [0, 1, 5])
async def test_what_waits_or_is_in_hand_stays(connection: Connection, publisher: Publisher, settled: int) -> None:
    stream = await work_queue(connection)
    await publish(publisher, connection, *(f"a.{number}" for number in range(10)))
    await settle(connection, stream, CONSUMERS["a"], settled)
    async with PullOnce(connection) as pulls:
        [in_hand] = await pulls.pull(stream, CONSUMERS["a"], most=1, wait_s=20)
        assert await remove_resurrected(connection, stream) == 0
        assert await left(connection, stream) == [f"a.{number}" for number in range(settled, 10)]
        await in_hand.ack_sync()


async def test_what_another_consumer_of_the_queue_has_yet_to_hand_out_stays(
    connection: Connection, publisher: Publisher
) -> None:
    """Submitted batches lie before jobs that are over: the consumer of jobs, which has two filters, is far ahead."""
    namespace = connection.namespace
    stream = await add_stream(connection, "SUBMIT", retention="workqueue", allow_direct=True)
    for spec in (submit_consumer(namespace), submit_batch_consumer(namespace)):
        await ensure_consumer(connection, spec)
    for last in ("batch", "job", "job", "batch"):
        await publisher.publish(namespace.subject("submit", last), b"")
    await settle(connection, stream, submit_consumer(namespace).name, 2)
    assert await remove_resurrected(connection, stream) == 0
    waiting = await settle(connection, stream, submit_batch_consumer(namespace).name, 2)
    assert waiting == [namespace.subject("submit", "batch")] * 2


@pytest.mark.three_servers
@pytest.mark.asyncio(loop_factories=["asyncio"])  # the server is asked, whatever the loop
async def test_a_busy_consumer_is_not_taken_for_one_that_lost_its_power(
    connection: Connection, publisher: Publisher
) -> None:
    """In a cluster what is acknowledged is removed a moment later. Each reset would run hundreds of jobs twice. One
    message is in hand all the time."""
    stream = await work_queue(connection)
    runs: Counter[str] = Counter()
    await publish(publisher, connection, "a.long")

    async def work(puller: Puller) -> None:
        while True:
            delivery = await puller.receive()
            runs[delivery.subject] += 1
            if not delivery.subject.endswith(".long"):
                await delivery.ack()

    async def add() -> None:
        for number in range(1_000_000):
            await publish(publisher, connection, *(f"a.{number}-{one}" for one in range(20)))

    async with Puller(connection, stream, CONSUMERS["a"], capacity=200) as puller, anyio.create_task_group() as tasks:
        tasks.start_soon(work, puller)
        tasks.start_soon(add)
        for _ in range(3):
            assert await hand_out_again(connection, stream) == 0
        tasks.cancel_scope.cancel()
    assert set(runs.values()) == {1}
