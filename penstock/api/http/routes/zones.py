"""Zones and the shard map over HTTP. They are the operator's: a tenant's token cannot see them."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from actors.zone.desk import UnknownZone
from actors.zone.rules.changes import RoutingChange
from actors.zone.rules.routing import BadMap
from actors.zone.views import ChangeView
from penstock.api.forms.pages import PageQuery
from penstock.api.forms.zones import MapsQuery, MapsShown, ReportAsk, ShardsQuery, ZonesShown, ZoneSteer
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded, query_of
from penstock.api.http.problems import refused
from penstock.api.http.routes.jobs import audit

_steer = msgspec.json.Decoder(ZoneSteer)
_change = msgspec.json.Decoder(RoutingChange)


async def list_zones(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List the zones, a page at a time, with their shards and live nodes."""
    with _telling(shared, call):
        asked = query_of(PageQuery, call.query)
        return HttpAnswer(ZonesShown(*await shared.zones.zones(after=asked.after, limit=asked.limit)))


async def show(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show a zone with its jobs, and how its shards came."""
    with _telling(shared, call):
        return HttpAnswer(await shared.zones.zone(call.value("zone")))


async def shards(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Say which shards a zone owns, at which epoch, and wait for a change if that is asked for."""
    with _telling(shared, call):
        asked = query_of(ShardsQuery, call.query)
        return HttpAnswer(await shared.zones.shards(call.value("zone"), after=asked.after, wait_ms=asked.wait_ms))


async def drain(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Deal a zone's shards to the others."""
    zone = call.value("zone")
    with _telling(shared, call):
        call.caller.check_operator()
        steer = decoded(_steer, call.body or b"{}")
        view = await shared.zones.drain(zone, by=call.caller.name, is_dry=steer.dry_run)
    return _changed(call, "zone.drained", view, zone=zone)


async def restore(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Give a drained zone its shards back."""
    zone = call.value("zone")
    with _telling(shared, call):
        call.caller.check_operator()
        steer = decoded(_steer, call.body or b"{}")
        view = await shared.zones.restore(zone, by=call.caller.name, is_dry=steer.dry_run)
    return _changed(call, "zone.restored", view, zone=zone)


async def routing(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show the shard map in force."""
    with _telling(shared, call):
        return HttpAnswer(await shared.zones.routing())


async def plan(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Say what a change of the shard map would do."""
    with _telling(shared, call):
        return HttpAnswer(await shared.zones.plan(decoded(_change, call.body)))


async def change(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Change the shard map. The next epoch is in force at once."""
    with _telling(shared, call):
        call.caller.check_operator()
        view = await shared.zones.apply(decoded(_change, call.body), by=call.caller.name)
    return _changed(call, "zone.map_applied", view)


async def history(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List the kept shard maps, the newest first, a page at a time."""
    with _telling(shared, call):
        asked = query_of(MapsQuery, call.query)
        return HttpAnswer(MapsShown(*await shared.zones.history(before=asked.before, limit=asked.limit)))


async def report(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Say how a change of the shard map went."""
    with _telling(shared, call):
        return HttpAnswer(await shared.zones.report(query_of(ReportAsk, call.query).epoch))


def _changed(call: HttpCall, event: str, view: ChangeView, **facts: object) -> HttpAnswer:
    if view.is_applied:
        audit(call, event, epoch=view.map.epoch, moves=len(view.plan.moves), **facts)
    return HttpAnswer(view)


@contextmanager
def _telling(shared: GatewayState, call: HttpCall) -> Iterator[None]:
    if call.caller.tenant:
        raise refused(403, "forbidden", "zones are the operator's")
    with shared.load.work("other", call.caller.key):
        try:
            yield
        except UnknownZone as error:
            raise refused(404, "not_found", str(error), what="zone", value=call.value("zone")) from error
        except BadMap as error:
            raise refused(422, "bad", str(error)) from error
