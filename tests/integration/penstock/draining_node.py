"""A node whose one engine holds work, for the tests of a stop: `python -m tests.integration.penstock.draining_node`.

It pulls from the consumer `drain` of the stream WORK. What it takes in hand it finishes only after the stop was asked
for, under a rate of the cluster, so that a stop always finds work in hand."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from anyio.abc import TaskStatus

from actors.runtime.rates.client import KindRates
from actors.runtime.supervisor import ActorSpec
from penstock.node.app import run_node
from penstock.node.config import load_config
from penstock.node.flow.engine import open_flow_engine
from penstock.node.logs import set_up_logs
from penstock.node.node import Node
from streams.pull.puller import Delivery, Puller

IN_HAND = 2
RATE = 1.0


async def _spend(rates: KindRates) -> None:
    """Wait until one more may begin."""
    granted, wait_ms = rates.take("chore", 1)
    while not granted:
        await anyio.sleep(wait_ms / 1000)
        granted, wait_ms = rates.take("chore", 1)


async def _hold(node: Node, *, takes_for_ever: bool, task_status: TaskStatus[None]) -> None:
    """Take two messages, wait for the stop, finish them (or never); the puller gives back what it only prefetched."""
    stream, rates = node.connection.namespace.stream("CHORES"), node.rates.of("chores", lambda _chore: RATE)
    async with Puller(node.connection, stream, "drain", capacity=10) as puller:
        taken: list[Delivery] = [await puller.receive() for _ in range(IN_HAND)]
        await _spend(rates)  # now a governor leads
        task_status.started()
        await node.stop.wait()
        if takes_for_ever:
            await anyio.sleep_forever()
        for delivery in taken:
            await _spend(rates)
            await delivery.ack_sync()


@asynccontextmanager
async def _engine(node: Node) -> AsyncIterator[tuple[ActorSpec, ...]]:
    run = partial(_hold, node, takes_for_ever="for-ever" in sys.argv)
    async with open_flow_engine(node) as flow:
        yield (*flow.actors(), ActorSpec(name="holder", role="", run=run, drains=True))


def main() -> None:
    """Run the node on the server and namespace of the environment."""
    config = load_config(None, os.environ)
    set_up_logs("info", "json")
    anyio.run(partial(run_node, config, engines=_engine))


if __name__ == "__main__":
    main()
