"""The application that `bench schedules` measures: a handler notes when each occurrence begins. `SCHEDULES_BENCH` names
the file, which all nodes share. It also notes who made the job ready, and whether the job was delivered before."""

import os

import penstock
from streams.clock import now_ms
from streams.jobs.firing import SHOT

TOPICS = [f"tick{number}" for number in range(10)]
_file = os.open(os.environ["SCHEDULES_BENCH"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


async def _note(job: penstock.Job) -> None:
    by = "timer" if job.delivery.has_header(SHOT) else "server"
    by = by if job.attempt == 1 else "again"
    os.write(_file, f"{job.topic} {job.id} {now_ms()} {os.getpid()} {by} {job.attempt}\n".encode())


for _topic in TOPICS:
    penstock.job(_topic)(_note)
