"""Workers as one writes them on bare nats-py: fetch(256), a no-op, ack, or fetch(1), a note, ack.

`python -m bench._drain_theirs URL STREAM CONSUMER drain|note`
"""

import sys

import msgspec
import nats
import uvloop
from nats.aio.client import Client
from nats.js.client import JetStreamContext

from bench._drain_app import Note, write_down

AT_A_TIME = 256
PullSubscription = JetStreamContext.PullSubscription


async def noop(_payload: bytes) -> None: ...


async def work(url: str, stream: str, consumer: str, kind: str) -> None:
    """Handle messages until the process is ended."""
    client = await nats.connect(url)
    subscription = await client.jetstream().pull_subscribe_bind(durable=consumer, stream=stream)
    await {"drain": drain, "note": note}[kind](client, subscription)


async def drain(client: Client, subscription: PullSubscription) -> None:
    """Each round begins with a word on the subject `go`."""
    go = await client.subscribe("bench.go")
    await client.flush()
    print("ready", flush=True)
    while True:
        await go.next_msg(timeout=None)
        idle = 0
        while not idle:
            try:
                messages = await subscription.fetch(AT_A_TIME, timeout=1)
            except TimeoutError:  # theirs is a kind of it, and not always the one
                idle += 1
                continue
            for message in messages:
                await noop(message.data)
                await message.ack()


async def note(_client: Client, subscription: PullSubscription) -> None:
    """Write down each message as soon as it comes."""
    decode = msgspec.json.Decoder(Note).decode
    print("ready", flush=True)
    while True:
        try:
            messages = await subscription.fetch(1, timeout=5)
        except TimeoutError:
            continue
        for message in messages:
            write_down(decode(message.data))
            await message.ack()


if __name__ == "__main__":
    uvloop.run(work(*sys.argv[1:]))
