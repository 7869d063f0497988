"""The forms of schedules: what is asked of them at every door, and how it is answered. The answers that are the same at
every door are in actors/jobs/rules/schedule_views.py. Times are whole milliseconds, moments UTC since 1970."""

from collections.abc import AsyncIterable
from datetime import datetime
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta, Raw, Struct

from actors.jobs.rules.cron import LONGEST_LINE
from actors.jobs.rules.schedule_record import Misfire, Overlap, Schedule
from actors.jobs.rules.schedule_views import MOST_NEXT, ScheduleLine
from actors.runtime.rules.pages import PAGE_BYTES, page_of
from actors.runtime.rules.setting_values import Duration
from penstock.api.forms.jobs import Attempts, Moment, Ttr
from penstock.api.forms.reading import RequestForm, picked
from streams.messages.jobs import Priority

Span = Annotated[int, Meta(ge=0, description="milliseconds")]
MostNext = Annotated[int, Meta(ge=0, le=MOST_NEXT)]
MostLines = Annotated[int, Meta(ge=1, le=1_000)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule, for Python callers. One of `cron`, `every`, `fixed_delay` and `at` says when it is
    due. docs/howto/schedules.md explains each."""

    cron: str
    every: Duration
    fixed_delay: Duration
    at: datetime
    tz: str
    start: datetime
    initial_delay: Duration
    jitter: Duration
    batch: str
    tenant: str
    source: str
    data_time: str
    ttr: Duration
    attempts: int
    priority: Priority
    expires_in: Duration
    misfire: Misfire
    most_missed: int
    overlap: Overlap
    replace: bool


# ---- a definition


class _Definition(RequestForm, frozen=True, kw_only=True):
    cron: Annotated[str, Meta(max_length=LONGEST_LINE)] = ""
    every_ms: Span = 0
    fixed_delay_ms: Span = 0
    at_ms: Moment = 0
    tz: Annotated[str, Meta(max_length=64)] = "UTC"
    start_ms: Moment = 0
    initial_delay_ms: Span = 0
    jitter_ms: Span = 0
    body: Raw = msgspec.field(default_factory=lambda: Raw(b"null"))
    batch: Annotated[str, Meta(max_length=64, description="a task: each occurrence submits a batch")] = ""
    source: Annotated[str, Meta(max_length=129, description="platform/source: each occurrence has it look")] = ""
    data_time: str = ""
    ttr_ms: Ttr | None = None
    attempts: Attempts | None = None
    priority: Priority = "normal"
    expires_in_ms: Annotated[int, Meta(ge=1)] | None = None
    misfire: Misfire = "once"
    most_missed: Annotated[int, Meta(ge=1)] | None = None
    overlap: Overlap = "skip"

    def wanted(self, tenant: str = "") -> Schedule:
        """Return the record of this definition. `tenant`: the owner of its batches."""
        return Schedule(
            tenant=tenant if self.batch else "",
            **{field: getattr(self, field) for field in _Definition.__struct_fields__},
        )


def definition_of(record: Schedule) -> dict[str, object]:
    """Return the definition of a record as a request has it, without what is left to the defaults."""
    plain = Schedule()
    fields = ((field, getattr(record, field)) for field in (*_Definition.__struct_fields__, "tenant"))
    return {field: value for field, value in fields if value != getattr(plain, field)}


class ScheduleToAdd(_Definition, frozen=True, kw_only=True):
    """A schedule of the topic. One of `cron`, `every_ms`, `fixed_delay_ms` and `at_ms` says when it is due. The same
    again changes nothing. With `replace` it takes the place of another one of its name."""

    name: Name
    replace: bool = False


class AddScheduleAsk(_Definition, frozen=True, kw_only=True):
    """Add a schedule. With `replace` it takes the place of another one of its name. `nonce`: the same in each repeat of
    this request, which changes nothing."""

    topic: str
    name: str
    tenant: str = ""
    replace: bool = False
    nonce: str = ""


# ---- the service


class ScheduleAsk(RequestForm, frozen=True, kw_only=True):
    """Of one schedule: pause, resume or remove it. `nonce`: the same in each repeat of this request, and in no other. A
    repeat changes nothing."""

    topic: str
    name: str
    nonce: str = ""


class ScheduleShowAsk(RequestForm, frozen=True, kw_only=True):
    """Show a schedule, with its next due times."""

    topic: str
    name: str
    next: int = 5


class SchedulesAsk(RequestForm, frozen=True, kw_only=True):
    """Show all schedules, or those of a topic, by topic and name, from `after` on, which an earlier page gave."""

    topic: str = ""
    after: str = ""
    limit: MostLines = 100


class TriggerAsk(ScheduleAsk, frozen=True, kw_only=True):
    """Add a job now. `nonce`: the same in each repeat of this request, and in no other. `at_ms`: the moment that names
    the job, where a caller has no nonce."""

    at_ms: int | None = None


class BackfillAsk(ScheduleAsk, frozen=True, kw_only=True):
    """Add a job for each due time from `from_ms` on and before `to_ms`, by default before now."""

    from_ms: int
    to_ms: int | None = None


# ---- HTTP


class ScheduleQuery(RequestForm, frozen=True, kw_only=True):
    """`next`: so many of the next due times."""

    next: MostNext = 5


class SchedulesQuery(RequestForm, frozen=True, kw_only=True):
    """`topic`: only of this one. `after`: the `next` of the page before."""

    topic: Annotated[str, Meta(max_length=64)] = ""
    after: Annotated[str, Meta(max_length=129)] = ""
    limit: MostLines = 100


class ToTrigger(RequestForm, frozen=True, kw_only=True):
    """`at_ms`: the moment that names the job, the same in each repeat of this request."""

    at_ms: Moment | None = None


class ToBackfill(RequestForm, frozen=True, kw_only=True):
    """A half-open range in the past. Without `to_ms` it ends now."""

    from_ms: Moment
    to_ms: Moment | None = None


class SchedulesShown(Struct, frozen=True, omit_defaults=True):
    """A page by topic and name. `next` is the `after` of the following page. The last page has none."""

    schedules: list[ScheduleLine]
    next: str = ""


async def schedules_page(
    lines: AsyncIterable[ScheduleLine], limit: int, most_bytes: int = PAGE_BYTES
) -> SchedulesShown:
    """Return a page of the first of these schedules. No more of them are taken than it needs."""
    wanted: list[ScheduleLine] = []
    async for line in lines:
        wanted.append(picked(ScheduleLine, line))
        if len(wanted) > limit:
            break
    return SchedulesShown(*page_of(wanted, limit, most_bytes, _place))


def _place(line: ScheduleLine) -> str:
    return f"{line.topic}/{line.name}"
