"""Handlers under rates, that write down each second what they began: `RATES_NOTES` names the file.

One line a job, appended by one write: the kind, and when, in milliseconds since 1970."""

import os

import penstock
from streams.clock import now_ms

NOTES = os.environ["RATES_NOTES"]


def note(kind: str) -> None:
    handle = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{kind} {now_ms()}\n".encode())
    os.close(handle)


@penstock.job("mail", concurrency=8)
async def mail(job: penstock.Job) -> None:
    note("mail")
