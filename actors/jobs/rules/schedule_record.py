"""The record of a schedule: its definition by people, and its progress by the leading node. Pure.

Each of its occurrences is an ordinary job of the topic, with an id made of the due time: adding one twice leaves one.
"""

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from streams.errors import MalformedMessage
from streams.messages.jobs import Outcome, Priority
from streams.subjects import TOKEN

Misfire = Literal["skip", "once", "all"]
Overlap = Literal["skip", "allow", "buffer", "cancel"]
Kind = Literal["", "triggered", "backfilled"]

MOST_RUNS = 20
"""Occurrences of which a record tells how they ended."""


class PastRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An occurrence that was added, and how it ended. `started_ms`: when a worker first had its job. 0: never, or that
    is not known. `outcome`: empty until it has ended. `unknown`: its job is gone without a trace. `kind`: empty if the
    schedule asked for it, else who did."""

    due_ms: int
    kind: Kind = ""
    started_ms: int = 0
    ended_ms: int = 0
    outcome: Outcome | Literal["", "unknown"] = ""


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as it is stored under `<topic>.<name>`. People write its definition, the leading node its
    progress. Either `cron` (by the clock of `tz`), `every_ms` (counted from `start_ms`), `fixed_delay_ms` (counted from
    the end of the one before) or `at_ms` (once) says when. None is due before `start_ms`."""

    cron: str = ""
    every_ms: int = 0
    fixed_delay_ms: int = 0
    at_ms: int = 0
    tz: str = "UTC"
    start_ms: int = 0
    initial_delay_ms: int = 0
    """How long after the definition `start_ms` was, if the person left that open."""
    jitter_ms: int = 0
    """Each occurrence is due up to so much later than its time."""
    body: Raw = Raw(b"null")
    batch: str = ""
    """The task of which each occurrence is a batch (schedule_targets.py). Empty: each is a job of the topic."""
    tenant: str = ""
    """The owner of these batches."""
    source: str = ""
    """`platform/source`, which at each occurrence reads a past window once more."""
    data_time: str = ""
    """The field of the body that tells each job its time. Empty: none does."""
    ttr_ms: int | None = None
    attempts: int | None = None
    priority: Priority = "normal"
    expires_in_ms: int | None = None
    """An occurrence is given up if it was not started within this time after it was due."""
    misfire: Misfire = "once"
    """Which occurrences run that were missed while no node was there: none, the latest one, or all."""
    most_missed: int | None = None
    """Of all that were missed, at most so many run, the latest ones. `None`: no limit."""
    overlap: Overlap = "skip"
    """While the one before is not finished: leave this one out, run it beside, run it after (one waits, later ones are
    left out), or delete the one before."""
    most_open: int | None = None
    """While so many of the latest runs are due and have not ended, no more are added. At most `MOST_RUNS`. `None`: no
    limit."""
    is_paused: bool = False
    is_removed: bool = False
    """The leading node must remove the record, and its added jobs that are not due yet."""
    last_ms: int = 0
    """Everything due up to here is decided. 0: it begins when the leading node first sees it."""
    added_ms: int = 0
    """When the latest added one is due. 0: none was added."""
    adding: tuple[int, ...] = ()
    """Claimed, and perhaps not added yet."""
    claim_ms: int = 0
    """When they were claimed. Every node that adds them for this claim adds the same jobs."""
    triggered: tuple[int, ...] = ()
    """The moments at which people asked for a job now. Not claimed yet."""
    nonces: tuple[tuple[str, int], ...] = ()
    """Of the latest triggers, each with its moment, so that a repeat is known."""
    backfill: tuple[int, int] | None = None
    """The occurrences that people asked for: after the first moment, before the second. Those claimed are left out."""
    owed: tuple[int, ...] = ()
    """Due before a pause or another definition, and not known to be added. They are claimed once the schedule runs."""
    stale: tuple[int, ...] = ()
    """Added before a change. Those not due yet must be removed."""
    cancelling: tuple[int, ...] = ()
    """Those in whose place the claimed one runs. They must be deleted before."""
    buffered_ms: int = 0
    """When the one was due that waits for the end of the one before. 0: none waits."""
    left_out: int = 0
    """How many were left out because the one before was not finished."""
    runs: tuple[PastRun, ...] = ()
    """The latest ones that were added, and how they ended. The last one was added last."""


def decode_schedule(raw: bytes) -> Schedule:
    """Return the record, or raise MalformedMessage."""
    try:
        return msgspec.json.decode(raw, type=Schedule)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no schedule: {error}") from error


def names_of(key: str) -> tuple[str, str]:
    """Return topic and name of a key. Raises MalformedMessage."""
    tokens = key.split(".")
    if len(tokens) != 2 or not all(TOKEN.fullmatch(token) for token in tokens):
        raise MalformedMessage(f"key {key}: is not TOPIC.NAME")
    return tokens[0], tokens[1]


def due_of(run: PastRun) -> int:
    return run.due_ms


def asked_of(record: Schedule) -> set[int]:
    """Return the claimed ones that people asked for."""
    return {run.due_ms for run in record.runs if run.kind}.intersection(record.adding)


def open_runs(record: Schedule) -> list[PastRun]:
    """Return the runs whose end is not known."""
    return [run for run in record.runs if not run.outcome]
