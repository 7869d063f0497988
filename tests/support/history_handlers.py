"""The application of the nodes under a history check: a handler that writes down each run, by the add's token.

One line of JSON a step, appended by one write, so that a killed node leaves whole lines.
"""

import os
import random
import time
from pathlib import Path

import anyio
import msgspec

import penstock

TOPIC = "handled"
_notes = os.open(Path(os.environ["HISTORY_NOTES"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(what: str, job: penstock.Job) -> None:
    at_ms = time.time_ns() // 1_000_000
    line = [what, job.id, job.json()["token"], job.attempt, at_ms, os.getpid()]
    os.write(_notes, msgspec.json.encode(line) + b"\n")


@penstock.job(TOPIC, concurrency=16)
async def handle(job: penstock.Job) -> None:
    note("run", job)
    await anyio.sleep(random.uniform(0, 0.1))
    note("handled", job)
