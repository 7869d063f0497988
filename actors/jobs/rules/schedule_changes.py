"""What people change about a schedule. Pure."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.job_rules import TRACE_MS
from actors.jobs.rules.schedule_record import Schedule, asked_of, due_of, open_runs
from actors.jobs.rules.schedule_steps import not_skipped, undecided
from actors.jobs.rules.schedule_times import dues_within, jittered, latest_due
from actors.runtime.rules.texts import time_text

MOST_TRIGGERED = 100
AHEAD_MS = 60_000
"""How far a caller's clock may be ahead of the server's."""
MOST_BACKFILLED = 10_000
"""Occurrences in one backfill."""
MOST_OWED = 1_000
"""Occurrences that a pause finds due and not added."""


def is_known(record: Schedule, mark: str) -> bool:
    """Return whether a change of this mark was made before: a trigger, or another one with a nonce."""
    return mark != "" and mark in dict(record.nonces)


def marked(record: Schedule, mark: str, moment_ms: int) -> Schedule:
    """Return the record that knows a change by its mark. An empty mark changes nothing."""
    nonces = (*record.nonces, (mark, moment_ms))[-MOST_TRIGGERED:]
    return replace(record, nonces=nonces) if mark else record


def known_until_ms(record: Schedule) -> int:
    """Return until when the record of a removed schedule stays, for late repeats of what was changed. 0: no longer."""
    return max((moment_ms + TRACE_MS for _, moment_ms in record.nonces), default=0)


def begun(topic: str, name: str, wanted: Schedule, before: Schedule | None, *, now_ms: int) -> Schedule:
    """Return the record to store for a new definition, in the place of `before` if there is one.
    Jobs of the old one that are not due yet are taken back. Due ones stay jobs. What was triggered is added, by the new
    definition if the old one has not added it. So is an occurrence whose time has come, and the moment of its job has
    not. A paused schedule stays paused."""
    nonces = before.nonces if before else ()
    if before and is_over(before):
        before = None  # nothing of it is left, but for late repeats
    claimed = _triggers(before) if before else ()
    record = replace(
        wanted,
        start_ms=wanted.start_ms or now_ms + wanted.initial_delay_ms,
        last_ms=now_ms,
        added_ms=0,
        adding=claimed,
        owed=_owed_to(topic, name, wanted, before, now_ms) if before else (),
        claim_ms=before.claim_ms if before and claimed else 0,
        stale=tuple(due_ms for due_ms in _added(before, now_ms) if due_ms not in claimed) if before else (),
        cancelling=(),
        triggered=before.triggered if before else (),
        nonces=nonces,
        backfill=None,
        buffered_ms=0,
        left_out=0,
        runs=before.runs if before else (),
        is_removed=False,
    )
    is_paused = before is not None and before.is_paused and not before.is_removed
    return paused(topic, name, record, now_ms=now_ms) if is_paused else record


def paused(topic: str, name: str, record: Schedule, *, now_ms: int) -> Schedule:
    """Return the record of which nothing more is added. Added jobs that are not due yet are taken back. What was due by
    now and is not known to be added comes after the pause. What people asked for is added all the same, a backfill
    after the pause."""
    asked = tuple(sorted(asked_of(record)))
    stale = tuple(due_ms for due_ms in _added(record, now_ms) if due_ms not in asked)
    until_ms, last_ms = now_ms, latest_due(record, record.last_ms, now_ms)
    if last_ms is not None and jittered(topic, name, record, last_ms) > now_ms:
        until_ms = last_ms - 1
    claimed = [
        due_ms for due_ms in stale if due_ms in record.adding and jittered(topic, name, record, due_ms) <= now_ms
    ]
    owed = _to_run(record, (*record.owed, *claimed, *_undecided(record, until_ms, now_ms)))
    return replace(record, is_paused=True, owed=owed, stale=stale, adding=asked, cancelling=())


def _owed_to(topic: str, name: str, wanted: Schedule, before: Schedule, now_ms: int) -> tuple[int, ...]:
    """Return the occurrences whose time came by the old definition, and that come by the new one."""
    if before.is_removed:
        return ()
    buffered = [before.buffered_ms] if before.buffered_ms else []
    if before.is_paused:
        return _to_run(wanted, (*before.owed, *buffered))
    begun = [run.due_ms for run in open_runs(before) if not run.kind and run.due_ms <= now_ms]
    waits = [due_ms for due_ms in begun if due_ms in before.adding or jittered(topic, name, before, due_ms) > now_ms]
    return _to_run(wanted, (*before.owed, *buffered, *waits, *_undecided(before, now_ms, now_ms)))


def _to_run(record: Schedule, dues: Iterable[int]) -> tuple[int, ...]:
    """Return those that `misfire` runs, the earliest first."""
    most = (record.most_missed or MOST_OWED) if record.misfire == "all" else 1
    return tuple(sorted(set(dues)))[-most:]


def _undecided(record: Schedule, until_ms: int, now_ms: int) -> tuple[int, ...]:
    is_known = record.last_ms > 0 and not record.fixed_delay_ms
    return undecided(record, until_ms, now_ms, most=MOST_OWED) if is_known else ()


def resumed(topic: str, name: str, record: Schedule, *, now_ms: int) -> Schedule:
    """Return the record that goes on from now. Occurrences during the pause were not missed. One whose time has passed,
    but not the jitter of its job, is still to come, unless its job was left as it is."""
    left = {run.due_ms for run in record.runs if run.outcome or run.due_ms not in record.stale}
    last_ms = now_ms
    is_late = record.jitter_ms > 0 and not record.fixed_delay_ms
    while is_late and (due_ms := latest_due(record, now_ms - record.jitter_ms, last_ms)) is not None:
        is_late = due_ms not in left and jittered(topic, name, record, due_ms) > now_ms
        last_ms = due_ms - 1 if is_late else last_ms
    return replace(record, is_paused=False, last_ms=last_ms, owed=not_skipped(record, record.owed, now_ms))


def triggered(record: Schedule, *, now_ms: int, at_ms: int | None = None, nonce: str = "") -> Schedule:
    """Return the record of which a job is added now, also while it is paused. `at_ms`: the moment that names it. If
    there is one of that moment, this is a repeat, and the record stays as it is. So it does for a known `nonce`, whose
    moment is in `nonces`. Without both the last of `triggered` is its time. Raises BadRecurrence."""
    if is_known(record, nonce):
        return record
    if at_ms is not None:
        if not 0 < at_ms <= now_ms + AHEAD_MS:
            raise BadRecurrence("at_ms", at_ms, "lies ahead", "use a moment up to now, or leave it out")
        if at_ms in record.triggered or any(run.due_ms == at_ms for run in record.runs):
            return record
    if len(record.triggered) >= MOST_TRIGGERED:
        what = "are waiting already, and no node adds them"
        raise BadRecurrence("triggered", len(record.triggered), what, "start a node with the role `timer`")
    moment_ms = _free_moment(record, now_ms) if at_ms is None else at_ms
    return marked(replace(record, triggered=(*record.triggered, moment_ms)), nonce, moment_ms)


def _free_moment(record: Schedule, now_ms: int) -> int:
    """Return the first moment that names no other job of the schedule."""
    moment_ms = max(now_ms, *(other + 1 for other in (*record.triggered, *dict(record.nonces).values())), 0)
    runs = set(map(due_of, record.runs))
    while moment_ms in runs or (not record.fixed_delay_ms and dues_within(record, moment_ms - 1, moment_ms + 1, 1)):
        moment_ms += 1
    return moment_ms


def backfilled(
    record: Schedule, from_ms: int, to_ms: int, *, now_ms: int, dues: Sequence[int] | None = None
) -> Schedule:
    """Return the record of which all occurrences in the half-open range are added. `dues`: the first of them, one more
    than may be, if the caller knows them: to find them takes a while. Raises BadRecurrence."""
    if record.at_ms or record.fixed_delay_ms:
        raise BadRecurrence("backfill", "", "needs the times of a cron line or of every", "trigger it")
    if record.backfill:
        until = f"until {record.backfill[1]}"
        raise BadRecurrence("backfill", until, "is not finished", "wait for it, or replace the definition")
    if to_ms > now_ms:
        raise BadRecurrence("to_ms", to_ms, "lies ahead", "use a moment up to now; the schedule adds what is due later")
    if dues is None:
        dues = dues_within(record, from_ms - 1, to_ms, MOST_BACKFILLED + 1)
    if not dues:
        raise BadRecurrence("from_ms", from_ms, "has no occurrence", "use another range")
    if len(dues) > MOST_BACKFILLED:
        what = f"has more than {MOST_BACKFILLED} occurrences"
        raise BadRecurrence("from_ms", from_ms, what, f"end at {time_text(dues[-1])}, and go on from there later")
    return replace(record, backfill=(from_ms - 1, to_ms))


def removed(record: Schedule, *, now_ms: int) -> Schedule:
    """Return the record that the leading node removes, once it has added what people triggered."""
    asked = _triggers(record)
    stale = tuple(due_ms for due_ms in _added(record, now_ms) if due_ms not in asked)
    gone = replace(record, is_paused=True, is_removed=True, stale=stale, adding=asked, cancelling=())
    return replace(gone, owed=(), buffered_ms=0, backfill=None)


def is_over(record: Schedule) -> bool:
    """Return whether nothing of a removed schedule is left to be done. Late repeats may still find its record."""
    return record.is_removed and not (record.stale or record.adding or record.triggered)


def _triggers(record: Schedule) -> tuple[int, ...]:
    """Return the claimed ones that people triggered."""
    return tuple(run.due_ms for run in record.runs if run.kind == "triggered" and run.due_ms in record.adding)


def _added(record: Schedule, now_ms: int) -> tuple[int, ...]:
    """Return the occurrences that may wait as jobs. The job itself says whether it is due already, when it is taken
    back."""
    ahead = (run.due_ms for run in record.runs if not run.kind and run.due_ms + record.jitter_ms > now_ms)
    return tuple(sorted({*record.stale, *record.adding, *ahead, *([record.added_ms] if record.added_ms else [])}))
