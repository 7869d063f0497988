"""When the occurrences of a schedule are due, and the job of each. Pure.

cron.py says what a change of the clock does to a cron line. `every_ms` follows only the elapsed time. `fixed_delay_ms`
counts from the end of the run before, as the record of its job tells it. `at_ms` is one moment. With jitter the job
itself is due a little later, by a time that follows from its name: every node that adds it adds the same job.
"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

from msgspec import Raw, json
from msgspec.structs import replace

from actors.jobs.rules.cron import next_cron
from actors.jobs.rules.schedule_record import Schedule, asked_of
from actors.jobs.rules.schedule_targets import TOPIC as TARGETS
from actors.jobs.rules.schedule_targets import has_target, target_of, with_time
from streams.jobs.timetable import LATEST_MS
from streams.messages.jobs import NewJob


def next_due(record: Schedule, after_ms: int) -> int | None:
    """Return the first moment after `after_ms` at which it is due, or None if it never is (within fifty years)."""
    after_ms = max(after_ms, record.start_ms - 1)
    if record.fixed_delay_ms:
        return _after_the_end(record, after_ms)
    if record.at_ms:
        return record.at_ms if record.at_ms > after_ms else None
    if record.every_ms:
        return record.start_ms + ((after_ms - record.start_ms) // record.every_ms + 1) * record.every_ms
    return next_cron(record.cron, record.tz, after_ms)


def _after_the_end(record: Schedule, after_ms: int) -> int | None:
    last = next((run for run in reversed(record.runs) if not run.kind), None)
    if last is None:
        return after_ms + 1
    return max(after_ms + 1, last.ended_ms + record.fixed_delay_ms) if last.outcome else None


def next_dues(record: Schedule, after_ms: int, most: int, until_ms: int = LATEST_MS) -> list[int]:
    """Return the next moments, at most `most`, none after the first that is not before `until_ms`. Of those after a
    fixed delay only the next one can be known."""
    most = min(most, 1) if record.fixed_delay_ms else most
    found: list[int] = []
    while len(found) < most and (due_ms := next_due(record, found[-1] if found else after_ms)) is not None:
        found.append(due_ms)
        if due_ms >= until_ms:
            break
    return found


def each_due_within(record: Schedule, after_ms: int, before_ms: int) -> Iterator[int]:
    """Yield the moments after the one and before the other, also those before the start."""
    start_ms = record.start_ms % record.every_ms if record.every_ms else 0
    record = replace(record, start_ms=start_ms)
    due_ms = next_due(record, after_ms)
    while due_ms is not None and due_ms < before_ms:
        yield due_ms
        due_ms = None if record.fixed_delay_ms else next_due(record, due_ms)


def dues_within(record: Schedule, after_ms: int, before_ms: int, most: int) -> list[int]:
    """Return the first of these, at most `most`."""
    return list(islice(each_due_within(record, after_ms, before_ms), most))


def have_same_times(one: Schedule, other: Schedule) -> bool:
    """Return whether both are due at the same moments."""
    return all(getattr(one, name) == getattr(other, name) for name in ("cron", "tz", "every_ms", "start_ms"))


def latest_due(record: Schedule, after_ms: int, until_ms: int) -> int | None:
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


def latest_dues(record: Schedule, after_ms: int, until_ms: int, most: int) -> list[int]:
    """Return the last moments after `after_ms`, up to `until_ms`, at most `most`, the earliest first."""
    found: list[int] = []
    while len(found) < most:
        due_ms = latest_due(record, after_ms, found[-1] - 1 if found else until_ms)
        if due_ms is None:
            break
        found.append(due_ms)
    return found[::-1]


def _due_within(record: Schedule, after_ms: int, until_ms: int) -> int | None:
    due_ms = next_due(record, after_ms)
    return due_ms if due_ms is not None and due_ms <= until_ms else None


def occurrence_id(name: str, due_ms: int) -> str:
    """Return the job id of an occurrence: `<name>.20261121T093000Z`, with milliseconds only where there are any."""
    moment = datetime.fromtimestamp(due_ms // 1000, UTC)
    fraction = f".{due_ms % 1000:03d}" if due_ms % 1000 else ""
    return f"{name}.{moment:%Y%m%dT%H%M%S}{fraction}Z"


def jittered(topic: str, name: str, record: Schedule, due_ms: int) -> int:
    """Return when the job of an occurrence is due: the same on every node, different for each name and time."""
    if not record.jitter_ms:
        return due_ms
    facts = hashlib.blake2b(f"{topic}.{name}.{due_ms}".encode(), digest_size=8).digest()
    return due_ms + int.from_bytes(facts, "big") % (record.jitter_ms + 1)


def job_of(topic: str, name: str, record: Schedule, due_ms: int) -> tuple[str, str]:
    """Return topic and id of the job of an occurrence. Jobs for a target are in a built-in topic, where the id names
    the schedule's topic too."""
    own = occurrence_id(name, due_ms)
    return (TARGETS, f"{topic}.{own}") if has_target(record) else (topic, own)


def body_at(topic: str, name: str, record: Schedule, due_ms: int) -> Raw:
    """Return the body of an occurrence's job. Raises BadRecurrence for one that the target does not take, and msgspec's
    errors for one that cannot have the time."""
    if not has_target(record):
        return with_time(record.body, record.data_time, datetime.fromtimestamp(due_ms / 1000, UTC))
    _, job_id = job_of(topic, name, record, due_ms)
    return Raw(json.encode(target_of(record, job_id, name, due_ms)))


def occurrence(topic: str, name: str, record: Schedule, due_ms: int, *, claim: int) -> NewJob:
    """Return the add of one occurrence. `claim`: the number of the claim. Every node that adds it for this claim adds
    the same job. What people asked for is due at once, and runs again if it has run."""
    is_asked = due_ms in asked_of(record)
    job_due_ms = record.claim_ms if is_asked else jittered(topic, name, record, due_ms)
    job_topic, job_id = job_of(topic, name, record, due_ms)
    return NewJob(
        topic=job_topic,
        id=job_id,
        body=body_at(topic, name, record, due_ms),
        due_ms=job_due_ms,
        ttr_ms=record.ttr_ms,
        attempts=record.attempts,
        priority=record.priority,
        expires_ms=None if record.expires_in_ms is None else job_due_ms + record.expires_in_ms,
        on_same="replace" if is_asked else "keep",
        nonce=f"claim-{claim}",
    )
