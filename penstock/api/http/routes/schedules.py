"""Schedules over HTTP. A schedule belongs to its topic: only a token of the topic reaches it."""

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_views import ScheduleChanged, ScheduleLine, ScheduleRemoved, Triggered
from actors.jobs.schedule_desk import ScheduleRefused
from penstock.api.forms.schedules import (
    ScheduleQuery,
    SchedulesQuery,
    ScheduleToAdd,
    ToBackfill,
    ToTrigger,
    schedules_page,
)
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded, query_of
from penstock.api.http.problems import refused
from penstock.api.http.routes.jobs import audit, check_body
from penstock.api.replies import NUMBERS
from streams.messages.jobs import NewJob
from streams.subjects import TOKEN

A = TypeVar("A", bound=ScheduleLine | Triggered | ScheduleRemoved)
_add = msgspec.json.Decoder(ScheduleToAdd)
_trigger = msgspec.json.Decoder(ToTrigger)
_backfill = msgspec.json.Decoder(ToBackfill)


async def add(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Add a schedule of the topic. Each of its due times is a job."""
    topic, asked = call.topic(), decoded(_add, call.body)
    check_body(asked.body)
    _check_target(call, asked)
    with shared.load.work("add", call.caller.key), _telling(call):
        await shared.quotas.check(call.caller, topic, [NewJob(topic=topic)])
        told = await shared.schedules.add(
            topic,
            asked.name,
            asked.wanted(call.caller.tenant),
            is_replaced=asked.replace,
            nonce=call.key,
            is_shown=call.caller.may_run if asked.batch else call.caller.may_source,
        )
    audit(call, "schedule.added", topic=topic, name=asked.name, is_changed=told.is_changed)
    return HttpAnswer(_changed(call, told), 201 if told.is_changed else 200)


async def list_schedules(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List your schedules, or those of one topic, a page at a time, without their bodies and runs."""
    asked = query_of(SchedulesQuery, call.query)
    topic = call.caller.inner(asked.topic) if asked.topic else ""
    with shared.load.work("other", call.caller.key), _telling(call):
        after = call.caller.inner_id(asked.after)
        lines = shared.schedules.lines(topic, after=after, is_shown=call.caller.is_own)
        return HttpAnswer(await schedules_page((_outer(call, line) async for line in lines), asked.limit))


async def show(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show a schedule, its next due times, and how its latest runs ended."""
    (topic, name), asked = _names(call), query_of(ScheduleQuery, call.query)
    with shared.load.work("other", call.caller.key), _telling(call):
        return HttpAnswer(_outer(call, await shared.schedules.show(topic, name, most=asked.next)))


async def pause(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Add no more jobs. Jobs that were added and are not due yet are removed."""
    return await _steered(shared, call, "schedule.paused", shared.schedules.pause)


async def resume(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Go on from now."""
    return await _steered(shared, call, "schedule.resumed", shared.schedules.resume)


class _Steer(Protocol):
    def __call__(self, topic: str, name: str, *, nonce: str) -> Awaitable[ScheduleChanged]: ...


async def _steered(shared: GatewayState, call: HttpCall, event: str, act: _Steer) -> HttpAnswer:
    topic, name = _names(call)
    with shared.load.work("settle", call.caller.key), _telling(call):
        told = await act(topic, name, nonce=call.key)
    audit(call, event, topic=topic, name=name, is_changed=told.is_changed)
    return HttpAnswer(_changed(call, told))


async def trigger(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Add a job of a schedule now, also while it is paused."""
    (topic, name), asked = _names(call), decoded(_trigger, call.body or b"{}")
    with shared.load.work("add", call.caller.key), _telling(call):
        told = await shared.schedules.trigger(topic, name, at_ms=asked.at_ms, nonce=call.key)
    audit(call, "schedule.triggered", topic=topic, name=name, id=told.id)
    return HttpAnswer(_outer(call, told))


async def backfill(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Add a job for each due time of a past range."""
    (topic, name), asked = _names(call), decoded(_backfill, call.body)
    with shared.load.work("add", call.caller.key), _telling(call):
        told = await shared.schedules.backfill(topic, name, asked.from_ms, asked.to_ms, nonce=call.key)
    audit(call, "schedule.backfilled", topic=topic, name=name, from_ms=asked.from_ms, to_ms=asked.to_ms)
    return HttpAnswer(_changed(call, told))


async def remove(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Remove a schedule, and its jobs that are not due yet."""
    topic, name = _names(call)
    with shared.load.work("settle", call.caller.key), _telling(call):
        told = await shared.schedules.remove(topic, name, nonce=call.key)
    audit(call, "schedule.removed", topic=topic, name=name)
    return HttpAnswer(_outer(call, told))


def _check_target(call: HttpCall, asked: ScheduleToAdd) -> None:
    """Raise RefusedRequest for a task or a source that is not among the token's topics."""
    if asked.batch and not call.caller.may_run(asked.batch):
        raise refused(422, "bad", "no such task, or none that you may run", what="batch", value=asked.batch)
    if asked.source and call.caller.tenant:
        raise refused(403, "forbidden", "sources are the operator's", what="source")
    if asked.source:
        call.caller.check_source(*asked.source.partition("/")[::2])


def _names(call: HttpCall) -> tuple[str, str]:
    """Return topic and name of the path. Raises RefusedRequest."""
    topic, name = call.topic(), call.value("schedule")
    if not TOKEN.fullmatch(name):
        raise refused(422, "bad", "is not a name", what="name", value=name, hint="use 1 to 64 of A-Z a-z 0-9 _ -")
    return topic, name


def _outer(call: HttpCall, answer: A) -> A:
    return replace(answer, topic=call.caller.outer(answer.topic))


def _changed(call: HttpCall, told: ScheduleChanged) -> Struct:
    return replace(told, schedule=_outer(call, told.schedule))


@contextmanager
def _telling(call: HttpCall) -> Iterator[None]:
    """Turn an error of the desk into the client's problem."""
    try:
        yield
    except BadRecurrence as bad:
        raise refused(422, "bad", bad.what, what=bad.field, value=bad.value, hint=bad.hint) from None
    except ScheduleRefused as told:
        is_unknown = told.code == "not_found"  # the desk's text names the nearest one, perhaps another tenant's
        detail = "no such schedule" if is_unknown else call.caller.said(str(told))
        raise refused(NUMBERS[told.code], told.code, detail, what="name") from None  # type: ignore[arg-type]  # all are ours
