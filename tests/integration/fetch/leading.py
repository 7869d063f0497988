"""Nodes of which one leads the monitors."""

import anyio

from tests.support.engine import (
    Node,
)

WATCHES = ("monitor",)


async def until_leading(node: Node) -> None:
    with anyio.fail_after(30):
        await node.engine.monitor.elected.wait()
