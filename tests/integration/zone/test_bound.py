"""Topics, sources, batches and flows that are bound to a zone, or to the zone that owns a shard."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import pytest
from anyio import fail_after

from actors.fetch.sources import SourceKey
from actors.runtime.membership import living
from penstock.admin.records import Records
from penstock.admin.sources import Edit, Wanted, add, change
from penstock.node.session import Session
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_adds import new_job
from penstock.sdk.client_batches import Batches
from penstock.sdk.client_flows import FlowCalls
from penstock.sdk.client_jobs import Jobs
from penstock.sdk.client_schedules import Schedules
from tests.support.command import Running
from tests.support.sqlite import sqlite_file
from tests.support.zone_land import WITHIN_S, Land

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

LATE_S = 30.0
"""The server knows the add of a row for twice as long."""
TWO = {"shards": 10, "zones": {"a": "0-4", "b": "5-9"}, "drain": "60s"}


class Worked(NamedTuple):
    """A piece of work that has ended. Times are seconds of the machine's monotonic clock."""

    number: str
    zone: str
    begun_s: float
    ended_s: float
    attempt: int


class Ground:
    """Two zones with a node each."""

    def __init__(self, land: Land, *nodes: Running) -> None:
        self.land = land
        self.nodes = nodes
        self.jobs = Jobs(ServiceClient(land.connection, "jobs", 30.0))
        self.batches = Batches(ServiceClient(land.connection, "batch", 30.0), land.connection)
        self.records = Records(Session(land.connection, land.publisher))

    def worked(self, kind: str) -> dict[str, Worked]:
        """Return what was done, by its number. Nothing is done twice, unless a node lost its hold over it (promise 9a):
        it stood still for longer than an ack wait, and says so. A busy machine may do that to it."""
        with sqlite_file(self.land.path) as db:
            query = "SELECT number, zone, begun, ended, attempt FROM worked WHERE kind = ? ORDER BY ended"
            rows = [Worked(*row) for row in db.execute(query, (kind,))]
        found: dict[str, Worked] = {}
        for row in rows:
            if row.number in found:
                assert row.attempt > 1, (found[row.number], row)
                assert self.stood_still(), (found[row.number], row)
            found[row.number] = row
        return found

    def stood_still(self) -> bool:
        """Return whether a node has said that it stood still, or lost its hold over jobs."""
        return any(node.stood_still() for node in self.nodes)

    async def all_worked(self, kind: str, count: int) -> dict[str, Worked]:
        """Wait until so many pieces are done."""
        with anyio.move_on_after(WITHIN_S):
            while len(found := self.worked(kind)) < count:  # noqa: ASYNC110 # a file tells nobody that it changed
                await anyio.sleep(0.05)
            return found
        raise AssertionError(f"{sorted(found)} of {count} {kind}s after {WITHIN_S} s")

    async def loaded(self, groups: dict[str, str]) -> None:
        """Wait until each of these shards of rows was loaded by a node of its group, and by no other since."""
        query = "SELECT shard, label FROM loads WHERE kind = 'row'"
        with fail_after(WITHIN_S), sqlite_file(self.land.path) as db:
            while True:
                found = db.execute(query).fetchall()
                mine = [(shard, label) for shard, label in found if shard in groups]
                if dict(mine) == groups and len(mine) == len(groups):
                    return
                if any(groups[shard] != label for shard, label in mine):  # of a round under the settings before
                    db.execute("DELETE FROM loads")
                    db.commit()
                await anyio.sleep(0.1)

    def zones_of(self, kind: str, numbers: range) -> set[str]:
        found = self.worked(kind)
        return {found[str(number)].zone for number in numbers}

    async def fetching(self, *wanted: str) -> None:
        """Wait until these nodes and no others fetch from the platform."""
        with fail_after(WITHIN_S):
            while await self._fetchers() != list(wanted):  # noqa: ASYNC110 # the server is asked
                await anyio.sleep(0.05)

    async def _fetchers(self) -> list[str]:
        nodes = await living(self.records.session.bucket("NODES"))
        return [one.node for one in nodes if "bound-mall" in one.platforms]

    async def add(self, numbers: range, ms: int = 0) -> None:
        await self.jobs.add_many([new_job("bound-errands", {"ms": ms}, id=str(number)) for number in numbers])


def handed_over(found: Iterable[Worked], before: str, after: str) -> bool:
    """Return whether one zone began when the other had ended."""
    found = list(found)
    last = max((each.ended_s for each in found if each.zone == before), default=0.0)
    return last < min(each.begun_s for each in found if each.zone == after)


def make_tables(land: Land) -> None:
    """Make the tables into which the nodes write."""
    with sqlite_file(land.path) as db:
        db.execute("CREATE TABLE loads (kind TEXT, shard TEXT, label TEXT, PRIMARY KEY (kind, shard, label))")
        db.execute("CREATE TABLE worked (kind TEXT, number TEXT, zone TEXT, begun REAL, ended REAL, attempt INTEGER)")


@asynccontextmanager
async def two_zones(land: Land, **environment: str) -> AsyncIterator[tuple[Ground, Running, Running]]:
    """Run a node in each of the zones a and b."""
    land.app = "tests.support.bound_app"
    make_tables(land)
    async with (
        land.node("a1", "a", "--labels", "early", ZONE_NAME="a", ZONE_LABEL="early", **environment) as first,
        land.node("b1", "b", ZONE_NAME="b", **environment) as second,
    ):
        await first.logged("node.ready")
        await second.logged("node.ready")
        yield Ground(land, first, second), first, second


async def test_a_topic_moves_with_its_shard_and_two_zones_never_work_on_it_at_once(land: Land) -> None:
    async with two_zones(land) as (ground, _, _):
        jobs = ground.jobs
        await jobs.change_topic("bound-errands", zone="shard:7")
        await ground.add(range(1))
        with fail_after(WITHIN_S):
            while (why := (await jobs.why("0"))[0]).code != "nobody":  # noqa: ASYNC110 # the server is asked
                await anyio.sleep(0.05)
        assert why.reason.startswith("it is bound to shard 7, which no zone owns")
        await land.zones.apply(map=TWO)
        await ground.add(range(1, 20))
        await ground.all_worked("job", 20)
        assert ground.zones_of("job", range(20)) == {"b"}

        await ground.add(range(20, 40), ms=700)  # four of them are under way when the shard moves
        await ground.all_worked("job", 21)
        await land.zones.apply(moves={"7": "a"})
        await ground.all_worked("job", 40)
        found = [ground.worked("job")[str(number)] for number in range(20, 40)]
        assert handed_over(found, "b", "a")
        assert sum(each.zone == "b" for each in found) in range(1, 13)

        await jobs.change_topic("bound-errands", zone="c")
        await ground.add(range(40, 41))
        why = (await jobs.why("40"))[0]
        assert why.code == "nobody"
        assert why.reason == "it is bound to zone c, which no node of it serves; start one with --zone c"
        await jobs.change_topic("bound-errands", zone="b")
        await ground.all_worked("job", 41)
        assert ground.zones_of("job", range(40, 41)) == {"b"}

        await ground.add(range(50, 62), ms=700)  # a person moves it while four are under way
        await ground.all_worked("job", 42)
        await jobs.change_topic("bound-errands", zone="a")
        await ground.all_worked("job", 53)
        found = [ground.worked("job")[str(number)] for number in range(50, 62)]
        assert handed_over(found, "b", "a")
        assert ground.zones_of("job", range(61, 62)) == {"a"}


@pytest.mark.three_servers
async def test_batches_and_sources_move_with_their_shard(land: Land) -> None:
    source = SourceKey("bound-mall", "s1")
    account = {"base_url": "http://127.0.0.1:9", "shop": "s1"}
    async with two_zones(land) as (ground, _, _):
        batches, records = ground.batches, ground.records
        await land.zones.apply(map=TWO)
        await batches.limit("bound-numbers", zone="shard:7")
        await add(records, Wanted(source, "mall", account, start="-1h", settings={"zone": "shard:7"}))
        await ground.fetching("b1")
        first = await batches.submit("bound-numbers", [0, 20, 0])
        await batches.wait(first.instance_id, timeout_s=WITHIN_S)
        assert ground.zones_of("item", range(20)) == {"b"}

        await batches.submit("bound-numbers", [100, 40, 300])
        await ground.all_worked("item", 21)
        await land.zones.apply(moves={"7": "a"})
        await ground.fetching("a1")
        await ground.all_worked("item", 60)
        found = [ground.worked("item")[str(number)] for number in range(100, 140)]
        assert handed_over(found, "b", "a")
        assert {each.zone for each in found} == {"a", "b"}

        await batches.limit("bound-numbers", zone="c")
        await change(records, source, Edit(settings={"zone": "c"}))
        await ground.fetching()
        third = await batches.submit("bound-numbers", [200, 1, 0])
        missing = "it is bound to zone c, which no node of it serves; start one with --zone c"
        with fail_after(WITHIN_S):  # a desk hears of the change a moment later, and a source has failed before
            while (await batches.why(third.instance_id)).reason != missing:  # noqa: ASYNC110 # as it stands
                await anyio.sleep(0.05)
            while (await records.source_desk.why(source.platform, source.source)).reason != missing:  # noqa: ASYNC110 # as it stands
                await anyio.sleep(0.05)
        await batches.limit("bound-numbers", zone="b")
        await batches.wait(third.instance_id, timeout_s=WITHIN_S)
        assert ground.zones_of("item", range(200, 201)) == {"b"}
        assert {ground.worked("split")[str(first)].zone for first in (0, 100, 200)} == {"b"}

        await batches.submit("bound-numbers", [300, 40, 300])
        await ground.all_worked("item", 62)
        await batches.limit("bound-numbers", zone="a")
        await ground.all_worked("item", 101)
        assert handed_over([ground.worked("item")[str(number)] for number in range(300, 340)], "b", "a")


async def test_flows_run_in_each_zone_over_its_shards_or_in_one_and_move(land: Land) -> None:
    """A row of a shard that moved is executed by the new zone only, though the former one has it in flight. Inside a
    zone, the shards are dealt to groups of nodes."""
    async with (
        two_zones(land) as (ground, _, _),
        land.node("a2", "a", "--labels", "late", ZONE_NAME="a", ZONE_LABEL="late") as third,
    ):
        await third.logged("node.ready")
        await land.zones.apply(map=TWO)
        land.add(40)
        await ground.all_worked("row", 40)
        found = ground.worked("row")
        assert all(found[str(row)].zone == ("a" if row % 10 < 5 else "b") for row in range(1, 41))
        await ground.all_worked("gift", 4)
        assert {each.zone for each in ground.worked("gift").values()} == {"b"}

        for bell in ("x", "y"):  # one node in each zone runs each of them, also with more nodes in a zone
            await ground.jobs.add("bound-bells", id=bell)
        assert set(await ground.all_worked("bell", 4)) == {"x@a", "x@b", "y@a", "y@b"}
        await Schedules(ServiceClient(land.connection, "schedules", 30.0)).add("bound-bells/tick", every="1s")
        await ground.all_worked("bell", 8)

        flows = FlowCalls(ServiceClient(land.connection, "flow", 30.0))
        assert {each.flow for each in await flows.list()} == {"bound-prizes__a", "bound-prizes__b", "bound-gifts"}
        land.add(400)  # 40 of them are in shard 7, and take two seconds in one zone
        await ground.all_worked("row", 60)
        await land.zones.apply(moves={"7": "a"})
        await ground.all_worked("row", 440)
        moved = [each for each in ground.worked("row").values() if int(each.number) % 10 == 7]
        assert handed_over([each for each in moved if int(each.number) > 40], "b", "a")
        assert {each.zone for each in ground.worked("row").values() if int(each.number) % 10 == 8} == {"b"}
        await ground.all_worked("gift", 44)
        assert "a" in {each.zone for each in ground.worked("gift").values()}
        why = await flows.why("bound-gifts", "2", "9999")
        assert why.code == "round"
        await flows.set("bound-gifts", zone="c")
        assert (await flows.why("bound-gifts", "2", "9999")).code == "nobody"

        await flows.set("bound-prizes__a", groups={"early": 1, "late": 2})  # zone a has the shards 0 to 4, and 7
        await ground.loaded({"0": "early", "1": "early", "2": "late", "3": "late", "4": "late", "7": "late"})
        await flows.set("bound-prizes__a", groups={"early": "odd", "late": "EVEN"})
        await ground.loaded({"1": "early", "3": "early", "7": "early", "0": "late", "2": "late", "4": "late"})


@pytest.mark.three_servers
async def test_a_shard_that_moves_to_and_fro_has_each_row_once_though_its_node_stands_still(land: Land) -> None:
    """At each move rows of the shard run, and others wait in the queue of its zone. At the last one the node of its
    zone stands still with a row that it has done, for longer than its hold over the row lasts."""
    async with two_zones(land, ZONE_STALL="row/1080") as (ground, *_):
        await land.zones.apply(map=TWO)
        _of_shard(land, range(1000, 1060))
        begun_s = time.monotonic()
        for count, to in ((1, "a"), (5, "b"), (9, "a")):
            await ground.all_worked("row", count)
            await land.zones.apply(moves={"7": to})
        found = await ground.all_worked("row", 60)
        assert time.monotonic() - begun_s < LATE_S, "what the move has dropped is loaded again at once"
        assert {each.zone for each in found.values()} == {"a", "b"}

        _of_shard(land, range(1080, 1081))
        await ground.all_worked("row", 61)
        _of_shard(land, range(1081, 1082))
        await land.zones.apply(moves={"7": "b"})
        found = await ground.all_worked("row", 62)
        assert found["1081"].begun_s > found["1080"].ended_s + 3
        assert (found["1080"].zone, found["1081"].zone) == ("a", "b")
        assert ground.stood_still()


def _of_shard(land: Land, rows: range) -> None:
    """Add rows of shard 7."""
    with sqlite_file(land.path) as db:
        db.executemany("INSERT INTO rows VALUES (?, 7)", [(row,) for row in rows])
