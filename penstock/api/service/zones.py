"""Zones and the shard map over NATS."""

from actors.zone.desk import ZoneDesk
from actors.zone.rules.changes import RoutingChange
from actors.zone.rules.report import MoveReport
from actors.zone.views import ChangeView, MapView, ZoneShards, ZoneShown
from penstock.api.forms.pages import PageQuery
from penstock.api.forms.zones import (
    MapsQuery,
    MapsShown,
    ReportAsk,
    RoutingApplyAsk,
    ShardsAsk,
    ZoneAsk,
    ZoneChangeAsk,
    ZonesShown,
)
from penstock.api.service.calls import Question


async def list_zones(desk: ZoneDesk, ask: PageQuery, question: Question) -> ZonesShown:
    return ZonesShown(*await desk.zones(after=ask.after, limit=ask.limit, most_bytes=question.page_bytes))


async def show(desk: ZoneDesk, ask: ZoneAsk, _question: Question) -> ZoneShown:
    return await desk.zone(ask.zone)


async def shards(desk: ZoneDesk, ask: ShardsAsk, _question: Question) -> ZoneShards:
    return await desk.shards(ask.zone, after=ask.after, wait_ms=ask.wait_ms)


async def drain(desk: ZoneDesk, ask: ZoneChangeAsk, _question: Question) -> ChangeView:
    return await desk.drain(ask.zone, by=ask.by, is_dry=ask.dry_run)


async def restore(desk: ZoneDesk, ask: ZoneChangeAsk, _question: Question) -> ChangeView:
    return await desk.restore(ask.zone, by=ask.by, is_dry=ask.dry_run)


async def routing(desk: ZoneDesk, _ask: object, _question: Question) -> MapView:
    return await desk.routing()


async def plan(desk: ZoneDesk, ask: RoutingChange, _question: Question) -> ChangeView:
    return await desk.plan(ask)


async def apply(desk: ZoneDesk, ask: RoutingApplyAsk, _question: Question) -> ChangeView:
    return await desk.apply(ask.change, by=ask.by)


async def report(desk: ZoneDesk, ask: ReportAsk, _question: Question) -> MoveReport:
    return await desk.report(ask.epoch)


async def history(desk: ZoneDesk, ask: MapsQuery, question: Question) -> MapsShown:
    return MapsShown(*await desk.history(before=ask.before, limit=ask.limit, most_bytes=question.page_bytes))
