"""Work of tests that is bound to zones. Each piece writes a line into `worked`: what, which, where, from when to when.

`ZONE_NAME`: the zone of this process, as the lines have it. `ZONE_STALL`: the row that stops the whole process for
longer than an ack wait, the first time. `ZONE_LABEL`: the group of this process, for the table of loads.
`ZONE_GIFTS`: where the flow of gifts runs.
"""

import os
import time
from typing import Any

import anyio

import penstock
from tests.support.sqlite import sqlite_file

ZONE = os.environ["ZONE_NAME"]
STALL, STALL_S = os.environ.get("ZONE_STALL", ""), 4.0
LABEL = os.environ.get("ZONE_LABEL", "")


async def note(kind: str, number: object, begun: float, attempt: int = 1) -> None:
    """Write down that a piece of work has ended. The disk may take long, and the node must go on meanwhile."""
    await anyio.to_thread.run_sync(_note, kind, str(number), begun, attempt)


def _note(kind: str, number: str, begun: float, attempt: int) -> None:
    with sqlite_file(os.environ["ZONE_DB"]) as db:
        row = (kind, number, ZONE, begun, time.monotonic(), attempt)
        db.execute("INSERT INTO worked VALUES (?, ?, ?, ?, ?, ?)", row)


@penstock.job("bound-errands", concurrency=4)
async def errand(job: penstock.Job) -> None:
    """Take as long as the job says."""
    body, begun = job.json(), time.monotonic()
    await anyio.sleep(body.get("ms", 0) / 1000)
    await note("job", job.id, begun, job.attempt)


@penstock.job("bound-bells", each_zone=True)
async def bell(job: penstock.Job) -> None:
    """Once in each zone."""
    await note("bell", f"{job.id}@{ZONE}", time.monotonic(), job.attempt)


class Rows:
    """The rows of the database that nobody has executed. The key of a row is its shard."""

    kind = "row"

    def load(self, ctx: penstock.FlowContext, shard: str, limit: int) -> list[tuple[int, dict[str, Any]]]:
        with sqlite_file(os.environ["ZONE_DB"]) as db:
            if LABEL:
                db.execute("INSERT OR IGNORE INTO loads VALUES (?, ?, ?)", (self.kind, shard, LABEL))
            done = "SELECT number FROM worked WHERE kind = ?"
            query = f"SELECT id FROM rows WHERE key % 10 = ? AND id NOT IN ({done}) LIMIT ?"
            rows = [row for (row,) in db.execute(query, (int(shard), self.kind, limit))]
        return [(row, {"id": row, "country": "FR" if row % 20 == 2 else "DE"}) for row in rows]

    async def execute(self, ctx: penstock.FlowContext, row: dict[str, Any]) -> None:
        begun = time.monotonic()
        await anyio.sleep(0.2 if row["id"] > 40 else 0)
        await note(self.kind, row["id"], begun, ctx.attempt)
        if f"{self.kind}/{row['id']}" == STALL and ctx.attempt == 1:
            time.sleep(STALL_S)  # noqa: ASYNC251 # the loop has to stand still


@penstock.flow("bound-prizes", every="1s", each_zone=True, concurrency=4)
class Prizes(Rows):
    def split(self, ctx: penstock.FlowContext) -> list[str]:
        assert ctx.zone == ZONE
        return sorted({*map(str, ctx.shards), "3", "8"})  # one of these is the other zone's, and left out


@penstock.flow("bound-gifts", every="1s", zone=os.environ.get("ZONE_GIFTS", "shard:7"), concurrency=4)
class Gifts(Rows):
    kind = "gift"

    def split(self, ctx: penstock.FlowContext) -> list[str]:
        return ["2"]


@penstock.batch("bound-numbers", chunk_items=5, concurrency=2)
class Numbers:
    """Numbers that take a while each."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        first, count, self.ms, *countries = ctx.input
        await note("split", first, time.monotonic())
        items = [{"n": first + n, "ms": self.ms} for n in range(count)]
        for item, country in zip(items, countries, strict=False):
            item["country"] = country
        await ctx.commit(*items)

    async def map(self, item: dict[str, Any]) -> None:
        begun = time.monotonic()
        await anyio.sleep(item["ms"] / 1000)
        await note("item", item["n"], begun)
