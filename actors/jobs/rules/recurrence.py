"""Recurring jobs: when the next one is due, and what happens to those whose time passed while no node looked. Pure.

A recurring job is a record. Each of its occurrences is an ordinary job of the topic, with an id made of the due time:
adding one twice leaves one. `decide` says which to add next. cron.py says what a change of the clock does to a cron
line. `every_ms` follows only the elapsed time. `fixed_delay_ms` counts from the end of the run before, as the record of
its job tells it. `at_ms` is one moment. With jitter the job itself is due a little later,
by a time that follows from its name: every node that adds it adds the same job.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple, get_args

from msgspec import DecodeError, Raw, Struct, json
from msgspec.structs import replace

from actors.jobs.rules.cron import FORM, BadRecurrence, check_cron, next_cron
from actors.jobs.rules.job_rules import BadJob, make_job
from actors.jobs.rules.topic_settings import TopicSettings
from streams.job_messages import JobDone, NewJob, Outcome, Priority
from streams.timetable import LATEST_MS, BadSchedule, check_tz

Misfire = Literal["skip", "once", "all"]
Overlap = Literal["skip", "allow", "buffer", "cancel"]
Kind = Literal["", "triggered", "backfilled"]

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
MOST_TRIGGERED = 100
MOST_BACKFILLED = 10_000
"""Occurrences in one backfill."""
LONGEST_FIELD = 64
MOST_RUNS = 20
"""Occurrences of which a record tells how they ended."""
END_LOOK_MS = (1_000, 60_000)
"""The shortest and the longest wait before the next look whether a run has ended. The record of an end is kept for
longer."""


class PastRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An occurrence that was added, and how it ended. `started_ms`: when a worker first had its job. 0: never, or that
    is not known. `outcome`: empty until it has ended. `unknown`: its job is gone without a trace. `kind`: empty if the
    schedule asked for it, else who did."""

    due_ms: int
    kind: Kind = ""
    started_ms: int = 0
    ended_ms: int = 0
    outcome: Outcome | Literal["", "unknown"] = ""


class Recurring(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recurring job as it is stored under `<topic>.<name>`. People write its definition, the leading node its
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
    backfill: tuple[int, int] | None = None
    """The occurrences that people asked for: after the first moment, before the second. Those claimed are left out."""
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
    if sum(map(bool, (record.cron, record.every_ms, record.fixed_delay_ms, record.at_ms))) != 1:
        hint = "write a cron line, or every or fixed_delay with a span such as 10m, or at with a moment"
        raise BadRecurrence("cron", record.cron, "either cron or every or fixed_delay or at says when", hint)
    if record.cron:
        check_cron(record.cron)
    elif record.every_ms and not SHORTEST_EVERY_MS <= record.every_ms <= LONGEST_EVERY_MS:
        raise BadRecurrence("every", f"{record.every_ms}ms", "is out of range", "use 1s to 366d")
    elif record.fixed_delay_ms and not SHORTEST_EVERY_MS <= record.fixed_delay_ms <= LONGEST_EVERY_MS:
        raise BadRecurrence("fixed_delay", f"{record.fixed_delay_ms}ms", "is out of range", "use 1s to 366d")
    try:
        check_tz(record.tz)
    except BadSchedule as error:
        raise BadRecurrence("tz", record.tz, "unknown", str(error).partition("; ")[2]) from error
    if not 0 <= record.initial_delay_ms <= LONGEST_EVERY_MS:
        raise BadRecurrence("initial_delay", f"{record.initial_delay_ms}ms", "is out of range", "use 0s to 366d")
    for field in ("at_ms", "start_ms", "last_ms", "added_ms", "buffered_ms", "claim_ms"):
        if not 0 <= getattr(record, field) <= LATEST_MS:
            raise BadRecurrence(field, getattr(record, field), "is out of range", f"use 0 to {LATEST_MS}")
    kept = (*record.adding, *record.stale, *record.cancelling, *record.triggered, *map(_due, record.runs))
    kept = (*kept, *(record.backfill or ()))
    if not all(0 <= due_ms <= LATEST_MS for due_ms in kept):
        raise BadRecurrence("adding", record.adding, "is out of range", "leave it out")
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
    if record.most_missed is not None and record.misfire != "all":
        hint = "leave it out, or write misfire all"
        raise BadRecurrence("most_missed", record.most_missed, "limits misfire all", hint)
    if record.most_missed is not None and not 1 <= record.most_missed <= MOST_AT_ONCE:
        raise BadRecurrence("most_missed", record.most_missed, "is out of range", f"use 1 to {MOST_AT_ONCE}")
    dues = next_dues(replace(record, runs=()), max(1, record.start_ms - 1), 2)
    if not dues and record.at_ms:
        raise BadRecurrence("at", record.at_ms, "lies before the start", "leave the start out")
    if not dues:
        raise BadRecurrence("cron", record.cron, "never comes", f"write {FORM}")
    first_ms = dues[0]
    _check_data_time(record)
    _check_jitter(record, dues[1] - first_ms if len(dues) > 1 else LONGEST_EVERY_MS)
    try:
        make_job(occurrence("topic", "name", record, first_ms, claim=0), TopicSettings(), now_ms=first_ms, fresh_id="")
    except BadJob as error:
        raise BadRecurrence(error.field, error.value, error.what, error.hint) from error
    return record


def _check_jitter(record: Recurring, gap_ms: int) -> None:
    """Raise BadRecurrence if an occurrence could be due after the next one. `gap_ms`: from the first to the second."""
    if not 0 <= record.jitter_ms < gap_ms:
        hint = f"use less than {gap_ms}ms, the time from the first to the second"
        raise BadRecurrence("jitter", f"{record.jitter_ms}ms", "is out of range", hint)


def _check_data_time(record: Recurring) -> None:
    field = record.data_time
    if len(field) > LONGEST_FIELD or not field.isprintable():
        hint = f"use 1 to {LONGEST_FIELD} printable characters"
        raise BadRecurrence("data_time", field, "is no name of a field", hint)
    try:
        _body(record, 0)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "write the body as a JSON object, or leave data_time out"
        raise BadRecurrence("data_time", field, "needs a body that has fields", hint) from error


def check_wanted(record: Recurring) -> Recurring:
    """Return a definition as a person gave it, if it can be followed. Raises BadRecurrence."""
    if record.start_ms and record.initial_delay_ms:
        hint = "give one of them"
        raise BadRecurrence("initial_delay", f"{record.initial_delay_ms}ms", "stands beside a start", hint)
    return check_recurring(record)


# ---- when


def next_due(record: Recurring, after_ms: int) -> int | None:
    """Return the first moment after `after_ms` at which it is due, or None if it never is (within fifty years)."""
    after_ms = max(after_ms, record.start_ms - 1)
    if record.fixed_delay_ms:
        return _after_the_end(record, after_ms)
    if record.at_ms:
        return record.at_ms if record.at_ms > after_ms else None
    if record.every_ms:
        return record.start_ms + ((after_ms - record.start_ms) // record.every_ms + 1) * record.every_ms
    return next_cron(record.cron, record.tz, after_ms)


def _after_the_end(record: Recurring, after_ms: int) -> int | None:
    last = next((run for run in reversed(record.runs) if not run.kind), None)
    if last is None:
        return after_ms + 1
    return max(after_ms + 1, last.ended_ms + record.fixed_delay_ms) if last.outcome else None


def next_dues(record: Recurring, after_ms: int, most: int, until_ms: int = LATEST_MS) -> list[int]:
    """Return the next moments, at most `most`, none after the first that is not before `until_ms`. Of those after a
    fixed delay only the next one can be known."""
    most = min(most, 1) if record.fixed_delay_ms else most
    found: list[int] = []
    while len(found) < most and (due_ms := next_due(record, found[-1] if found else after_ms)) is not None:
        found.append(due_ms)
        if due_ms >= until_ms:
            break
    return found


def dues_within(record: Recurring, after_ms: int, before_ms: int, most: int) -> list[int]:
    """Return the first moments after the one and before the other, at most `most`, also those before the start."""
    start_ms = record.start_ms % record.every_ms if record.every_ms else 0
    dues = next_dues(replace(record, start_ms=start_ms), after_ms, most, before_ms)
    return [due_ms for due_ms in dues if due_ms < before_ms]


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


def latest_dues(record: Recurring, after_ms: int, until_ms: int, most: int) -> list[int]:
    """Return the last moments after `after_ms`, up to `until_ms`, at most `most`, the earliest first."""
    found: list[int] = []
    while len(found) < most:
        due_ms = latest_due(record, after_ms, found[-1] - 1 if found else until_ms)
        if due_ms is None:
            break
        found.append(due_ms)
    return found[::-1]


def _due_within(record: Recurring, after_ms: int, until_ms: int) -> int | None:
    due_ms = next_due(record, after_ms)
    return due_ms if due_ms is not None and due_ms <= until_ms else None


def occurrence_id(name: str, due_ms: int) -> str:
    """Return the job id of an occurrence: `<name>.20261121T093000Z`, with milliseconds only where there are any."""
    moment = datetime.fromtimestamp(due_ms // 1000, UTC)
    fraction = f".{due_ms % 1000:03d}" if due_ms % 1000 else ""
    return f"{name}.{moment:%Y%m%dT%H%M%S}{fraction}Z"


def jittered(topic: str, name: str, record: Recurring, due_ms: int) -> int:
    """Return when the job of an occurrence is due: the same on every node, different for each name and time."""
    facts = hashlib.blake2b(f"{topic}.{name}.{due_ms}".encode(), digest_size=8).digest()
    return due_ms + int.from_bytes(facts, "big") % (record.jitter_ms + 1)


def _body(record: Recurring, due_ms: int) -> Raw:
    """Return the body of an occurrence's job. Raises msgspec's errors for one that cannot have the time."""
    if not record.data_time:
        return record.body
    fields: dict[str, Raw | str] = {**(json.decode(record.body, type=dict[str, Raw] | None) or {})}
    moment = datetime.fromtimestamp(due_ms / 1000, UTC)
    text = moment.isoformat(timespec="milliseconds" if due_ms % 1000 else "seconds").replace("+00:00", "Z")
    return Raw(json.encode(fields | {record.data_time: text}))


def occurrence(topic: str, name: str, record: Recurring, due_ms: int, *, claim: int) -> NewJob:
    """Return the add of one occurrence. `claim`: the number of the claim. Every node that adds it for this claim adds
    the same job. What people asked for is due at once, and runs again if it has run."""
    is_asked = due_ms in _asked(record)
    job_due_ms = record.claim_ms if is_asked else jittered(topic, name, record, due_ms)
    return NewJob(
        topic=topic,
        id=occurrence_id(name, due_ms),
        body=_body(record, due_ms),
        due_ms=job_due_ms,
        ttr_ms=record.ttr_ms,
        attempts=record.attempts,
        priority=record.priority,
        expires_ms=None if record.expires_in_ms is None else job_due_ms + record.expires_in_ms,
        on_same="replace" if is_asked else "keep",
        nonce=f"claim-{claim}",
    )


# ---- decisions of the leading node


def decide(record: Recurring, now_ms: int, *, is_open: bool) -> Step:
    """Return what follows at `now_ms`. `is_open`: the latest added one is not finished.
    If they may overlap, the next one is added as soon as the one before is due, so it fires on time even if every node
    died. Otherwise it is added when the one before is finished, at most LEAD_MS ahead. What overlap leaves to the one
    before is decided when the next is due."""
    if record.is_removed or record.adding or record.stale or record.cancelling:
        return Step(record)
    if record.triggered:
        now, later = record.triggered[:MOST_RUNS], record.triggered[MOST_RUNS:]
        return Step(_asked_for(replace(record, triggered=later), now, "triggered", now_ms), now_ms)
    if record.is_paused:
        return Step(record)
    step = _scheduled(record, now_ms, is_open=is_open)
    if record.backfill and step.record is record and (record.overlap == "allow" or not is_open):
        return _backfilled(record, record.backfill, now_ms)
    return step


def _scheduled(record: Recurring, now_ms: int, *, is_open: bool) -> Step:
    """Return what the schedule asks for."""
    if not record.last_ms:
        return Step(replace(record, last_ms=now_ms), now_ms)
    if record.last_ms > now_ms:
        return Step(record, record.last_ms)
    if record.buffered_ms and not is_open:
        return Step(_claimed(replace(record, buffered_ms=0), (record.buffered_ms,), now_ms), now_ms)
    due_ms = next_due(record, record.last_ms)
    if due_ms is None or (record.fixed_delay_ms and is_open):
        return Step(record)
    if due_ms <= now_ms and not record.fixed_delay_ms:
        return _late(record, due_ms, now_ms, is_open=is_open)
    if due_ms - now_ms > FAR_MS:
        return Step(record, due_ms - FAR_MS)
    if record.overlap == "allow" or record.fixed_delay_ms:
        return Step(_claimed(record, (due_ms,), now_ms), due_ms)
    if now_ms < due_ms - LEAD_MS:
        return Step(record, due_ms - LEAD_MS)
    return Step(record if is_open else _claimed(record, (due_ms,), now_ms), due_ms)


def _late(record: Recurring, first_ms: int, now_ms: int, *, is_open: bool) -> Step:
    """Decide about due occurrences: the newest may just be late, the others were missed."""
    if record.misfire == "all":
        return _caught_up(record, first_ms, now_ms)
    newest_ms = latest_due(record, record.last_ms, now_ms) or first_ms
    if record.misfire == "skip" and now_ms - newest_ms > GRACE_MS:
        return Step(replace(record, last_ms=newest_ms), now_ms, (first_ms, newest_ms))
    earlier_ms = latest_due(record, record.last_ms, newest_ms - 1)
    missed = None if earlier_ms is None else (first_ms, earlier_ms)
    after = _overlapping(record, newest_ms, now_ms) if is_open else _claimed(record, (newest_ms,), now_ms)
    return Step(after, now_ms, missed)


def _caught_up(record: Recurring, first_ms: int, now_ms: int) -> Step:
    if record.most_missed is None:
        dues = next_dues(record, record.last_ms, MOST_AT_ONCE)
        return Step(_claimed(record, tuple(due for due in dues if due <= now_ms), now_ms), now_ms)
    dues = latest_dues(record, record.last_ms, now_ms, record.most_missed)
    earlier_ms = latest_due(record, record.last_ms, dues[0] - 1)
    return Step(_claimed(record, tuple(dues), now_ms), now_ms, None if earlier_ms is None else (first_ms, earlier_ms))


def _backfilled(record: Recurring, span: tuple[int, int], now_ms: int) -> Step:
    """Claim the next of what people asked for: one, or some if they may overlap."""
    most = MOST_RUNS if record.overlap == "allow" else 1
    dues = dues_within(record, span[0], span[1], most)
    rest = replace(record, backfill=(dues[-1], span[1]) if len(dues) == most else None)
    return Step(_asked_for(rest, dues, "backfilled", now_ms), now_ms)


def _asked_for(record: Recurring, dues: Sequence[int], kind: Kind, now_ms: int) -> Recurring:
    """Return the record that claims what people asked for. What has not ended is not run a second time."""
    are_open = set(map(_due, open_runs(record)))
    new = tuple(due_ms for due_ms in dues if due_ms not in are_open)
    return replace(record, adding=new, claim_ms=now_ms, runs=_with_new(record.runs, new, kind))


def _with_new(runs: Sequence[PastRun], dues: Collection[int], kind: Kind = "") -> tuple[PastRun, ...]:
    """Return the latest runs with new ones, and at least the last one that the schedule asked for."""
    after = [*(run for run in runs if run.due_ms not in dues), *(PastRun(due_ms=due_ms, kind=kind) for due_ms in dues)]
    asked = [run for run in after[:-MOST_RUNS] if not run.kind]
    latest = after[-MOST_RUNS:]
    return tuple(latest if not asked or any(not run.kind for run in latest) else [asked[-1], *latest])


def _asked(record: Recurring) -> set[int]:
    """Return the claimed ones that people asked for."""
    return {run.due_ms for run in record.runs if run.kind}.intersection(record.adding)


def _overlapping(record: Recurring, due_ms: int, now_ms: int) -> Recurring:
    """Return the record once one is due while another has not ended."""
    if record.overlap == "allow":
        return _claimed(record, (due_ms,), now_ms)
    if record.overlap == "cancel":
        return replace(_claimed(record, (due_ms,), now_ms), cancelling=tuple(map(_due, open_runs(record))))
    if record.overlap == "buffer" and not record.buffered_ms:
        return replace(record, last_ms=due_ms, buffered_ms=due_ms)
    return replace(record, last_ms=due_ms, left_out=record.left_out + 1)


def _claimed(record: Recurring, dues: tuple[int, ...], now_ms: int) -> Recurring:
    last_ms, runs = max(record.last_ms, dues[-1]), _with_new(record.runs, dues)
    return replace(record, last_ms=last_ms, added_ms=dues[-1], adding=dues, claim_ms=now_ms, runs=runs)


def cancelled(record: Recurring) -> Recurring:
    """Return the record once those are deleted in whose place the claimed one runs."""
    return replace(record, cancelling=())


def added(record: Recurring, dues: tuple[int, ...], expired: Collection[int] = ()) -> Recurring:
    """Return the record once jobs for these were added. `expired`: those that it was too late to add."""
    late = [run for run in record.runs if run.due_ms in expired]
    ends = [replace(run, outcome="expired", ended_ms=record.claim_ms or run.due_ms) for run in late]
    return with_ends(replace(record, adding=tuple(due for due in record.adding if due not in dues)), ends)


def taken_back(record: Recurring, dues: tuple[int, ...], gone: Collection[int] = ()) -> Recurring:
    """Return the record once the unwanted jobs are removed. `gone`: those that will never run. The others were due."""
    runs = tuple(run for run in record.runs if run.due_ms not in gone)
    return replace(record, stale=tuple(due for due in record.stale if due not in dues), runs=runs)


# ---- how they end


def with_runs(record: Recurring) -> Recurring:
    """Return a record of an earlier version with the run that it does not tell of."""
    if record.runs or not record.added_ms:
        return record
    return replace(record, runs=(PastRun(due_ms=record.added_ms),))


def open_runs(record: Recurring) -> list[PastRun]:
    """Return the runs whose end is not known."""
    return [run for run in record.runs if not run.outcome]


def ended(run: PastRun, done: JobDone | None, *, now_ms: int) -> PastRun:
    """Return the run with its end. `done`: the record that its job left. Without one it has ended by now."""
    if done is None:
        return replace(run, outcome="unknown", ended_ms=now_ms)
    return replace(run, started_ms=done.first_ms or run.started_ms, ended_ms=done.finished_ms, outcome=done.outcome)


def with_ends(record: Recurring, ends: Iterable[PastRun]) -> Recurring:
    """Return the record that knows these ends. The same object: there was none."""
    found = {run.due_ms: run for run in ends}
    return replace(record, runs=tuple(found.get(run.due_ms, run) for run in record.runs)) if found else record


def end_look_ms(record: Recurring, now_ms: int) -> int | None:
    """Return when to look whether a run has ended, None if none is open. The longer it takes, the rarer, unless another
    one waits for the end."""
    shortest_ms, longest_ms = END_LOOK_MS
    if record.buffered_ms or record.backfill:
        longest_ms = shortest_ms
    elif record.fixed_delay_ms:
        longest_ms = min(longest_ms, record.fixed_delay_ms)  # so the next is added in time
    ages_ms = [now_ms - (max(run.due_ms, record.claim_ms) if run.kind else run.due_ms) for run in open_runs(record)]
    waits_ms = [
        shortest_ms - age_ms if age_ms < 0 else min(max(shortest_ms, age_ms // 4), longest_ms) for age_ms in ages_ms
    ]
    return now_ms + min(waits_ms) if waits_ms else None


# ---- changes by people


def begun(wanted: Recurring, before: Recurring | None, *, now_ms: int) -> Recurring:
    """Return the record to store for a new definition, in the place of `before` if there is one.
    Jobs of the old one that are not due yet are taken back. Due ones stay jobs."""
    return replace(
        wanted,
        start_ms=wanted.start_ms or now_ms + wanted.initial_delay_ms,
        last_ms=now_ms,
        added_ms=0,
        adding=(),
        stale=_added(before) if before else (),
        cancelling=(),
        triggered=(),
        backfill=None,
        buffered_ms=0,
        left_out=0,
        runs=before.runs if before else (),
        is_removed=False,
    )


def paused(record: Recurring) -> Recurring:
    """Return the record of which nothing more is added. Added jobs that are not due yet are taken back. What people
    asked for is added all the same, a backfill after the pause."""
    asked = tuple(sorted(_asked(record)))
    stale = tuple(due_ms for due_ms in _added(record) if due_ms not in asked)
    return replace(record, is_paused=True, stale=stale, adding=asked, cancelling=(), buffered_ms=0)


def resumed(record: Recurring, *, now_ms: int) -> Recurring:
    """Return the record that goes on from now. Occurrences during the pause were not missed."""
    return replace(record, is_paused=False, last_ms=now_ms)


def triggered(record: Recurring, *, now_ms: int) -> Recurring:
    """Return the record of which a job is added now, also while it is paused. The last of `triggered` is its time.
    Raises BadRecurrence."""
    if len(record.triggered) >= MOST_TRIGGERED:
        what = "are waiting already, and no node adds them"
        raise BadRecurrence("triggered", len(record.triggered), what, "start a node with the role `timer`")
    return replace(record, triggered=(*record.triggered, max(now_ms, *(at_ms + 1 for at_ms in record.triggered), 0)))


def backfilled(record: Recurring, from_ms: int, to_ms: int, *, now_ms: int) -> Recurring:
    """Return the record of which all occurrences in the half-open range are added. Raises BadRecurrence."""
    if record.at_ms or record.fixed_delay_ms:
        raise BadRecurrence("backfill", "", "needs the times of a cron line or of every", "trigger it")
    if record.backfill:
        until = f"until {record.backfill[1]}"
        raise BadRecurrence("backfill", until, "is not finished", "wait for it, or replace the definition")
    if to_ms > now_ms:
        raise BadRecurrence("to", to_ms, "lies ahead", "use a moment up to now; the schedule adds what is due later")
    dues = dues_within(record, from_ms - 1, to_ms, MOST_BACKFILLED + 1)
    if not 0 < len(dues) <= MOST_BACKFILLED:
        what = f"has more than {MOST_BACKFILLED} occurrences" if dues else "has no occurrence"
        raise BadRecurrence("from", from_ms, what, "use another range")
    return replace(record, backfill=(from_ms - 1, to_ms))


def removed(record: Recurring) -> Recurring:
    """Return the record that the leading node removes."""
    return replace(paused(record), is_removed=True, stale=_added(record), adding=(), triggered=(), backfill=None)


def _due(run: PastRun) -> int:
    return run.due_ms


def _added(record: Recurring) -> tuple[int, ...]:
    """Return the occurrences that may wait as jobs. The job itself says whether it is due already, when it is taken
    back."""
    return tuple(sorted({*record.stale, *record.adding, *([record.added_ms] if record.added_ms else [])}))
