"""Zones and the shard map of the client.

for zone in await client.zones.list(): ...
told = await client.zones.drain("a", dry_run=True)
"""

import builtins

import msgspec

from actors.zone.desk import ChangeView, MapView, RoutingChange, RoutingDocument, ZoneShown, ZoneView
from actors.zone.rules.report import MoveReport
from penstock.api.forms.zones import MapsShown, ZonesShown
from penstock.errors import UsageError
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_forms import decode, encode

__all__ = ["RoutingChange", "RoutingDocument", "ZoneCalls"]


class ZoneCalls:
    """The zones of one namespace. `by`: who asks for a change, for the history. The methods raise NotAccepted (`code`:
    `bad`, `not_found`), Timeout, Unavailable."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    async def list(self) -> builtins.list[ZoneView]:
        """Return all zones, with their shards and live nodes."""
        return decode((await self._service.request("list", b"{}")).payload, ZonesShown).zones

    async def show(self, zone: str) -> ZoneShown:
        """Return a zone with its jobs, and how its shards came."""
        return decode((await self._service.request("show", encode({"zone": zone}))).payload, ZoneShown)

    async def drain(self, zone: str, *, dry_run: bool = False, by: str = "") -> ChangeView:
        """Deal the zone's shards to the others. `dry_run`: only say what it would do."""
        return await self._steer("drain", zone, dry_run, by)

    async def restore(self, zone: str, *, dry_run: bool = False, by: str = "") -> ChangeView:
        """Give a drained zone its shards back. `dry_run`: only say what it would do."""
        return await self._steer("restore", zone, dry_run, by)

    async def routing(self) -> MapView:
        """Return the shard map in force."""
        return decode((await self._service.request("routing", b"{}")).payload, MapView)

    async def plan(self, **change: object) -> ChangeView:
        """Say what a change of the map would do: `map={"shards": 100, "zones": {"a": "0-49", "b": "50-99"}}`,
        `moves={"7": "b"}`, `balance=True`, `weights`, `drain`, `takeover`, `epoch` (the owners of an earlier one)."""
        ask = msgspec.json.encode(_change(change))
        return decode((await self._service.request("plan", ask)).payload, ChangeView)

    async def apply(self, *, by: str = "", **change: object) -> ChangeView:
        """Change the map, as `plan` says. `if_epoch`: only if this is the epoch in force."""
        ask = encode({"change": _change(change), "by": by})
        return decode((await self._service.request("apply", ask)).payload, ChangeView)

    async def history(self) -> builtins.list[MapView]:
        """Return the kept maps, the newest first."""
        return decode((await self._service.request("history", b"{}")).payload, MapsShown).maps

    async def report(self, epoch: int | None = None) -> MoveReport:
        """Return how a change of the map went, by default the last one: what was taken, how fast, how many rows came
        again. `is_over`: there is no more to come."""
        return decode((await self._service.request("report", encode({"epoch": epoch}))).payload, MoveReport)

    async def _steer(self, verb: str, zone: str, dry_run: bool, by: str) -> ChangeView:
        ask = encode({"zone": zone, "dry_run": dry_run, "by": by})
        return decode((await self._service.request(verb, ask)).payload, ChangeView)


def _change(values: dict[str, object]) -> RoutingChange:
    try:
        return msgspec.convert(values, RoutingChange)
    except msgspec.ValidationError as error:
        raise UsageError(f"change of the shard map: {error}") from error
