"""A schedule as it is shown at every door, and what its desk answers. Pure."""

from typing import Literal

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict

from actors.jobs.rules.schedule_record import MOST_RUNS, Kind, Misfire, Overlap, PastRun, Schedule
from actors.jobs.rules.schedule_times import next_dues
from streams.messages.jobs import Outcome, Priority

MOST_NEXT = 100
"""Due times in one view."""


class ScheduleLine(Struct, frozen=True, kw_only=True):
    """A schedule as a list shows it, with its definition. `state`: `over` after its one moment, `unreadable` if it
    cannot be followed, and `fault` says why. `next_ms`: when it is due next, nothing while it is paused. `added_ms`:
    when the latest job that was added is due. `left_out`: how many were left out because the one before was not
    finished. `backfill`: what is still to come of a past range, after the first moment, before the second."""

    topic: str
    name: str
    state: Literal["runs", "paused", "over", "unreadable"] = "unreadable"
    fault: str = ""
    cron: str = ""
    every_ms: int = 0
    fixed_delay_ms: int = 0
    at_ms: int = 0
    tz: str = "UTC"
    start_ms: int = 0
    initial_delay_ms: int = 0
    jitter_ms: int = 0
    batch: str = ""
    source: str = ""
    data_time: str = ""
    ttr_ms: int | None = None
    attempts: int | None = None
    priority: Priority = "normal"
    expires_in_ms: int | None = None
    misfire: Misfire = "once"
    most_missed: int | None = None
    overlap: Overlap = "skip"
    next_ms: list[int] = []
    added_ms: int = 0
    left_out: int = 0
    backfill: tuple[int, int] | None = None


class RunView(Struct, frozen=True, kw_only=True):
    """An occurrence that was added, as in `PastRun`. `outcome` is empty until it has ended."""

    due_ms: int
    kind: Kind
    started_ms: int
    ended_ms: int
    outcome: Outcome | Literal["", "unknown"]


class ScheduleView(ScheduleLine, frozen=True, kw_only=True):
    """A schedule as it is now. `runs`: the latest ones, the last of them last."""

    body: Raw = msgspec.field(default_factory=lambda: Raw(b"null"))
    runs: list[RunView] = []


class ScheduleChanged(Struct, frozen=True, kw_only=True):
    """A schedule after a change. `is_changed`: False if it was so already."""

    is_changed: bool
    schedule: ScheduleView


class Triggered(Struct, frozen=True, kw_only=True):
    """A job that is added now, in the topic of the schedule's jobs."""

    topic: str
    id: str


class ScheduleRemoved(Struct, frozen=True, kw_only=True):
    """A schedule that adds no more jobs."""

    topic: str
    name: str


_OWN = frozenset(("topic", "name", "state", "fault", "next_ms", "runs"))
_SHOWN = [field for field in ScheduleView.__struct_fields__ if field not in _OWN]


def view_of(topic: str, name: str, record: Schedule, *, now_ms: int, most: int) -> ScheduleView:
    """Return a schedule as it is shown, with at most `most` of the next due times."""
    is_to_come = record.owed or record.buffered_ms
    is_over = 0 < record.at_ms <= min(record.last_ms, now_ms) and not is_to_come
    return ScheduleView(
        topic=topic,
        name=name,
        state="over" if is_over else "paused" if record.is_paused else "runs",
        next_ms=[] if record.is_paused else _next_ms(record, now_ms, most),
        runs=[RunView(**asdict(run)) for run in _shown_runs(record, now_ms)],
        **{field: getattr(record, field) for field in _SHOWN},
    )


def _next_ms(record: Schedule, now_ms: int, most: int) -> list[int]:
    """Return the next due times. After a fixed delay it is the one that waits, if one does."""
    waits = [run.due_ms for run in record.runs if record.fixed_delay_ms and not run.kind and run.due_ms > now_ms]
    return waits[:most] or next_dues(record, now_ms, most)


def _shown_runs(record: Schedule, now_ms: int) -> list[PastRun]:
    """Return the latest runs. Of those ahead only the next one."""
    ahead = [run.due_ms for run in record.runs if not run.kind and run.due_ms > now_ms]
    return [run for run in record.runs if run.due_ms not in ahead[1:]][-MOST_RUNS:]
