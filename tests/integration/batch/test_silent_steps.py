"""A step whose executor falls silent is begun anew, and what the first one still writes counts for nothing."""

from __future__ import annotations

from collections import Counter

import anyio
import anyio.lowlevel
import pytest

import penstock
from actors.batch import conductor as batch_conductor
from actors.batch.executor import steps
from actors.batch.rules.record import beat_key
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.messages.batch import Counts
from streams.publish.publisher import Publisher
from streams.pull.backlog import consumers_pending
from streams.topology.specs import batch_consumers
from tests.support.batches import LONG_S, plant
from tests.support.moments import a_moment


class Log:
    """What the task did."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.splits = 0
        self.is_under_way = anyio.Event()
        self.wakes = anyio.Event()
        self.gate = anyio.Event()


@penstock.batch("falls-silent", chunk_items=4)
class FallsSilent:
    """Its first split stands still half way; the items of the others wait at a gate."""

    log = Log()

    async def split(self, ctx: penstock.SplitContext) -> None:
        self.log.splits += 1
        if self.log.splits > 1:
            await ctx.commit(*["fresh"] * 12)
            return
        await ctx.commit(*["stale"] * 4)
        self.log.is_under_way.set()
        await self.log.wakes.wait()
        await ctx.commit(*["stale"] * 40)

    async def map(self, item: str) -> None:
        self.log.ran[item] += 1
        await self.log.gate.wait()


async def test_a_silent_splitters_chunks_are_never_read(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It beats while it is under way, and when the last beat has gone the split is begun anew. It wakes when two of
    the three chunks are in hand, stores its own, which are as many and more, and ends; the third is read then."""
    log = FallsSilent.log = Log()
    namespace = connection.namespace
    splits, maps = (spec.name for spec in batch_consumers(namespace, "falls-silent"))
    beats = Bucket(connection, publisher, namespace.bucket("BEATS"), bytes)
    monkeypatch.setattr(steps, "BEAT_S", 0.05)
    async with plant(connection, ["falls-silent"]) as node:
        await node.submit("falls-silent", id="mine")
        with anyio.fail_after(LONG_S):
            await log.is_under_way.wait()
            first = await node.record("mine")
            revisions = set[int]()
            while len(revisions) < 3:
                entry = await beats.get(beat_key(first))
                assert entry is not None
                revisions.add(entry.revision)
                await a_moment()
            assert log.splits == 1
            monkeypatch.setattr(steps, "BEAT_TTL_S", 1)  # of the last beat
            monkeypatch.setattr(steps, "BEAT_S", 600.0)
            monkeypatch.setattr(batch_conductor, "BEAT_TTL_S", 0)
            while log.ran.total() < 2:
                await a_moment()
            log.wakes.set()
            while (await consumers_pending(connection, namespace.stream("WORK")))[splits]:
                await a_moment()
            assert (await consumers_pending(connection, namespace.stream("WORK")))[maps] == 3
        log.gate.set()
        view = await node.until("mine", "done")
        record = await node.record("mine")
    assert (view.counts, log.ran) == (Counts(succeeded=12), Counter(fresh=12))
    assert record.seal is not None
    assert record.seal.fence > first.step_fence
