"""The application of the test of figures: seven items that never end."""

import anyio

import penstock


@penstock.batch("figured")
class Figured:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(ctx.input["n"]))

    async def map(self, _number: int) -> None:
        await anyio.sleep_forever()
