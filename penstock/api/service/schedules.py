"""Schedules over NATS. A client that may call this service may change every schedule."""

from actors.jobs.rules.schedule_views import ScheduleChanged, ScheduleRemoved, ScheduleView, Triggered
from actors.jobs.schedule_desk import ScheduleDesk
from penstock.api.forms.schedules import (
    AddScheduleAsk,
    BackfillAsk,
    ScheduleAsk,
    SchedulesAsk,
    ScheduleShowAsk,
    SchedulesShown,
    TriggerAsk,
    schedules_page,
)
from penstock.api.service.calls import Question


async def add(desk: ScheduleDesk, ask: AddScheduleAsk, _question: Question) -> ScheduleChanged:
    return await desk.add(ask.topic, ask.name, ask.wanted(ask.tenant), is_replaced=ask.replace, nonce=ask.nonce)


async def list_schedules(desk: ScheduleDesk, ask: SchedulesAsk, question: Question) -> SchedulesShown:
    return await schedules_page(desk.lines(ask.topic, after=ask.after), ask.limit, question.page_bytes)


async def show(desk: ScheduleDesk, ask: ScheduleShowAsk, _question: Question) -> ScheduleView:
    return await desk.show(ask.topic, ask.name, most=ask.next)


async def pause(desk: ScheduleDesk, ask: ScheduleAsk, _question: Question) -> ScheduleChanged:
    return await desk.pause(ask.topic, ask.name, nonce=ask.nonce)


async def resume(desk: ScheduleDesk, ask: ScheduleAsk, _question: Question) -> ScheduleChanged:
    return await desk.resume(ask.topic, ask.name, nonce=ask.nonce)


async def remove(desk: ScheduleDesk, ask: ScheduleAsk, _question: Question) -> ScheduleRemoved:
    return await desk.remove(ask.topic, ask.name, nonce=ask.nonce)


async def trigger(desk: ScheduleDesk, ask: TriggerAsk, _question: Question) -> Triggered:
    return await desk.trigger(ask.topic, ask.name, at_ms=ask.at_ms, nonce=ask.nonce)


async def backfill(desk: ScheduleDesk, ask: BackfillAsk, _question: Question) -> ScheduleChanged:
    return await desk.backfill(ask.topic, ask.name, ask.from_ms, ask.to_ms, nonce=ask.nonce)
