"""Orders for the tests of sinks and stores."""

from collections.abc import Sequence

from msgspec import Raw

from streams.messages.fetch import ListedOrder, Order, OrderPage

AT_MS = 1_700_000_000_000


def order(
    key: str = "k1", version: int = 1, *, body: bytes = b'{"id":1}', source: str = "shop1", by_content: bool = False
) -> Order:
    """Return a version of an order."""
    return Order(
        platform="taobao",
        source=source,
        order_key=key,
        version=version,
        modified_ms=AT_MS + version,
        fetched_ms=AT_MS,
        body=Raw(body),
        by_content=by_content,
    )


def page_of(orders: Sequence[Order]) -> OrderPage:
    """Return orders of one source as the page that a platform listed them on."""
    first = orders[0]
    return OrderPage(
        platform=first.platform,
        source=first.source,
        fetched_ms=first.fetched_ms,
        orders=tuple(
            ListedOrder(order_key=o.order_key, version=o.version, modified_ms=o.modified_ms, body=o.body)
            for o in orders
        ),
    )
