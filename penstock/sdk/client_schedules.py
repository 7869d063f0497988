"""Schedules of the client: jobs that come again and again.

    await client.schedules.add("reports/daily", {"kind": "daily"}, cron="30 9 * * MON-FRI", tz="Europe/Berlin")
    view = await client.schedules.show("reports/daily")

A schedule is named TOPIC/NAME. A length of time is a text with its unit ("10m"), a number of seconds, or a `timedelta`.
"""

import builtins
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar, Unpack

from actors.jobs.rules.schedule_record import Schedule
from actors.jobs.rules.schedule_views import ScheduleChanged, ScheduleLine, ScheduleRemoved, ScheduleView, Triggered
from actors.runtime.rules.spellings import unknown_option
from penstock.api.forms.schedules import ScheduleOptions, SchedulesShown, definition_of
from penstock.errors import NotAccepted
from penstock.rows.schedule_names import read_name
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_forms import millis, moment_ms
from penstock.sdk.pages import all_lines
from streams.messages.nonces import fresh_nonce

__all__ = ["Schedules"]

_T = TypeVar("_T")

_MILLISECONDS: dict[str, Callable[[str, Any], int]] = {
    "every": millis,
    "fixed_delay": millis,
    "at": moment_ms,
    "start": moment_ms,
    "initial_delay": millis,
    "jitter": millis,
    "ttr": millis,
    "expires_in": millis,
}
"""How to convert the options whose fields end with `_ms`."""


class Schedules:
    """The schedules of one namespace. The methods raise NotAccepted (`code`: `bad`, `not_found`, `exists`, `state`),
    Timeout, Unavailable, and UsageError for arguments that cannot be sent."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    async def add(self, which: str, body: object = None, **options: Unpack[ScheduleOptions]) -> ScheduleChanged:
        """Add a schedule whose jobs have this body, any JSON value. The same again changes nothing.

        The options are those of `ScheduleOptions`. One of `cron`, `every`, `fixed_delay` and `at` says when it is due.
        With `replace=True` it takes the place of another one of its name. Without it NotAccepted is raised, `code`
        `exists`."""
        if unknown := options.keys() - ScheduleOptions.__optional_keys__:
            raise TypeError(unknown_option("a schedule", min(unknown), sorted(ScheduleOptions.__optional_keys__)))
        asked: dict[str, object] = {"body": body}
        for option, value in options.items():
            if value is None:
                continue
            read = _MILLISECONDS.get(option)
            asked[f"{option}_ms" if read else option] = read(option, value) if read else value
        return await self._changed("add", which, asked)

    async def put(self, which: str, wanted: Schedule, *, is_replaced: bool = False) -> ScheduleChanged:
        """Add a schedule with the definition of this record."""
        return await self._changed("add", which, {**definition_of(wanted), "replace": is_replaced})

    async def list(self, topic: str = "", *, after: str = "", limit: int | None = None) -> builtins.list[ScheduleLine]:
        """Return all schedules, or those of a topic, each with its next due time, by topic and name, or up to `limit`
        of those after `after`, a TOPIC/NAME."""
        return await all_lines(
            self._service,
            "list",
            SchedulesShown,
            lambda page: page.schedules,
            after=after,
            limit=sys.maxsize if limit is None else limit,
            topic=topic,
        )

    async def show(self, which: str, *, next: int = 5) -> ScheduleView:
        """Return a schedule with its next due times and its latest runs."""
        return await self._of("show", which, ScheduleView, {"next": next})

    async def pause(self, which: str) -> ScheduleChanged:
        """Add no more jobs. Jobs that were added and are not due yet are removed."""
        return await self._changed("pause", which)

    async def resume(self, which: str) -> ScheduleChanged:
        """Go on from now. Due times within the pause do not count as missed."""
        return await self._changed("resume", which)

    async def trigger(self, which: str) -> Triggered:
        """Add a job now, beside the schedule, also during a pause."""
        return await self._of("trigger", which, Triggered, {"nonce": fresh_nonce()})

    async def backfill(self, which: str, start: datetime, end: datetime | None = None) -> ScheduleChanged:
        """Add a job for each due time from `start` on and before `end`, by default before now."""
        span = {"from_ms": moment_ms("start", start), "to_ms": end and moment_ms("end", end)}
        try:
            return await self._changed("backfill", which, span)
        except NotAccepted as refused:
            if refused.field not in span:
                raise
            name, at = ("start", start) if refused.field == "from_ms" else ("end", end)
            why = str(refused).partition(": ")[2]
            raise NotAccepted(f"{name} {at}: {why}", code=refused.code, field=name) from refused

    async def remove(self, which: str) -> ScheduleRemoved:
        """Remove a schedule, and its jobs that are not due yet."""
        try:
            return await self._of("remove", which, ScheduleRemoved, {"nonce": fresh_nonce()})
        except NotAccepted as refused:
            if refused.code == "not_found" and refused.is_repeated:
                topic, name = read_name(which)
                return ScheduleRemoved(topic=topic, name=name)  # an earlier try of this call did it
            raise

    async def _of(self, endpoint: str, which: str, form: type[_T], more: Mapping[str, object]) -> _T:
        topic, name = read_name(which)
        return await self._service.ask(endpoint, {"topic": topic, "name": name, **more}, form)

    async def _changed(self, endpoint: str, which: str, more: Mapping[str, object] = {}) -> ScheduleChanged:
        """Make a change, once, however often the request is sent."""
        return await self._of(endpoint, which, ScheduleChanged, {**more, "nonce": fresh_nonce()})
