"""Zones on servers of their own: what stays in a zone, what the hub holds, and what a broken wire does."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from anyio import fail_after, sleep

from streams.buckets.bucket import Bucket
from streams.buckets.entries import Change, Synced
from streams.embedded.server import EmbeddedServer
from streams.errors import Disconnected, OutcomeUnknown, RevisionConflict
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import hub, wanted
from streams.topology.topology import apply, require
from tests.support.command import penstock
from tests.support.server import connected
from tests.support.zones import HUB, Zones, at, zones


class Place:
    """A connection to one server, and buckets seen from there."""

    def __init__(self, connection: Connection, publisher: Publisher) -> None:
        self.connection = connection
        self.publisher = publisher

    def here(self, short: str) -> Bucket[bytes]:
        name = self.connection.namespace.bucket(short)
        return Bucket(self.connection, self.publisher, name, bytes)

    def hub(self, short: str) -> Bucket[bytes]:
        name = self.connection.namespace.bucket(short)
        return Bucket(self.connection, self.publisher, name, bytes, domain=HUB)


class Joined:
    """Servers that run, and a place at each."""

    def __init__(self, servers: Zones, places: dict[str, Place]) -> None:
        self.servers = servers
        self.east, self.west, self.hub = places["east"], places["west"], places[HUB]


@pytest.fixture
async def joined(binary: Path, tmp_path: Path) -> AsyncIterator[Joined]:
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(zones(tmp_path))
        places = {}
        for name in (HUB, *servers.names):
            connection = await stack.enter_async_context(at(servers.url(name)))
            places[name] = Place(connection, await stack.enter_async_context(Publisher(connection)))
            topology = hub(connection.namespace, profile="fast") if name == HUB else None
            await apply(connection, topology or wanted(connection.namespace, profile="fast"))
        yield Joined(servers, places)


async def test_what_nodes_say_to_each_other_stays_in_their_zone(joined: Joined) -> None:
    east, west = joined.east, joined.west
    said = ("penstock.rates", "penstock.api.jobs.add", "$SRV.PING")
    at_hub, at_west = await _heard(joined.hub, *said, "marker"), await _heard(west, *said, "aside")
    with fail_after(60):
        while "marker" not in at_hub:  # as long as the interest in it has not reached the zone
            for subject in (*said, "aside", "marker"):
                await east.connection.publish_core(subject, b"{}")
            await sleep(0.02)
    assert set(at_hub) == {"marker"}, "the wire keeps the order, so the others would have come before"
    assert at_west == [], "what the hub does not listen to does not even leave the zone"


async def test_work_and_records_of_a_zone_are_its_own(joined: Joined) -> None:
    east, west = joined.east, joined.west
    await east.publisher.publish("penstock.submit.job.mail", b"{}", message_id="a")
    await east.here("FLOWS").put("mail", b"{}")
    assert await west.here("FLOWS").get("mail") is None
    info = await west.connection.api("STREAM.INFO.PENSTOCK_SUBMIT")
    assert info["state"]["messages"] == 0
    assert info["domain"] == "west"
    await require(east.connection, wanted(east.connection.namespace, profile="fast"))


async def test_a_bucket_at_the_hub_is_one_for_all_zones(joined: Joined) -> None:
    east, west = joined.east.hub("HUB_ROUTING"), joined.west.hub("HUB_ROUTING")
    revision = await east.create("map", b"one")
    found = await west.get("map")
    assert found is not None
    assert (found.raw, found.revision) == (b"one", revision)
    async with west.watch() as changes:
        await west.compare_and_set("map", b"two", revision)
        with pytest.raises(RevisionConflict):
            await east.compare_and_set("map", b"lost", revision)
        with pytest.raises(RevisionConflict):
            await east.create("map", b"lost")
        seen = []
        with fail_after(60):
            async for change in changes:
                if isinstance(change, Change) and change.entry is not None:
                    seen.append(change.entry.raw)
                if b"two" in seen:
                    break
    _, after = await east.update("map", lambda entry: (entry.raw + b"!" if entry else None, None))
    assert [(entry.raw, entry.revision) for entry in await west.entries()] == [(b"two!", after)]
    assert await joined.east.here("SETTINGS").get("map") is None
    await west.delete("map")
    assert await east.get("map") is None


async def test_many_large_records_come_through_a_watch_of_the_hub(joined: Joined) -> None:
    """The server waits for the watch to say that it keeps up, also over the wire."""
    writer, value = joined.hub.here("HUB_OFFSETS"), b"x" * 20_000
    for number in range(500):
        await writer.put(f"east.job.{number}", value)
    count = 0
    with fail_after(60):
        async with joined.west.hub("HUB_OFFSETS").watch() as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    break
                count += 1
    assert count == 500


async def test_a_zone_that_is_cut_off_works_on_and_knows_that_the_hub_is_away(joined: Joined) -> None:
    east, far = joined.east.here("FLOWS"), joined.east.hub("HUB_ZONES")
    await far.put("east", b"1")
    joined.servers.cut("east")
    with fail_after(60):
        await east.put("mail", b"{}")
        is_unknown = True
        while is_unknown:  # as long as the zone's server has not noticed the cut
            is_unknown = False
            try:
                with pytest.raises(Disconnected, match="domain hub"):
                    await far.put("east", b"2", timeout_s=0.5)
            except OutcomeUnknown:
                is_unknown = True
        with pytest.raises(Disconnected, match="domain hub"):
            await far.get("east", timeout_s=0.5)
        with pytest.raises(Disconnected, match="domain hub"):
            await far.entries(timeout_s=0.5)
        assert await joined.west.hub("HUB_ZONES").get("east") is not None, "the other zone goes on"


async def test_a_wire_that_stands_still_leaves_a_write_unknown(joined: Joined) -> None:
    far = joined.east.hub("HUB_ZONES")
    await far.put("east", b"1")
    joined.servers.stall("east")
    with fail_after(60), pytest.raises(OutcomeUnknown):
        await far.put("east", b"2", timeout_s=0.5)


@pytest.mark.parametrize("trouble", ["cut", "stall", "hub"])
async def test_a_watch_of_the_hub_goes_on_when_the_wire_is_whole_again(joined: Joined, trouble: str) -> None:
    servers, far = joined.servers, joined.east.hub("HUB_ROUTING")
    await joined.hub.here("HUB_ROUTING").put("map", b"one")
    with fail_after(60):
        async with far.watch() as changes:
            async for change in changes:
                match change:
                    case Synced() if trouble:
                        await _break(servers, trouble)
                        if trouble != "hub":
                            await joined.west.hub("HUB_ROUTING").put("map", b"two")
                        await _heal(servers, trouble)
                        if trouble == "hub":
                            await joined.west.hub("HUB_ROUTING").put("map", b"two")
                        trouble = ""
                    case Change(_, entry) if entry is not None and entry.raw == b"two":
                        break


async def test_what_a_killed_zone_has_told_the_hub_is_there(joined: Joined) -> None:
    await joined.east.hub("HUB_OFFSETS").put("east.job.1", b"7")
    joined.servers.kill("east")
    found = await joined.west.hub("HUB_OFFSETS").get("east.job.1")
    assert found is not None
    assert found.raw == b"7"


async def _heard(place: Place, *subjects: str) -> list[str]:
    """Return the list of the subjects on which a place has heard something."""
    heard: list[str] = []
    for subject in subjects:
        await place.connection.subscribe(subject, lambda message: heard.append(message.subject))
    await place.connection.flush()
    return heard


async def _break(servers: Zones, trouble: str) -> None:
    match trouble:
        case "cut":
            servers.cut("east")
        case "stall":
            servers.stall("east")
        case "hub":
            servers.kill("hub")


async def _heal(servers: Zones, trouble: str) -> None:
    if trouble == "hub":
        await servers.start("hub")
    else:
        servers.heal("east")


async def test_init_makes_the_buckets_of_a_hub(server: EmbeddedServer, namespace: Namespace) -> None:
    async with connected(server, namespace) as connection:
        where = ("--nats", server.url, "--namespace", namespace.name)
        made = await penstock("init", "--hub", *where)
        assert made.code == 0, made.err
        await require(connection, hub(namespace, profile="fast"))
        assert "everything is there" in (await penstock("init", "--hub", *where)).out
        refused = await penstock("init", "--hub", "--seed", __file__, *where)
        assert refused.code == 2
        assert "the hub has no settings" in refused.err
