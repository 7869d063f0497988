"""The zone keeper on real servers: a map that is taken in two steps, a cut, a dead zone, a hub that is away."""

from pathlib import Path

import anyio
import pytest
from anyio import sleep

from actors.zone.routing import MAP
from actors.zone.rules.hub import LEAP
from streams.clock import monotonic_s
from streams.errors import RevisionConflict
from tests.support.zone_keepers import LEASE_MS, Zone, country, until

LEASE_S = LEASE_MS / 1000


async def _holds(zone: Zone) -> bool:
    return zone.life.may_run()


async def _stands(*zones: Zone) -> bool:
    return not any(zone.life.may_run() for zone in zones)


async def _lives(*zones: Zone) -> bool:
    return all(zone.life.may_run() for zone in zones)


async def test_each_zone_takes_the_map_of_the_hub(binary: Path, tmp_path: Path) -> None:
    async with country(tmp_path) as land:
        epoch = await land.set_map({"east": range(4), "west": range(4, 6)})
        await land.has("east", range(4))
        await land.has("west", range(4, 6))
        for zone in land.zones.values():
            shards = await zone.map()
            assert shards is not None
            assert shards.epoch == epoch
        west = land.zones["west"]
        await west.new_keeper(has_views=False).step()
        assert (await west.keeper.records())["west"].state == "in", "a keeper that begins does not stop its zone"


async def test_a_shard_moves_when_its_run_has_ended_and_its_offset_goes_with_it(binary: Path, tmp_path: Path) -> None:
    async with country(tmp_path) as land:
        east, west = land.zones["east"], land.zones["west"]
        await land.set_map({"east": range(4), "west": range(4, 6)})
        await land.has("east", range(4))
        stored = await east.claim("3")
        stored = await east.save("3", stored, 41)
        epoch = await land.set_map({"east": range(3), "west": range(3, 6)})
        await land.has("east", range(3))
        stored = await east.save("3", stored, 42)  # the run ends its batch
        with anyio.move_on_after(0.7):
            await land.has("west", range(3, 6))
            pytest.fail("west has a shard that a run of east still has")
        east.has_taken = False  # nor before what is bound to the shard has ended
        await east.free("3")
        with anyio.move_on_after(0.7):
            await land.has("west", range(3, 6))
            pytest.fail("west has a shard to which work of east is bound")
        east.has_taken = True
        await land.has("west", range(3, 6))
        record, _ = await west.record("3")
        assert (record.zone, record.offset, record.is_free, record.epoch) == ("east", 42, True, epoch - 1)
        claimed = await west.claim("3")
        assert claimed.record.came is not None
        assert (claimed.record.came.before, claimed.record.came.is_forced) == ("east", False)
        await west.is_copied("3", 42)


async def test_a_run_that_does_not_end_in_time_loses_its_shard_and_its_save_is_refused(
    binary: Path, tmp_path: Path
) -> None:
    async with country(tmp_path) as land:
        east = land.zones["east"]
        await land.set_map({"east": range(2), "west": [2]})
        await land.has("east", range(2))
        stored = await east.claim("1")
        await land.set_map({"east": [0], "west": [1, 2]}, drain_ms=300)
        await land.has("west", [1, 2])
        with pytest.raises(RevisionConflict):
            await east.save("1", stored, 9)
        again = await east.record("1")
        assert again.record.is_free


async def test_two_zones_exchange_shards_without_waiting_for_each_other(binary: Path, tmp_path: Path) -> None:
    async with country(tmp_path) as land:
        await land.set_map({"east": [0, 1], "west": [2, 3]})
        await land.has("west", [2, 3])
        await land.set_map({"east": [2, 3], "west": [0, 1]})
        await land.has("east", [2, 3])
        await land.has("west", [0, 1])


async def test_a_killed_zone_is_taken_over_and_what_it_wrote_last_is_found(binary: Path, tmp_path: Path) -> None:
    async with country(tmp_path) as land:
        east, west = land.zones["east"], land.zones["west"]
        await land.set_map({"east": range(3), "west": [3]})
        await land.has("east", range(3))
        stored = await east.claim("0")
        await east.save("0", stored, 77)
        await east.is_copied("0", 77)
        east.die()
        land.servers.kill("east")
        killed_s = monotonic_s()
        await land.has("west", range(4))
        assert monotonic_s() - killed_s < LEASE_S + 30  # and what a busy machine adds
        record, _ = await west.record("0")
        assert (record.offset, record.is_free) == (77, False)
        claimed = await west.claim("0")
        assert claimed.record.came is not None
        assert claimed.record.came.is_forced


@pytest.mark.parametrize("trouble", ["cut", "stall"])
async def test_a_zone_that_is_cut_off_stops_before_another_begins_and_catches_up(
    binary: Path, tmp_path: Path, trouble: str
) -> None:
    async with country(tmp_path) as land:
        east, west = land.zones["east"], land.zones["west"]
        await land.set_map({"east": range(3), "west": [3]})
        await land.has("east", range(3))
        stored = await east.claim("0")
        stored = await east.save("0", stored, 5)
        await east.is_copied("0", 5)
        (land.servers.cut if trouble == "cut" else land.servers.stall)("east")
        assert await east.shards() == {"0", "1", "2"}, "it goes on"
        stored = await east.save("0", stored, 8)
        while await west.shards() == {"3"}:
            both = await east.shards() & (await west.shards() | await west.shards())
            assert not both
            await sleep(0.01)
        assert not east.life.may_run()
        await land.has("west", range(4))
        assert (await west.record("0")).record.offset == 5, (
            "what east saved since it was cut off is not known, and repeated"
        )
        claimed = await west.claim("0")
        await west.save("0", claimed, 6)
        late = await east.save("0", stored, 9)  # a run that does not know
        assert late.record.epoch < claimed.record.epoch
        land.servers.heal("east")
        await until(lambda: _holds(east))
        await east.is_copied("0", 9)
        assert await east.shards() == set()
        assert (await west.record("0")).record.offset == 6, "a late save of the old owner changes nothing"
        await west.free("0")
        await land.set_map({"east": range(3), "west": [3]})
        await land.has("east", range(3))
        assert (await east.record("0")).record.offset == 6, "the copy of the last owner counts, not what is greater"


async def test_without_the_hub_zones_work_until_their_lease_ends_and_nobody_is_taken_over(
    binary: Path, tmp_path: Path
) -> None:
    async with country(tmp_path) as land:
        await land.set_map({"east": [0, 1], "west": [2]})
        await land.has("east", [0, 1])
        await land.has("west", [2])
        await until(lambda: _lives(*land.zones.values()))
        land.servers.kill("hub")
        assert await _lives(*land.zones.values())
        await until(lambda: _stands(*land.zones.values()), LEASE_S + 30)
        await land.servers.start("hub")
        await land.has("east", [0, 1], within_s=60)
        await land.has("west", [2], within_s=60)
        assert {record.state for _, record in land.zones["east"].life.zones.items()} == {"in"}


async def test_no_zone_works_while_the_hub_has_an_older_map_than_it(binary: Path, tmp_path: Path) -> None:
    """The hub's store was put back to an earlier state: what it knows of the zones may not be true."""
    async with country(tmp_path) as land:
        east, west = land.zones["east"], land.zones["west"]
        await land.set_map({"east": [0, 1], "west": [2]})
        await land.has("west", [2])
        old = await east.far("HUB_ROUTING").get(MAP)
        assert old is not None
        epoch = await land.set_map({"east": [0], "west": [1, 2]})
        await land.has("west", [1, 2])
        await until(lambda: _is_at(east, epoch))
        await east.far("HUB_ROUTING").put(MAP, old.raw)
        await until(lambda: _stands(east, west))
        await until(lambda: _has_taken(east, epoch))
        await land.set_map({"east": [0, 1], "west": [2]}, above=epoch + LEAP)
        await land.has("east", [0, 1])
        await land.has("west", [2])


async def _is_at(zone: Zone, epoch: int) -> bool:
    shards = await zone.map()
    return shards is not None and shards.epoch == epoch


async def _has_taken(zone: Zone, epoch: int) -> bool:
    return all(record.taken == epoch for record in (await zone.keeper.records()).values())


async def test_a_zone_that_lost_its_store_has_its_own_copies(binary: Path, tmp_path: Path) -> None:
    async with country(tmp_path) as land:
        east = land.zones["east"]
        await land.set_map({"east": [0], "west": [1]})
        await land.has("east", [0])
        stored = await east.claim("0", run=99)
        await east.save("0", stored, 12)
        await east.is_copied("0", 12)
        for short in ("ROUTING", "OFFSETS"):
            await east.connection.api(f"STREAM.PURGE.KV_PENSTOCK_{short}")
        await land.has("east", [0])
        record, _ = await east.record("0")
        assert (record.offset, record.run) == (12, 0)
