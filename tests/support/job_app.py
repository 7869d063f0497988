"""The application of tests of `penstock up --app`: handlers that write down what they do in the file that a job names.

One line a step, appended by one write, so that a killed node leaves whole lines: what, job, attempt, process.
"""

import asyncio
import os
import signal
import time

import anyio
import msgspec

import penstock


class Task(msgspec.Struct):
    """What a job asks its handler to do."""

    notes: str
    takes_s: float = 0.0
    kills: bool = False


def note(task: Task, what: str, job: penstock.Job) -> None:
    handle = os.open(task.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{what} {job.id} {job.attempt} {os.getpid()}\n".encode())
    os.close(handle)


@penstock.job("awaits", concurrency=8)
async def awaits(task: Task, job: penstock.Job) -> None:
    note(task, "begun", job)
    if task.kills:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        await anyio.sleep(task.takes_s)
    except asyncio.CancelledError:
        note(task, f"cancelled,{job.is_lost}", job)
        raise
    note(task, "ended", job)


@penstock.job("plain", concurrency=2)
def plain(task: Task, job: penstock.Job) -> None:
    time.sleep(task.takes_s)
    note(task, "ended", job)


@penstock.job("lists", most=100)
async def lists(tasks: list[Task], jobs: list[penstock.Job]) -> None:
    for task, job in zip(tasks, jobs, strict=True):
        note(task, "listed", job)


class Paid(Task):
    """Work for a merchant."""

    merchant: str = ""


@penstock.job("paid", concurrency=8, slots=penstock.Slots(2, key="merchant"))
async def paid(task: Paid, job: penstock.Job) -> None:
    note(task, f"from,{task.merchant},{time.monotonic()}", job)
    try:
        await anyio.sleep(task.takes_s)
    finally:
        note(task, f"to,{task.merchant},{time.monotonic()}", job)
