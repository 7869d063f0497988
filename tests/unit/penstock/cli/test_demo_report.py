"""The demo's verdict can fail: each kind of damage is seen."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.demo.report import compare

KEY = ("mall1", "s1", "a")
OTHER = ("mall1", "s1", "b")
versions = st.dictionaries(st.tuples(st.just("m"), st.just("s"), st.text("abc", min_size=1)), st.integers(1, 5))


def test_everything_stored_once_is_whole() -> None:
    verdict = compare({KEY: 2, OTHER: 1}, {KEY: 2, OTHER: 1}, [(*KEY, 1), (*KEY, 2), (*OTHER, 1)])
    assert verdict.is_whole
    assert (verdict.made, verdict.stored, verdict.missing, verdict.doubled) == (2, 2, 0, 0)


def test_order_that_is_not_there_is_missing() -> None:
    verdict = compare({KEY: 1, OTHER: 1}, {KEY: 1}, [(*KEY, 1)])
    assert (verdict.missing, verdict.is_whole) == (1, False)
    assert verdict.examples == ("missing mall1/s1/b",)


def test_order_in_an_older_version_is_missing() -> None:
    assert compare({KEY: 2}, {KEY: 1}, [(*KEY, 1)]).missing == 1


def test_version_that_was_applied_twice_is_doubled() -> None:
    verdict = compare({KEY: 1}, {KEY: 1}, [(*KEY, 1), (*KEY, 1), (*KEY, 1)])
    assert (verdict.doubled, verdict.is_whole) == (2, False)


def test_order_that_nobody_made_is_foreign() -> None:
    verdict = compare({KEY: 1}, {KEY: 1, OTHER: 1}, [(*KEY, 1), (*OTHER, 1)])
    assert (verdict.foreign, verdict.is_whole) == (1, False)


def test_nothing_made_is_not_whole() -> None:
    assert not compare({}, {}, []).is_whole


@given(versions, versions)
def test_stored_and_missing_add_up_to_made(
    made: dict[tuple[str, str, str], int], stored: dict[tuple[str, str, str], int]
) -> None:
    verdict = compare(made, stored, [])
    assert verdict.stored + verdict.missing == verdict.made == len(made)
