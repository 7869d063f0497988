"""One of all nodes that find out how the store fares tells it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest

from actors.fetch.sink import sink_notice
from actors.runtime.broker import store_notices
from actors.runtime.broker.store_notices import StoreNotices
from actors.runtime.broker.store_watch import WENT_BACK
from actors.runtime.notices.alerts import Alerts
from actors.runtime.notices.notify import Notifier
from actors.runtime.rules.notices import Notice
from actors.runtime.transport import Transport
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.messages.fetch import SinkDown, SinkUp
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.office import Office, an_office
from tests.support.server import make_topology

LONG_S = 30


def notice(kind: str) -> Notice:
    return Notice(kind=kind, source="store", text=kind, what_to_do="look")


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_notices, "TURN_S", 0.0)
    monkeypatch.setattr(store_notices, "LOOK_S", 0.01)


def node(session: aiohttp.ClientSession, marks: Bucket[bytes], office: Office, turn: int) -> StoreNotices:
    return StoreNotices(Alerts(Notifier(Transport(session))), marks, turn=lambda: turn, webhook=lambda: office.url)


@asynccontextmanager
async def nodes(
    connection: Connection, publisher: Publisher, office: Office, *, bucket: str = "LEASES"
) -> AsyncIterator[list[StoreNotices]]:
    """Run three nodes, in the order of their turns."""
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    marks = Bucket(connection, publisher, connection.namespace.bucket(bucket), bytes)
    async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
        made = [node(session, marks, office, turn) for turn in range(3)]
        for each in made:
            await tasks.start(each.run)
        yield made
        tasks.cancel_scope.cancel()


async def until_idle(all_nodes: list[StoreNotices]) -> None:
    with anyio.fail_after(LONG_S):
        while not all(each.is_idle for each in all_nodes):  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def test_what_all_find_out_is_told_once_and_so_is_its_end(connection: Connection, publisher: Publisher) -> None:
    async with an_office() as office, nodes(connection, publisher, office) as all_nodes:
        for kind in ("store_full", "store_well", WENT_BACK, "store_full"):
            for each in all_nodes:
                each.tell(notice(kind))
                await until_idle([each])
    assert [each.kind for each in office.taken] == ["store_full", "store_well", WENT_BACK, "store_full"]


async def test_who_comes_later_waits_for_his_turn(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_notices, "TURN_S", 3_600.0)
    async with an_office() as office, nodes(connection, publisher, office) as all_nodes:
        for each in reversed(all_nodes):
            each.tell(notice("store_full"))
        await until_idle(all_nodes[:1])
        assert [each.is_idle for each in all_nodes] == [True, False, False]
    assert len(office.taken) == 1


async def test_what_one_alone_knows_is_told(connection: Connection, publisher: Publisher) -> None:
    async with an_office() as office, nodes(connection, publisher, office) as all_nodes:
        all_nodes[2].tell(notice("store_failed"))
        await until_idle(all_nodes)
    assert [each.kind for each in office.taken] == ["store_failed"]


async def test_how_it_fares_now_stands_for_how_it_fared(connection: Connection, publisher: Publisher) -> None:
    async with an_office() as office, nodes(connection, publisher, office) as all_nodes:
        for kind in ("store_full", WENT_BACK, "store_failed"):
            all_nodes[1].tell(notice(kind))
        await until_idle(all_nodes)
    assert sorted(each.kind for each in office.taken) == ["store_failed", WENT_BACK]


async def test_each_sink_has_a_state_of_its_own(connection: Connection, publisher: Publisher) -> None:
    told = [
        sink_notice(SinkDown(sink="main", at_ms=1_000, reason="disk full", pending=3)),
        sink_notice(SinkDown(sink="other", at_ms=1_000, reason="no such host", pending=3)),
        sink_notice(SinkUp(sink="main", at_ms=9_000, down_ms=1_000)),
    ]
    async with an_office() as office, nodes(connection, publisher, office) as all_nodes:
        for each in told:
            for one in all_nodes:
                one.tell(each)
                await until_idle([one])
    assert [(each.kind, each.source) for each in office.taken] == [
        ("sink_down", "sink main"),
        ("sink_down", "sink other"),
        ("sink_up", "sink main"),
    ]
    assert office.taken[0].text == "its store takes nothing since 1970-01-01T00:00:01Z: disk full"


async def test_where_nothing_can_be_marked_each_tells(connection: Connection, publisher: Publisher) -> None:
    async with an_office() as office, nodes(connection, publisher, office, bucket="NONE") as all_nodes:
        for each in all_nodes:
            each.tell(notice("store_failed"))
        await until_idle(all_nodes)
    assert [each.kind for each in office.taken] == ["store_failed"] * 3
