"""Places in lists of batches."""

import pytest

from actors.batch.rules.newest import LATEST
from actors.batch.rules.refusals import BatchRefused
from actors.batch.views import read_place


def test_a_place_is_read_and_other_texts_are_refused() -> None:
    assert read_place("1700000000000.a-b_c") == (1_700_000_000_000, "a-b_c")
    assert read_place("") == LATEST
    for text in ("x", "17", "17.", ".a", "-1.a", "1" * 20 + ".a", "\u0661.a"):
        with pytest.raises(BatchRefused, match="no place in a list"):
            read_place(text)
