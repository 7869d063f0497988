"""Shard maps: which are sound, and what a change of one moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.zone.rules.routing import (
    BadMap,
    ShardMap,
    ShardMove,
    balanced,
    check_lasting,
    drained,
    made,
    moved,
    moves,
    next_map,
    restored,
)

THREE = made({"a": "0-32", "b": "33-65", "c": "66-99"}, count=100)


@st.composite
def maps(draw: st.DrawFn) -> ShardMap:
    zones = draw(st.lists(st.sampled_from("abcd"), min_size=2, max_size=4, unique=True))
    owners = draw(st.lists(st.sampled_from(zones), min_size=1, max_size=30))
    weights = {zone: draw(st.sampled_from([0.5, 1.0, 2.0])) for zone in zones}
    return ShardMap(
        epoch=3, count=len(owners), owners={str(at): zone for at, zone in enumerate(owners)}, weights=weights
    )


@pytest.mark.parametrize(
    ("zones", "says"),
    [
        ({"a": "0-32", "b": "34-99"}, "shards 33: have no zone"),
        ({"a": "0-50", "b": "50-99"}, "shard 50: is in zones a and b"),
        ({"a": "0-49", "b": "50-100"}, "shard 100: there are 100 shards, 0 to 99"),
        ({"a": "0-49", "b": "50-"}, "is no shard"),
        ({"a": "0-49", "b": "99-50"}, "from the lower to the higher"),
        ({"a": "0-49", "b": "5o-99"}, "is no shard"),
        ({"a": "0-9999"}, "zone a: 0-9999: there are at most 1000 shards"),
        ({"a__b": "0-99"}, "zone 'a__b'"),
        ({"a" * 25: "0-99"}, "use 1 to 24"),
        ({}, "have no zone"),
    ],
)
def test_a_map_that_is_not_sound_is_refused(zones: dict[str, str], says: str) -> None:
    with pytest.raises(BadMap, match=says):
        made(zones, count=100)


@pytest.mark.parametrize("count", [0, -1, 1_001])
def test_a_number_of_shards_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(BadMap, match="use 1 to 1000"):
        made({"a": ""}, count=count)


def test_regions_are_shards_by_their_codes() -> None:
    regions = made({"eu": "DE, FR", "us": ["US"]}, function="region")
    assert regions.owners == {"DE": "eu", "FR": "eu", "US": "us"}
    assert regions.shards_text("eu") == "DE,FR"
    assert regions.shard_of("JP") == "JP"
    with pytest.raises(BadMap, match="region 'D E'"):
        made({"eu": "D E"}, function="region")


def test_a_new_map_has_the_next_epoch_and_knows_since_when_an_owner_has_a_shard() -> None:
    first = next_map(None, THREE, at_ms=1, by="ann", why="first", above=4)
    assert first.epoch == 5
    second = next_map(first, moved(first, {"7": "b"}), at_ms=2, by="ann", why="canary")
    assert (second.epoch, second.since["7"], second.since["8"]) == (6, 6, 5)
    assert moves(first, second) == [ShardMove("7", "a", "b")]


def test_shards_are_not_cut_otherwise_once_there_are_offsets() -> None:
    with pytest.raises(BadMap, match="100 by number cannot become 101 by number"):
        next_map(THREE, made({"a": "0-100"}, count=101), at_ms=1, by="", why="")
    with pytest.raises(BadMap, match="cannot become 100 by hash"):
        next_map(THREE, replace(THREE, function="hash"), at_ms=1, by="", why="")


def test_a_move_to_an_unknown_zone_or_of_an_unknown_shard_is_refused() -> None:
    with pytest.raises(BadMap, match="zone 'z': is not in the map; it has a, b, c"):
        moved(THREE, {"7": "z"})
    with pytest.raises(BadMap, match="shard '100': there is none"):
        moved(THREE, {"100": "a"})


def test_a_drained_zone_gives_its_shards_by_weight_and_gets_them_back() -> None:
    weighed = replace(THREE, weights={"b": 2.0, "c": 1.0})
    after = drained(weighed, "a")
    assert not after.shards_of("a")
    assert (len(after.shards_of("b")), len(after.shards_of("c"))) == (66, 34)
    assert {move.before for move in moves(weighed, after)} == {"a"}
    back = restored(after, "a")
    assert back.owners == THREE.owners
    assert back.drained == {}
    with pytest.raises(BadMap, match="is not drained"):
        restored(back, "a")


def test_the_last_zone_is_not_drained() -> None:
    two = drained(drained(THREE, "a"), "b")
    assert len(two.shards_of("c")) == 100
    with pytest.raises(BadMap, match="no other zone takes them"):
        drained(two, "c")


def test_a_dead_zone_gets_no_shards_that_would_be_dealt_again_at_once() -> None:
    taking = replace(THREE, takeover_ms=0)
    out = drained(taking, "a", without={"a"})
    with pytest.raises(BadMap, match="zone a: is dead, and by the map's takeover"):
        check_lasting(out, restored(out, "a"), {"a"})
    check_lasting(out, restored(out, "a"), {"b"})
    check_lasting(out, moved(out, {"7": "c"}), {"a"})
    check_lasting(out, replace(restored(out, "a"), takeover_ms=None), {"a"})
    check_lasting(out, restored(out, "a"), {"a", "b", "c"})  # nobody is left to take them


@given(maps())
def test_draining_moves_only_the_zones_own_shards_and_restoring_brings_them_back(shards: ShardMap) -> None:
    zone = shards.zones()[0]
    after = drained(shards, zone)
    assert not after.shards_of(zone)
    assert {move.shard for move in moves(shards, after)} == shards.shards_of(zone)
    assert restored(after, zone).owners == shards.owners


@given(maps())
def test_balance_gives_by_weight_and_moves_only_what_is_too_much(shards: ShardMap) -> None:
    after = balanced(shards)
    total, weights = shards.count, sum(map(shards.weight, shards.zones()))
    for zone in shards.zones():
        assert abs(len(after.shards_of(zone)) - total * shards.weight(zone) / weights) < 1
        if len(after.shards_of(zone)) >= len(shards.shards_of(zone)):
            assert shards.shards_of(zone) <= after.shards_of(zone)
        else:
            assert after.shards_of(zone) <= shards.shards_of(zone)
    assert balanced(after).owners == after.owners
