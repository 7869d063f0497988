"""The agreement of zones at the hub, in every order of events, and the variants that it must catch."""

import pytest
from msgspec.structs import replace

from actors.zone.rules.hub import ZoneRecord
from tests.unit.zone.hub_search import ZONES, HubRules, Place, World, search

NEAREST = 120_000
"""Worlds that the run of every change looks at. Each variant below but one is caught among them, the last of them after
109,681. `just deep` looks at all."""
IN_PART_AND_WHOLE = pytest.mark.parametrize(
    "most", [NEAREST, pytest.param(1_000_000, marks=pytest.mark.long)], ids=["the nearest", "all"]
)


@IN_PART_AND_WHOLE
def test_no_shard_runs_in_two_zones_whatever_happens_when(most: int) -> None:
    worlds, fault = search(HubRules(), most=most)
    assert not fault
    assert NEAREST <= worlds < 1_000_000


class _Lost(HubRules):
    """The hub loses its store once."""

    changes = 1
    losses = 1


@IN_PART_AND_WHOLE
def test_no_shard_runs_in_two_zones_when_the_hub_is_lost_and_made_again(most: int) -> None:
    worlds, fault = search(_Lost(), most=most)
    assert not fault
    assert NEAREST <= worlds < 1_000_000


class _Hasty(_Lost):
    """A zone comes in at a new hub while leases at the one before go on."""

    def may_meet(self, world: World) -> bool:
        return True


class _Mapless(_Lost):
    """A zone comes in at a hub that has no map, with its own."""

    def may_join_without_map(self) -> bool:
        return True


class _Unheld(HubRules):
    """A zone takes a map, and does not say what it still holds."""

    def held(self, place: Place) -> tuple[str, ...]:
        return ()


class _OldView(HubRules):
    """Whether a shard is free is read from a view that may be older than the map."""

    changes = 1
    looks_back = True

    def asked(self, world: World, place: Place) -> dict[str, ZoneRecord]:
        return dict(zip(ZONES, place.view, strict=True))


class _Impatient(HubRules):
    """A zone that may still act is put out."""

    def may_put_out(self, place: Place) -> bool:
        return True


class _OldMap(HubRules):
    """A zone comes back with the map that it knows."""

    def joins_at(self, world: World, place: Place) -> int:
        return place.seen


class _Returns(HubRules):
    """A zone comes back to what it had without asking the others."""

    def may_join(self, world: World, place: Place) -> bool:
        return True


class _Later(HubRules):
    """A zone that has taken a later map counts as one that has taken this one."""

    def are_free(self, gained: frozenset[str], epoch: int, zones: dict[str, ZoneRecord], zone: str) -> bool:
        return super().are_free(
            gained, epoch, {name: replace(each, taken=min(each.taken, epoch)) for name, each in zones.items()}, zone
        )


class _Unheard(HubRules):
    """A zone gains without asking the others."""

    def are_free(self, gained: frozenset[str], epoch: int, zones: dict[str, ZoneRecord], zone: str) -> bool:
        return True


@pytest.mark.parametrize(
    "variant",
    [
        *(_Hasty, _Mapless, _Unheld, _Impatient, _OldMap, _Returns, _Later, _Unheard),
        pytest.param(_OldView, marks=pytest.mark.long),  # after 232,523 worlds
    ],
)
def test_a_variant_of_the_rules_is_caught(variant: type[HubRules]) -> None:
    _, fault = search(variant())
    assert "the shard runs in" in fault
