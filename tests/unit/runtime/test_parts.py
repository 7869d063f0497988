"""A list is cut into parts that hold everything once, in order, and fit."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules.parts import parts_of


@given(st.lists(st.integers(0, 1200), max_size=40), st.integers(1, 2000), st.integers(1, 9))
def test_parts_hold_everything_once_in_order_and_fit(sizes: list[int], most_size: int, most: int) -> None:
    parts = [sizes[part] for part in parts_of(sizes, most_size, most)]
    assert [one for part in parts for one in part] == sizes
    for part in parts:
        assert 1 <= len(part) <= most
        assert len(part) == 1 or sum(part) <= most_size
    for part, following in pairwise(parts):
        assert len(part) == most or sum(part) + following[0] > most_size, "none is cut before it is full"
