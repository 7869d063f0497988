"""A shop in Python: each order gets a job that closes it, and half of the customers pay in time.

python shop.py
"""

import asyncio
import os
import sqlite3
from datetime import UTC, datetime

import penstock

PAY_WITHIN_S = 3  # thirty minutes, turned into three seconds for trying
ORDERS = 6


async def main() -> None:
    shop = sqlite3.connect("shop.db")
    shop.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")
    shop.execute("CREATE TABLE IF NOT EXISTS stock (pieces INTEGER)")
    shop.execute("INSERT INTO stock SELECT 100 WHERE NOT EXISTS (SELECT * FROM stock)")

    async with penstock.connect(os.environ.get("PENSTOCK_NATS", "nats://127.0.0.1:4222")) as client:
        made = [f"py-{datetime.now(UTC):%H%M%S}-{number}" for number in range(ORDERS)]
        for order in made:
            with shop:
                shop.execute("INSERT INTO orders VALUES (?, 'unpaid')", (order,))
                shop.execute("UPDATE stock SET pieces = pieces - 1")
            job = await client.jobs.add("close-order", {"order": order}, id=order, delay=PAY_WITHIN_S)
            print("made", order, "due", job.due_ms)

        for order in made[::2]:
            with shop:
                paid = shop.execute("UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'unpaid'", (order,))
            if paid.rowcount:
                await client.jobs.delete(order, "close-order")
                print("paid", order)
    shop.close()


asyncio.run(main())
