"""A replica that is behind the others: what it does not have yet is not taken for missing."""

from collections.abc import Mapping
from typing import Any

import pytest
from anyio import fail_after
from msgspec import Raw

from actors.batch.executor.contexts import ReduceContext
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance, Seal
from streams.buckets.files import Files
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.batch import Chunk, ChunkResult
from streams.publish.publisher import Publisher
from streams.reads import direct_get
from streams.reads.log import extent_of
from tests.support.batches import LONG_S
from tests.support.server import make_topology, topology_for


@pytest.mark.three_servers
@pytest.mark.parametrize("stored", [0, 1])
async def test_a_reduce_waits_for_the_results_that_were_counted(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, stored: int
) -> None:
    """The answering replica has so many of two results at the first request. One server is never behind."""
    await make_topology(connection, topology_for(connection))
    items, files = BatchItems(connection, publisher), Files(connection, publisher, connection.namespace.bucket("FILES"))
    await items.stage("mine", 1, 0, [Chunk(first=at, items=(Raw(b"1"),)) for at in (0, 1)])
    results = [ChunkResult(chunk=at, round=1, ran=((at, at + 1),)) for at in (0, 1)]
    last_seq = (await extent_of(connection, connection.namespace.stream("ITEMS"))).last_seq
    seal = Seal(fence=1, chunks=2, items=2, digest="d")
    record = Instance(
        instance_id="mine",
        task="any",
        created_ms=0,
        step_fence=1,
        seal=seal,
        counted_seq=last_seq + 2,
        state="reducing",
    )
    late = results[stored:] if connection.is_clustered else []
    for result in results[: len(results) - len(late)]:
        await items.add_result(record, result)
    once = direct_get._once

    async def behind(
        connection: Connection, stream: str, request: Mapping[str, Any], try_s: float, domain: str
    ) -> tuple[list[Message], Message]:
        answer = await once(connection, stream, request, try_s, domain)
        while late and any(".results." in subject for subject in request["multi_last"]):
            await items.add_result(record, late.pop(0))
        return answer

    monkeypatch.setattr(direct_get, "_once", behind)
    context = ReduceContext(record, files, lambda: record, items)
    with fail_after(LONG_S):
        assert [result.status async for page in context.read() for result in page] == ["ok", "ok"]
