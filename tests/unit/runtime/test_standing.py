"""What stands until somebody acts is reported once, and so is its end."""

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.cluster_troubles import dead_letters, is_hole_letter
from actors.runtime.rules.standing import Reported, StandingReport, Trouble, judge

AGAIN_MS = 1_000
looks = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abc"), st.integers(1, 5)), st.integers(0, 3 * AGAIN_MS)), max_size=20
)


def troubles(marks: dict[str, int]) -> dict[str, Trouble]:
    return {key: Trouble(mark, key) for key, mark in marks.items()}


def test_all_that_is_new_is_one_report_and_its_end_is_another() -> None:
    reported, report = judge(Reported(), troubles({"a": 1, "b": 7}), now_ms=5)
    assert report == StandingReport(("a", "b"))
    reported, report = judge(reported, troubles({"a": 1, "b": 7}), now_ms=6)
    assert report == StandingReport()
    reported, report = judge(reported, troubles({"b": 7}), now_ms=7)
    assert report == StandingReport()
    reported, report = judge(reported, {}, now_ms=8)
    assert report == StandingReport(is_over=True)
    assert judge(reported, {}, now_ms=9) == (Reported(), StandingReport())


def test_what_only_grows_waits_and_goes_with_what_is_new() -> None:
    reported, _ = judge(Reported(), troubles({"a": 1}), now_ms=0, again_ms=AGAIN_MS)
    reported, report = judge(reported, troubles({"a": 2}), now_ms=AGAIN_MS - 1, again_ms=AGAIN_MS)
    assert report == StandingReport()
    assert judge(reported, troubles({"a": 2, "b": 1}), now_ms=AGAIN_MS - 1, again_ms=AGAIN_MS)[1] == StandingReport(
        ("a", "b")
    )
    assert judge(reported, troubles({"a": 2}), now_ms=AGAIN_MS, again_ms=AGAIN_MS)[1] == StandingReport(("a",))


@given(looks)
def test_everything_is_reported_in_the_end_and_nothing_is_over_that_was_not_reported(
    seen: list[tuple[dict[str, int], int]],
) -> None:
    reported, now_ms, is_open = Reported(), 0, False
    for marks, later_ms in seen:
        now_ms += later_ms
        reported, report = judge(reported, troubles(marks), now_ms=now_ms, again_ms=AGAIN_MS)
        assert not (report.new and report.is_over)
        assert report.is_over == (is_open and not marks)
        is_open = bool(reported.marks)
        assert marks.keys() == reported.marks.keys(), "one that was not there before never waits"
        settled, _ = judge(reported, troubles(marks), now_ms=now_ms + AGAIN_MS, again_ms=AGAIN_MS)
        assert settled.marks == marks


def test_letters_of_holes_are_left_out_and_those_of_rows_are_not() -> None:
    assert is_hole_letter("fetch", "s1_t1-1795256018000-1795256078000")
    assert not is_hole_letter("fetch", "s1_4711_0a1b2c3d4e5f")
    assert not is_hole_letter("jobs", "s1_t1-1795256018000-1795256078000")
    assert dead_letters({("jobs", "mails"): 3, ("", ""): 0}) == {"jobs mails": Trouble(3, "3 of jobs mails")}
