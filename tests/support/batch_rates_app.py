"""Tasks under a rate: each item notes when it began, in a file that all workers share.

`LIMITS` items a second. Each kind of `map` has a task for each limit: one that waits for others, a plain function that
keeps a thread busy, and one that takes lists.
"""

import os
from typing import Any

import anyio

import penstock
from streams.clock import monotonic_s

LIMITS = (10, 100, 500, 1500)
KINDS = ("each", "plain", "lists")
TAKES_S = 0.02
"""How long an item, or a list of them, takes: what waits for others must not keep the next from its turn."""


def note(items: list[dict[str, Any]]) -> None:
    """Write one line an item, by one write."""
    line = f"{monotonic_s():.6f}\n".encode() * len(items)
    notes = os.open(items[0]["notes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(notes, line)
    finally:
        os.close(notes)


class _Rated:
    async def split(self, ctx: penstock.SplitContext) -> None:
        for _ in range(0, ctx.input["items"], 1_000):
            await ctx.commit(*[{"notes": ctx.input["notes"]}] * min(1_000, ctx.input["items"]))

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        return {"total": ctx.counts.succeeded}


class Each(_Rated):
    async def map(self, item: dict[str, Any]) -> None:
        note([item])
        await anyio.sleep(TAKES_S)


class Plain(_Rated):
    def map(self, item: dict[str, Any]) -> None:
        note([item])


class Lists(_Rated):
    async def map_many(self, items: list[dict[str, Any]]) -> None:
        note(items)
        await anyio.sleep(TAKES_S)


for _limit in LIMITS:
    for _kind, _class in zip(KINDS, (Each, Plain, Lists), strict=True):
        penstock.batch(f"{_kind}-{_limit}", item_rate=_limit, concurrency=32 if _kind == "each" else 1)(
            type(f"{_class.__name__}{_limit}", (_class,), {})
        )
