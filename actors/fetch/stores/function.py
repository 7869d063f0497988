"""Orders into a function of the user's own: `async def store(orders: Sequence[Order]) -> None`.

The sink calls it at least once for each order. Once it has returned, the orders are acknowledged. When it raises, is
too late, or the process dies, it gets them again. An order's key and version make a repeat recognisable. A batch holds
the newest version of each order that came with it. An older one may still come in a later call.

It may raise `OrderRefused`: one of these orders can never be stored. `StoreDown`, or an `OSError` or `TimeoutError`
(connections raise those): try again later. Any other error might be either. Then the batch is tried again, and at last
in parts. An order that fails while others of its batch pass becomes a dead letter. If none passes, it is an outage.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence

import anyio

from actors.fetch.stores.store import StoreDown, StoreError, StoreUncertain
from streams.messages.fetch import Order

OrdersFunction = Callable[[Sequence[Order]], Awaitable[None]]
LONGEST_S = 60.0


class FunctionStore:
    """Passes batches to `function`, which has `longest_s` seconds for each. Raises TypeError if it is not async."""

    def __init__(self, function: OrdersFunction, *, longest_s: float = LONGEST_S) -> None:
        self.name = f"function:{getattr(function, '__qualname__', type(function).__qualname__)}"
        if not _is_async(function):
            raise TypeError(f"{self.name} has to be an `async def`: it runs in the node's event loop")
        self._function = function
        self._longest_s = longest_s

    async def open(self) -> None:
        """A function is always open."""

    async def store(self, orders: Sequence[Order]) -> int:
        """Pass the batch to the function, and return its size: it does not say which orders were new. See Store."""
        try:
            with anyio.fail_after(self._longest_s):
                await self._function(orders)
        except StoreError:
            raise
        except OSError as error:  # TimeoutError and ConnectionError are kinds of it
            raise StoreDown(f"{self.name}: {_error_text(error)}") from error
        except Exception as error:  # the border to the user's code: any error has to become one of ours
            raise StoreUncertain(f"{self.name}: {_error_text(error)}") from error
        return len(orders)

    async def close(self) -> None:
        """A function needs no closing."""


def _is_async(function: OrdersFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
