"""Items that take their process down: each costs some processes, fails alone, and the others of its chunk go on."""

from __future__ import annotations

from collections import Counter

import anyio
from msgspec import Raw

import penstock
from actors.batch.executor.one_by_one import run_suspected
from actors.batch.executor.rounds import Round
from actors.batch.items import BatchItems
from penstock.sdk.batches import task_handlers
from streams.link.connection import Connection
from streams.messages.batch import Outcome, Pointer
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.batches import OpenGate
from tests.support.server import make_topology

ran: Counter[int] = Counter()
dies_at: set[int] = set()
at_work: list[anyio.Event] = []
POINTER = Pointer(step="map", task="deadly", instance_id="mine", chunk=0, round=1)


@penstock.batch("deadly")
class Deadly:
    """Its process dies at some of its items: nothing that it does goes on."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(4))

    async def map(self, item: int) -> int:
        ran[item] += 1
        if item in dies_at:
            at_work[-1].set()
            await anyio.sleep_forever()
        return item


async def run(connection: Connection, publisher: Publisher) -> list[Outcome]:
    """Run a chunk of four in a process that may die."""
    turn = Round("mine", dict.fromkeys(range(4), 1), most=3)
    items = [(index, Raw(b"%d" % index)) for index in range(4)]
    log = BatchItems(connection, publisher)
    return await run_suspected(task_handlers()["deadly"], turn, POINTER, items, log, OpenGate())


async def die(connection: Connection, publisher: Publisher) -> None:
    at_work.append(anyio.Event())
    async with anyio.create_task_group() as process:
        process.start_soon(run, connection, publisher)
        with anyio.fail_after(30):
            await at_work[-1].wait()
        process.cancel_scope.cancel()


async def test_what_was_at_work_at_three_deaths_fails_alone(connection: Connection, publisher: Publisher) -> None:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    ran.clear()
    for place in (1, 2, 2, 1, 2):  # two deaths at item 1, for another's reason
        dies_at.clear()
        dies_at.add(place)
        await die(connection, publisher)
    ran.clear()
    outcomes = await run(connection, publisher)
    assert [(each.index, each.status) for each in outcomes] == [(0, "ok"), (1, "ok"), (2, "failed"), (3, "ok")]
    assert outcomes[2].info == Raw(b'"its process died while it ran, 3 times"')
    assert ran == Counter([0, 1, 3])


async def test_who_ends_leaves_no_suspicion(connection: Connection, publisher: Publisher) -> None:
    """What comes after the last item, as the storing of the result, may fail for reasons of its own."""
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    dies_at.clear()
    for _ in range(5):
        outcomes = await run(connection, publisher)
        assert {each.status for each in outcomes} == {"ok"}
