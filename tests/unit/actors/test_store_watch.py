"""When a store counts as full: some room is kept, and a little more has to come free again."""

import pytest

from actors.store_watch import why_full
from streams.store_health import Health


@pytest.mark.parametrize(
    ("used", "was_full", "is_full"),
    [(0, False, False), (950, False, False), (951, False, True), (945, True, True), (940, True, False)],
)
def test_of_the_servers_limit_a_twentieth_is_kept(used: int, was_full: bool, is_full: bool) -> None:
    assert bool(why_full(Health(used, 1000), None, 0, was_full=was_full)) is is_full


@pytest.mark.parametrize(
    ("free", "was_full", "is_full"), [(50, False, False), (49, False, True), (55, True, True), (60, True, False)]
)
def test_so_it_is_of_the_disk(free: int, was_full: bool, is_full: bool) -> None:
    assert bool(why_full(Health(10**9, 0), free, 50, was_full=was_full)) is is_full
