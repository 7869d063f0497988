"""The application of the tests of traces: handlers that write down which span they run in, a batch, and a
flow of three rows."""

from typing import Any, ClassVar

import penstock
from actors.runtime.tracing import traces


@penstock.job("traced-letters", attempts=2)
async def letters(body: dict[str, str], job: penstock.Job) -> None:
    if body.get("do") == "fail":
        raise penstock.Bury("as it was asked to")


@penstock.job("traced-plain")
def plain(body: dict[str, str], job: penstock.Job) -> None:
    if not traces.current():
        raise penstock.Bury("no span in the handler's thread")
    raise OSError("the shop is shut")


@penstock.batch("traced-rows", chunk_items=2)
class Rows:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*ctx.input)

    async def map(self, item: int) -> str:
        return traces.current()

    async def reduce(self, ctx: penstock.ReduceContext) -> int:
        return sum([len(page) async for page in ctx.read()])


@penstock.flow("traced-pay", every="1s")
class Pay:
    """Three rows, until they are paid."""

    unpaid: ClassVar = {1, 2, 3}

    def split(self, ctx: penstock.FlowContext) -> list[str]:
        return ["pool"]

    def load(self, ctx: penstock.FlowContext, shard: str, limit: int) -> list[tuple[int, Any]]:
        return [(number, {}) for number in sorted(self.unpaid)]

    async def execute(self, ctx: penstock.FlowContext, row: dict[str, Any]) -> None:
        self.unpaid.discard(int(ctx.key))
