"""What went back is told by what was seen before."""

import pytest

from streams.store_memory import Seen, WentBack, compared

BEFORE = Seen("2026-11-21T10:00:00Z", 100)


@pytest.mark.parametrize(
    ("now", "behind"),
    [
        (Seen(BEFORE.created, 100), False),
        (Seen(BEFORE.created, 101), False),
        (Seen(BEFORE.created, 99), True),
        (Seen(BEFORE.created, 0), True),
        (Seen("2026-11-22T10:00:00Z", 500), True),
    ],
)
def test_a_stream_went_back_if_it_is_behind_what_was_seen_or_is_another(now: Seen, behind: bool) -> None:
    found = compared({"JOBS": BEFORE}, {"JOBS": now})
    assert found == ([WentBack("JOBS", 100, now.last_seq)] if behind else [])


def test_what_is_new_or_gone_is_not_told() -> None:
    assert compared({"JOBS": BEFORE}, {"ORDERS": BEFORE}) == []
