"""The application of chaos executors: what becomes of an item is told by its number, whoever runs it, however often.

Its split is not the same twice: each item bears the mark of the run that committed it, so that a mixture is seen. What
streams has to be the same twice, and takes its time.
"""

import os
import secrets
import signal
from collections import Counter
from typing import Any

import anyio

import penstock

SPREAD, ONCE, STREAMED, DEADLY = "chaos", "chaos-once", "chaos-streamed", "chaos-deadly"
DEADLY_ITEM = 7
QUICK: dict[str, Any] = {"retry_base_s": 0.05, "retry_cap_s": 0.2}


def end_of(number: int) -> str:
    """Return how an item of SPREAD ends."""
    if number % 101 == 5:
        return "skipped"
    return "failed" if number % 97 == 3 else "ok"


class _Counting:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await self._commit(ctx, mark=secrets.token_hex(4))

    async def _commit(self, ctx: penstock.SplitContext, *, mark: str, pause_s: float = 0.0) -> None:
        count = ctx.input["items"]
        for first in range(0, count, 1_000):
            upto = min(first + 1_000, count)
            await ctx.commit(*({**ctx.input, "n": number, "mark": mark} for number in range(first, upto)))
            await anyio.sleep(pause_s)

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        ends: Counter[str] = Counter()
        marks: set[str] = set()
        numbers = 0
        async with penstock.write_sheet(ctx, "out.jsonl", ["items"]) as sheet:
            async for page in ctx.read():
                ends.update(result.status for result in page)
                marks.update(result.item["mark"] for result in page)
                numbers += sum(result.index == result.item["n"] for result in page)
            await sheet.write([{"items": numbers}])
        return {"items": numbers, "marks": len(marks), "ends": dict(ends)}


@penstock.batch(SPREAD, attempts=3, chunk_items=1_000, **QUICK)
class Spread(_Counting):
    async def map_many(self, items: list[dict[str, Any]], contexts: list[penstock.ItemContext]) -> list[object]:
        await anyio.sleep(items[0]["takes_s"])
        return [self._one(item["n"], context.attempt) for item, context in zip(items, contexts, strict=True)]

    def _one(self, number: int, attempt: int) -> object:
        match end_of(number):
            case "skipped":
                return penstock.Skip("was there")
            case "failed":
                return penstock.Reject("no such thing")
        return OSError("busy") if number % 10 == 0 and attempt == 1 else None


@penstock.batch(STREAMED, attempts=3, chunk_items=100, streaming=True, **QUICK)
class Streamed(Spread):
    async def split(self, ctx: penstock.SplitContext) -> None:
        await self._commit(ctx, mark="the same", pause_s=0.3)


@penstock.batch(ONCE, is_idempotent=False, attempts=3, chunk_items=25, **QUICK)
class Once(_Counting):
    """Notes in a file each item that it begins: one line, by one write."""

    async def map(self, item: dict[str, Any]) -> None:
        notes = os.open(item["notes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(notes, f"{item['n']}\n".encode())
        finally:
            os.close(notes)
        await anyio.sleep(item["takes_s"])


@penstock.batch(DEADLY, chunk_items=10, **QUICK)
class Deadly(_Counting):
    """One of its items takes its process down."""

    async def map(self, item: dict[str, Any]) -> None:
        if item["n"] == DEADLY_ITEM:
            os.kill(os.getpid(), signal.SIGKILL)
