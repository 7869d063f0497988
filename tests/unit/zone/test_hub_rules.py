"""A hub that was lost: when its map may be made again, and from whose."""

import pytest
from msgspec.structs import replace

from actors.zone.rules.hub import LEAP, ZoneRecord, above_all, is_behind, is_met_first, map_of_zone
from actors.zone.rules.routing import BadMap, made, next_map

OWN = replace(next_map(None, made({"a": "0", "b": "1"}, count=2), at_ms=1, by="", why=""), epoch=8)
HEARD = {"a": ZoneRecord(taken=8), "b": ZoneRecord(taken=7)}


def test_a_hub_without_the_zones_map_or_with_an_older_one_is_behind() -> None:
    assert is_behind(None, OWN)
    assert is_behind(replace(OWN, epoch=6), OWN)
    assert not is_behind(OWN, OWN)
    assert not is_behind(None, None)


def test_a_hub_that_does_not_know_a_zone_that_has_worked_is_a_new_one() -> None:
    assert is_met_first(None, OWN)
    assert is_met_first(ZoneRecord(), OWN)
    assert not is_met_first(ZoneRecord(taken=8), OWN)
    assert not is_met_first(None, None)


def test_a_lost_map_is_made_from_the_latest_one_when_all_zones_were_heard() -> None:
    assert map_of_zone(OWN, None, HEARD) is OWN
    with pytest.raises(BadMap, match="not heard of these zones yet: b"):
        map_of_zone(OWN, None, {"a": ZoneRecord(taken=8)})
    with pytest.raises(BadMap, match="zone b has a later map, of epoch 10"):
        map_of_zone(OWN, None, {**HEARD, "b": ZoneRecord(taken=10)})
    with pytest.raises(BadMap, match="nothing to make again"):
        map_of_zone(OWN, OWN, HEARD)
    with pytest.raises(BadMap, match="this zone has no map"):
        map_of_zone(None, None, {})


def test_the_epochs_of_the_hub_are_even_and_at_least_two_above_all_that_are_known() -> None:
    assert [above_all((known,), is_lost=False) + 1 for known in (0, 1, 2, 3)] == [2, 4, 4, 6]
    assert above_all((7, 8), is_lost=True) + 1 == 10 + LEAP
