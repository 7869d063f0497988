"""Pages of lists: each line once, of some size at most, from a place on that an earlier page named."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules.pages import page_of


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
