"""The tables of orders, and their rows.

`orders` holds the newest version of each order. `order_changes`, if wanted, gets one row for each change of `orders`,
in the same transaction, and never another: it has no constraint that would hide a version applied twice.
"""

from collections.abc import Sequence
from typing import TypeAlias

from sqlalchemy import BigInteger, Column, Identity, Integer, MetaData, Table, Text

from actors.fetch.stores.store import OrderRefused
from streams.messages.fetch import Order

METADATA = MetaData()

Row: TypeAlias = tuple[str, str, str, int, int, int, int, str]
"""An order in the order of `NAMES`."""


def _columns(*, is_keyed: bool) -> list[Column[str] | Column[int]]:
    return [
        Column("platform", Text, primary_key=is_keyed, nullable=False),
        Column("source", Text, primary_key=is_keyed, nullable=False),
        Column("order_key", Text, primary_key=is_keyed, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("modified_ms", BigInteger, nullable=False),
        Column("fetched_ms", BigInteger, nullable=False),
        Column("stored_ms", BigInteger, nullable=False),
        # JSON as the platform sent it. Text, because a JSON column parses each row again on its way in. To look inside,
        # cast it (`body::jsonb`, `json_extract(body, …)`) or put an index on that.
        Column("body", Text, nullable=False),
    ]


# SQLite: a table with a rowid, though its key is text. Without one the bodies would sit in the key's tree, at a third
# of the speed for keys in random order (36,900 instead of 110,800 rows/s, 500 a transaction, 500 B bodies).
ORDERS = Table("orders", METADATA, *_columns(is_keyed=True))
ORDER_CHANGES = Table(
    "order_changes",
    METADATA,
    Column("change_id", BigInteger().with_variant(Integer(), "sqlite"), Identity(), primary_key=True),
    *_columns(is_keyed=False),
)

NAMES = tuple(column.name for column in ORDERS.columns)
KEY = tuple(column.name for column in ORDERS.primary_key)


def tables(*, history: bool) -> tuple[Table, ...]:
    """Return the wanted tables."""
    return (ORDERS, ORDER_CHANGES) if history else (ORDERS,)


def by_kind(orders: Sequence[Order]) -> list[tuple[bool, Sequence[Order]]]:
    """Return the orders in at most two parts, each with whether its orders are told apart by content alone."""
    kinds = {order.by_content for order in orders}
    if len(kinds) == 1:
        return [(kinds.pop(), orders)]
    return [(kind, [order for order in orders if order.by_content == kind]) for kind in sorted(kinds)]


def rows_of(orders: Sequence[Order], stored_ms: int) -> list[Row]:
    """Return the orders as rows. Raises OrderRefused for a body that is not UTF-8."""
    try:
        return [
            (o.platform, o.source, o.order_key, o.version, o.modified_ms, o.fetched_ms, stored_ms, str(o.body, "utf-8"))
            for o in orders
        ]
    except UnicodeDecodeError as error:
        raise OrderRefused(f"body is not UTF-8: {error.reason} at byte {error.start}") from error
