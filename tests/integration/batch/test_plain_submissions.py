"""Batches that were submitted by a plain publish, and are taken late or twice."""

from __future__ import annotations

import json

import anyio
import pytest

import penstock
from actors.batch.instances import UnknownInstance
from penstock.node.batch.submitting import submitter
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.reads.log import read_log
from tests.support.batches import LONG_S, plant
from tests.support.moments import a_moment
from tests.support.server import make_topology, topology_for

TASK = "published"
DESK = ("desk", "executor")
DELAY_MS = 600_000


@penstock.batch(TASK)
class Published:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(1)

    async def map(self, item: int) -> None:
        return None


async def test_a_delay_counts_from_the_publish_however_late_it_is_taken(
    connection: Connection, publisher: Publisher
) -> None:
    await make_topology(connection, topology_for(connection))
    namespace = connection.namespace
    subject, asked = namespace.subject("submit", "batch", TASK), {"id": "p-late", "delay_ms": DELAY_MS}
    async with plant(connection, [TASK], roles=("executor",)):  # the task is known, and no desk is there
        await publisher.publish(subject, json.dumps(asked).encode())
    [stored_ms] = [each.stored_ms async for each in read_log(connection, namespace.stream("SUBMIT"), subject)]
    async with plant(connection, [TASK], roles=DESK, name="n2") as node:
        with anyio.fail_after(LONG_S):
            while node.engine.instances.seen("p-late") is None:
                await a_moment()
        assert (await node.record("p-late")).due_ms == stored_ms + DELAY_MS


async def test_a_submission_that_comes_again_after_a_delete_makes_no_second_batch(connection: Connection) -> None:
    async with plant(connection, [TASK]) as node:
        submit, payload = submitter(node.desk), b'{"id": "p-twice"}'
        assert await submit(TASK, payload, "submit-1-7", 1) == ""
        await node.until("p-twice", "done")
        await node.desk.delete("p-twice")
        assert await submit(TASK, payload, "submit-1-7", 1) == ""
        with pytest.raises(UnknownInstance):
            await node.record("p-twice")
        assert await submit(TASK, payload, "submit-1-8", 1) == ""
        await node.until("p-twice", "done")
