"""The application of chaos nodes: a handler that writes down each job that it is given, in the file that the job names.

One line a step, appended by one write, so that a killed node leaves whole lines: what, job, attempt, due and moment in
milliseconds of this machine's clock, which is the server's too, whatever the node takes for the time; and the process.
"""

import os
import time
from functools import lru_cache

import anyio

import penstock

TOPIC = "handled"


@lru_cache
def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(path: str, what: str, job: penstock.Job) -> None:
    at_ms = time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000  # `time` may be skewed (odd_node.py)
    line = f"{what} {job.id} {job.attempt} {job.due_ms} {at_ms} {os.getpid()}\n"
    os.write(_opened(path), line.encode())


@penstock.job(TOPIC, concurrency=32)
async def handle(job: penstock.Job) -> None:
    body = job.json()
    note(body["notes"], "begun", job)
    if job.attempt <= body.get("fails", 0):
        raise penstock.Retry("100ms", "told to fail")
    while not os.path.exists(body.get("gate", "/")):  # noqa: ASYNC110, ASYNC240 # another process opens it
        await anyio.sleep(0.02)
    note(body["notes"], "ended", job)
