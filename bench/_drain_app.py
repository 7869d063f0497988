"""The application whose handlers `bench drain` measures: each does next to nothing."""

import os
import time
from functools import lru_cache

import msgspec

import penstock


class Note(msgspec.Struct):
    """Where a handler notes its jobs. `at_ns`: when the job was added, by the monotonic clock."""

    path: str
    number: int
    at_ns: int = 0


@lru_cache
def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@penstock.job("one")
async def one(job: penstock.Job) -> None:
    """A no-op, one job a call."""


@penstock.job("lists", most=500)
async def lists(jobs: list[penstock.Job]) -> None:
    """A no-op, lists of jobs."""


@penstock.job("noted")
async def noted(note: Note) -> None:
    write_down(note)


def write_down(note: Note) -> None:
    """Say which job was given, and how long after its adding."""
    waited_ns = time.monotonic_ns() - note.at_ns
    os.write(_opened(note.path), b"%d %d\n" % (note.number, waited_ns))
