"""Which rows of a reading are new by their version, and what later readings get to compare with."""

from actors.fetch.digests import row_hash
from actors.fetch.fetcher.rows import NewVersions
from platforms.adapter import Row

ROWS = [Row(f"k{number}", 1, None, b"{}") for number in range(3)]
MARKS = [row_hash(row) for row in ROWS]


def test_a_first_look_publishes_all_and_keeps_their_hashes_only_if_a_later_one_wants_them() -> None:
    kept, alone = NewVersions(set()), NewVersions(set(), is_kept=False)
    assert kept.take(ROWS[:2], 0) == ROWS[:2]
    assert kept.take(ROWS[2:], 0) == ROWS[2:]
    assert alone.take(ROWS, 0) == ROWS
    assert (kept.fresh, kept.seen) == (set(MARKS), set(MARKS))
    assert (alone.fresh, alone.seen) == (set(), set())


def test_a_second_look_publishes_what_the_first_did_not_and_keeps_all() -> None:
    again = NewVersions({MARKS[0]}, is_kept=False)
    assert again.take(ROWS, 0) == ROWS[1:]
    assert (again.fresh, again.seen) == (set(MARKS[1:]), set(MARKS))
