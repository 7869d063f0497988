"""Zones and the shard map of the client.

for zone in await client.zones.list(): ...
told = await client.zones.drain("a", dry_run=True)
"""

import builtins
from collections.abc import Callable
from typing import Any

import msgspec

from actors.runtime.rules.setting_values import Duration
from actors.runtime.supervisor import one_error
from actors.zone.rules.changes import RoutingChange, RoutingDocument
from actors.zone.rules.report import MoveReport
from actors.zone.views import ChangeView, MapView, ZoneShards, ZoneShown, ZoneView
from penstock.api.forms.zones import MapsShown, ZonesShown
from penstock.errors import UsageError
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_forms import millis
from penstock.sdk.pages import all_lines
from penstock.sdk.zone_programs import run_program
from penstock.sdk.zones import zone_handler

__all__ = ["RoutingChange", "RoutingDocument", "ZoneCalls", "ZoneShards"]


class ZoneCalls:
    """The zones of one namespace. `by`: who asks for a change, for the history. The methods raise NotAccepted (`code`:
    `bad`, `not_found`), Timeout, Unavailable, and UsageError for values that cannot be sent."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    async def list(self, *, after: str = "", limit: int | None = None) -> builtins.list[ZoneView]:
        """Return all zones by name, with their shards and live nodes, or up to `limit` of those after `after`."""
        return await all_lines(self._service, "list", ZonesShown, lambda page: page.zones, after=after, limit=limit)

    async def show(self, zone: str) -> ZoneShown:
        """Return a zone with its jobs, and how its shards came."""
        return await self._service.ask("show", {"zone": zone}, ZoneShown)

    async def shards(self, zone: str, *, after: int | None = None, wait: Duration = 0) -> ZoneShards:
        """Return the shards that a zone owns, and the epoch of the map. With `after`, an epoch that is known, wait up
        to `wait` (20 s at most) for a later one: a program of one's own asks again and again."""
        wait_ms = millis("wait", wait)
        ask = {"zone": zone, "after": after, "wait_ms": wait_ms}
        return await self._service.ask("shards", ask, ZoneShards, wait_s=wait_ms / 1000)

    async def run(
        self,
        job: str,
        function: Callable[..., Any],
        *,
        zone: str,
        pause: Duration = "1s",
        name: str = "",
        hub: str = "",
    ) -> None:
        """Run a zoned job in this program, which is no node, until cancelled.

        `function` is as one of `@penstock.zoned`: it takes a context with the shards of this run, from where to start
        and when to stop, and is called again and again, `pause` after it returned. The program lives in the zone as a
        node does, under its `name`. Several programs and nodes of a zone may run one job: one of them has the run.
        `hub`: the domain of the hub, for zones on servers of their own. Its login needs what a node's has. Raises
        UsageError, and the broker's errors."""
        handler = zone_handler(job, function, pause=pause)
        with one_error():
            await run_program(self._service.connection, handler, zone=zone, name=name, hub=hub)

    async def drain(self, zone: str, *, dry_run: bool = False, by: str = "") -> ChangeView:
        """Deal the zone's shards to the others. `dry_run`: only say what it would do."""
        return await self._steer("drain", zone, dry_run, by)

    async def restore(self, zone: str, *, dry_run: bool = False, by: str = "") -> ChangeView:
        """Give a drained zone its shards back. `dry_run`: only say what it would do."""
        return await self._steer("restore", zone, dry_run, by)

    async def routing(self) -> MapView:
        """Return the shard map in force."""
        return await self._service.ask("routing", {}, MapView)

    async def plan(self, **change: object) -> ChangeView:
        """Say what a change of the map would do: `map={"shards": 100, "zones": {"a": "0-49", "b": "50-99"}}`,
        `moves={"7": "b"}`, `balance=True`, `weights`, `drain`, `takeover`, `epoch` (the owners of an earlier one)."""
        return await self._service.ask("plan", _change(change), ChangeView)

    async def apply(self, *, by: str = "", **change: object) -> ChangeView:
        """Change the map, as `plan` says. `if_epoch`: only if this is the epoch in force."""
        ask = {"change": _change(change), "by": by}
        return await self._service.ask("apply", ask, ChangeView)

    async def history(self, *, before: int | None = None, limit: int | None = None) -> builtins.list[MapView]:
        """Return the kept maps, the newest first, or up to `limit` of those before an epoch."""
        after = "" if before is None else str(before)
        return await all_lines(self._service, "history", MapsShown, lambda page: page.maps, after=after, limit=limit)

    async def report(self, epoch: int | None = None) -> MoveReport:
        """Return how a change of the map went, by default the last one: what was taken, how fast, how many rows came
        again. `is_over`: there is no more to come."""
        return await self._service.ask("report", {"epoch": epoch}, MoveReport)

    async def _steer(self, verb: str, zone: str, dry_run: bool, by: str) -> ChangeView:
        ask = {"zone": zone, "dry_run": dry_run, "by": by}
        return await self._service.ask(verb, ask, ChangeView)


def _change(values: dict[str, object]) -> RoutingChange:
    try:
        return msgspec.convert(values, RoutingChange)
    except msgspec.ValidationError as error:
        raise UsageError(f"change of the shard map: {error}") from error
