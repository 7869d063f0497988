"""What is shown of a schedule: its state, and when it is due next."""

import pytest
from msgspec.structs import replace

from actors.jobs.rules.schedule_record import Overlap, PastRun, Schedule
from actors.jobs.rules.schedule_steps import added, decide
from actors.jobs.rules.schedule_views import view_of

T = 1_770_000_000_000
MINUTE = 60_000


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_one_that_is_due_once_is_over_after_its_moment_and_not_as_soon_as_its_job_waits(overlap: Overlap) -> None:
    record, now_ms = Schedule(at_ms=T + 1000, last_ms=T, overlap=overlap), T
    record = decide(record, T, is_open=False).record
    assert record.adding == (T + 1000,)
    record = added(record, record.adding)
    before, after = (view_of("mail", "once", record, now_ms=now_ms, most=1) for now_ms in (T + 999, T + 1000))
    assert (before.state, before.next_ms) == ("runs", [T + 1000])
    assert (after.state, after.next_ms) == ("over", [])
    waits = replace(record, buffered_ms=T + 1000, overlap="buffer")
    assert view_of("mail", "once", waits, now_ms=now_ms + MINUTE, most=1).state == "runs", "it is still to come"


def test_after_a_fixed_delay_the_next_is_shown_while_its_job_waits_and_not_while_it_runs() -> None:
    run = PastRun(due_ms=T, ended_ms=T + 1000, outcome="finished")
    record = Schedule(fixed_delay_ms=MINUTE, start_ms=T, last_ms=T, runs=(run,))
    claimed = decide(record, T + 2000, is_open=False).record
    next_ms = T + 1000 + MINUTE
    shown = [view_of("mail", "each", it, now_ms=T + 3000, most=3).next_ms for it in (record, claimed)]
    assert shown == [[next_ms], [next_ms]]
    assert view_of("mail", "each", claimed, now_ms=next_ms, most=3).next_ms == []
    assert view_of("mail", "each", replace(claimed, is_paused=True), now_ms=T + 3000, most=3).next_ms == []
    assert view_of("mail", "each", claimed, now_ms=T + 3000, most=0).next_ms == []
