"""The application that `bench schedules` measures: a handler notes when each occurrence begins. `SCHEDULES_BENCH` names
the file, which all nodes share."""

import os

import penstock
from streams.clock import now_ms

TOPICS = [f"tick{number}" for number in range(10)]
_file = os.open(os.environ["SCHEDULES_BENCH"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


async def _note(job: penstock.Job) -> None:
    os.write(_file, f"{job.topic} {job.id} {now_ms()} {os.getpid()}\n".encode())


for _topic in TOPICS:
    penstock.job(_topic)(_note)
