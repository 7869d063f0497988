"""What a sink needs of the place for its orders, and the three ways in which that place can refuse.

Stored orders are keyed by (platform, source, order_key), and only a higher version changes one. Of a platform without
versions (`Order.by_content`) it must have another body as well. An equal body raises the stored version alone, so that
a state that was read before it and comes later changes nothing. That guard turns
"delivered at least once" into one effect: a batch may be stored again after any crash or lost connection.
"""

from collections.abc import Sequence
from typing import Protocol

from streams.messages.fetch import Order


class StoreError(Exception):
    """What a store raises. Whatever it had already stored of the batch may stay stored."""


class StoreDown(StoreError):
    """The store takes nothing now, or may not have taken the batch. The orders are fine: store them again."""


class OrderRefused(StoreError):
    """At least one order of the batch can never be stored. Alone in a batch, it is that one."""


class StoreUncertain(StoreError):
    """It failed, and the error does not show whether an order or the store is to blame."""


class Store(Protocol):
    """A place for orders."""

    name: str
    """For logs. It holds no password."""

    async def open(self) -> None:
        """Make ready to store: connect, create what is missing. Raises StoreDown. May be called again after that."""
        ...

    async def store(self, orders: Sequence[Order]) -> int:
        """Store a batch as a whole, and return how many orders were new or newer than what was stored.

        `orders` holds each key once, in the order of their keys (two sinks that store the same keys then lock them in
        the same order). Raises StoreDown, OrderRefused or StoreUncertain."""
        ...

    async def close(self) -> None:
        """Close connections. Never raises a StoreError."""
        ...
