"""A handler: one topic's function, and how it gets its jobs."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from actors.jobs.worker.job import Job, decoder_of, read_body
from actors.runtime.rules.slot_keys import Slots
from streams.messages.jobs import LONGEST_TTR_MS, MOST_JOBS, SHORTEST_TTR_MS, Priority
from streams.subjects import TOKEN

ALL_LANES: tuple[Priority, ...] = ("high", "normal", "low")
MOST_PLACES = 1_000

Taker = Callable[[Any], Any]
"""Takes a Job, or a list of them if `most` is above 1. Returns an awaitable, unless it runs in a thread."""


class Handler(Struct, frozen=True, kw_only=True):
    """How one topic's jobs are run. `ttr_ms` and `attempts` replace the values of each job."""

    topic: Annotated[str, Meta(pattern=rf"^{TOKEN.pattern}$")]
    name: str
    """The function's name, for people."""
    take: Taker
    is_async: bool
    concurrency: Annotated[int, Meta(ge=1, le=MOST_PLACES)] = 16
    """Calls at the same time on this node."""
    most: Annotated[int, Meta(ge=1, le=MOST_JOBS)] = 1
    """Jobs in one call. Above 1 it takes a list."""
    ttr_ms: Annotated[int, Meta(ge=SHORTEST_TTR_MS, le=LONGEST_TTR_MS)] | None = None
    attempts: Annotated[int, Meta(ge=1)] | None = None
    lanes: tuple[Priority, ...] = ALL_LANES
    slots: Slots | None = None
    """Calls at once under each key, in the whole cluster. It becomes a setting of the topic."""
    each_zone: bool = False
    """Whether each job is run once in each zone."""


def async_taker(function: Callable[..., Awaitable[object]], type_: object, *, has_job: bool, most: int) -> Taker:
    """Return what decodes the bodies to `type_` for an `async` function, and passes the job after it if `has_job`."""
    decode = decoder_of(type_)

    def take(job: Job) -> Awaitable[object]:
        value = read_body(job.record, decode)
        return function(value, job) if has_job else function(value)

    async def take_many(jobs: list[Job]) -> object:
        values, sound = _decoded(jobs, decode)
        if not values:
            return None
        return await (function(values, sound) if has_job else function(values))

    return take if most == 1 else take_many


def plain_taker(function: Callable[..., object], type_: object, *, has_job: bool, most: int) -> Taker:
    """Return the same for a plain function."""
    decode = decoder_of(type_)

    def take(job: Job) -> object:
        value = read_body(job.record, decode)
        return function(value, job) if has_job else function(value)

    def take_many(jobs: list[Job]) -> object:
        values, sound = _decoded(jobs, decode)
        if not values:
            return None
        return function(values, sound) if has_job else function(values)

    return take if most == 1 else take_many


def _decoded(jobs: list[Job], decode: Callable[[Any], Any]) -> tuple[list[object], list[Job]]:
    """Return the values and their jobs. A job with an unreadable body is buried, and left out."""
    values, sound = [], []
    for job in jobs:
        try:
            values.append(decode(job.record.body))
            sound.append(job)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            job.bury(f"the body is not what the handler takes: {error}")
    return values, sound
