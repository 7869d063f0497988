"""Whatever a platform's bounds are, a row inside our window is inside what it is asked for."""

from datetime import UTC, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from platforms.bounds import BoundKind, Bounds, Window, window_text
from platforms.errors import BadDeclaration
from platforms.times import TimeFormat, TimeStyle

HOUR = 3_600_000
BERLIN_BACK = 1_792_889_999_000  # 2026-10-25 00:59:59 UTC, a second before the hour from 2 to 3 comes again
BERLIN_ON = 1_774_745_999_000  # 2026-03-29 00:59:59 UTC, a second before the hour from 2 to 3 is left out
ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Casablanca"]


class Case(NamedTuple):
    bounds: Bounds
    window: Window
    row_ms: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    written: TimeFormat = draw(st.sampled_from(["unix_s", "unix_ms", "iso_z", "iso_offset", "wall"]))
    coarse = written in ("unix_s", "wall")
    step = draw(st.sampled_from([1_000, 60_000, HOUR] if coarse else [1, 10, 1_000, 60_000]))
    kinds: st.SearchStrategy[BoundKind] = st.sampled_from(["includes", "excludes"])
    lower, upper = draw(kinds), draw(kinds)
    near = draw(st.sampled_from([BERLIN_BACK, BERLIN_ON, 1_700_000_000_000, 1_775_315_000_000]))
    start = near + draw(st.integers(-30 * HOUR, 30 * HOUR))
    end = start + draw(st.integers(1, 5 * HOUR))
    style = TimeStyle(written, draw(st.sampled_from(ZONES)))
    return Case(Bounds(lower, upper, step_ms=step, time=style), Window(start, end), draw(st.integers(start, end - 1)))


def instants(text: str, style: TimeStyle) -> set[int]:
    """Return every instant that a platform may take a written time for."""
    if style.format in ("unix_s", "unix_ms"):
        return {int(text) * (1000 if style.format == "unix_s" else 1)}
    read = datetime.fromisoformat(text)
    if style.format == "wall":
        both = [read.replace(tzinfo=ZoneInfo(style.zone), fold=fold) for fold in (0, 1)]
    else:
        both = [read]
    return {round(each.timestamp() * 1000) for each in both}


def is_inside(row: int, low: int, high: int, bounds: Bounds) -> bool:
    is_late_enough = row >= low if bounds.lower == "includes" else row > low
    return is_late_enough and (row <= high if bounds.upper == "includes" else row < high)


@given(cases())
@example(Case(Bounds("includes", "includes", time=TimeStyle("unix_ms")), Window(5, 6), 5))
def test_a_row_of_the_window_is_inside_what_is_asked_for(case: Case) -> None:
    asked = case.bounds.request(case.window)
    assert asked.lower is not None
    assert asked.upper is not None
    step = case.bounds.step_ms
    for low in instants(asked.lower, case.bounds.time):
        for high in instants(asked.upper, case.bounds.time):
            assert is_inside(case.row_ms, low, high, case.bounds), "compared to the millisecond"
            if case.bounds.time.format != "wall":
                assert is_inside(case.row_ms // step * step, low, high, case.bounds), "dropped to the step first"


@given(cases())
def test_a_row_of_the_window_is_inside_where_wall_times_are_compared_as_they_stand(case: Case) -> None:
    style = TimeStyle("wall", case.bounds.time.zone)
    bounds = Bounds(case.bounds.lower, case.bounds.upper, step_ms=max(1000, case.bounds.step_ms), time=style)
    asked = bounds.request(case.window)
    assert asked.lower is not None
    assert asked.upper is not None
    low, high = (datetime.fromisoformat(text) for text in (asked.lower, asked.upper))
    row = datetime.fromtimestamp(case.row_ms / 1000, ZoneInfo(style.zone)).replace(tzinfo=None)
    for seen in (row, row.replace(microsecond=0)):
        assert seen >= low if bounds.lower == "includes" else seen > low
        assert seen <= high if bounds.upper == "includes" else seen < high


@given(cases())
def test_rows_of_the_window_are_never_taken_for_strays(case: Case) -> None:
    asked = case.bounds.request(case.window)
    assert asked.earliest_ms is not None
    assert asked.latest_ms is not None
    assert asked.earliest_ms <= case.row_ms <= asked.latest_ms


@given(cases())
def test_bounds_are_widened_by_no_more_than_two_steps_and_the_zone_s_jump(case: Case) -> None:
    asked = case.bounds.request(case.window)
    assert asked.lower is not None
    assert asked.upper is not None
    most = 2 * case.bounds.step_ms + (2 * HOUR if case.bounds.time.format == "wall" else 0)
    assert min(instants(asked.lower, case.bounds.time)) >= case.window.start_ms - most
    assert max(instants(asked.upper, case.bounds.time)) <= case.window.end_ms + most


@pytest.mark.parametrize(
    ("lower", "upper", "step_ms", "clock_ms", "asked"),
    [
        ("includes", "excludes", 1, 1, ("1000", "3000")),
        ("excludes", "includes", 1, 1, ("999", "2999")),
        ("includes", "includes", 1000, 1000, ("1000", "2000")),
        ("excludes", "excludes", 1000, 1000, ("0", "3000")),
        ("includes", "includes", 1000, 1, ("1000", "3000")),
        ("absent", "excludes", 1, 1, (None, "3000")),
        ("includes", "absent", 1, 1, ("1000", None)),
    ],
)
def test_bounds_by_example(
    lower: BoundKind, upper: BoundKind, step_ms: int, clock_ms: int, asked: tuple[str | None, str | None]
) -> None:
    bounds = Bounds(lower, upper, step_ms=step_ms, clock_ms=clock_ms)
    assert bounds.request(Window(1000, 3000))[:2] == asked


@pytest.mark.parametrize(
    ("style", "lower"),
    [
        (TimeStyle("unix_s"), "1767225600"),
        (TimeStyle("iso_z"), "2026-01-01T00:00:00Z"),
        (TimeStyle("iso_offset", "Asia/Shanghai"), "2026-01-01T08:00:00+08:00"),
        (TimeStyle("wall", "Asia/Kathmandu"), "2026-01-01 05:45:00"),
        (TimeStyle("wall", "Asia/Shanghai", "%d.%m.%Y %H:%M:%S"), "01.01.2026 08:00:00"),
    ],
)
def test_times_are_written_as_the_platform_writes_them(style: TimeStyle, lower: str) -> None:
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    assert Bounds(step_ms=1000, time=style).request(Window(start, start + 1)).lower == lower


def test_the_repeated_hour_is_asked_for_from_its_first_minute_to_its_last() -> None:
    bounds = Bounds(step_ms=1000, time=TimeStyle("wall", "Europe/Berlin"))
    second_pass = Window(BERLIN_BACK + 10 * 60_000, BERLIN_BACK + 20 * 60_000)
    asked = bounds.request(second_pass)
    assert asked.lower is not None
    assert asked.upper is not None
    assert max(instants(asked.lower, bounds.time)) <= second_pass.start_ms
    assert min(instants(asked.upper, bounds.time)) >= second_pass.end_ms


def test_a_day_s_bounds_are_written_as_dates_of_the_zone() -> None:
    day = 24 * HOUR
    bounds = Bounds("includes", "includes", step_ms=day, time=TimeStyle("wall", "Asia/Shanghai", "%Y-%m-%d"))
    start = int(datetime(2026, 1, 1, 15, 59, tzinfo=UTC).timestamp() * 1000)  # 23:59 in Shanghai
    assert bounds.request(Window(start, start + 60_002))[:2] == ("2026-01-01", "2026-01-03")


@pytest.mark.parametrize(
    ("style", "step_ms"),
    [(TimeStyle("unix_s"), 500), (TimeStyle("wall"), 1), (TimeStyle("wall", "UTC", "%Y-%m-%d"), 1000)],
)
def test_steps_that_the_format_cannot_tell_apart_are_refused(style: TimeStyle, step_ms: int) -> None:
    with pytest.raises(BadDeclaration, match="cannot be told apart"):
        Bounds(step_ms=step_ms, time=style)


def test_a_zone_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadDeclaration, match="'Asia/Shanghia' is no IANA time zone"):
        TimeStyle("wall", "Asia/Shanghia")


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5)])
def test_a_window_is_never_empty(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="empty"):
        Window(start, end)


@given(st.sampled_from(ZONES), st.integers(1_500_000_000_000, 2_000_000_000_000))
@example("Europe/Berlin", BERLIN_BACK - HOUR)
@example("Europe/Berlin", BERLIN_ON + HOUR)
def test_outside_of_the_stretches_around_changes_of_the_clocks_bounds_are_exact(zone: str, at_ms: int) -> None:
    bounds = Bounds(step_ms=1_000, time=TimeStyle("wall", zone))
    is_blurred = any(start_ms <= at_ms < stop_ms for start_ms, stop_ms in bounds.blurred)
    sent = bounds.request(Window(at_ms, at_ms + 1))
    assert sent.earliest_ms is not None
    assert (at_ms - sent.earliest_ms > 2_000) == is_blurred


def test_the_hour_that_repeats_is_one_stretch_with_the_one_it_repeats() -> None:
    bounds = Bounds(step_ms=1_000, time=TimeStyle("wall", "Europe/Berlin"))
    jump_ms = BERLIN_BACK + 1_000
    assert (jump_ms - HOUR, jump_ms + HOUR) in bounds.blurred
    assert Bounds(time=TimeStyle("iso_offset", "Europe/Berlin")).blurred == ()
    assert Bounds(step_ms=1_000, time=TimeStyle("wall", "Asia/Shanghai")).blurred == ()


def test_a_window_is_shown_as_people_write_time() -> None:
    assert window_text(Window(BERLIN_ON, BERLIN_ON + 1_500)) == "from 2026-03-29T00:59:59Z to 2026-03-29T01:00:00.500Z"
    with pytest.raises(ValueError, match="from 2026-03-29T00:59:59Z to 2026-03-29T00:59:59Z is empty"):
        Window(BERLIN_ON, BERLIN_ON)
