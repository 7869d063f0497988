"""Jobs as people write them: spans with units, moments with zones, and files with a job on each line.

Nothing is guessed: a bare number is no span, and a moment without a zone is no moment. A line that cannot be read is
reported by its number, and stops no other line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.runtime.rules.setting_values import BadSetting, read_duration
from actors.runtime.rules.texts import span_text
from penstock.errors import UsageError
from penstock.rows.typed import read_line, read_typed
from penstock.times import read_moment, read_zone
from streams.messages.jobs import (
    LARGEST_BODY,
    LONGEST_TTR_MS,
    SHORTEST_TTR_MS,
    NewJob,
    OnSame,
    Priority,
    is_json,
)

__all__ = ["BadJobRow", "Defaults", "JobRow", "Read", "read_body", "read_due", "read_rows", "read_span", "read_ttr"]

LONGEST_LINE = LARGEST_BODY + 16 * 1024
STDIN = "-"


class JobRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a file: a job with spans and moments as people write them, or in milliseconds as programs do."""

    topic: str = ""
    id: str = ""
    body: Raw = Raw(b"null")
    delay: str = ""
    delay_ms: int | None = None
    at: str = ""
    due_ms: int | None = None
    ttr: str = ""
    ttr_ms: int | None = None
    priority: Priority | None = None
    attempts: int | None = None
    expires: str = ""
    expires_ms: int | None = None
    expires_in_ms: int | None = None
    on_same: OnSame | None = None


class Defaults(NamedTuple):
    """The values for a row that has none of its own: a job, and the zone of moments without one."""

    job: NewJob
    tz: str = ""


class BadJobRow(Struct, frozen=True):
    """A line that is no job."""

    line: int
    reason: str


class Read(NamedTuple):
    """A line that is a job, and how many bytes of the file have been read with it."""

    line: int
    job: NewJob
    read_bytes: int


_rows = msgspec.json.Decoder(JobRow)


def read_span(option: str, text: str) -> int:
    """Return the milliseconds of `250ms`, `30s`, `1h30m`, `2d`. Raises UsageError."""
    try:
        return read_duration(option, text)
    except BadSetting as error:
        raise UsageError(f"{option} {text[:64]!r}: {error.why}; {error.do}") from error


def read_ttr(option: str, text: str) -> int | None:
    """Return the milliseconds of a time to run, None for an empty text. Raises UsageError."""
    if not text:
        return None
    ttr_ms = read_span(option, text)
    if not SHORTEST_TTR_MS <= ttr_ms <= LONGEST_TTR_MS:
        bounds = f"{span_text(SHORTEST_TTR_MS)} to {span_text(LONGEST_TTR_MS)}"
        raise UsageError(f"{option} {text[:64]!r}: is out of range; write {bounds}")
    return ttr_ms


def read_due(delay: str, at: str, *, tz: str = "", now_ms: int) -> tuple[int, int | None]:
    """Return `delay_ms` and `due_ms` for a delay or a moment, at most one of which is given. Raises UsageError."""
    if delay and at:
        raise UsageError(f"--delay {delay} and --at {at}: give one of them")
    if at:
        return 0, read_moment(at, now_ms=now_ms, zone=read_zone(tz))
    return (read_span("--delay", delay) if delay else 0), None


def read_body(text: str) -> Raw:
    """Return the body that an argument names: JSON text, `-` for the standard input, `@FILE` for a file.

    Raises UsageError. Text that is no JSON is never taken for a string, since `{"a":1` would become one."""
    where, raw = "body", text.encode("utf-8", "surrogateescape")
    if text == STDIN:
        where, raw = "standard input", read_typed(LARGEST_BODY + 1)
    elif text.startswith("@"):
        where, raw = text[1:], _file_bytes(Path(text[1:]))
    if len(raw) > LARGEST_BODY:
        raise UsageError(f"{where}: more than {LARGEST_BODY} bytes; store it elsewhere, and send where it is")
    if not is_json(raw):
        raise UsageError(f"""{where}: is no JSON; write {{"order": 7}}, or "text" in quotes of its own, or @FILE""")
    return Raw(raw.strip())


def _file_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BODY + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def read_rows(file: BinaryIO, defaults: Defaults, *, from_line: int = 1, now_ms: int) -> Iterator[Read | BadJobRow]:
    """Yield each line that is not blank, from `from_line` on, as a job or as its error. Memory: one line."""
    read_bytes = 0
    for number, (size, line) in enumerate(_lines(file), 1):
        read_bytes += size
        if number < from_line or line.isspace():
            continue
        if size > LONGEST_LINE:
            yield BadJobRow(number, f"{size} bytes; a line has at most {LONGEST_LINE}")
            continue
        try:
            yield Read(number, _job_of(line, defaults, now_ms), read_bytes)
        except UsageError as error:
            yield BadJobRow(number, str(error))


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its size. Of a line that is too long only the end is kept."""
    read = read_line if file is sys.stdin.buffer else file.readline
    while line := read(LONGEST_LINE + 1):
        size = len(line)
        while not line.endswith(b"\n") and (more := read(LONGEST_LINE + 1)):
            size, line = size + len(more), more
        yield size, line


def _job_of(line: bytes, defaults: Defaults, now_ms: int) -> NewJob:
    try:
        line.decode()
        row = _rows.decode(line)
    except UnicodeDecodeError as error:
        raise UsageError(f"byte {error.start} is no UTF-8") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"is no job: {str(error)[:200] or 'nested too deeply'}") from error
    _once(row, "delay", "delay_ms", "at", "due_ms")
    _once(row, "ttr", "ttr_ms")
    _once(row, "expires", "expires_ms", "expires_in_ms")
    delay_ms, due_ms = _due(row, defaults, now_ms)
    job = defaults.job
    return replace(
        job,
        topic=row.topic or job.topic,
        id=row.id,
        body=Raw(bytes(row.body)),
        delay_ms=delay_ms,
        due_ms=due_ms,
        ttr_ms=_or(read_ttr("ttr", row.ttr) if row.ttr else row.ttr_ms, job.ttr_ms),
        priority=row.priority or job.priority,
        attempts=_or(row.attempts, job.attempts),
        expires_ms=row.expires_ms,
        expires_in_ms=_expires_in(row, job),
        on_same=row.on_same or job.on_same,
    )


def _once(row: JobRow, *names: str) -> None:
    told = [name for name in names if getattr(row, name) not in ("", None)]
    if len(told) > 1:
        raise UsageError(f"{' and '.join(told)}: give one of them")


def _due(row: JobRow, defaults: Defaults, now_ms: int) -> tuple[int, int | None]:
    if row.delay or row.at:
        return read_due(row.delay, row.at, tz=defaults.tz, now_ms=now_ms)
    if row.due_ms is not None:
        return 0, row.due_ms
    job = defaults.job
    return (job.delay_ms, job.due_ms) if row.delay_ms is None else (row.delay_ms, None)


def _expires_in(row: JobRow, job: NewJob) -> int | None:
    if row.expires:
        return read_span("expires", row.expires)
    return None if row.expires_ms is not None else _or(row.expires_in_ms, job.expires_in_ms)


def _or(value: int | None, default: int | None) -> int | None:
    return default if value is None else value
