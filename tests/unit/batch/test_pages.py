"""Pages of batches and tasks: each once, of some size at most, from a place on that an earlier page named."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.batch.rules.refusals import BatchRefused
from actors.batch.views import page_of, read_place


@given(st.lists(st.text(max_size=9), unique=True), st.integers(1, 7), st.integers(-5, 40))
def test_pages_have_each_thing_once_and_end(things: list[str], most: int, most_bytes: int) -> None:
    found: list[str] = []
    while True:
        page, place = page_of(things[len(found) :], most, most_bytes, lambda thing: f"at {thing}")
        size = sum(len(msgspec.json.encode(thing)) + 1 for thing in page)
        assert len(page) <= most
        assert size <= max(most_bytes, 0) or len(page) <= 1
        found += page
        if not place:
            break
        assert place == f"at {page[-1]}"
    assert found == things


def test_a_place_is_read_and_other_texts_are_refused() -> None:
    assert read_place("1700000000000.a-b_c") == (1_700_000_000_000, "a-b_c")
    assert read_place("") == (0, "")
    for text in ("x", "17", "17.", ".a", "-1.a", "1" * 20 + ".a", "\u0661.a"):
        with pytest.raises(BatchRefused, match="no place in a list"):
            read_place(text)
