"""How deeply JSON is nested: by a scan as by walking."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules.depth import depth_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=40,
)


def walked(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(walked, value.values()), default=0)
    return 1 + max(map(walked, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.booleans())
def test_the_depth_is_what_walking_finds(value: Any, is_ascii: bool) -> None:
    assert depth_of(json.dumps(value, ensure_ascii=is_ascii).encode()) == walked(value)


@pytest.mark.parametrize("text", ['"[[[["', '"\\"[{"', '["]]","[["]', '{"[":"{"}', '"\\\\"', '["\\\\\\"[", []]'])
def test_brackets_in_strings_are_no_depth(text: str) -> None:
    assert depth_of(text.encode()) == walked(json.loads(text))
