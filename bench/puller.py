"""How fast one process pulls and acknowledges 200-byte messages from one consumer: ours, and nats-py's."""

import statistics

import nats
from nats.js import JetStreamContext

from bench.harness import Result, fresh_server, in_turns, reached
from streams.link.connection import Connection, connect
from streams.publish.publisher import Outgoing, Publisher
from streams.pull.puller import Puller

NAME = "puller"
ROUNDS = 3
STORED, SINGLE, THEIRS = 60_000, 30_000, 20_000
"""Messages a round: by lists, one by one, and by nats-py."""
AT_A_TIME, CAPACITY = 256, 1024
PAYLOAD = b"x" * 200


async def run() -> Result:
    """Drain new consumers by `receive_many`, then by `receive`, each in turns with nats-py's `fetch(256)` and `ack`."""
    async with fresh_server() as server, connect(server.url, name="bench") as connection:
        await connection.api("STREAM.CREATE.BENCH", {"name": "BENCH", "subjects": ["bench.>"], "storage": "file"})
        async with Publisher(connection) as publisher:
            await publisher.publish_many([Outgoing(f"bench.a.{n}", PAYLOAD, f"{n}") for n in range(STORED)])
        client = await nats.connect(server.url)
        try:
            context = client.jetstream()
            lists = await in_turns(
                lambda number: _lists(connection, f"lists{number}"),
                lambda number: _theirs(connection, context, f"a{number}"),
                rounds=ROUNDS,
            )
            single = await in_turns(
                lambda number: _single(connection, f"single{number}"),
                lambda number: _theirs(connection, context, f"b{number}"),
                rounds=ROUNDS,
            )
        finally:
            await client.close()
        left = [await _left(connection, f"lists{number}") for number in range(ROUNDS + 1)]
    return reached(
        "messages of 200 B pulled and acknowledged, one process",
        lists,
        reach=120_000,
        or_ratio=2.5,
        is_sound=not any(left),
        one_by_one=round(statistics.median(single.ours)),
        one_by_one_ratio=round(single.ratio, 2),
    )


async def _lists(connection: Connection, consumer: str) -> int:
    await _add_consumer(connection, consumer)
    received = 0
    async with Puller(connection, "BENCH", consumer, capacity=CAPACITY) as puller:
        while received < STORED:
            deliveries = await puller.receive_many(AT_A_TIME, 0)
            for delivery in deliveries:
                await delivery.ack()
            received += len(deliveries)
    return received


async def _single(connection: Connection, consumer: str) -> int:
    await _add_consumer(connection, consumer)
    async with Puller(connection, "BENCH", consumer, capacity=CAPACITY) as puller:
        for _ in range(SINGLE):
            await (await puller.receive()).ack()
    return SINGLE


async def _theirs(connection: Connection, context: JetStreamContext, consumer: str) -> int:
    await _add_consumer(connection, consumer)
    subscription = await context.pull_subscribe_bind(durable=consumer, stream="BENCH")
    received = 0
    while received < THEIRS:
        messages = await subscription.fetch(AT_A_TIME)
        for message in messages:
            await message.ack()
        received += len(messages)
    await subscription.unsubscribe()
    return received


async def _add_consumer(connection: Connection, name: str) -> None:
    config = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": 10_000}
    await connection.api(f"CONSUMER.CREATE.BENCH.{name}", {"stream_name": "BENCH", "config": config})


async def _left(connection: Connection, consumer: str) -> int:
    """Return what was not delivered, delivered twice, or not acknowledged."""
    numbers = await connection.api(f"CONSUMER.INFO.BENCH.{consumer}")
    return int(numbers["num_pending"] + numbers["num_redelivered"] + numbers["num_ack_pending"])
