"""Whole node processes in zones on servers of their own, joined at a hub: set up and looked at by the commands."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import anyio
import msgspec

from actors.fetch.sources import SourceKey
from actors.zone.keeper import REMAKE
from actors.zone.routing import MAP
from actors.zone.rules.hub import EPOCHS, LEAP
from actors.zone.rules.routing import made, next_map
from penstock.admin.check import Check
from penstock.admin.doctor import examine
from penstock.admin.sources import Wanted, add
from penstock.node.config import Config
from penstock.sdk.client_adds import new_job
from streams.buckets.bucket import Bucket
from streams.clock import monotonic_s
from streams.publish.publisher import Publisher
from tests.integration.zone.test_bound import Ground, make_tables
from tests.support.command import node, penstock
from tests.support.zone_hub_land import JOBS, LEASE_S, HubLand, hub_land
from tests.support.zones import HUB, at, zones

SLOW_S = 1.0


class SlowShop:
    """A platform that takes a while for each answer, and is then out of order. It notes from when to when each zone
    asked: the zone is the first part of the path."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float, float]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun_s, path = monotonic_s(), (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        await anyio.sleep(SLOW_S)
        self.asked.append((path.split("/")[1], begun_s, monotonic_s()))
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    def of(self, zone: str) -> list[tuple[float, float]]:
        return [(begun_s, ended_s) for asker, begun_s, ended_s in self.asked if asker == zone]

    async def asked_by(self, zone: str, count: int) -> None:
        """Wait until a zone has had so many answers."""
        with anyio.fail_after(60):
            while len(self.of(zone)) < count:  # noqa: ASYNC110
                await anyio.sleep(0.05)


async def _apply(land: HubLand, zone: str, *change: str) -> int:
    """Change the map at a terminal, and return its epoch."""
    told = await land.told(zone, "routing", "apply", *change)
    assert told["is_applied"]
    return int(told["map"]["epoch"])


async def test_shards_move_from_zone_to_zone_and_no_row_is_missing(binary: Path, tmp_path: Path) -> None:
    async with hub_land(tmp_path) as land, land.node("east") as east, land.node("west") as west:
        land.rows.add(300)
        assert await _apply(land, "east", str(land.map)) == 2
        await land.all_done()
        await land.holds("east", "01234")
        await land.holds("west", "56789")
        assert land.senders(0) == {shard: "east" if shard < 5 else "west" for shard in range(10)}

        planned = await land.told("west", "routing", "plan", "--move", "0=west", "--move", "1=west")
        assert [move["after"] for move in planned["plan"]["moves"]] == ["west", "west"]
        land.rows.add(100)
        assert await _apply(land, "west", "--move", "0=west", "--move", "1=west", "--if-epoch", "2") == 4
        last = land.rows.add(100)
        await land.holds("west", "0156789")
        await land.holds("east", "234")
        land.rows.add(100)
        await land.all_done()
        assert land.senders(last) == {shard: "east" if shard in (2, 3, 4) else "west" for shard in range(10)}
        assert land.fenced() == []
        assert set(land.rows.handled("tick").values()) == {1}, "a planned move repeats no row"

        shown = await land.told("west", "zones", "show", "west")
        came = [each for each in shown["handovers"] if each["before"] == "east"]
        assert {(each["job"], each["shard"]) for each in came} == {(job, shard) for job in JOBS for shard in "01"}
        assert {(each["epoch"], each["skipped"], each["is_forced"]) for each in came} == {(4, 0, False)}
        for job in JOBS:
            [start] = {each["start"] for each in came if each["job"] == job}
            assert start <= min(each["offset"] for each in came if each["job"] == job)
        for line in (east.lines, west.lines):
            assert not [each for each in line if each["level"] == "error"]


async def test_what_is_bound_to_a_shard_begins_when_it_has_ended_in_the_other_zone(
    binary: Path, tmp_path: Path
) -> None:
    """Each zone has a queue of its own. What waits in one stays there."""
    async with hub_land(tmp_path) as land:
        make_tables(land.rows)
        for each in land.lands.values():
            each.app = "tests.support.bound_app"
        async with (
            land.node("east", ZONE_NAME="east", ZONE_GIFTS="east") as first,
            land.node("west", ZONE_NAME="west", ZONE_GIFTS="east"),
        ):
            await _apply(land, "east", str(land.map))
            for zone in ("east", "west"):
                await land.type(zone, "jobs", "topic", "bound-errands", "zone=shard:0")
            east, west = Ground(land.lands["east"], first), Ground(land.lands["west"])
            await west.jobs.add("bound-errands", {"ms": 0}, id="west")
            await east.jobs.add_many(
                [new_job("bound-errands", {"ms": ms}, id=name) for name, ms in (("quick", 0), ("slow", 2_500))]
            )
            await east.all_worked("job", 1)
            await _apply(land, "east", "--move", "0=west")
            found = await east.all_worked("job", 3)
            assert {each.number: each.zone for each in found.values()} == {
                "quick": "east", "slow": "east", "west": "west"
            }  # fmt: skip
            assert found["west"].begun_s >= found["slow"].ended_s

            await east.jobs.add("bound-errands", {"ms": 0}, id="late")
            why = (await east.jobs.why("late"))[0]
            assert (why.code, "bound to shard 0, which zone west owns" in why.reason) == ("nobody", True)
            where = ("--nats", land.servers.url("east"))
            refused = await penstock("flows", "set", "bound-gifts", "zone=shard:7", *where)
            assert (refused.code, "use each_zone=True in the code" in refused.err) == (2, True)
            await _apply(land, "east", "--move", "0=east")
            assert (await east.all_worked("job", 4))["late"].zone == "east"


async def test_a_source_is_read_by_the_zone_of_its_shard_and_by_the_other_one_only_after_that(
    binary: Path, tmp_path: Path
) -> None:
    """Each zone has the source in records of its own, and reads while the shard is its own."""
    source, shop = SourceKey("bound-shop", "s1"), SlowShop()
    async with hub_land(tmp_path) as land, await asyncio.start_server(shop.answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with land.node("east"), land.node("west"):
            await _apply(land, "east", str(land.map))
            for zone, each in land.lands.items():
                records = Ground(each).records
                account = {"base_url": f"{url}/{zone}", "shop": "s1"}
                await add(records, Wanted(source, "mall", account, start="-1h", settings={"zone": "shard:0"}))
            await shop.asked_by("east", 2)
            for before, after in (("east", "west"), ("west", "east")):
                count, asked = len(shop.of(after)), len(shop.of(before))
                await shop.asked_by(before, asked + 1)
                await _apply(land, "east", "--move", f"0={after}")
                await shop.asked_by(after, count + 3)
                begun_s = shop.of(after)[count][0]
                assert begun_s >= max(ended_s for _, ended_s in shop.of(before)), (before, after, shop.asked)


async def test_each_zone_shows_the_map_and_the_zones_of_the_hub(binary: Path, tmp_path: Path) -> None:
    async with hub_land(tmp_path) as land, land.node("east"), land.node("west"):
        await _apply(land, "west", str(land.map))
        await _apply(land, "east", "--weight", "west=2")
        land.rows.add(120)
        for zone in ("east", "west"):
            await land.copied(zone, 120)
        for zone in ("east", "west"):
            listed = {each["zone"]: each for each in await land.told(zone, "zones", "list")}
            assert {name: (each["state"], each["count"], each["nodes"]) for name, each in listed.items()} == {
                "east": ("live", 5, ["east1"]),
                "west": ("live", 5, ["west1"]),
            }
            shown = await land.told(zone, "routing", "show")
            assert (shown["epoch"], shown["zones"]) == (4, {"east": "0-4", "west": "5-9"})
            kept = await land.told(zone, "routing", "history")
            assert [each["epoch"] for each in kept] == [4, 2]
            for other in ("east", "west"):
                one = await land.told(zone, "zones", "show", other)
                assert one["zone"]["shards"] == listed[other]["shards"]
                assert {job["job"]: job["start"] for job in one["jobs"]} == dict.fromkeys(JOBS, 120)
            planned = await land.told(zone, "routing", "plan", "--move", "0=west")
            assert {each["start"] for each in planned["plan"]["starts"]} == {120}
            for command in ("zones list", "zones show east", "routing show", "routing history", "routing report"):
                typed = await land.type(zone, *command.split())
                assert max(map(len, typed.out.splitlines())) <= 80


async def test_a_zone_that_is_cut_off_says_so_in_place_of_what_it_knew(binary: Path, tmp_path: Path) -> None:
    async with hub_land(tmp_path) as land, land.node("east"), land.node("west"):
        await _apply(land, "east", str(land.map))

        async def states(*wanted: str) -> list[str]:
            with anyio.fail_after(30):
                while True:
                    views = await land.told("east", "zones", "list")
                    if [view["state"] for view in views] == list(wanted):
                        return [view["zone"] for view in views]
                    await anyio.sleep(0.1)

        assert await states("live", "live") == ["east", "west"]
        land.servers.cut("east")
        assert await states("cut off", "unknown") == ["east", "west"]
        land.servers.heal("east")
        assert await states("live", "live") == ["east", "west"]


async def test_a_killed_zone_is_taken_over_and_its_new_server_takes_part_again(binary: Path, tmp_path: Path) -> None:
    async with hub_land(tmp_path) as land, land.node("west") as west:
        async with land.node("east") as east:
            land.rows.add(200)
            await _apply(land, "east", str(land.map))
            await land.all_done()
            land.rows.add(200)
            east.process.kill()
            land.servers.kill("east")
            killed_s = monotonic_s()
        await west.logged("zone.out", zone="east")
        await west.logged("zone.taken_over", zone="east")
        await land.holds("west", "0123456789")
        assert monotonic_s() - killed_s < LEASE_S + 30  # and what a busy machine adds
        last = land.rows.add(100)
        await land.all_done()
        assert set(land.senders(last - 100).values()) == {"west"}
        listed = {each["zone"]: each["state"] for each in await land.told("west", "zones", "list")}
        assert listed == {"east": "drained", "west": "live"}
        refused = await penstock("zones", "restore", "east", "--nats", land.servers.url("west"))
        assert (refused.code, "zone east: is dead" in refused.err) == (2, True)

        await land.servers.start("east")
        async with land.node("east"):
            await land.comes_in("east")
            await land.told("east", "zones", "restore", "east")
            await land.holds("east", "01234")
            last = land.rows.add(100)
            await land.all_done()
            assert {shard for shard, zone in land.senders(last - 100).items() if zone == "east"} == {0, 1, 2, 3, 4}


async def test_a_lost_hub_is_made_again_from_the_map_of_a_zone_and_epochs_never_go_back(
    binary: Path, tmp_path: Path
) -> None:
    async with hub_land(tmp_path) as land, land.node("east") as east, land.node("west") as west:
        await _apply(land, "east", str(land.map))
        epoch = await _apply(land, "east", "--weight", "west=2")
        land.rows.add(200)
        await land.all_done()
        for zone in ("east", "west"):
            await land.copied(zone, 200)
        land.servers.kill(HUB)
        shutil.rmtree(tmp_path / HUB)
        await land.servers.start(HUB)
        await land.type(HUB, "init", "--hub")
        for node in (east, west):
            await node.logged(
                "zone.keeper_waits", error=f"the hub has no map; this zone has one of epoch {epoch}: {REMAKE}"
            )
        for zone in ("east", "west"):
            await land.copied(zone, 200)
        last = land.rows.add(100)
        assert len(land.sent()) == last - 100, "no zone works before there is a map"
        assert await _apply(land, "west", "--from-zone") == epoch + LEAP + EPOCHS
        await land.all_done()
        assert land.senders(last - 100) == {shard: "east" if shard < 5 else "west" for shard in range(10)}
        again = await penstock("routing", "apply", "--from-zone", "--nats", land.servers.url("west"))
        assert (again.code, "nothing to make again" in again.err) == (2, True)


async def test_a_node_that_stood_still_past_its_lease_is_refused_by_the_database(binary: Path, tmp_path: Path) -> None:
    async with hub_land(tmp_path) as land, land.node("west") as west:
        async with land.node("east", GUARD_STOP_AT="2") as east:
            land.rows.add(400)
            epoch = await _apply(land, "west", str(land.map))
            await west.logged("zone.taken_over", zone="east")
            await land.all_done()
            os.kill(east.process.pid, signal.SIGCONT)
            with anyio.fail_after(60):
                while not land.fenced():  # noqa: ASYNC110 # a file tells nobody that it changed
                    await anyio.sleep(0.05)
            assert land.fenced() == [("east", epoch, east.process.pid)]
            await land.comes_in("east")
            await land.told("west", "zones", "restore", "east")
            await land.holds("east", "01234")
            land.rows.add(100)
            await land.all_done()


async def test_a_worker_alone_does_the_work_of_its_zone_beside_a_node_of_other_roles(
    binary: Path, tmp_path: Path
) -> None:
    """`penstock work` has no keeper, and learns of the map from the zone's own server."""
    async with hub_land(tmp_path) as land, land.node("west"), land.node("east", PENSTOCK_ROLES="conductor,timer,desk"):
        environment = {
            "PENSTOCK_HUB": "hub",
            "PENSTOCK_LOG_FORM": "json",
            "PENSTOCK_HTTP": "off",
            "ZONE_DB": str(land.rows.path),
        }
        where = ("--nats", land.servers.url("east"), "--zone", "east", "--name", "east2", "--log-level", "info")
        work = ("-m", "penstock", "work", land.rows.app)
        async with node(*where, command=work, environment=environment) as worker:
            await worker.logged("node.ready")
            land.rows.add(100)
            await _apply(land, "east", str(land.map))
            await land.all_done()
            assert await worker.end(signal.SIGTERM) == 0


async def test_the_doctor_says_when_the_hub_cannot_be_reached_and_when_a_zone_is_out(
    binary: Path, tmp_path: Path
) -> None:
    async with zones(tmp_path) as servers:

        async def hub_check() -> Check:
            config = Config(nats=servers.url("east"), zone="east", hub=HUB)
            [check] = [each for each in await examine(config) if each.name == "hub"]
            return check

        bare = await hub_check()
        assert (bare.level, "penstock init --hub" in bare.do) == ("fail", True)
        done = await penstock("init", "--hub", "--nats", servers.url(HUB))
        assert done.code == 0
        unknown = await hub_check()
        assert (unknown.level, "has not joined" in unknown.found) == ("warn", True)
        async with at(servers.url("east")) as connection, Publisher(connection) as publisher:
            name = connection.namespace.bucket("HUB_ZONES")
            bucket = Bucket(connection, publisher, name, bytes, domain=HUB)
            for state, level in (("in", "ok"), ("out", "warn")):
                await bucket.put("east", b'{"state":"%s"}' % state.encode())
                known = await hub_check()
                assert (known.level, f"zone east is {state}" in known.found) == (level, True)
            await bucket.put("east", b'{"state":"in"}')
            assert "zone east is in, at epoch 0 of 0" in (await hub_check()).found
            shards = next_map(None, made({"east": "0"}, count=1), at_ms=1, by="", why="")
            done = await penstock("init", "--nats", servers.url("east"))
            assert done.code == 0
            own = Bucket(connection, publisher, connection.namespace.bucket("ROUTING"), bytes)
            await own.put(MAP, msgspec.json.encode(shards))
            lost = await hub_check()
            assert (lost.level, "has no map; zone east has one of epoch 1" in lost.found) == ("fail", True)
            assert "--from-zone" in lost.do
        servers.kill(HUB)
        away = await hub_check()
        assert (away.level, "when its lease ends" in away.do) == ("fail", True)
