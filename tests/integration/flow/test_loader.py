"""A loader calls the code of a flow for so many shards at a time, and adds the rows of others meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from actors.flow.flows import FlowLimits
from actors.flow.handler import FlowContext, FlowHandler, LoadedRow
from actors.flow.loader import Loader
from streams.connection import Connection
from streams.flow_messages import LoadShard

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


class Slow:
    """A job engine that takes rows only when two shards wait for it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.both = anyio.Event()

    def since(self) -> tuple[float, str]:
        return 0.0, ""

    async def add_rows(self, flow: str, rows: Sequence[LoadedRow], since: tuple[float, str]) -> list[bool]:
        self.waiting += 1
        if self.waiting == 2:
            self.both.set()
        await self.both.wait()
        return [True] * len(rows)


async def test_one_call_at_a_time_and_adds_beside_one_another(connection: Connection) -> None:
    at_once = most = 0

    async def load(ctx: FlowContext, shard: str, limit: int) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        at_once -= 1
        return [(number, None) for number in range(limit)]

    async def split(ctx: FlowContext) -> Any:
        return []

    handler = FlowHandler(
        flow="pay", limits=FlowLimits(), rate=0.0, attempts=1, split=split, load=load, loads_at_once=1
    )
    loader = Loader([handler], connection=connection, door=Slow(), labels=(), version="1.0.0", stop=anyio.Event())
    found = []

    async def ask(shard: str) -> None:
        found.append((await loader.load(handler, LoadShard(flow="pay", shard=shard, limit=3))).new)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "1")
            tasks.start_soon(ask, "2")
    assert (found, most) == ([3, 3], 1)
