"""Schedules that tests of their rules share, and what follows a record step by step."""

from __future__ import annotations

from hypothesis import strategies as st

from actors.jobs.rules.schedule_record import Schedule
from actors.jobs.rules.schedule_steps import (
    added,
    decide,
)

T = 1_770_000_000_000
NAME = ("mail", "nightly")
MINUTE = 60_000
HOUR = 60 * MINUTE
EVERY_MINUTE = Schedule(every_ms=MINUTE, start_ms=T, last_ms=T, overlap="allow")
CRON = st.sampled_from(["* * * * *", "*/7 3,4 * * *", "0,30 2 * * SUN", "*/20 * * * * *"])
ZONE = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"])


def follow(record: Schedule, now_ms: int, *, is_open: bool = False) -> tuple[Schedule, list[int], int | None]:
    """Do at one moment what a leading node does; return the record, what it added, and when it looks again."""
    found: list[int] = []
    while True:
        step = decide(record, now_ms, is_open=is_open)
        if step.record is record:
            return record, found, step.look_ms
        is_new = step.record.last_ms > record.last_ms or step.record.buffered_ms < record.buffered_ms
        assert is_new or len(step.record.owed) < len(record.owed), "what was decided is not decided again"
        found += step.record.adding
        record = added(step.record, step.record.adding)
