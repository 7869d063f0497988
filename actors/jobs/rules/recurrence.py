"""Recurring jobs: when the next one is due, and what happens to those whose time passed while no node looked. Pure.

A recurring job is a record. Each of its occurrences is an ordinary job of the topic, with an id made of the due time:
adding one twice leaves one. `decide` says which to add next. cron.py says what a change of the clock does to a cron
line. `every_ms` follows only the elapsed time.
"""

from datetime import UTC, datetime
from typing import Literal, NamedTuple, get_args

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.jobs.rules.cron import FORM, BadRecurrence, check_cron, next_cron
from actors.jobs.rules.job_rules import BadJob, make_job
from actors.jobs.rules.topic_settings import TopicSettings
from streams.job_messages import NewJob, Priority
from streams.timetable import LATEST_MS, BadSchedule, check_tz

Misfire = Literal["skip", "once", "all"]
Overlap = Literal["skip", "allow"]

SHORTEST_EVERY_MS = 1_000
LONGEST_EVERY_MS = 366 * 86_400_000
GRACE_MS = 60_000
"""If an occurrence is no later than this, and its successor is not due yet, it was not missed: a node was killed, and
the next one has taken over."""
LEAD_MS = 2_000
"""How long before its time an occurrence is added if the one before must be finished. A leader that dies within this
time delays nothing. If the one before ends in the last two seconds, the record is looked at again at that time."""
FAR_MS = 366 * 86_400_000
"""Occurrences due later than this are not added yet: a job's delay is bounded."""
MOST_AT_ONCE = 100
"""Occurrences in one record's claim. The rest of a long gap follows at once."""


class Recurring(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recurring job as it is stored under `<topic>.<name>`. People write its definition, the leading node its
    progress. Either `cron` (by the clock of `tz`) or `every_ms` (counted from `start_ms`) says when. None is due before
    `start_ms`."""

    cron: str = ""
    every_ms: int = 0
    tz: str = "UTC"
    start_ms: int = 0
    body: Raw = Raw(b"null")
    ttr_ms: int | None = None
    attempts: int | None = None
    priority: Priority = "normal"
    expires_in_ms: int | None = None
    """An occurrence is given up if it was not started within this time after it was due."""
    misfire: Misfire = "once"
    """Which occurrences run that were missed while no node was there: none, the latest one, or all."""
    overlap: Overlap = "skip"
    """While the one before is not finished: leave this one out, or run it beside."""
    is_paused: bool = False
    is_removed: bool = False
    """The leading node must remove the record, and its added jobs that are not due yet."""
    last_ms: int = 0
    """Everything due up to here is decided. 0: it begins when the leading node first sees it."""
    added_ms: int = 0
    """When the latest added one is due. 0: none was added."""
    adding: tuple[int, ...] = ()
    """Claimed, and perhaps not added yet."""
    stale: tuple[int, ...] = ()
    """Added before a change. Those not due yet must be removed."""
    left_out: int = 0
    """How many were left out because the one before was not finished."""


class Step(NamedTuple):
    """What follows from a look at a record: the record to store (the same object: none), with the occurrences to add in
    its `adding`, and when to look again. `look_ms` is `None`: when the record changes."""

    record: Recurring
    look_ms: int | None = None
    missed: tuple[int, int] | None = None
    """The first and the last of those that were missed and are not run."""


# ---- checking


def check_recurring(record: Recurring) -> Recurring:
    """Return the record if it can be followed. Raises BadRecurrence."""
    if bool(record.cron) == bool(record.every_ms):
        hint = "write a cron line, or every with a span such as 10m"
        raise BadRecurrence("cron", record.cron, "either cron or every says when", hint)
    if record.cron:
        check_cron(record.cron)
    elif not SHORTEST_EVERY_MS <= record.every_ms <= LONGEST_EVERY_MS:
        raise BadRecurrence("every", f"{record.every_ms}ms", "is out of range", "use 1s to 366d")
    try:
        check_tz(record.tz)
    except BadSchedule as error:
        raise BadRecurrence("tz", record.tz, "unknown", str(error).partition("; ")[2]) from error
    for field in ("start_ms", "last_ms", "added_ms"):
        if not 0 <= getattr(record, field) <= LATEST_MS:
            raise BadRecurrence(field, getattr(record, field), "is out of range", f"use 0 to {LATEST_MS}")
    if not all(0 <= due_ms <= LATEST_MS for due_ms in (*record.adding, *record.stale)):
        raise BadRecurrence("adding", record.adding, "is out of range", "leave it out")
    for field, value, known in (
        ("misfire", record.misfire, get_args(Misfire)),
        ("overlap", record.overlap, get_args(Overlap)),
    ):
        if value not in known:
            raise BadRecurrence(field, value, "is not known", f"use {', '.join(known)}")
    if record.misfire == "all" and record.overlap == "skip":
        hint = "choose overlap allow, or misfire once"
        raise BadRecurrence("misfire", "all", "runs each one that was missed, overlap skip leaves some out", hint)
    first_ms = next_due(record, max(1, record.start_ms - 1))
    if first_ms is None:
        raise BadRecurrence("cron", record.cron, "never comes", f"write {FORM}")
    try:
        make_job(occurrence("topic", "name", record, first_ms, claim=0), TopicSettings(), now_ms=first_ms, fresh_id="")
    except BadJob as error:
        raise BadRecurrence(error.field, error.value, error.what, error.hint) from error
    return record


# ---- when


def next_due(record: Recurring, after_ms: int) -> int | None:
    """Return the first moment after `after_ms` at which it is due, or None if it never is (within fifty years)."""
    after_ms = max(after_ms, record.start_ms - 1)
    if record.every_ms:
        return record.start_ms + ((after_ms - record.start_ms) // record.every_ms + 1) * record.every_ms
    return next_cron(record.cron, record.tz, after_ms)


def next_dues(record: Recurring, after_ms: int, most: int) -> list[int]:
    """Return the next moments, at most `most`."""
    found: list[int] = []
    while len(found) < most and (due_ms := next_due(record, found[-1] if found else after_ms)) is not None:
        found.append(due_ms)
    return found


def latest_due(record: Recurring, after_ms: int, until_ms: int) -> int | None:
    """Return the last moment after `after_ms`, up to `until_ms` itself, at which it is due, or None if there is none.
    By bisection: it need not step through a line of each second that no node followed for a week."""
    low, high = after_ms, until_ms
    found = _due_within(record, low, until_ms)
    if found is None:
        return None
    while low < high:  # after `low` something is due, after `high` nothing more
        middle = (low + high) // 2
        later = _due_within(record, middle, until_ms)
        if later is None:
            high = middle
        else:
            found, low = later, later
    return found


def _due_within(record: Recurring, after_ms: int, until_ms: int) -> int | None:
    due_ms = next_due(record, after_ms)
    return due_ms if due_ms is not None and due_ms <= until_ms else None


def occurrence_id(name: str, due_ms: int) -> str:
    """Return the job id of an occurrence: `<name>.20261121T093000Z`, with milliseconds only where there are any."""
    moment = datetime.fromtimestamp(due_ms // 1000, UTC)
    fraction = f".{due_ms % 1000:03d}" if due_ms % 1000 else ""
    return f"{name}.{moment:%Y%m%dT%H%M%S}{fraction}Z"


def occurrence(topic: str, name: str, record: Recurring, due_ms: int, *, claim: int) -> NewJob:
    """Return the add of one occurrence. `claim`: the revision of the record that claims it. Every node that adds it for
    this claim adds the same job."""
    return NewJob(
        topic=topic,
        id=occurrence_id(name, due_ms),
        body=record.body,
        due_ms=due_ms,
        ttr_ms=record.ttr_ms,
        attempts=record.attempts,
        priority=record.priority,
        expires_ms=None if record.expires_in_ms is None else due_ms + record.expires_in_ms,
        on_same="keep",
        nonce=f"claim-{claim}",
    )


# ---- decisions of the leading node


def decide(record: Recurring, now_ms: int, *, is_open: bool) -> Step:
    """Return what follows at `now_ms`. `is_open`: the latest added one is not finished.
    If they may overlap, the next one is added as soon as the one before is due, so it fires on time even if every node
    died. Otherwise it is added when the one before is finished, at most LEAD_MS ahead."""
    if record.is_paused or record.is_removed or record.adding or record.stale:
        return Step(record)
    if not record.last_ms:
        return Step(replace(record, last_ms=now_ms), now_ms)
    if record.last_ms > now_ms:
        return Step(record, record.last_ms)
    due_ms = next_due(record, record.last_ms)
    if due_ms is None:
        return Step(record)
    if due_ms <= now_ms:
        return _late(record, due_ms, now_ms, is_open=is_open)
    if due_ms - now_ms > FAR_MS:
        return Step(record, due_ms - FAR_MS)
    if record.overlap == "allow":
        return Step(_claimed(record, (due_ms,)), due_ms)
    if now_ms < due_ms - LEAD_MS:
        return Step(record, due_ms - LEAD_MS)
    return Step(record if is_open else _claimed(record, (due_ms,)), due_ms)


def _late(record: Recurring, first_ms: int, now_ms: int, *, is_open: bool) -> Step:
    """Decide about due occurrences: the newest may just be late, the others were missed."""
    if record.misfire == "all":
        dues = next_dues(record, record.last_ms, MOST_AT_ONCE)
        return Step(_claimed(record, tuple(due for due in dues if due <= now_ms)), now_ms)
    newest_ms = latest_due(record, record.last_ms, now_ms) or first_ms
    if record.misfire == "skip" and now_ms - newest_ms > GRACE_MS:
        return Step(replace(record, last_ms=newest_ms), now_ms, (first_ms, newest_ms))
    earlier_ms = latest_due(record, record.last_ms, newest_ms - 1)
    missed = None if earlier_ms is None else (first_ms, earlier_ms)
    if record.overlap == "skip" and is_open:
        return Step(replace(record, last_ms=newest_ms, left_out=record.left_out + 1), now_ms, missed)
    return Step(_claimed(record, (newest_ms,)), now_ms, missed)


def _claimed(record: Recurring, dues: tuple[int, ...]) -> Recurring:
    return replace(record, last_ms=dues[-1], added_ms=dues[-1], adding=dues)


def added(record: Recurring, dues: tuple[int, ...]) -> Recurring:
    """Return the record once jobs for these were added."""
    return replace(record, adding=tuple(due for due in record.adding if due not in dues))


def taken_back(record: Recurring, dues: tuple[int, ...]) -> Recurring:
    """Return the record once the unwanted jobs are removed."""
    return replace(record, stale=tuple(due for due in record.stale if due not in dues))


# ---- changes by people


def begun(wanted: Recurring, before: Recurring | None, *, now_ms: int) -> Recurring:
    """Return the record to store for a new definition, in the place of `before` if there is one.
    Jobs of the old one that are not due yet are taken back. Due ones stay jobs."""
    return replace(
        wanted,
        start_ms=wanted.start_ms or now_ms,
        last_ms=now_ms,
        added_ms=0,
        adding=(),
        stale=_added(before) if before else (),
        left_out=0,
        is_removed=False,
    )


def paused(record: Recurring) -> Recurring:
    """Return the record to which nothing more is added. Added jobs that are not due yet are taken back."""
    return replace(record, is_paused=True, stale=_added(record), adding=())


def resumed(record: Recurring, *, now_ms: int) -> Recurring:
    """Return the record that goes on from now. Occurrences during the pause were not missed."""
    return replace(record, is_paused=False, last_ms=now_ms, adding=())


def removed(record: Recurring) -> Recurring:
    """Return the record that the leading node removes."""
    return replace(record, is_removed=True, stale=_added(record), adding=())


def _added(record: Recurring) -> tuple[int, ...]:
    """Return the occurrences that may wait as jobs. The job itself says whether it is due already, when it is taken
    back."""
    return tuple(sorted({*record.stale, *record.adding, *([record.added_ms] if record.added_ms else [])}))
