"""Batches: folding is blind to order and repeats, and halving finds exactly the orders that are refused."""

from collections.abc import Collection, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.sink import PARTS_EVERY, TOLD_FROM, Settings, StoreOutage
from actors.fetch.stores.batches import Refusal, fold, key_of, parts, poison_among, store_by_halves
from actors.fetch.stores.function import FunctionStore
from actors.fetch.stores.store import OrderRefused, StoreDown, StoreUncertain
from actors.runtime.rules.texts import printable
from streams.messages.fetch import Order
from tests.support.orders import order

few_orders = st.lists(st.builds(order, st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 5)), max_size=30)


@given(few_orders, st.randoms(use_true_random=False))
def test_fold_is_blind_to_order_and_repeats(orders: list[Order], random: object) -> None:
    shuffled = [*orders, *orders[:3]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis has no type for it
    assert fold(shuffled) == fold(orders)


@given(few_orders)
def test_fold_keeps_the_highest_version_of_each_key_in_key_order(orders: list[Order]) -> None:
    folded = fold(orders)
    highest = {key: max(o.version for o in orders if key_of(o) == key) for key in map(key_of, orders)}
    assert [(key_of(o), o.version) for o in folded] == sorted(highest.items())


@given(few_orders, st.integers(0, 30))
def test_folding_in_two_steps_is_folding_once(orders: list[Order], at: int) -> None:
    assert fold([*fold(orders[:at]), *fold(orders[at:])]) == fold(orders)


def test_same_key_of_two_sources_is_two_orders() -> None:
    assert len(fold([order("a", source="shop1"), order("a", source="shop2")])) == 2


@given(st.lists(st.integers(1, 40), max_size=20))
def test_parts_are_the_whole_and_hold_no_more_than_they_may(sizes: list[int]) -> None:
    orders = [order(str(at), body=b"1" * size) for at, size in enumerate(sizes)]
    cut = parts(orders, 50)
    assert [o for part in cut for o in part] == orders
    assert all(len(part) == 1 or sum(len(bytes(o.body)) for o in part) <= 50 for part in cut if part)


def refusing(keys: Collection[str], error: type[Exception]) -> tuple[FunctionStore, list[str]]:
    """Return a store that raises `error` for any batch with one of `keys`, and what it has taken."""
    taken: list[str] = []

    async def take(orders: Sequence[Order]) -> None:
        if any(o.order_key in keys for o in orders):
            raise error("no")
        taken.extend(o.order_key for o in orders)

    return FunctionStore(take), taken


@pytest.mark.parametrize("error", [OrderRefused, ValueError])
@pytest.mark.parametrize("bad", [{0}, {499}, {7, 8, 300}, set(), set(range(0, 500, 50))])
async def test_halving_finds_what_is_refused_and_stores_the_rest(bad: set[int], error: type[Exception]) -> None:
    names = [f"{at:03}" for at in range(500)]
    store, taken = refusing({f"{at:03}" for at in bad}, error)
    refusals = await store_by_halves(store, [order(name) for name in names], is_patient=False)
    assert [int(refusal.order.order_key) for refusal in refusals] == sorted(bad)
    assert taken == [name for name in names if int(name) not in bad]
    assert all(refusal.is_certain == (error is OrderRefused) for refusal in refusals)


async def test_patient_store_does_not_look_for_an_order_to_blame() -> None:
    store, taken = refusing({"a"}, ValueError)
    with pytest.raises(StoreUncertain):
        await store_by_halves(store, [order("a"), order("b")], is_patient=True)
    assert taken == []


async def test_patient_store_goes_by_halves_when_the_store_blames_an_order() -> None:
    store, taken = refusing({"a"}, OrderRefused)
    assert len(await store_by_halves(store, [order("a"), order("b")], is_patient=True)) == 1
    assert taken == ["b"]


async def test_store_that_goes_down_between_halves_is_told() -> None:
    calls: list[int] = []

    async def take(orders: Sequence[Order]) -> None:
        calls.append(len(orders))
        if len(calls) > 1:
            raise ConnectionRefusedError(111, "refused")
        raise OrderRefused("no")

    with pytest.raises(StoreDown):
        await store_by_halves(FunctionStore(take), [order("a"), order("b")], is_patient=True)


def test_order_is_poison_when_others_passed_or_the_store_blames_it() -> None:
    unsure, sure = Refusal(order("a"), "boom", is_certain=False), Refusal(order("b"), "no", is_certain=True)
    assert poison_among([unsure], tried=2) == [unsure]
    assert poison_among([unsure], tried=1) == []
    assert poison_among([unsure, sure], tried=2) == [sure]
    assert poison_among([unsure, sure], tried=3) == [unsure, sure]


def test_outage_is_told_once_and_after_a_try_by_halves() -> None:
    outages = [StoreOutage(since_ms=0)]
    while len(outages) < 40:
        outages.append(outages[-1].failed_again())
    by_halves = [outage.failures + 1 for outage in outages if outage.wants_parts]
    assert by_halves[:2] == [PARTS_EVERY, 2 * PARTS_EVERY]
    assert by_halves[0] < TOLD_FROM
    assert [outage.is_told for outage in outages[:TOLD_FROM]] == [False] * (TOLD_FROM - 1) + [True]


def test_pauses_grow_to_a_limit() -> None:
    pauses = [StoreOutage(since_ms=0, failures=failures).pause_s for failures in (1, 2, 3, 8, 1_000)]
    assert pauses == [0.1, 0.2, 0.4, 10.0, 10.0]


def test_reason_can_always_be_sent() -> None:
    assert printable("a\ud800b") == "a?b"
    assert len(printable("x" * 9_000)) == 1_000


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"batch": 10_000}, {"wait_ms": -1}, {"batches": 5}])
def test_settings_out_of_range_or_misspelt_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "main", **wrong}, Settings)
