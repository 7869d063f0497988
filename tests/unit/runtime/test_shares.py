"""The nodes together keep a rate in every second, and come near to it, while some join and die."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.runtime.rates.shares import FEW, FIRST_MS, LATE_S, Shares, part_of
from actors.runtime.rules.pacing import Pace, Rate, acquire, conforming

WORKERS = ("w1", "w2", "w3")
LATE_MS = (0.3, 2.1, 0.9, 4.0, 1.2)
"""How much later than asked for a timer fires, one time after another."""


def share_of(per_s: float, nodes: Sequence[str], own: str) -> float:
    """Return what the governor deals one of nodes that all have endless work."""
    is_whole = per_s == int(per_s) and per_s >= len(nodes)
    return part_of(int(per_s), nodes, own) if is_whole else per_s / len(nodes)


class Cluster:
    """Workers that each let items begin as soon as they may, on one clock moved by hand."""

    def __init__(self, per_s: float, most: int) -> None:
        self.now_ms = 0.0
        self.live = list(WORKERS[:2])
        self.began: list[tuple[float, int]] = []
        self._per_s = per_s
        self._most = most
        self._next_ms: dict[str, float] = {}
        self._rates = {name: self._rates_of(name) for name in WORKERS}
        self._turn = 0

    def _rates_of(self, name: str) -> Shares:
        return Shares(lambda _key: share_of(self._per_s, self.live, name), now_ms=lambda: self.now_ms)

    def run(self, until_ms: float) -> None:
        """Go from one worker's turn to the next."""
        while (first := min(self.live, key=lambda name: self._next_ms.get(name, self.now_ms))) and (
            self._next_ms.get(first, self.now_ms) < until_ms
        ):
            self.now_ms = max(self.now_ms, self._next_ms.get(first, self.now_ms))
            granted, wait_ms = self._rates[first].take("t", self._most)
            if granted:
                self.began.append((self.now_ms, granted))
            self._turn += 1
            late_ms = LATE_MS[self._turn % len(LATE_MS)]
            self._next_ms[first] = self.now_ms + (wait_ms + late_ms if not granted else 0.05)
        self.now_ms = until_ms

    def between(self, start_ms: float, end_ms: float) -> int:
        return sum(count for at_ms, count in self.began if start_ms <= at_ms < end_ms)

    def most_in_a_second(self) -> int:
        return max(self.between(at_ms, at_ms + 1000) for at_ms, _ in self.began)


def granted_late(per_s: float, gap_ms: int, *, changes: bool) -> list[int]:
    """Return what a caller gets that has endless work, and looks each `gap_ms` only. With each look its share may have
    changed a little."""
    looks = 0
    shares = Shares(lambda _key: per_s - looks % 2 * changes, now_ms=lambda: float(looks * gap_ms))
    granted = []
    for looks in range(100):  # noqa: B007 - the share and the clock read it
        granted.append(sum(shares.take("t", 500)[0] for _ in range(60)))
    return granted


@pytest.mark.parametrize("changes", [False, True], ids=["steady", "changing"])
@pytest.mark.parametrize("gap_ms", [50, 200, 400, 600, 1_500])
@pytest.mark.parametrize("per_s", [50, 500, 25_000])
def test_a_caller_that_is_late_each_time_catches_up_on_a_quarter_of_a_second(
    per_s: int, gap_ms: int, changes: bool
) -> None:
    granted = granted_late(per_s, gap_ms, changes=changes)
    in_a_second = -(-1_000 // gap_ms)
    assert max(sum(granted[at : at + in_a_second]) for at in range(100)) <= per_s
    assert sum(granted) >= 0.9 * 100 * per_s * min(gap_ms, LATE_S * 1000) / 1000


@pytest.mark.parametrize("most", [1, 50], ids=["one by one", "in lists"])
@pytest.mark.parametrize("per_s", [10, 500, 1500])
def test_two_workers_keep_the_rate_and_come_within_two_percent_of_it(per_s: int, most: int) -> None:
    cluster = Cluster(per_s, most)
    cluster.run(9_000)
    assert cluster.most_in_a_second() <= per_s
    assert cluster.between(1_000, 9_000) >= 8 * per_s * 0.98


def test_what_begins_again_after_a_pause_begins_without_a_burst() -> None:
    now = [0.0]
    rates = Shares(lambda _key: 100.0, now_ms=lambda: now[0])
    rates.take("t", 1)
    now[0] += 60_000
    granted = 0
    for _ in range(50):
        granted += rates.take("t", 1)[0]
        now[0] += 1
    assert 4 <= granted <= 6


def test_a_key_without_a_rate_waits_for_nothing() -> None:
    rates = Shares(lambda _key: None)
    assert rates.take("t", 1000) == (1000, 0)


def test_without_a_share_nothing_begins_and_then_it_begins_without_a_burst() -> None:
    now, per_s = [0.0], [100.0]
    rates = Shares(lambda _key: per_s[0], now_ms=lambda: now[0])
    rates.take("t", 1)
    per_s[0] = 0.0
    for _ in range(50):
        now[0] += 100
        assert rates.take("t", 1)[0] == 0
    per_s[0] = 100.0
    assert sum(rates.take("t", 1)[0] for _ in range(50)) <= 1


def test_what_began_in_the_last_second_is_known() -> None:
    now = [0.0]
    rates = Shares(lambda _key: 100.0, now_ms=lambda: now[0])
    for _ in range(200):
        rates.take("t", 1)
        now[0] += 10
    assert 95 <= rates.spent("t") <= 100
    now[0] += 500
    assert 40 <= rates.spent("t") <= 52
    now[0] += 520
    assert (rates.spent("t"), rates.spent("other")) == (0, 0)


@given(st.integers(1, 20), st.integers(1, 12))
def test_the_parts_of_all_workers_are_as_many_as_may_be_at_work(most: int, count: int) -> None:
    workers = [f"w{number}" for number in range(count)]
    parts = [part_of(most, workers, own) for own in workers]
    assert sum(parts) == most
    assert max(parts) - min(parts) <= 1


@given(st.builds(Rate, st.floats(0.1, 10_000), st.integers(1, 50)), st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_what_conforms_waits_for_nothing_and_one_more_would_wait(rate: Rate, spent_ms: float, now_ms: float) -> None:
    pace = Pace(spent_ms)
    most = conforming(pace, rate, now_ms)
    assert 0 <= most <= rate.burst
    if most:
        assert acquire(pace, rate, now_ms, most)[1] < 1e-3
    assert acquire(pace, rate, now_ms, most + 1)[1] > 0


@example(1.5, [(0, 1, 0), (167, 1, 0), (500, 1, 0), (167, 1, 0), (500, 1, 0)])
@given(st.floats(0.5, 2_000), st.lists(st.tuples(st.floats(0, 500), st.integers(1, 50), st.floats(0, 1)), min_size=1))
def test_no_second_has_more_than_the_share_whatever_is_given_back(
    per_s: float, takes: list[tuple[float, int, float]]
) -> None:
    now_ms = 0.0
    shares = Shares(lambda _key: per_s, now_ms=lambda: now_ms)
    used: list[tuple[float, int]] = []
    whole = math.ceil(per_s)
    span_ms = whole / per_s * 1000  # of 1.5 a second, two in each 1,333 ms
    for gap_ms, most, part in takes:
        now_ms += gap_ms
        granted, wait_ms = shares.take("t", most)
        assert (granted > 0) != (wait_ms > 0)
        unused = int(granted * part)
        shares.give_back("t", unused)
        used.append((now_ms, granted - unused))
        assert sum(count for at_ms, count in used if at_ms > now_ms - span_ms) <= whole
        assert sum(count for _, count in used) <= per_s * now_ms / 1000 + max(2, per_s * LATE_S)


def test_what_was_not_used_can_be_given_back() -> None:
    now = [0.0]
    shares = Shares(lambda _key: 100.0, now_ms=lambda: now[0])
    shares.take("t", 1)
    now[0] = 100.0
    granted, _ = shares.take("t", 5)
    assert granted == 5
    shares.give_back("t", 5)
    assert shares.take("t", 5) == (5, 0)


def test_keys_do_not_share_and_are_forgotten_once_they_say_nothing() -> None:
    now = [0.0]
    shares = Shares(lambda _key: 10.0, now_ms=lambda: now[0])
    for number in range(10 * FEW):
        shares.take(f"t{number}", 1)
        now[0] += 100
        assert shares.take(f"t{number}", 1) == (1, 0)
    assert len(shares._spent) <= FEW + FIRST_MS / 100
