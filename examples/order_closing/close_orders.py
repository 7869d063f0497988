"""The node's side: when an order's job comes due, the order is closed, unless it was paid.

penstock up --port 4222 --app close_orders
"""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import penstock


@penstock.job("close-order", ttr="10s")
def close(job: penstock.Job) -> None:
    """Close the order and put its goods back. A job may come twice, so the order's own state decides."""
    order = job.json()["order"]
    with closing(sqlite3.connect("shop.db")) as shop, shop:
        closed = shop.execute("UPDATE orders SET state = 'closed' WHERE id = ? AND state = 'unpaid'", (order,))
        if closed.rowcount:
            shop.execute("UPDATE stock SET pieces = pieces + 1")
            now_ms = int(datetime.now(UTC).timestamp() * 1000)
            print("closed", order, "due", job.due_ms, "at", now_ms, flush=True)
