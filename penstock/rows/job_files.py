"""Adds the jobs of a file in batches. Memory stays small whatever the file's size, and a bad line loses no other line.

After a stop, all lines before the named line are added, so that a person can go on from there. A node's refusal (a
quota, a value out of range) is known only with the answers of its batch, so the batch of that line is added as far as
possible.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from actors.jobs.rules.job_answers import Added, NotAdded
from penstock.errors import PenstockError, UsageError
from penstock.rows.job_rows import BadJobRow, Defaults, Read, read_rows
from penstock.rows.own_pace import OwnPace
from streams.clock import now_ms
from streams.job_messages import NewJob

__all__ = ["SubmitReport", "add_rows", "open_rows"]

MOST_IN_BATCH = 1_000
BATCH_BYTES = 4 * 1024 * 1024
STDIN = "-"

AddMany = Callable[[Sequence[NewJob]], Awaitable[Sequence[Added | NotAdded]]]


class SubmitReport(Struct):
    """The result of a file's lines. `next_line`: the line to go on from after a stop, 0 if the end was reached."""

    added: int = 0
    kept: int = 0
    bad: list[BadJobRow] = []
    next_line: int = 0


@contextmanager
def open_rows(path: str) -> Iterator[BinaryIO]:
    """Open a file, or the standard input for `-`. Raises UsageError."""
    if path == STDIN:
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 # apart from the block, whose own errors are none of this file
    except OSError as error:
        raise UsageError(f"--file {path}: {error.strerror}") from error
    with file:
        yield file


async def add_rows(
    add: AddMany,
    file: BinaryIO,
    defaults: Defaults,
    *,
    skips_bad: bool,
    from_line: int = 1,
    rate: float | None = None,
    advance: Callable[[float], None] = lambda _share: None,
) -> SubmitReport:
    """Add the jobs of a file by `add`, at most `rate` a second (`None`: no limit). Return the result. If `add` fails,
    the error names the line to go on from."""
    told, batch, size, total, pace = SubmitReport(), list[Read](), 0, _size_of(file), OwnPace(rate, most=MOST_IN_BATCH)
    for row in read_rows(file, defaults, from_line=from_line, now_ms=now_ms()):
        if isinstance(row, BadJobRow):
            told.bad.append(row)
            if not skips_bad:
                told.next_line = row.line
                break
            continue
        batch.append(row)
        size += len(bytes(row.job.body))
        if len(batch) == pace.group or size >= BATCH_BYTES:
            await pace.wait(len(batch))
            if await _flush(add, batch, told) and not skips_bad:
                told.next_line = batch[-1].line + 1
                return told
            advance(batch[-1].read_bytes / total if total else 0.0)
            batch, size = [], 0
    await pace.wait(len(batch))
    if await _flush(add, batch, told) and not skips_bad and not told.next_line:
        told.next_line = batch[-1].line + 1
    return told


async def _flush(add: AddMany, batch: Sequence[Read], told: SubmitReport) -> bool:
    """Add a batch. Return whether any job of it was refused."""
    if not batch:
        return False
    first, last, before = batch[0].line, batch[-1].line, len(told.bad)
    try:
        answers = await add([row.job for row in batch])
    except PenstockError as error:
        raise PenstockError(f"lines {first} to {last}: {error}; --from-line {first} goes on with them") from error
    for row, answer in zip(batch, answers, strict=True):
        if isinstance(answer, NotAdded):
            told.bad.append(BadJobRow(row.line, answer.reason))
        elif answer.is_new:
            told.added += 1
        else:
            told.kept += 1
    told.bad.sort(key=lambda bad: bad.line)
    return len(told.bad) > before


def _size_of(file: BinaryIO) -> int:
    """Return the size of a regular file, 0 for a pipe."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
