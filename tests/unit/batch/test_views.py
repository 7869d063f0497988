"""How an instance is told to people: its line, its bar, its files."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from actors.batch.rules.refusals import BatchRefused
from actors.batch.views import Beat, View, result_file, upload_name
from penstock.cli.shown.batch_bar import Speed, bar_text, far
from streams.messages.batch import Counts


def view(state: str = "running", **more: Any) -> View:
    plain = {"items": 10, "counts": Counts(), "created_ms": 1, "started_ms": 2, "ended_ms": 0}
    return View(**{"instance_id": "b1", "task": "mail", "state": state, **plain, **more})


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (view("pending", items=None), "pending"),
        (view("splitting", items=None, step=Beat("n", 300)), "splitting, 300 rows read"),
        (view(counts=Counts(succeeded=3, failed=1)), "running, 4 of 10 items, 3 succeeded, 1 failed"),
        (
            view("done", counts=Counts(succeeded=9, unknown=1), passes=2),
            "done, 10 of 10 items, 9 succeeded, 1 unknown, pass 2",
        ),
    ],
)
def test_one_line_says_how_it_stands(shown: View, line: str) -> None:
    assert bar_text(shown) == line


@pytest.mark.parametrize(
    ("shown", "done_of"),
    [
        (view("pending", items=None), (0, None)),
        (view("splitting", items=None, step=Beat("n", 300)), (300, None)),
        (view("splitting", items=None, step=Beat("n", 300, 900)), (300, 900)),
        (view(counts=Counts(succeeded=3, failed=1)), (4, 10)),
        (view("reducing", step=Beat("n", 4)), (4, 10)),
        (view("reducing"), (0, 10)),
    ],
)
def test_the_bar_follows_the_step_at_work(shown: View, done_of: tuple[int, int | None]) -> None:
    assert far(shown) == done_of


def test_the_rate_is_of_the_last_seconds() -> None:
    speed = Speed()
    assert speed.of(0, 0.0) == 0
    assert speed.of(100, 1.0) == 100
    assert speed.of(900, 9.0) == 100  # the first look is too long ago to tell
    assert speed.of(1_500, 10.0) == pytest.approx(1_400 / 9)
    assert speed.of(3, 11.0) == 0  # another step counts from its own beginning


def test_the_rate_does_not_fall_between_chunks_that_end_together() -> None:
    speed, shown = Speed(), []
    for look in range(200):
        now_s = look / 5
        shown.append(speed.of(4_000 * int(now_s / 2.5), now_s))
    assert all(rate == pytest.approx(1_600, rel=0.1) for rate in shown[40:])
    assert speed.of(60_000, 100.0) < 1_000  # nothing has ended for a minute


@given(some.lists(some.integers(0, 1_000), max_size=30))
def test_no_rate_is_below_zero(counts: list[int]) -> None:
    speed = Speed()
    assert all(speed.of(count, float(at)) >= 0 for at, count in enumerate(counts))


def test_a_file_of_the_result_is_one_that_it_names() -> None:
    done = view("done", result={"files": ["result.xlsx", "failed.csv"]})
    assert result_file(done) == "result.xlsx"
    assert result_file(done, "failed.csv") == "failed.csv"
    for shown, name in ((done, "../upload-1"), (done, "upload-1"), (view(), ""), (view(result=["x"]), "x")):
        with pytest.raises(BatchRefused) as refused:
            result_file(shown, name)
        assert refused.value.code == "not_found"


@given(
    some.recursive(
        some.none() | some.integers() | some.text(),
        lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
    )
)
def test_whatever_a_reduce_returned_names_files_or_none(result: Any) -> None:
    try:
        name = result_file(view("done", result={"files": result}))
    except BatchRefused:
        return
    assert isinstance(name, str)
    assert name


def test_each_upload_has_a_name_of_its_own() -> None:
    assert upload_name("b1") != upload_name("b1")
    assert upload_name("b1").startswith("b1/upload-")
