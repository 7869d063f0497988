"""Due times and time zones: what the server takes is built right, and the rest is refused with a reason."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.jobs.timetable import LATEST_MS, BadSchedule, at_line, check_tz


@given(st.integers(0, LATEST_MS))
def test_a_due_time_keeps_its_millisecond(due_ms: int) -> None:
    read = datetime.fromisoformat(at_line(due_ms).removeprefix("@at "))
    whole = int(read.replace(microsecond=0).timestamp())
    assert whole * 1000 + read.microsecond // 1000 == due_ms
    assert read.tzinfo == UTC


@pytest.mark.parametrize(
    ("due_ms", "why"),
    [
        (-1, "use 0 to"),
        (LATEST_MS + 1, "use 0 to"),  # the server's clock overflows in 2262 and it would fire at once
        (10**18, "seconds or µs"),
        (1.5e12, "whole milliseconds"),
        (True, "whole milliseconds"),
        ("tomorrow", "whole milliseconds"),
        (None, "whole milliseconds"),
    ],
)
def test_a_bad_due_time_is_refused(due_ms: int, why: str) -> None:
    with pytest.raises(BadSchedule, match=why) as caught:
        at_line(due_ms)
    assert repr(due_ms) in str(caught.value)


@pytest.mark.parametrize("tz", ["Europe/Berlin", "Asia/Kathmandu", "UTC"])
def test_a_known_time_zone_passes(tz: str) -> None:
    assert check_tz(tz) == tz


@pytest.mark.parametrize(
    ("tz", "why"),
    [
        ("Europe/Berln", "is Europe/Berlin meant"),
        ("Mars/Olympus", "unknown"),
        ("", "use a name"),
        ("../etc/passwd", "unknown"),
        ("+02:00", "unknown"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_the_nearest(tz: str, why: str) -> None:
    with pytest.raises(BadSchedule, match=why):
        check_tz(tz)
