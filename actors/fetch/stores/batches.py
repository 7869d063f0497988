"""Batches of orders: folded to one version a key, cut by size, and taken apart when a store refuses them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from actors.fetch.stores.store import OrderRefused, Store, StoreUncertain
from streams.messages.fetch import Order

Key: TypeAlias = tuple[str, str, str]

BATCH_BYTES = 16 * 1024 * 1024
"""Bodies given to a store at once. Only orders of more than 30 kB reach it."""


class Refusal(NamedTuple):
    """An order that a store did not take alone. `is_certain`: the store blames the order."""

    order: Order
    reason: str
    is_certain: bool


def key_of(order: Order) -> Key:
    """Return the key under which an order is stored."""
    return order.platform, order.source, order.order_key


def fold(orders: Iterable[Order]) -> list[Order]:
    """Return the highest version of each key, by key: sinks that store the same keys then lock them in one order.
    Of equal versions the first stands. They are copies of one fact."""
    newest: dict[Key, Order] = {}
    for order in orders:
        known = newest.get(key_of(order))
        if known is None or order.version > known.version:
            newest[key_of(order)] = order
    return [newest[key] for key in sorted(newest)]


def parts(orders: Sequence[Order], most_bytes: int = BATCH_BYTES) -> list[Sequence[Order]]:
    """Cut a batch where its bodies exceed `most_bytes`. A single order may exceed it."""
    cut, start, size = [], 0, 0
    for at, order in enumerate(orders):
        own = memoryview(order.body).nbytes
        if size + own > most_bytes and at > start:
            cut.append(orders[start:at])
            start, size = at, 0
        size += own
    return [*cut, orders[start:]]


def poison_among(refusals: Sequence[Refusal], tried: int) -> list[Refusal]:
    """Return the refusals that are the orders' own fault, of `tried` orders, stored one by one in the end.
    If the error blames nothing, an order is at fault if others passed. If none did, it may as well be an outage, and a
    batch is not thrown away on a guess."""
    some_passed = len(refusals) < tried
    return [refusal for refusal in refusals if refusal.is_certain or some_passed]


async def store_by_halves(store: Store, orders: Sequence[Order], *, is_patient: bool) -> list[Refusal]:
    """Store all orders that can be stored, and return the others. For k of n that takes about k log n more tries.
    Raises StoreDown. Orders stored until then stay stored, and storing them again is harmless. With `is_patient` it
    raises StoreUncertain too, instead of looking for an order to blame."""
    try:
        await store.store(orders)
        return []
    except (OrderRefused, StoreUncertain) as error:
        is_certain = isinstance(error, OrderRefused)
        if is_patient and not is_certain:
            raise
        if len(orders) == 1:
            return [Refusal(orders[0], str(error), is_certain)]
    middle = len(orders) // 2
    left = await store_by_halves(store, orders[:middle], is_patient=False)
    return left + await store_by_halves(store, orders[middle:], is_patient=False)
