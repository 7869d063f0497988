"""The tasks that `bench/batch.py` runs."""

from typing import Any

import penstock


@penstock.batch("noop")
class Noop:
    """As many items as asked for, nothing done with each, and counted at the end."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        count = ctx.input["items"]
        for first in range(0, count, 1_000):
            await ctx.commit(*range(first, min(first + 1_000, count)))

    async def map_many(self, items: list[int]) -> None:
        pass

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        total = 0
        async for page in ctx.read():
            total += sum(result.status == "ok" for result in page)
        return {"total": total}


@penstock.batch("sheet")
class Sheet:
    """A no-op for each row of a sheet. Its result is a sheet, too."""

    async def map_many(self, items: list[Any]) -> None:
        pass


def _lane(number: int) -> None:
    penstock.batch(f"lane{number}")(type(f"Lane{number}", (Noop,), {}))


for _number in range(9):
    _lane(_number)


@penstock.batch("limited", item_rate=10)
class Limited(Noop):
    """So many items that they take a day, ten of them a second."""
