"""The application of tests of a stop: handlers that keep their process from ending, each in its way. Each says on
stdout that it is at work."""

import asyncio
import signal
import threading
import time
from contextlib import suppress

import penstock


def begun() -> None:
    print("begun", flush=True)


def for_ever() -> None:
    threading.Event().wait()


@penstock.job("thread")
async def thread(_job: penstock.Job) -> None:
    """Leaves a thread behind that Python waits for at its end."""
    threading.Thread(target=for_ever).start()
    begun()


@penstock.job("pool")
async def pool(_job: penstock.Job) -> None:
    """Waits for a thread of the loop's own pool, which is waited for at the loop's end."""
    begun()
    await asyncio.to_thread(for_ever)


@penstock.job("swallow")
async def swallow(_job: penstock.Job) -> None:
    """Goes on when it is cancelled."""
    begun()
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


@penstock.job("deaf")
async def deaf(_job: penstock.Job) -> None:
    """Takes the signals away from the node."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: None)
    begun()


@penstock.job("block")
async def block(_job: penstock.Job) -> None:
    """Holds the loop up for ever."""
    begun()
    while True:
        time.sleep(0.1)  # noqa: ASYNC251 that is the fault
