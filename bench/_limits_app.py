"""The application of `bench idle_limits`: a thousand topics with a handler each, or a thousand batch tasks.

`LIMITS_KIND`: `topics` or `tasks`. `LIMITS_COUNT`: another number of them. Each task has a rate of its own. The rate of
the topics is set from outside."""

import os
from typing import Any

import penstock

COUNT = int(os.environ.get("LIMITS_COUNT", "1000"))


async def take(job: penstock.Job) -> None:
    pass


class Task:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(1)

    async def map(self, item: Any) -> None:
        pass


for number in range(COUNT):
    if os.environ.get("LIMITS_KIND") == "topics":
        penstock.job(f"topic{number}")(take)
    else:
        penstock.batch(f"task{number}", item_rate=5)(type(f"Task{number}", (Task,), {}))
