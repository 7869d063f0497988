"""What it costs to keep tables of keys small."""

from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rates.shares import FEW, Shares
from actors.runtime.rules import begun
from actors.runtime.rules.begun import BegunCounts
from actors.runtime.rules.sweeps import Sweeps
from actors.runtime.rules.waits import Waits

MOST_HASHES = 30
"""Of a key that is new, and looked up a few times."""


class CountedKey(str):
    """A key that counts how often any of them is looked up or stored."""

    hashes = 0

    def __hash__(self) -> int:
        CountedKey.hashes += 1
        return super().__hash__()


@given(st.integers(1, 50), st.lists(st.integers(0, 30), min_size=1, max_size=400))
def test_a_sweep_costs_each_new_entry_two_looks_at_most(few: int, lives: list[int]) -> None:
    sweeps, table, looks = Sweeps(few), dict[int, int](), 0
    for now, life in enumerate(lives):
        if sweeps.is_due(len(table)):
            looks += len(table)
            table = {entry: until for entry, until in table.items() if until > now}
            sweeps.swept(len(table))
        table[now] = now + life
        assert len(table) <= max(few, 2 * (1 + max(lives)))
    assert looks <= 2 * len(lives)


def test_a_rate_that_is_new_costs_the_same_beside_many_others_of_this_second() -> None:
    shares = Shares(lambda _key: 10.0, now_ms=lambda: 0.0)
    CountedKey.hashes = 0
    for number in range(10 * FEW):
        shares.take(CountedKey(f"k{number}"), 1)
    assert CountedKey.hashes <= MOST_HASHES * 10 * FEW


def test_the_first_that_begins_under_a_key_costs_the_same_beside_many_keys() -> None:
    counts = BegunCounts()
    CountedKey.hashes = 0
    for number in range(10 * begun.FEW):
        counts.add(CountedKey(f"k{number}"), 1, 7)
    assert CountedKey.hashes <= MOST_HASHES * 10 * begun.FEW


def test_a_key_that_waits_costs_the_same_beside_many_others() -> None:
    waits: Waits[CountedKey] = Waits()
    CountedKey.hashes = 0
    for number in range(2_000):
        waits.put(CountedKey(f"k{number}"), 0.0, 1.0)
    assert CountedKey.hashes <= 2_000 * MOST_HASHES


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), st.integers(0, 30)), max_size=400))
def test_a_key_waits_until_the_latest_moment_it_was_put_off_to(puts: list[tuple[int, int, int]]) -> None:
    waits, until, now = Waits[int](), dict[int, int](), 0
    for key, passes, wait in puts:
        now += passes
        waits.put(key, now, wait)
        until[key] = max(until.get(key, 0), now + wait)
        assert all(waits.left(each, now) == max(0, until[each] - now) for each in until)
