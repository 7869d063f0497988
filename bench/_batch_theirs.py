"""A batch as one makes it on bare nats-py: an item is a message, and so is its end.

Less than a batch: no seal, no attempts, no counts, no result. `python -m bench._batch_theirs URL` is a worker.
"""

import asyncio
import sys

import nats
import uvloop
from nats.aio.client import Client

from streams.link.connection import Connection

STREAM, CONSUMER = "THEIRS", "items"
AT_A_TIME = 256
LOOK_S = 0.02


async def prepare(connection: Connection) -> None:
    """Make the stream, and the consumer that the workers share."""
    config = {"name": STREAM, "subjects": ["theirs.>"], "allow_direct": True}
    await connection.api(f"STREAM.CREATE.{STREAM}", config)
    consumer = {
        "durable_name": CONSUMER,
        "filter_subject": "theirs.items.>",
        "ack_policy": "explicit",
        "max_ack_pending": 10_000,
    }
    await connection.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": consumer})


async def split(url: str, count: int) -> None:
    """Store the items, some at a time."""
    client = await nats.connect(url)
    for first in range(0, count, AT_A_TIME):
        upto = min(first + AT_A_TIME, count)
        await _publish(client, [(f"theirs.items.{number}", b"%d" % number) for number in range(first, upto)])
    await client.close()


async def until_ended(connection: Connection, count: int) -> None:
    """Wait until so many items and their ends are stored. It looks now and then, to leave the cores to the workers."""
    while True:
        state = (await connection.api(f"STREAM.INFO.{STREAM}"))["state"]
        if state["messages"] == 2 * count:
            return
        await asyncio.sleep(LOOK_S)


async def work(url: str) -> None:
    """Take items until the process is ended: store the end of each, then acknowledge."""
    client = await nats.connect(url)
    subscription = await client.jetstream().pull_subscribe_bind(durable=CONSUMER, stream=STREAM)
    print("ready", flush=True)
    while True:
        try:
            messages = await subscription.fetch(AT_A_TIME, timeout=5)
        except TimeoutError:
            continue
        await _publish(client, [(message.subject.replace("items", "ends"), b"ok") for message in messages])
        await asyncio.gather(*(message.ack() for message in messages))


async def _publish(client: Client, messages: list[tuple[str, bytes]]) -> None:
    context = client.jetstream()
    await asyncio.gather(*(context.publish(subject, payload) for subject, payload in messages))


if __name__ == "__main__":
    uvloop.run(work(sys.argv[1]))
