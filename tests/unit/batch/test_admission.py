"""Which instances may begin: within the limits, and at the rate."""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.batch.rules.admission import AHEAD_S, SAVED_MS, TenantTurns, admit, part_of, starts, window
from actors.batch.rules.record import Instance
from actors.batch.rules.unfinished import Unfinished

RATES = st.floats(0.05, 500)


def sorted_of(instances: Iterable[Instance]) -> Unfinished:
    unfinished = Unfinished()
    for each in instances:
        unfinished.put(each)
    return unfinished


def admitted(instances: Iterable[Instance], most: int, turns: TenantTurns | None = None) -> list[str]:
    unfinished = sorted_of(instances)
    return list(admit(unfinished.rows, unfinished.at_work.values(), most, turns))


def begun_at(rate: float, looks_ms: list[int]) -> list[int]:
    """Return when instances begin, if always enough wait and somebody looks at these times."""
    begun, last_ms = list[int](), -1_000_000
    for now_ms in looks_ms:
        most, next_ms = starts(rate, last_ms, now_ms)
        assert next_ms > now_ms
        if most:
            last_ms = now_ms
            begun += [now_ms] * most
    return begun


@given(RATES, st.lists(st.integers(1, 1500), min_size=1, max_size=200))
def test_no_second_has_more_than_the_rate_and_a_tenth_of_a_seconds_worth(rate: float, pauses_ms: list[int]) -> None:
    looks_ms = [sum(pauses_ms[: at + 1]) for at in range(len(pauses_ms))]
    begun = begun_at(rate, looks_ms)
    for first in begun:
        assert sum(first <= each < first + 1000 for each in begun) <= rate * (1000 + SAVED_MS) / 1000 + 1


@given(st.floats(0.1, 20))
def test_who_looks_when_told_reaches_the_rate(rate: float) -> None:
    last_ms, now_ms, count, end_ms = 0, 10_000, 0, 10_000 + 60_000
    while now_ms < end_ms:
        most, next_ms = starts(rate, last_ms, now_ms)
        count += most
        last_ms = now_ms if most else last_ms
        now_ms = next_ms
    assert 0.95 * rate * 60 - 1 <= count <= rate * 61 + 1


@given(st.integers(0, 5), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.booleans()), max_size=12))
def test_the_limit_holds_and_the_urgent_go_first(most: int, asked: list[tuple[str, int, bool]]) -> None:
    instances = [
        Instance(
            instance_id=f"{at}",
            task="t",
            created_ms=at,
            tenant=tenant,
            priority=priority,
            state="running" if is_at_work else "pending",
        )
        for at, (tenant, priority, is_at_work) in enumerate(asked)
    ]
    begun = admitted(instances, most)
    at_work = sum(each.state == "running" for each in instances)
    waiting = [each for each in instances if each.state == "pending"]
    assert len(begun) == (len(waiting) if not most else min(len(waiting), max(0, most - at_work)))
    left = [each.priority for each in waiting if each.instance_id not in begun]
    assert min((instances[int(each)].priority for each in begun), default=9) >= max(left, default=0)


@given(st.floats(0.1, 10_000), st.integers(1, 1_000), st.integers(0, 30), st.integers(1, 12))
def test_at_a_rate_all_that_is_let_out_runs_soon_and_no_worker_is_idle(
    rate: float, chunk_items: int, workers: int, sharing: int
) -> None:
    part = 1 / sharing
    each = window(rate, chunk_items, workers=workers, part=part, smallest=part, most=64)
    ahead = (each - 1) * sharing  # but for one of each that shares it
    assert ahead <= max(2 * workers, sharing) or ahead * chunk_items <= rate * AHEAD_S + chunk_items
    assert each * sharing >= min(2 * workers, 64)
    assert window(0, chunk_items, workers=workers, part=part, smallest=part, most=64) == 64


def test_tenants_have_the_parts_of_their_weights_however_many_instances_they_have() -> None:
    def running(name: str, tenant: str, weight: int) -> Instance:
        return Instance(instance_id=name, task="t", created_ms=0, tenant=tenant, weight=weight, state="running")

    mine = [running(f"a{at}", "a", 3) for at in range(3)]
    yours = running("b", "b", 1)
    assert [part_of(each, [*mine, yours]) for each in mine] == [(0.25, 0.25)] * 3
    assert part_of(yours, mine) == (0.25, 0.25)
    assert part_of(mine[0], [yours, mine[0]]) == (0.75, 0.25)
    windows = [window(100, 50, workers=2, part=part, smallest=0.25, most=64) for part in (0.75, 0.25)]
    assert windows == [3, 1]


def waiting_of(name: str, at: int, **facts: Any) -> Instance:
    return Instance(instance_id=name, task="t", created_ms=at, **facts)


def begun_by(weights: dict[str, int], most: int, count: int, ended: Callable[[list[str]], str]) -> Counter[str]:
    """Return how many instances of each tenant have begun of `count`, if each always has one that waits. `ended`: which
    one of those at work ends next."""
    turns, at_work, begun = TenantTurns(), list[str](), Counter[str]()
    for at in range(count):
        there = [waiting_of(f"{name}{at}", at, tenant=name, weight=weight) for name, weight in weights.items()]
        running = [
            waiting_of(f"w{place}", 0, tenant=name, weight=weights[name], state="running")
            for place, name in enumerate(at_work)
        ]
        for each in admitted([*there, *running], most, turns)[:1]:
            name = each.rstrip("0123456789")
            turns.take(name, weights[name])
            at_work.append(name)
            begun[name] += 1
        if len(at_work) == most:
            at_work.remove(ended(at_work))
    return begun


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 6), st.randoms(use_true_random=False))
def test_tenants_begin_by_their_weights_however_few_may_be_at_work(
    weights: list[int], most: int, chance: Random
) -> None:
    tenants = dict(zip("abcde", weights, strict=False))
    count = 20 * sum(weights)
    begun = begun_by(tenants, most, count, lambda at_work: at_work[0])  # all take the same time
    for name, weight in tenants.items():
        part = weight / sum(weights)
        assert abs(begun[name] - count * part) <= 0.1 * count * part + most
    ended_at_random = begun_by(tenants, most, count, chance.choice)
    assert min(ended_at_random[name] / weight for name, weight in tenants.items()) > 0


def test_one_of_a_thousand_begins_once_in_a_thousand_and_not_each_fourth() -> None:
    begun = begun_by({"a": 1_000, "b": 1}, 4, 3_003, lambda at_work: at_work[0])
    assert 3 <= begun["b"] <= 5


def test_long_instances_leave_the_others_their_places() -> None:
    begun = begun_by({"long": 1, "short": 1}, 2, 100, lambda at_work: min(at_work, key="short long".index))
    assert begun == {"long": 1, "short": 99}


def test_who_comes_back_has_no_credit_and_keeps_what_it_took_in_advance() -> None:
    turns = TenantTurns()
    for _ in range(5):
        turns.take("a", 1)
    assert turns.of("late") == turns.of("a") - 1
    turns.take("late", 1)
    assert turns.of("late") == turns.of("a")
    turns.take("heavy", 1_000)
    assert turns.of("heavy") < turns.of("a")
    for _ in range(3):
        turns.take("a", 1)
    assert turns.of("heavy") == turns.of("late") == turns.of("a") - 1


def test_among_equals_who_has_less_at_work_for_its_weight_comes_first() -> None:
    of_a = [waiting_of(f"a{at}", at, tenant="a") for at in range(4)]
    of_b = [waiting_of(f"b{at}", 9 + at, tenant="b", weight=2) for at in range(4)]
    paused = waiting_of("p", 0, tenant="p", state="running", is_paused=True)
    assert admitted([*of_b, paused, *of_a], 7) == ["a0", "b0", "b1", "a1", "b2", "b3", "a2"]


def test_who_begins_next_costs_the_same_whoever_waits_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, take = list[str](), TenantTurns.take

    def counted(turns: TenantTurns, tenant: str, weight: int) -> None:
        taken.append(tenant)
        take(turns, tenant, weight)

    monkeypatch.setattr(TenantTurns, "take", counted)
    waiting = [waiting_of(f"b{at}", at, tenant=f"t{at}") for at in range(1_000)]
    assert next(admit(sorted_of(waiting).rows, [], 0)) == "b0"
    assert taken == ["t0"]
