"""A worker as one writes it on bare nats-py: fetch(256), a no-op, ack.

`python -m bench._drain_theirs URL STREAM CONSUMER`
"""

import sys

import nats
import uvloop

AT_A_TIME = 256


async def noop(_payload: bytes) -> None: ...


async def drain(url: str, stream: str, consumer: str) -> None:
    """Handle messages until the process is ended; each round begins with a word on the subject `go`."""
    client = await nats.connect(url)
    context = client.jetstream()
    subscription = await context.pull_subscribe_bind(durable=consumer, stream=stream)
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


if __name__ == "__main__":
    uvloop.run(drain(*sys.argv[1:]))
