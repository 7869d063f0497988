"""How the runs of a schedule end, and when to look whether one has. Pure."""

from collections.abc import Iterable

from msgspec.structs import replace

from actors.jobs.rules.schedule_record import PastRun, Schedule, open_runs
from actors.jobs.rules.schedule_times import next_due
from streams.jobs.timetable import LATEST_MS
from streams.messages.jobs import JobDone

SOON_MS = 10_000
END_LOOK_MS = (1_000, 60_000)
"""The shortest and the longest wait before the next look whether a run has ended. The record of an end is kept for
longer."""
SHORTEST_LOOK_MS = 250


def with_runs(record: Schedule) -> Schedule:
    """Return a record of an earlier version with the run that it does not tell of."""
    if record.runs or not record.added_ms:
        return record
    return replace(record, runs=(PastRun(due_ms=record.added_ms),))


def ended(run: PastRun, done: JobDone | None, *, now_ms: int) -> PastRun:
    """Return the run with its end. `done`: the record that its job left. Without one it has ended by now."""
    if done is None:
        return replace(run, outcome="unknown", ended_ms=now_ms)
    return replace(run, started_ms=done.first_ms or run.started_ms, ended_ms=done.finished_ms, outcome=done.outcome)


def with_ends(record: Schedule, ends: Iterable[PastRun]) -> Schedule:
    """Return the record that knows these ends. The same object: there was none."""
    found = {run.due_ms: run for run in ends}
    return replace(record, runs=tuple(found.get(run.due_ms, run) for run in record.runs)) if found else record


def end_look_ms(record: Schedule, now_ms: int, *, claim_ms: int | None = None) -> int | None:
    """Return when to look whether a run has ended, None if none is open. The longer it takes, the rarer, unless another
    one waits for the end. `claim_ms`: when the next ones are claimed. If nothing waits for the ends and that is soon,
    one look does both."""
    shortest_ms, longest_ms = _shortest_ms(record), END_LOOK_MS[1]
    if record.overlap == "allow" and claim_ms is not None and claim_ms - now_ms <= SOON_MS and open_runs(record):
        return claim_ms
    if record.buffered_ms or record.backfill:
        longest_ms = END_LOOK_MS[0]
    elif record.fixed_delay_ms:
        longest_ms = min(longest_ms, record.fixed_delay_ms)  # so the next is added in time
    ages_ms = [now_ms - (max(run.due_ms, record.claim_ms) if run.kind else run.due_ms) for run in open_runs(record)]
    waits_ms = [
        shortest_ms - age_ms if age_ms < 0 else min(max(shortest_ms, age_ms // 4), longest_ms) for age_ms in ages_ms
    ]
    return now_ms + min(waits_ms) if waits_ms else None


def _shortest_ms(record: Schedule) -> int:
    """Return how long after its time a run is looked at: soon enough that the next one, which waits for its end, can be
    added before its own time."""
    next_ms = record.fixed_delay_ms or (next_due(record, record.last_ms) or LATEST_MS) - record.last_ms
    return min(END_LOOK_MS[0], max(SHORTEST_LOOK_MS, next_ms // 2))
