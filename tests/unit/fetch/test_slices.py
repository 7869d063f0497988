"""Slices: names that say everything, grids that tile, halves that join."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.rules.slices import (
    Kind,
    MalformedSliceId,
    Slice,
    middle_ms,
    next_end_ms,
    overlapping,
    parse_slice_id,
)
from tests.support.edits import edited

MOMENTS = st.integers(0, 10**14)
LENGTHS = st.integers(1, 10**10)
KINDS: st.SearchStrategy[Kind] = st.sampled_from(["t", "b", "a"])
ZEROS = st.sampled_from(["", "", "", "", "0"])
NAMES = st.builds("{}{}{}-{}{}-{}{}".format, KINDS, ZEROS, st.integers(0, 10**9), ZEROS, MOMENTS, ZEROS, MOMENTS)


def test_a_slice_is_named_by_kind_epoch_and_window() -> None:
    piece = Slice("t", 3, 1_700_000_000_000, 1_700_000_060_000)
    assert piece.slice_id == "t3-1700000000000-1700000060000"
    assert piece.lane == "tail"
    assert Slice("b", 1, 0, 1).lane == Slice("a", 1, 0, 1).lane == "back"


@given(KINDS, st.integers(0, 10**8), MOMENTS, LENGTHS)
def test_a_name_reads_back_as_its_slice(kind: Kind, epoch: int, start_ms: int, length_ms: int) -> None:
    piece = Slice(kind, epoch, start_ms, start_ms + length_ms)
    assert parse_slice_id(piece.slice_id) == piece
    assert len(piece.slice_id) <= 64, "it has to fit into a subject token"


@pytest.mark.parametrize(
    "text",
    [
        *("", "t1-0", "x1-0-10", "t1-10-10", "t1-10-0", "t01-0-10", "t1-00-10", "t1-0-10 ", "t1-0-10\n", "T1-0-10"),
        *("t-0-10", "t1--5-10", "t1-0-1e3", "t1-٠-10", "t1-0-" + "9" * 40, "t1.0.10", "*", ">", "t1-0-10-20", "\x00"),
    ],
)
def test_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(MalformedSliceId, match="slice id"):
        parse_slice_id(text)


@given(edited(NAMES, "tx0123456789-_ \n٠"))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    with suppress(MalformedSliceId):
        piece = parse_slice_id(text)
        assert piece.slice_id == text
        assert 0 <= piece.start_ms < piece.end_ms


@given(MOMENTS, MOMENTS, LENGTHS)
def test_the_next_end_is_the_first_point_of_the_grid_after_the_moment(at_ms: int, anchor: int, length_ms: int) -> None:
    end_ms = next_end_ms(at_ms, length_ms, anchor)
    assert at_ms < end_ms <= at_ms + length_ms
    assert (end_ms - anchor) % length_ms == 0


@given(MOMENTS, LENGTHS, st.integers(1, 10_000))
def test_a_window_is_halved_on_the_clock_or_not_at_all(start_ms: int, length_ms: int, step_ms: int) -> None:
    end_ms = start_ms + length_ms
    middle = middle_ms(start_ms, end_ms, step_ms)
    inside = (start_ms // step_ms + 1) * step_ms
    if middle is None:
        assert inside >= end_ms, "there was a step inside"
    else:
        assert start_ms < middle < end_ms
        assert middle % step_ms == 0


@given(MOMENTS, st.integers(2, 1_000_000))
def test_the_halves_differ_by_a_step_at_most_when_the_window_is_on_the_clock(steps: int, count: int) -> None:
    start_ms, end_ms = steps * 1000, (steps + count) * 1000
    middle = middle_ms(start_ms, end_ms, 1000)
    assert middle is not None
    assert abs((end_ms - middle) - (middle - start_ms)) <= 1000


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), max_size=8))
def test_overlaps_are_found_as_by_counting_milliseconds(windows: list[tuple[int, int]]) -> None:
    pieces = [Slice("t", 1, start, start + length) for start, length in windows]
    covered = [ms for piece in pieces for ms in range(piece.start_ms, piece.end_ms)]
    assert (overlapping(pieces) is None) == (len(set(covered)) == len(covered))
