"""Which moments a cron line names, through changes of the clock, and how a wrong one is refused."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.jobs.rules.cron import BadRecurrence, check_cron, cron_dues
from tests.support.edits import edited

BERLIN = "Europe/Berlin"
ZONES = st.sampled_from(["UTC", BERLIN, "Australia/Lord_Howe", "America/New_York", "Africa/Cairo", "Asia/Kolkata"])
SOME_DAY_MS = st.integers(1_700_000_000_000, 1_800_000_000_000)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def dues(line: str, tz: str, after: str, count: int) -> list[str]:
    """Return the next moments after one, by the zone's wall clock with its offset."""
    after_ms = ms(after)
    found = islice(sorted({at for at in islice(cron_dues(line, tz, after_ms), 200) if at > after_ms}), count)
    return [datetime.fromtimestamp(at / 1000, ZoneInfo(tz)).isoformat() for at in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("*/20 * * * *", ["2026-11-21T09:40:00+00:00", "2026-11-21T10:00:00+00:00"]),
        ("30 9 * * MON-FRI", ["2026-11-23T09:30:00+00:00", "2026-11-24T09:30:00+00:00"]),
        ("*/30 30 9 * * *", ["2026-11-21T09:30:30+00:00", "2026-11-22T09:30:00+00:00"]),
        ("15 * * * * *", ["2026-11-21T09:30:15+00:00", "2026-11-21T09:31:15+00:00"]),
        ("0 0 L * *", ["2026-11-30T00:00:00+00:00", "2026-12-31T00:00:00+00:00"]),
        ("0 8 * * MON#1", ["2026-12-07T08:00:00+00:00", "2027-01-04T08:00:00+00:00"]),
        ("0 8 * * 7", ["2026-11-22T08:00:00+00:00", "2026-11-29T08:00:00+00:00"]),
        (" @Daily ", ["2026-11-22T00:00:00+00:00", "2026-11-23T00:00:00+00:00"]),
    ],
)
def test_a_line_names_its_moments(line: str, expected: list[str]) -> None:
    check_cron(line)
    assert dues(line, "UTC", "2026-11-21T09:30:00+00:00", 2) == expected


def test_a_fixed_time_that_the_clock_leaves_out_fires_when_it_goes_on() -> None:
    after = "2026-03-28T12:00:00+01:00"
    assert dues("30 2 * * *", BERLIN, after, 2) == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    both = dues("0,30 2 * * *", BERLIN, after, 2)
    assert both == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"], "two that fall together are one"
    assert dues("10 30 2 * * *", BERLIN, after, 1) == ["2026-03-29T03:00:10+02:00"], "with seconds it is the same"


def test_a_fixed_time_that_comes_twice_fires_the_first_time() -> None:
    expected = ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    assert dues("30 2 * * *", BERLIN, "2026-10-24T12:00:00+02:00", 2) == expected
    assert dues("0 30 2 * * *", BERLIN, "2026-10-24T12:00:00+02:00", 2) == expected
    between = dues("30 2 * * *", BERLIN, "2026-10-25T02:15:00+01:00", 1)
    assert between == ["2026-10-26T02:30:00+01:00"], "not again while the hour comes the second time"


def test_a_line_with_a_star_follows_the_elapsed_time() -> None:
    gap = dues("*/30 * * * *", BERLIN, "2026-03-29T01:30:00+01:00", 2)
    assert gap == ["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"]
    fold = dues("30 * * * *", BERLIN, "2026-10-25T01:30:00+02:00", 3)
    assert fold == ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:30:00+01:00"]


@pytest.mark.parametrize(
    ("tz", "change"),
    [
        (BERLIN, "2026-10-25T02:00:00+01:00"),
        ("America/Havana", "2026-03-08T01:00:00-04:00"),
        ("Australia/Lord_Howe", "2026-04-05T01:30:00+10:30"),
        ("Australia/Lord_Howe", "2026-10-04T02:30:00+11:00"),
        ("Pacific/Chatham", "2026-04-05T02:45:00+12:45"),
        ("Asia/Kathmandu", "1986-01-01T00:15:00+05:45"),
    ],
)
@pytest.mark.parametrize("line", ["35 *", "10,20 */3", "0 */3", "*/15 */3", "*/15 2", "*/7 0"])
def test_a_line_with_a_star_names_each_moment_of_the_wall_clock_once(line: str, tz: str, change: str) -> None:
    """Also where the clock changes by less than an hour, or amid an hour."""
    minutes, hours = (_named(field, size) for field, size in zip(line.split(), (60, 24), strict=True))
    moments = range(ms(change) - 4 * 3_600_000, ms(change) + 26 * 3_600_000, 60_000)
    found = list(islice(cron_dues(f"{line} * * *", tz, moments[0]), 500))
    walls = ((at_ms, datetime.fromtimestamp(at_ms / 1000, ZoneInfo(tz))) for at_ms in moments)
    expected = [at_ms for at_ms, wall in walls if wall.minute in minutes and wall.hour in hours]
    assert [at_ms for at_ms in found if at_ms in moments] == expected


@settings(deadline=None)
@given(
    minute=st.sampled_from(["*", "*/7", "0", "30", "5,50"]),
    hour=st.sampled_from(["*", "*/5", "2", "0,23"]),
    tz=ZONES,
    after_ms=SOME_DAY_MS,
)
def test_each_moment_is_one_that_the_wall_clock_shows(minute: str, hour: str, tz: str, after_ms: int) -> None:
    check_cron(f"{minute} {hour} * * *")
    minutes, hours = _named(minute, 60), _named(hour, 24)
    for at_ms in islice(cron_dues(f"{minute} {hour} * * *", tz, after_ms), 5):
        wall = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(tz))
        is_named = wall.minute in minutes and wall.hour in hours
        assert is_named or _follows_a_gap(wall), wall


def _named(field: str, size: int) -> set[int]:
    if field.startswith("*"):
        return set(range(0, size, int(field[2:] or 1)))
    return {int(part) for part in field.split(",")}


def _follows_a_gap(wall: datetime) -> bool:
    before = (wall.astimezone(UTC) - timedelta(minutes=1)).astimezone(wall.tzinfo)
    return wall.utcoffset() != before.utcoffset()


@settings(deadline=None)
@given(st.sets(st.integers(0, 59), min_size=1), ZONES, SOME_DAY_MS)
def test_seconds_lie_within_the_minutes_of_the_line(seconds: set[int], tz: str, after_ms: int) -> None:
    line = f"{','.join(map(str, seconds))} 30 2 * * *"
    plain = list(islice(cron_dues("30 2 * * *", tz, after_ms), 3))
    expected = [at + second * 1000 for at in plain for second in sorted(seconds)]
    assert list(islice(cron_dues(line, tz, after_ms), len(expected))) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("61 * * * *", "the minute is not understood; use 0 to 59"),
        ("* 24 * * *", "the hour is not understood"),
        ("* * 31 2 *", "the day-of-month is not understood"),
        ("* * * 13 *", "the month"),
        ("* * * * FOO", "the day-of-week"),
        ("60 * * * * *", "the second"),
        ("*/0 * * * *", "the minute"),
        ("5-1 * * * *", "the minute"),
        ("1,,2 * * * *", "the minute"),
        ("² * * * *", "the minute"),
        (f"{'9' * 100} * * * *", "the minute"),
        ("* * * *", "has 4 fields; write minute hour"),
        ("", "has 0 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("@reboot", "has 1 fields"),
        ("* " * 200, "has 400 characters"),
    ],
)
def test_a_wrong_line_is_refused_with_what_to_write(line: str, said: str) -> None:
    with pytest.raises(BadRecurrence) as refused:
        check_cron(line)
    assert said in str(refused.value)
    assert str(refused.value).isascii()
    assert refused.value.field == "cron"


def is_taken(line: str) -> bool:
    try:
        check_cron(line)
    except BadRecurrence:
        return False
    return True


SOUND = st.sampled_from(
    ["* * * * *", "*/5 8-17 * * MON-FRI", "0 0 L 2 *", "0 9 * * MON#1", "30 0 0 1,15 * *", "@daily"]
)
PARTS = st.sampled_from(["*", "1-3", "*/2", "1,3", "2"])
ODD_PARTS = st.sampled_from(["L", "LW", "MON#1", "5L", "1,L", "L/2", "#", "-", "/", "31"])


def assert_followed_or_refused(line: str) -> None:
    """A line that is taken has five or six fields or is a nickname, and its moments can be computed."""
    if is_taken(line):
        assert len(line.split()) in (1, 5, 6)
        moments = list(islice(cron_dues(line, BERLIN, ms("2026-03-29T00:00:00Z")), 3))
        assert moments == sorted(moments)


@settings(deadline=None)
@given(edited(SOUND, "*/-,#LW079 @\n"))
def test_any_text_is_taken_or_refused(line: str) -> None:
    assert_followed_or_refused(line)


@settings(deadline=None)
@given(st.lists(PARTS, min_size=4, max_size=6), st.integers(0, 6), st.lists(ODD_PARTS, max_size=1))
def test_any_mix_of_parts_is_taken_or_refused(parts: list[str], at: int, odd: list[str]) -> None:
    assert_followed_or_refused(" ".join([*parts[:at], *odd, *parts[at:]]))
