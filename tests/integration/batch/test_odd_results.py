"""Results that the broker does not take, and what lies in their places that is none: every item runs once."""

from __future__ import annotations

import json
from collections import Counter

import anyio
import anyio.lowlevel
import pytest

import penstock
from actors.batch.executor import contexts
from streams.link.connection import Connection
from streams.messages.batch import ChunkResult, Counts, encode_message
from streams.publish.publisher import Publisher
from streams.pull.backlog import consumers_pending
from streams.topology.specs import batch_consumers
from tests.support.batches import plant
from tests.support.moments import a_moment
from tests.support.server import full

ran: Counter[int] = Counter()
gates: dict[str, anyio.Event] = {}
MANY = 1_000


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()
    gates.clear()


@penstock.batch("talkative")
class Talkative:
    """What its items tell does not fit one message."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(MANY))

    async def map_many(self, items: list[int]) -> list[str]:
        ran.update(items)
        return ["x" * (1_900 if item < 100 else 1_000) for item in items]


@penstock.batch("gated-end", chunk_items=4, is_idempotent=False)
class GatedEnd:
    """Its last item waits at a gate, if there is one."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(12))

    async def map(self, item: int) -> None:
        ran[item] += 1
        if item == 11 and gates:
            gates["began"].set()
            await gates["end"].wait()


async def test_what_does_not_fit_the_message_is_left_out_and_no_item_runs_again(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "FEW_ITEMS", MANY)  # one chunk
    async with plant(connection, ["talkative"]) as node:
        view = await node.run("talkative")
        page = await node.desk.items.page(view.instance_id, most=MANY, most_bytes=1 << 24)
    assert view.counts == Counts(succeeded=MANY)
    assert ran == Counter(range(MANY))
    told = [each.info for each in page.items]
    left_out = {"not_told": "left out: too much was told of this chunk for one message"}
    assert 50 <= told[:100].count(left_out) <= 100
    assert told[100:] == ["x" * 1_000] * 900


async def test_an_outcome_that_the_broker_does_not_take_is_kept_until_it_does(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then the chunk's message is not acknowledged: another executor would take it up."""
    namespace = connection.namespace
    stream, maps = namespace.stream("ITEMS"), batch_consumers(namespace, "gated-end")[1].name
    gates.update(began=anyio.Event(), end=anyio.Event())
    async with plant(connection, ["gated-end"]) as node:
        view = await node.submit("gated-end")
        with anyio.fail_after(30):
            await gates["began"].wait()
            while len(await node.results(view.instance_id)) < 2:
                await a_moment()
        async with full(connection, stream):
            gates["end"].set()
            with anyio.fail_after(30):
                while "executor.write_waits" not in caplog.messages:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
                while (waiting := (await consumers_pending(connection, namespace.stream("WORK")))[maps]) > 1:
                    await a_moment()
        view = await node.until(view.instance_id, "done")
    assert waiting == 1
    assert view.counts == Counts(succeeded=12)
    assert ran == Counter(range(12))


async def test_what_is_no_result_and_no_mark_is_passed_over(
    connection: Connection, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    """A result is stored in the place of what is none; of a round whose mark is none, all may have begun."""
    namespace = connection.namespace
    misplaced = ChunkResult(chunk=2, round=1, ran=((8, 12),), counts=Counts(succeeded=4))
    odd = {
        ("results", "mine", "0", "1"): b"{",
        ("results", "mine", "1", "1"): encode_message(misplaced),
        ("results", "mine", "7", "1"): b"\xff",
        ("results", "mine", "x"): b"1",
        ("begun", "mine", "1", "1"): json.dumps({"0": 1}).encode(),
    }
    async with plant(connection, ["gated-end"]) as node:
        for place, payload in odd.items():
            await publisher.publish(namespace.subject(*place), payload, expected_seq=0)
        view = await node.run("gated-end", id="mine")
        found = await node.items.results(await node.record("mine"), [0, 1, 7])
    assert view.counts == Counts(succeeded=8, unknown=4)
    assert ran == Counter([0, 1, 2, 3, 8, 9, 10, 11])
    assert {chunk: len(results) for chunk, results in found.items()} == {0: 1, 1: 1, 7: 0}
    assert 1 <= caplog.messages.count("items.unreadable") <= 2 * len(odd)  # once by each that reads


async def test_a_cancelled_instance_ends_whatever_lies_among_its_results(
    connection: Connection, publisher: Publisher
) -> None:
    gates.update(began=anyio.Event(), end=anyio.Event())
    async with plant(connection, ["gated-end"]) as node:
        view = await node.submit("gated-end", id="mine")
        with anyio.fail_after(30):
            await gates["began"].wait()
        await publisher.publish(connection.namespace.subject("results", "mine", "2", "1"), b"{", expected_seq=0)
        await node.desk.cancel(view.instance_id)
        gates["end"].set()
        view = await node.until(view.instance_id, "cancelled")
    assert view.counts == Counts(succeeded=12)
