"""The application of tests of the doors to batches: products to register, and numbers to count."""

import msgspec

import penstock

ODD_NAME = 'a "price"\r\nlist, überall.csv'


class Product(msgspec.Struct):
    sku: str
    price: float


@penstock.batch("register", attempts=2, retry_base_s=0.05)
class Register:
    async def map(self, product: Product) -> dict[str, str]:
        if product.price < 0:
            raise penstock.Reject("a price below zero")
        if product.sku.endswith("7"):
            raise OSError("warehouse busy")
        return {"id": f"P-{product.sku}"}


@penstock.batch("count")
class Count:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(ctx.input["n"]))

    async def map_many(self, items: list[int]) -> None:
        return None

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        return {"total": ctx.counts.succeeded}


@penstock.batch("odd", streaming=True)
class Odd(Count):
    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, list[str]]:  # type: ignore[override]
        async with penstock.write_sheet(ctx, ODD_NAME, ["n"]) as sheet:
            await sheet.write([{"n": 1}])
        return {"files": [ODD_NAME]}
