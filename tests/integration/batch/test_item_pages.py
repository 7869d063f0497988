"""Pages of a batch's items: what one costs while the batch is at work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Raw

import penstock
from actors.batch.rules.record import Instance, Seal
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.batch import Chunk, ChunkResult
from streams.reads import direct_get, log
from streams.reads.log import extent_of
from tests.support.batches import plant

EACH, CHUNKS = 100, 20


@penstock.batch("paged")
class Paged:
    async def map(self, item: str) -> None:
        return None


@pytest.mark.parametrize("ended", [0, 3])
async def test_a_page_is_one_request_though_its_items_have_not_ended(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    """The results of so many chunks are there, and the others have none."""
    asked, once = list[object](), direct_get._once

    async def counted(
        connection: Connection, stream: str, request: Mapping[str, Any], try_s: float, domain: str
    ) -> tuple[list[Message], Message]:
        asked.append(request)
        return await once(connection, stream, request, try_s, domain)

    async def of_leader(_connection: Connection, _stream: str, request: Mapping[str, object], **_more: object) -> None:
        asked.append(request)

    async with plant(connection, ["paged"]) as node:
        await node.items.stage(
            "mine", 1, 0, [Chunk(first=at * EACH, items=(Raw(b"7"),) * EACH) for at in range(CHUNKS)]
        )
        seal = Seal(fence=1, chunks=CHUNKS, items=CHUNKS * EACH, digest="d")
        known: dict[str, Any] = {"state": "running", "task": "paged", "step_fence": 1, "seal": seal, "is_paused": True}
        record = Instance(instance_id="mine", created_ms=0, **known)
        for at in range(ended):
            await node.items.add_result(record, ChunkResult(chunk=at, round=1, ran=((at * EACH, (at + 1) * EACH),)))
        stored = (await extent_of(connection, connection.namespace.stream("ITEMS"))).last_seq
        await node.engine.instances.create(Instance(instance_id="mine", created_ms=0, counted_seq=stored, **known))
        monkeypatch.setattr(direct_get, "_once", counted)
        monkeypatch.setattr(log, "get_of_leader", of_leader)
        page = await node.desk.items.page("mine", most=1_000)
        assert [each.status for each in page.items] == ["ok"] * ended * EACH + [None] * (1_000 - ended * EACH)
        assert page.cursor == "9.100.0"
        requests = [each for each in asked if "items" in str(each) or "results" in str(each)]
        assert len(requests) == 1
