"""Marks of the calls that changed a record."""

from streams.calls import KEPT, kept_with, mark_of, serving


def test_a_mark_is_of_one_change_by_one_call() -> None:
    def mark(call: str, change: object) -> str:
        with serving(call):
            return mark_of(change)

    assert mark("one", {"rate": 5}) == mark("one", {"rate": 5})
    assert len({mark("one", {"rate": 5}), mark("one", {"rate": 6}), mark("two", {"rate": 5})}) == 3
    assert mark("", {"rate": 5}) == mark_of({"rate": 5}) == ""
    assert " " not in mark("käse \n\ud800", "x")


def test_a_record_keeps_the_latest_marks() -> None:
    marks: list[str] = []
    for number in range(2 * KEPT):
        marks = kept_with(marks, f"m{number}").split()
    assert marks == [f"m{number}" for number in range(KEPT, 2 * KEPT)]
    assert kept_with(marks, "").split() == marks
    assert kept_with((), "") == ""
