"""Schedule lines: what the server takes is built right, and what it would misread is refused with a reason."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.timetable import (
    LATEST_MS,
    LONGEST_EVERY_MS,
    BadSchedule,
    at_line,
    check_tz,
    cron_line,
    every_line,
)


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


@pytest.mark.parametrize("every_ms", [-1000, 0, 999, LONGEST_EVERY_MS + 1, 1e3, True, "1s"])
def test_a_bad_interval_is_refused(every_ms: int) -> None:
    with pytest.raises(BadSchedule, match="every_ms"):
        every_line(every_ms)


def test_an_interval_keeps_its_milliseconds() -> None:
    assert every_line(1_500) == "@every 1500ms"
    assert every_line(86_400_000) == "@every 86400000ms"


@pytest.mark.parametrize(
    "expression",
    [
        "* * * * * *",
        "*/2 * * * * *",
        "0 30 9 * * MON-FRI",
        "0-10/3,30 * * * * *",
        "0 0 9 ? JAN,mar sun",
        "0 0 0 31 12 0-6",
        "@daily",
    ],
)
def test_a_cron_line_passes_as_it_is(expression: str) -> None:
    assert cron_line(expression) == expression
    assert cron_line(f"  {expression.replace(' ', '   ')} ") == expression


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("0 9 * * *", "5 fields; six are needed"),
        ("", "0 fields"),
        ("@minutely", "six are needed"),
        ("@every 1s", "2 fields"),
        ("60 * * * * *", "second '60': use 0 to 59"),
        ("* 60 * * * *", "minute '60'"),
        ("* * 24 * * *", "hour '24'"),
        ("* * * 0 * *", "day of month '0': use 1 to 31"),
        ("* * * * 13 *", "month '13': use 1 to 12 or jan to dec"),
        ("* * * * * 7", "day of week '7': use 0 to 6 or sun to sat"),
        ("*/0 * * * * *", "a step is a number from 1"),
        ("*/x * * * * *", "a step is a number"),
        ("5-1 * * * * *", "runs backwards"),
        ("1, * * * * *", "second '': not understood"),
        ("-1 * * * * *", "not understood"),
        ("0 0 9 L * *", "use 1 to 31"),
        ("0 0 9 * * 5#2", "not understood"),
        ("0 0 9 * * *\nPUB x 0", "8|9 fields"),
        ("² * * * * *", "use 0 to 59"),
        ("000000000001 * * * * *", "use 0 to 59"),
    ],
)
def test_a_bad_cron_line_is_refused_with_its_field(expression: str, why: str) -> None:
    with pytest.raises(BadSchedule, match=why) as caught:
        cron_line(expression)
    assert "\n" not in str(caught.value)


def test_what_is_not_text_is_no_cron_line() -> None:
    with pytest.raises(BadSchedule, match="six are needed"):
        cron_line(5)  # type: ignore[arg-type]  # what an untyped caller may pass


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
