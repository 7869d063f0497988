"""What the leading node does about a schedule: which occurrences it adds next, and what happens to those whose
time passed while no node looked. Pure."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from actors.jobs.rules.schedule_checks import MOST_AT_ONCE, SHORTEST_EVERY_MS
from actors.jobs.rules.schedule_record import MOST_RUNS, Kind, PastRun, Schedule, due_of, open_runs
from actors.jobs.rules.schedule_runs import with_ends
from actors.jobs.rules.schedule_times import dues_within, latest_due, latest_dues, next_due, next_dues

GRACE_MS = 60_000
"""If an occurrence is no later than this, and its successor is not due yet, it was not missed: a node was killed, and
the next one has taken over. With jitter its job may be due so much later."""
LEAD_MS = 2_000
"""How long before its time an occurrence is added if the one before must be finished. A leader that dies within this
time delays nothing. If the one before ends in the last two seconds, the record is looked at again at that time."""
CLOSE_MS = 10_000
"""What may overlap and is closer together than this is claimed many at a time."""
REFILL_MS = 30_000
"""If less than this is claimed ahead, more is claimed. So it takes several leaders that are killed one after the other
to delay an occurrence: each next one is there within five seconds, and then has to catch up."""
SPREAD_MS = 6_000
"""Over how long a new leader spreads its first looks. Two leaders that are killed one after the other take ten seconds
of the 30."""
HORIZON_MS = REFILL_MS + CLOSE_MS
MOST_AHEAD = HORIZON_MS // SHORTEST_EVERY_MS
OPEN_LOOK_MS = 5_000
"""How soon the leading node looks again if as many are open as may be."""
FAR_MS = 366 * 86_400_000
"""Occurrences due later than this are not added yet: a job's delay is bounded."""


class Step(NamedTuple):
    """What follows from a look at a record: the record to store (the same object: none), with the occurrences to add in
    its `adding`, and when to look again. `look_ms` is `None`: when the record changes."""

    record: Schedule
    look_ms: int | None = None
    missed: tuple[int, int] | None = None
    """The first and the last of those that were missed and are not run."""
    left_out_ms: int | None = None
    """The one that overlap leaves out."""


def decide(record: Schedule, now_ms: int, *, is_open: bool) -> Step:
    """Return what follows at `now_ms`. `is_open`: the latest added one is not finished.
    If they may overlap, the next one is added as soon as the one before is due, so it fires on time even if every node
    died. Those that follow one another closely are added up to HORIZON_MS ahead (ADR 45). Otherwise one is added when
    the one before is finished, at most LEAD_MS ahead. What overlap leaves to the one before is decided when the next is
    due. What people ask for comes after those that are due, so it takes the place of none that was due before."""
    if record.adding or record.stale or record.cancelling:
        return Step(record)
    step = Step(record) if record.is_paused else _scheduled(record, now_ms, is_open=is_open)
    if step.record is not record:
        return step
    if record.triggered:
        now, later = record.triggered[:MOST_RUNS], record.triggered[MOST_RUNS:]
        return Step(_asked_for(replace(record, triggered=later), now, "triggered", now_ms), now_ms)
    if record.backfill and not record.is_paused and (record.overlap == "allow" or not is_open):
        return _backfilled(record, record.backfill, now_ms)
    return step


def _scheduled(record: Schedule, now_ms: int, *, is_open: bool) -> Step:
    """Return what the schedule asks for."""
    if not record.last_ms:
        return Step(replace(record, last_ms=now_ms), now_ms)
    if record.last_ms > now_ms and record.overlap != "allow":
        return Step(record, record.last_ms)
    if record.buffered_ms and not is_open:
        return Step(_claimed(replace(record, buffered_ms=0), (record.buffered_ms,), now_ms), now_ms)
    if record.most_open is not None and _waiting(record, now_ms) >= record.most_open:
        return Step(record, now_ms + OPEN_LOOK_MS)
    if record.owed:
        return _owing(record, now_ms, is_open=is_open)
    due_ms = next_due(record, record.last_ms)
    if due_ms is None or (record.fixed_delay_ms and is_open):
        return Step(record, record.last_ms if record.last_ms > now_ms else None)
    if due_ms <= now_ms and not record.fixed_delay_ms:
        return _late(record, due_ms, now_ms, is_open=is_open)
    if due_ms - now_ms > FAR_MS:
        return Step(record, due_ms - FAR_MS)
    if record.fixed_delay_ms:
        return Step(_claimed(record, (due_ms,), now_ms), due_ms)
    if record.overlap == "allow":
        return _ahead(record, due_ms, now_ms)
    if now_ms < due_ms - LEAD_MS:
        return Step(record, due_ms - LEAD_MS)
    return Step(record if is_open else _claimed(record, (due_ms,), now_ms), due_ms)


def _waiting(record: Schedule, now_ms: int) -> int:
    """Return how many runs are due and have not ended, as far as the leading node knows."""
    return sum(run.due_ms <= now_ms for run in open_runs(record))


def rests_until_ms(record: Schedule) -> int:
    """Return until when a schedule of close occurrences needs no look. 0: look at once."""
    is_asked = record.adding or record.owed or record.stale or record.cancelling or record.triggered or record.backfill
    if is_asked or record.is_removed or record.overlap != "allow" or record.fixed_delay_ms:
        return 0
    next_ms = next_due(record, record.last_ms)
    return record.last_ms - REFILL_MS if next_ms is not None and next_ms - record.last_ms < CLOSE_MS else 0


def first_look_ms(record: Schedule, now_ms: int, *, part: float) -> int:
    """Return when a new leader looks at a record first. `part`: the record's place among all, from 0 to 1. The looks
    that nobody had while there was no leader are spread: a burst of them would make the server slow for those that fire
    jobs. That delays no occurrence, since more than enough are claimed ahead."""
    rests_ms = rests_until_ms(record)
    may_wait = rests_ms and rests_ms > now_ms - SPREAD_MS
    return max(rests_ms, now_ms + int(part * SPREAD_MS)) if may_wait else rests_ms


def _ahead(record: Schedule, next_ms: int, now_ms: int) -> Step:
    """Claim the next one, and with it those that follow within HORIZON_MS from now."""
    claim_ms = record.last_ms - REFILL_MS if next_ms - record.last_ms < CLOSE_MS else record.last_ms
    if now_ms < claim_ms:
        return Step(record, claim_ms)
    dues = next_dues(record, record.last_ms, MOST_AHEAD, now_ms + HORIZON_MS)
    within = tuple(due_ms for due_ms in dues if due_ms == next_ms or due_ms < now_ms + HORIZON_MS)
    return Step(_claimed(record, within, now_ms), now_ms)


def _late(record: Schedule, first_ms: int, now_ms: int, *, is_open: bool) -> Step:
    """Decide about due occurrences: the newest may just be late, the others were missed."""
    dues = undecided(record, now_ms, now_ms, most=MOST_AT_ONCE)
    left_ms = latest_due(record, record.last_ms, dues[0] - 1 if dues else now_ms)
    missed = None if left_ms is None else (first_ms, left_ms)
    if not dues:
        return Step(replace(record, last_ms=left_ms or first_ms), now_ms, missed)
    return _run(record, dues, now_ms, is_open=is_open)._replace(missed=missed)


def undecided(record: Schedule, until_ms: int, now_ms: int, *, most: int) -> tuple[int, ...]:
    """Return those due up to `until_ms` that no node has decided about, as far as `misfire` runs them at `now_ms`."""
    if record.misfire == "all" and record.most_missed is None:
        return tuple(due for due in next_dues(record, record.last_ms, most, until_ms) if due <= until_ms)
    dues = latest_dues(record, record.last_ms, until_ms, record.most_missed or 1)
    return not_skipped(record, tuple(dues), now_ms)


def not_skipped(record: Schedule, dues: tuple[int, ...], now_ms: int) -> tuple[int, ...]:
    """Return them, or none if `misfire` is skip and the latest is missed at `now_ms`."""
    is_missed = record.misfire == "skip" and now_ms - max(dues, default=0) > GRACE_MS + record.jitter_ms
    return () if is_missed else dues


def _owing(record: Schedule, now_ms: int, *, is_open: bool) -> Step:
    """Decide about those that were due before a pause or another definition: all, or one if they may not overlap."""
    most = MOST_AT_ONCE if record.overlap == "allow" else 1
    rest = replace(record, owed=record.owed[most:])
    return _run(rest, record.owed[:most], now_ms, is_open=is_open)


def _backfilled(record: Schedule, span: tuple[int, int], now_ms: int) -> Step:
    """Claim the next of what people asked for: one, or some if they may overlap."""
    most = MOST_RUNS if record.overlap == "allow" else 1
    dues = dues_within(record, span[0], span[1], most)
    rest = replace(record, backfill=(dues[-1], span[1]) if len(dues) == most else None)
    return Step(_asked_for(rest, dues, "backfilled", now_ms), now_ms)


def _asked_for(record: Schedule, dues: Sequence[int], kind: Kind, now_ms: int) -> Schedule:
    """Return the record that claims what people asked for. What has not ended is not run a second time."""
    are_open = set(map(due_of, open_runs(record)))
    new = tuple(due_ms for due_ms in dues if due_ms not in are_open)
    return replace(record, adding=new, claim_ms=now_ms, runs=_with_new(record.runs, new, now_ms, kind))


def _with_new(runs: Sequence[PastRun], dues: Collection[int], now_ms: int, kind: Kind = "") -> tuple[PastRun, ...]:
    """Return the latest runs with new ones, all that the schedule asked for ahead, and at least the last one that it
    asked for."""
    after = [*(run for run in runs if run.due_ms not in dues), *(PastRun(due_ms=due_ms, kind=kind) for due_ms in dues)]
    ahead = {run.due_ms for run in after if not run.kind and run.due_ms > now_ms}
    begun = [run.due_ms for run in after if run.due_ms not in ahead]
    kept = {*ahead, *begun[-MOST_RUNS:], *[run.due_ms for run in after if not run.kind][-1:]}
    return tuple(run for run in after if run.due_ms in kept)


def _run(record: Schedule, dues: tuple[int, ...], now_ms: int, *, is_open: bool) -> Step:
    """Decide about these, which are due. If another one has not ended, `overlap` decides. Only with `allow` they are
    more than one."""
    if record.overlap == "allow" or not is_open:
        return Step(_claimed(record, dues, now_ms), now_ms)
    if record.overlap == "cancel":
        claimed = _claimed(record, dues, now_ms)
        return Step(replace(claimed, cancelling=tuple(map(due_of, open_runs(record)))), now_ms)
    last_ms = max(record.last_ms, *dues)
    if record.overlap == "buffer" and not record.buffered_ms:
        return Step(replace(record, last_ms=last_ms, buffered_ms=dues[-1]), now_ms)
    return Step(replace(record, last_ms=last_ms, left_out=record.left_out + 1), now_ms, left_out_ms=dues[-1])


def _claimed(record: Schedule, dues: tuple[int, ...], now_ms: int) -> Schedule:
    last_ms, runs = max(record.last_ms, dues[-1]), _with_new(record.runs, dues, now_ms)
    return replace(record, last_ms=last_ms, added_ms=dues[-1], adding=dues, claim_ms=now_ms, runs=runs)


def cancelled(record: Schedule) -> Schedule:
    """Return the record once those are deleted in whose place the claimed one runs."""
    return replace(record, cancelling=())


def added(record: Schedule, dues: tuple[int, ...], expired: Collection[int] = ()) -> Schedule:
    """Return the record once jobs for these were added. `expired`: those that it was too late to add."""
    late = [run for run in record.runs if run.due_ms in expired]
    ends = [replace(run, outcome="expired", ended_ms=record.claim_ms or run.due_ms) for run in late]
    return with_ends(replace(record, adding=tuple(due for due in record.adding if due not in dues)), ends)


def taken_back(record: Schedule, dues: tuple[int, ...], gone: Collection[int] = ()) -> Schedule:
    """Return the record once the unwanted jobs are removed. `gone`: those that will never run. The others were due, or
    had a worker, so none of them is decided a second time."""
    left = [due for due in dues if due not in gone]
    runs = tuple(run for run in record.runs if run.outcome or run.due_ms not in gone)
    own = [run.due_ms for run in runs if not run.kind]
    return replace(
        record,
        last_ms=max(record.last_ms, *left, 0),
        added_ms=max(own, default=0) if record.added_ms in gone else record.added_ms,
        owed=tuple(due for due in record.owed if due not in left),
        stale=tuple(due for due in record.stale if due not in dues),
        runs=runs,
    )
