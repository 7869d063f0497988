"""Whether a schedule can be followed. Pure."""

from itertools import pairwise
from typing import get_args

from msgspec import DecodeError
from msgspec.structs import replace

from actors.jobs.rules.cron import FORM, BadRecurrence, check_cron
from actors.jobs.rules.job_rules import BadJob, make_job
from actors.jobs.rules.schedule_record import MOST_RUNS, Misfire, Overlap, Schedule, due_of
from actors.jobs.rules.schedule_targets import check_target
from actors.jobs.rules.schedule_times import body_at, next_dues, occurrence
from actors.jobs.rules.topic_settings import TopicSettings
from actors.runtime.rules.setting_values import duration_text
from streams.jobs.timetable import LATEST_MS, BadSchedule, check_tz

SHORTEST_EVERY_MS = 1_000
LONGEST_EVERY_MS = 366 * 86_400_000
MOST_AT_ONCE = 100
"""Occurrences in one record's claim. The rest of a long gap follows at once."""
LONGEST_FIELD = 64


def check_schedule(record: Schedule) -> Schedule:
    """Return the record if it can be followed. Raises BadRecurrence."""
    _check_recurrence(record)
    _check_moments(record)
    _check_missed(record)
    dues = next_dues(replace(record, runs=()), max(1, record.start_ms - 1), 2)
    if not dues and record.at_ms:
        raise BadRecurrence("at_ms", record.at_ms, "lies before the start", "leave the start out")
    if not dues:
        raise BadRecurrence("cron", record.cron, "never comes", f"write {FORM}")
    first_ms = dues[0]
    check_target(record)
    _check_data_time(record)
    _check_jitter(record, dues[1] - first_ms if len(dues) > 1 else LONGEST_EVERY_MS)
    try:
        make_job(occurrence("topic", "name", record, first_ms, claim=0), TopicSettings(), now_ms=first_ms, fresh_id="")
    except BadJob as error:
        raise BadRecurrence(error.field, error.value, error.what, error.hint) from error
    return record


def _check_recurrence(record: Schedule) -> None:
    """Check what says when occurrences are due."""
    if sum(map(bool, (record.cron, record.every_ms, record.fixed_delay_ms, record.at_ms))) != 1:
        hint = "write a cron line, or every or fixed_delay with a span such as 10m, or at with a moment"
        raise BadRecurrence("cron", record.cron, "either cron or every or fixed_delay or at says when", hint)
    if record.cron:
        check_cron(record.cron)
    for field, span_ms in (("every_ms", record.every_ms), ("fixed_delay_ms", record.fixed_delay_ms)):
        if span_ms and not SHORTEST_EVERY_MS <= span_ms <= LONGEST_EVERY_MS:
            raise BadRecurrence(field, duration_text(span_ms), "is out of range", "use 1s to 366d")
    try:
        check_tz(record.tz)
    except BadSchedule as error:
        raise BadRecurrence("tz", record.tz, "unknown", str(error).partition("; ")[2]) from error


def _check_moments(record: Schedule) -> None:
    """Check that each moment is one that a schedule can have."""
    if not 0 <= record.initial_delay_ms <= LONGEST_EVERY_MS:
        raise BadRecurrence(
            "initial_delay_ms", duration_text(record.initial_delay_ms), "is out of range", "use 0s to 366d"
        )
    for field in ("at_ms", "start_ms", "last_ms", "added_ms", "buffered_ms", "claim_ms"):
        _check_range(field, getattr(record, field), 0, LATEST_MS)
    kept = (
        *record.adding,
        *record.owed,
        *record.stale,
        *record.cancelling,
        *record.triggered,
        *map(due_of, record.runs),
        *(record.backfill or ()),
        *dict(record.nonces).values(),
    )
    if not all(0 <= due_ms <= LATEST_MS for due_ms in kept):
        raise BadRecurrence("adding", record.adding, "is out of range", "leave it out")


def _check_missed(record: Schedule) -> None:
    """Check what becomes of occurrences that were missed, or that meet others."""
    for field, value, known in (
        ("misfire", record.misfire, get_args(Misfire)),
        ("overlap", record.overlap, get_args(Overlap)),
    ):
        if value not in known:
            raise BadRecurrence(field, value, "is not known", f"use {', '.join(known)}")
    if record.fixed_delay_ms and record.overlap != "skip":
        what = "says what to do while another has not ended, fixed_delay waits for its end"
        raise BadRecurrence("overlap", record.overlap, what, "leave it out, or write every")
    if record.misfire == "all" and record.overlap != "allow":
        what = f"runs each one that was missed, overlap {record.overlap} leaves some out"
        raise BadRecurrence("misfire", "all", what, "choose overlap allow, or misfire once")
    if record.most_missed is not None:
        if record.misfire != "all":
            hint = "leave it out, or write misfire all"
            raise BadRecurrence("most_missed", record.most_missed, "limits misfire all", hint)
        _check_range("most_missed", record.most_missed, 1, MOST_AT_ONCE)
    if record.most_open is not None:
        _check_range("most_open", record.most_open, 1, MOST_RUNS)


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadRecurrence(field, value, "is out of range", f"use {least} to {most}")


def _check_jitter(record: Schedule, gap_ms: int) -> None:
    """Raise BadRecurrence if an occurrence could be due after the next one. `gap_ms`: from one to the next."""
    if not 0 <= record.jitter_ms < gap_ms:
        hint = f"use less than {duration_text(gap_ms)}, the shortest time from one to the next"
        raise BadRecurrence("jitter_ms", duration_text(record.jitter_ms), "is out of range", hint)


def _check_data_time(record: Schedule) -> None:
    field = record.data_time
    if len(field) > LONGEST_FIELD or not field.isprintable():
        hint = f"use 1 to {LONGEST_FIELD} printable characters"
        raise BadRecurrence("data_time", field, "is no name of a field", hint)
    try:
        body_at("topic", "name", record, 0)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "write the body as a JSON object, or leave data_time out"
        raise BadRecurrence("data_time", field, "needs a body that has fields", hint) from error


def check_wanted(record: Schedule) -> Schedule:
    """Return a definition as a person gave it, if it can be followed. Raises BadRecurrence."""
    if record.start_ms and record.initial_delay_ms:
        hint = "give one of them"
        raise BadRecurrence("initial_delay_ms", duration_text(record.initial_delay_ms), "stands beside a start", hint)
    check_schedule(record)
    if record.cron and record.jitter_ms:
        dues = next_dues(record, max(1, record.start_ms - 1), MOST_AT_ONCE)
        _check_jitter(record, min((after_ms - due_ms for due_ms, after_ms in pairwise(dues)), default=LONGEST_EVERY_MS))
    return record
