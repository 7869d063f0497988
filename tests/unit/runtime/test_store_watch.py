"""When a store counts as full (some room is kept, and a little more has to come free again), and a stream as closed."""

import pytest

from actors.runtime.broker.store_watch import HEALTH_S, UNLIMITED_S, closed_streams, rest_s, why_full
from streams.link.store_health import StoreHealth


@pytest.mark.parametrize(
    ("used", "was_full", "is_full"),
    [(0, False, False), (950, False, False), (951, False, True), (945, True, True), (940, True, False)],
)
def test_of_the_servers_limit_a_twentieth_is_kept(used: int, was_full: bool, is_full: bool) -> None:
    assert bool(why_full(StoreHealth(used, 1000), None, 0, was_full=was_full)) is is_full


@pytest.mark.parametrize(
    ("free", "was_full", "is_full"), [(50, False, False), (49, False, True), (55, True, True), (60, True, False)]
)
def test_so_it_is_of_the_disk(free: int, was_full: bool, is_full: bool) -> None:
    assert bool(why_full(StoreHealth(10**9, 0), free, 50, was_full=was_full)) is is_full


def test_a_stream_that_failed_on_one_of_three_servers_goes_on() -> None:
    health = StoreHealth(failed="JOBS: input/output error", failed_streams=frozenset(["JOBS"]))
    assert closed_streams(health, is_clustered=False) == {"JOBS"}
    assert closed_streams(health, is_clustered=True) == frozenset()


def test_a_store_of_which_no_limit_is_known_is_looked_at_seldom() -> None:
    assert rest_s(StoreHealth(10), sees_disk=False) == UNLIMITED_S
    assert rest_s(StoreHealth(10), sees_disk=True) == HEALTH_S
    assert rest_s(StoreHealth(10, 1_000), sees_disk=False) == HEALTH_S
    assert rest_s(StoreHealth(10, failed="JOBS: input/output error"), sees_disk=False) == HEALTH_S
