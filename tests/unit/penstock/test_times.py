"""Moments as people write them."""

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.times import fact_text, read_moment, read_range, read_zone, span_text, time_text

NOW_MS = 1_800_000_000_000
SHANGHAI = ZoneInfo("Asia/Shanghai")
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "wanted_ms"),
    [
        ("now", NOW_MS),
        ("-3d", NOW_MS - 3 * 86_400_000),
        ("-1h30m", NOW_MS - 5_400_000),
        ("2026-01-31T08:00:00Z", 1_769_846_400_000),
        ("2026-01-31 08:00Z", 1_769_846_400_000),
        ("2026-01-31T16:00:00+08:00", 1_769_846_400_000),
        ("2026-01-31T16:00:00+0800", 1_769_846_400_000),
        ("2026-01-31T08:00:00.250Z", 1_769_846_400_250),
        ("2026-01-31T08:00:00,25z", 1_769_846_400_250),
    ],
)
def test_a_moment_with_its_zone_is_read(text: str, wanted_ms: int) -> None:
    assert read_moment(text, now_ms=NOW_MS) == wanted_ms


def test_moments_before_now_are_whole_seconds() -> None:
    assert read_moment("now", now_ms=NOW_MS + 999) == NOW_MS
    assert read_moment("-250ms", now_ms=NOW_MS) == NOW_MS - 1000


def test_wall_time_and_dates_are_of_the_zone_that_was_named() -> None:
    assert read_moment("2026-01-31", now_ms=NOW_MS, zone=SHANGHAI) == 1_769_788_800_000
    assert read_moment("2026-01-31 16:00", now_ms=NOW_MS, zone=SHANGHAI) == 1_769_846_400_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-01-31", "no zone"),
        ("2026-01-31T08:00:00", "no zone"),
        ("yesterday", "2026-01-31T08:00:00Z"),
        ("2026-02-30T08:00:00Z", "calendar"),
        ("2026-01-31T25:00:00Z", "calendar"),
        ("1700000000000", "2023-11-14T22:13:20Z"),
        ("1700000000", "2023-11-14T22:13:20Z"),
        ("5", "bare number"),
        ("-3", "-3d"),
        ("-3 days", "-3d"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        ("-9000w", "before 1970"),
        ("", "no moment"),
        ("2026-01-31T08:00:00Z; rm", "no moment"),
    ],
)
def test_what_is_no_moment_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        read_moment(text, now_ms=NOW_MS)
    assert repr(text) in str(refused.value)


def test_wall_times_that_exist_twice_or_never_need_an_offset() -> None:
    with pytest.raises(UsageError, match="exists twice in Europe/Berlin"):
        read_moment("2026-10-25 02:30", now_ms=NOW_MS, zone=BERLIN)
    with pytest.raises(UsageError, match="does not exist in Europe/Berlin"):
        read_moment("2026-03-29 02:30", now_ms=NOW_MS, zone=BERLIN)
    assert read_moment("2026-10-25T02:30+01:00", now_ms=NOW_MS, zone=BERLIN) == 1_792_891_800_000


def test_a_range_has_to_go_forward() -> None:
    assert read_range("-2h", "-1h", now_ms=NOW_MS) == (NOW_MS - 7_200_000, NOW_MS - 3_600_000)
    for start, end in (("now", "now"), ("-1h", "-2h")):
        with pytest.raises(UsageError, match="before the second"):
            read_range(start, end, now_ms=NOW_MS)


def test_an_unknown_zone_names_the_nearest() -> None:
    assert read_zone("") is None
    assert read_zone("Asia/Shanghai") == SHANGHAI
    with pytest.raises(UsageError, match="Asia/Shanghai"):
        read_zone("Asia/Shanhai")
    with pytest.raises(UsageError, match="no such time zone"):
        read_zone("../../etc/passwd")


@given(st.integers(min_value=0, max_value=250_000_000_000_000))
def test_a_written_moment_reads_as_itself(at_ms: int) -> None:
    assert read_moment(time_text(at_ms), now_ms=NOW_MS) == at_ms


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0ms"),
        (80, "80ms"),
        (1_000, "1s"),
        (12_540, "12.5s"),
        (125_000, "2m5s"),
        (7_200_000, "2h"),
        (273_600_000, "3d4h"),
        (-5_000, "-5s"),
    ],
)
def test_a_span_is_said_in_its_two_largest_units(span_ms: int, text: str) -> None:
    assert span_text(span_ms) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("start_ms", 1_795_656_058_000, "2026-11-26T01:20:58Z"),
        ("lag_ms", 125_000, "2m5s"),
        ("rows", 1_795_656_058_000, "1795656058000"),
        ("reason", "HTTP 500", "HTTP 500"),
    ],
)
def test_a_fact_is_shown_as_a_moment_a_span_or_as_it_is(name: str, value: object, text: str) -> None:
    assert fact_text(name, value) == text
