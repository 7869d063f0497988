"""Times on the wire: read to the millisecond, refused when they cannot be meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.times import EARLIEST_MS, LATEST_MS, TimeStyle, WireTime, has_jumps, time_reader

BERLIN = TimeStyle("wall", "Europe/Berlin")


@pytest.mark.parametrize(
    ("style", "value", "at_ms"),
    [
        (TimeStyle("unix_ms"), 1_700_000_000_123, 1_700_000_000_123),
        (TimeStyle("unix_ms"), "1700000000123", 1_700_000_000_123),
        (TimeStyle("unix_s"), 1_700_000_000, 1_700_000_000_000),
        (TimeStyle("unix_s"), 1_700_000_000.25, 1_700_000_000_250),
        (TimeStyle("iso_z"), "2023-11-14T22:13:20Z", 1_700_000_000_000),
        (TimeStyle("iso_z"), "2023-11-14T22:13:20.1239Z", 1_700_000_000_123),
        (TimeStyle("iso_offset"), "2023-11-15T03:58:20+05:45", 1_700_000_000_000),
        (TimeStyle("wall", "Asia/Shanghai"), "2023-11-15 06:13:20", 1_700_000_000_000),
        (TimeStyle("wall", "Asia/Shanghai", "%Y%m%d%H%M%S"), "20231115061320", 1_700_000_000_000),
        (BERLIN, "2023-11-14T22:13:20+00:00", 1_700_000_000_000),
    ],
)
def test_times_are_read_as_the_platform_writes_them(style: TimeStyle, value: WireTime, at_ms: int) -> None:
    assert time_reader(style)(value) == at_ms


@pytest.mark.parametrize("text", ["2026-10-25 02:30:00", "2026-03-29 02:30:00"])
def test_a_wall_time_that_means_two_instants_or_none_is_left_open(text: str) -> None:
    assert time_reader(BERLIN)(text) is None


@pytest.mark.parametrize(
    ("style", "value", "problem"),
    [
        (TimeStyle("iso_z"), "2026-01-01T00:00:00", "has no zone"),
        (TimeStyle("iso_z"), "2026-01-01", "has no zone"),
        (TimeStyle("iso_z"), "2026-01-01T24:00:00Z", "hour 24"),
        (BERLIN, "2026-01-01 24:00:00", "hour 24"),
        (BERLIN, "yesterday", "cannot be read"),
        (TimeStyle("iso_z"), 1_700_000_000, "is a number"),
        (TimeStyle("unix_s"), "2026-01-01T00:00:00Z", "is no number"),
        (TimeStyle("unix_s"), "-5", "is no number"),
        (TimeStyle("unix_ms"), 0, "between the years 2000 and 2099"),
        (TimeStyle("unix_s"), 1_700_000_000_000, "between the years 2000 and 2099"),
        (TimeStyle("unix_s"), 1e306, "is no time of these years"),
        (TimeStyle("iso_z"), "1970-01-01T00:00:00Z", "between the years 2000 and 2099"),
        (TimeStyle("iso_z"), "2099-01-01T00:00:00Z", "between the years 2000 and 2099"),
        (BERLIN, "0001-01-01 00:00:00", "between the years 2000 and 2099"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(style: TimeStyle, value: WireTime, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        time_reader(style)(value)


@given(
    st.integers(EARLIEST_MS, LATEST_MS - 1),
    st.sampled_from([TimeStyle("unix_ms"), TimeStyle("iso_z"), TimeStyle("iso_offset", "Asia/Kathmandu")]),
)
def test_what_is_written_is_read_the_same(at_ms: int, style: TimeStyle) -> None:
    text = style.write(at_ms)
    assert time_reader(style)(int(text) if style.format == "unix_ms" else text) == at_ms


def test_summer_time_is_known() -> None:
    assert [has_jumps(zone) for zone in ("Europe/Berlin", "Asia/Shanghai", "Asia/Kathmandu")] == [True, False, False]
