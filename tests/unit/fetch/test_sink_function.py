"""A user's function as a store: what it raises decides what happens to its orders."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import anyio
import pytest

from actors.fetch.stores.function import FunctionStore
from actors.fetch.stores.store import OrderRefused, StoreDown, StoreUncertain
from streams.messages.fetch import Order
from tests.support.orders import order


def raising(error: BaseException) -> FunctionStore:
    async def take(_orders: Sequence[Order]) -> None:
        raise error

    return FunctionStore(take)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (OrderRefused("bad"), OrderRefused),
        (StoreDown("busy"), StoreDown),
        (ConnectionRefusedError(111, "refused"), StoreDown),
        (TimeoutError(), StoreDown),
        (OSError(28, "no space"), StoreDown),
        (KeyError("sku"), StoreUncertain),
        (ZeroDivisionError(), StoreUncertain),
    ],
)
async def test_error_is_told_as_what_to_do_next(raised: Exception, told: type[Exception]) -> None:
    with pytest.raises(told):
        await raising(raised).store([order()])


async def test_function_that_ends_the_process_may() -> None:
    with pytest.raises(SystemExit):
        await raising(SystemExit(1)).store([order()])


async def test_function_that_is_too_late_is_down() -> None:
    async def take(_orders: Sequence[Order]) -> None:
        await anyio.sleep_forever()

    with pytest.raises(StoreDown, match="TimeoutError"):
        await FunctionStore(take, longest_s=0.01).store([order()])


async def test_function_gets_the_orders_as_they_are() -> None:
    got: list[Order] = []

    async def take(orders: Sequence[Order]) -> None:
        got.extend(orders)

    assert await FunctionStore(take).store([order("a"), order("b")]) == 2
    assert got == [order("a"), order("b")]


async def test_any_async_callable_will_do() -> None:
    class Taker:
        def __init__(self) -> None:
            self.count = 0

        async def __call__(self, orders: Sequence[Order]) -> None:
            self.count += len(orders)

        async def take(self, factor: int, orders: Sequence[Order]) -> None:
            self.count += factor * len(orders)

    taker = Taker()
    await FunctionStore(taker).store([order()])
    await FunctionStore(partial(taker.take, 10)).store([order()])
    assert taker.count == 11


def test_plain_function_is_refused_at_once() -> None:
    def take(_orders: Sequence[Order]) -> None: ...

    with pytest.raises(TypeError, match="async def"):
        FunctionStore(cast(Any, take))
