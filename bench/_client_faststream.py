"""faststream on NATS, as its tutorial writes it. Runs in a virtual environment of its own, where Penstock is not.

`python _client_faststream.py URL add COUNT AT_ONCE` publishes, so many at once, on each line of its input. It prints
how many it published in a second. `… URL work` handles one message a call from the first line of its input on.
"""

import asyncio
import sys
import time

from faststream.nats import JStream, NatsBroker, PullSub

STREAM, SUBJECT = "FASTSTREAM", "faststream.one"
BODY = "x" * 198


async def add(broker: NatsBroker, count: int, at_once: int) -> None:
    async with broker:
        print("ready", flush=True)
        while await _line():
            began_s = time.monotonic()
            for _ in range(0, count, at_once):
                await asyncio.gather(*(broker.publish(BODY, SUBJECT, stream=STREAM) for _ in range(at_once)))
            print(count / (time.monotonic() - began_s), flush=True)


async def work(broker: NatsBroker) -> None:
    stream = JStream(STREAM, declare=False)

    async def handle(body: str) -> None: ...

    broker.subscriber(SUBJECT, stream=stream, durable="workers", pull_sub=PullSub(batch_size=256))(handle)
    await broker.connect()
    print("ready", flush=True)
    await _line()
    await broker.start()
    await asyncio.Event().wait()


async def _line() -> str:
    return await asyncio.to_thread(sys.stdin.readline)


def main(url: str, what: str, *counts: str) -> None:
    broker = NatsBroker(url, logger=None)
    run = add(broker, *map(int, counts)) if what == "add" else work(broker)
    try:
        import uvloop
    except ImportError:
        asyncio.run(run)
    else:
        uvloop.run(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
