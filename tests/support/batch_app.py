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


class Nested(msgspec.Struct):
    sku: str
    tags: list[str]
    sizes: dict[str, int] = {}
    note: str = ""


@penstock.batch("nested")
class FailsNested:
    async def map(self, item: Nested) -> None:
        raise penstock.Reject(str([item.sku, item.tags, item.sizes, item.note]))


@penstock.batch("skus")
class Skus:
    async def split(self, ctx: penstock.SplitContext) -> None:
        async for rows in penstock.read_sheet(ctx.files, ctx.input["file"], name=ctx.input["name"]):
            await ctx.commit(*(cells["sku"] for _, cells in rows))

    async def map(self, sku: str) -> None:
        return None
