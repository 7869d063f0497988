"""Adds the jobs of a file in batches. Memory stays small whatever the file's size, and a bad line loses no other line.

After a stop, all lines before the named line are added, so that a person can go on from there. A node's refusal (a
quota, a value out of range) is known only with the answers of its batch, so the batch of that line is added as far as
possible. What no node took, or whose outcome nobody knows, is no bad line: its add is repeated until it is known. If it
stays so, the file ends before its batch.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import anyio
from msgspec import Struct
from msgspec.structs import replace

from actors.jobs.rules.job_answers import Added, NotAdded
from penstock.errors import PenstockError, Timeout, Unavailable, UsageError
from penstock.rows.job_rows import BadJobRow, Defaults, Read, read_rows
from penstock.rows.own_pace import OwnPace
from streams.clock import now_ms
from streams.messages.jobs import NewJob
from streams.messages.nonces import fresh_nonce

__all__ = ["SubmitReport", "add_rows", "open_rows"]

MOST_IN_BATCH = 1_000
BATCH_BYTES = 4 * 1024 * 1024
STDIN = "-"
AGAIN_S = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
"""Seconds before each further try of adds that are not known, or that no node took."""

AddMany = Callable[[Sequence[NewJob]], Awaitable[Sequence[Added | NotAdded]]]


class SubmitReport(Struct):
    """The result of a file's lines. `next_line`: the line to go on from after a stop, 0 if the end was reached. While a
    batch is added it is the first line of that."""

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
    told: SubmitReport,
    *,
    skips_bad: bool,
    from_line: int = 1,
    rate: float | None = None,
    advance: Callable[[float], None] = lambda _share: None,
) -> None:
    """Add the jobs of a file by `add`, at most `rate` a second (`None`: no limit). Write the result into `told` as it
    grows, for a caller that is stopped. If `add` fails, the error names the line to go on from."""
    told.next_line, stopped = from_line, 0
    batch, size, total, pace = list[Read](), 0, _size_of(file), OwnPace(rate, most=MOST_IN_BATCH)
    for row in read_rows(file, defaults, from_line=from_line, now_ms=now_ms()):
        if isinstance(row, BadJobRow):
            told.bad.append(row)
            if not skips_bad:
                stopped = row.line
                break
            continue
        batch.append(row)
        size += len(bytes(row.job.body))
        if len(batch) == pace.group or size >= BATCH_BYTES:
            await pace.wait(len(batch))
            is_refused = await _flush(add, batch, told)
            told.next_line = batch[-1].line + 1
            if is_refused and not skips_bad:
                return
            advance(batch[-1].read_bytes / total if total else 0.0)
            batch, size = [], 0
    await pace.wait(len(batch))
    if await _flush(add, batch, told) and not skips_bad and not stopped:
        stopped = batch[-1].line + 1
    told.next_line = stopped


async def _answers(add: AddMany, jobs: Sequence[NewJob]) -> Sequence[Added | NotAdded]:
    """Return the reply to each add. One that is not known has the same nonce in each try, so it adds no second job."""
    known: dict[int, Added | NotAdded] = {}
    trouble = PenstockError()
    for wait_s in (0.0, *AGAIN_S):
        await anyio.sleep(wait_s)
        left = [at for at in range(len(jobs)) if at not in known]
        try:
            answers = await add([jobs[at] for at in left])
        except (Timeout, Unavailable) as error:
            trouble = error
            continue
        for at, answer in zip(left, answers, strict=True):
            if isinstance(answer, NotAdded) and answer.code in ("unknown", "unavailable"):
                trouble = PenstockError(answer.reason)
            else:
                known[at] = answer
        if len(known) == len(jobs):
            return [known[at] for at in range(len(jobs))]
    raise trouble


async def _flush(add: AddMany, batch: Sequence[Read], told: SubmitReport) -> bool:
    """Add a batch. Return whether any job of it was refused."""
    if not batch:
        return False
    first, last, before = batch[0].line, batch[-1].line, len(told.bad)
    try:
        answers = await _answers(add, [replace(row.job, nonce=row.job.nonce or fresh_nonce()) for row in batch])
    except PenstockError as error:
        twice = "" if all(row.job.id for row in batch) else "; those without an id that were added come twice then"
        raise PenstockError(
            f"lines {first} to {last}: {error}; --from-line {first} goes on with them{twice}"
        ) from error
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
