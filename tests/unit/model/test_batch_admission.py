"""Which instances may begin: within the limits, and at the rate."""

from hypothesis import given
from hypothesis import strategies as st

from actors.model.batch_admission import SAVED_MS, admit, starts
from actors.model.batch_record import Instance

RATES = st.floats(0.05, 500)


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
    begun = admit(instances, most)
    at_work = sum(each.state == "running" for each in instances)
    waiting = [each for each in instances if each.state == "pending"]
    assert len(begun) == (len(waiting) if not most else min(len(waiting), max(0, most - at_work)))
    left = [each.priority for each in waiting if each.instance_id not in begun]
    assert min((instances[int(each)].priority for each in begun), default=9) >= max(left, default=0)
