"""Zoned jobs: one function, which runs in every zone over the shards that the zone owns.

    @penstock.zoned("sync-orders")                       # a loop: batch, pause, batch
    async def sync(ctx: penstock.ZoneContext) -> None:
        rows = await read_orders(after=ctx.start_offset, limit=500)       # of all shards, in the order of `id`
        for row in ctx.mine(rows, key="order_no", offset="id"):           # of ours
            await handle(row)
        if rows:
            await ctx.save(rows[-1].id)                                   # what was scanned, kept or not

    @penstock.zoned("close-orders", every="10s")         # one batch at each tick, in each zone
    def close(ctx: penstock.PlainZoneContext) -> None: ...

A node runs the jobs of its app in its own zone (`penstock up --zone a`). One run of a job in a zone at a time. Its
shards are the same from the start to the last save. When the shard map changes, the run ends after its batch, and the
next one starts from the smallest offset of its shards. So rows may come again, and no row is left out: let the code be
such that a row may run twice. Code with a loop of its own looks at `ctx.is_stopped()` after each batch:

        offset = ctx.start_offset
        while not ctx.is_stopped():
            ...
            await ctx.save(offset)
            await ctx.pause()
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_checks import check_wanted
from actors.jobs.rules.schedule_record import Schedule
from actors.jobs.worker.threads import WorkThread
from actors.runtime.rules.setting_values import BadSetting, Duration, span_ms
from actors.zone.contexts import PlainZoneContext, ZoneContext
from actors.zone.rules.routing import JOB, LONGEST_JOB
from actors.zone.run import ShardRun
from actors.zone.runner import ZoneHandler
from penstock.errors import UsageError
from penstock.sdk.batch_code import as_failure, guarded

__all__ = ["PlainZoneContext", "ZoneContext", "zone_handler", "zone_handlers", "zoned"]

Function = TypeVar("Function", bound=Callable[..., Any])
LONGEST_PAUSE_MS = 86_400_000


class _Registered(NamedTuple):
    handler: ZoneHandler
    function: Callable[..., Any]


_jobs: dict[str, _Registered] = {}


def zoned(
    key: str,
    *,
    every: Duration | None = None,
    cron: str = "",
    tz: str = "UTC",
    pause: Duration = "1s",
) -> Callable[[Function], Function]:
    """Run the decorated function in each zone, over the zone's shards. It takes a context, and is `async` or plain.

    Without a schedule it is a loop: the function is called again and again, `pause` after it returned. With `every` or
    `cron` (by the clock of `tz`) each tick calls it once, on one node of each zone. Raises UsageError."""

    def register(function: Function) -> Function:
        known = _jobs.get(key)
        if known is not None and _place(known.function) != _place(function):
            raise UsageError(f"zoned {key!r}: {_place(known.function)} and {_place(function)} both serve it")
        handler = zone_handler(key, function, pause=pause, every=every, cron=cron, tz=tz)
        _jobs[key] = _Registered(handler, function)
        return function

    if callable(key):
        raise UsageError(f"{key!r}: name its job: @penstock.zoned('sync')")
    return register


def zone_handler(
    key: str,
    function: Callable[..., Any],
    *,
    pause: Duration = "1s",
    every: Duration | None = None,
    cron: str = "",
    tz: str = "UTC",
) -> ZoneHandler:
    """Return a job whose code is the function. Raises UsageError."""
    if not isinstance(key, str) or not JOB.fullmatch(key) or len(key) > LONGEST_JOB:
        raise UsageError(
            f"zoned {key!r}: use 1 to {LONGEST_JOB} of A-Z a-z 0-9 - and single _ inside: @penstock.zoned('sync')"
        )
    _check_takes(key, function)
    try:
        every_ms = 0 if every is None else span_ms("every", every)
        pause_ms = span_ms("pause", pause)
        if not 0 <= pause_ms <= LONGEST_PAUSE_MS:
            raise ValueError(f"pause: {pause!r}: use 0s to 1d")
        if every is not None or cron:
            check_wanted(Schedule(every_ms=every_ms, cron=cron, tz=tz))
    except (BadSetting, BadRecurrence, ValueError) as error:
        raise UsageError(f"zoned {key}: {error}") from error
    return ZoneHandler(
        job=key,
        name=function.__qualname__,
        call=_code(function),
        is_loop=every is None and not cron,
        pause_ms=pause_ms,
        every_ms=every_ms,
        cron=cron,
        tz=tz,
    )


def zone_handlers() -> Mapping[str, ZoneHandler]:
    """Return the registered jobs, by key."""
    return {key: registered.handler for key, registered in _jobs.items()}


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _check_takes(key: str, function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"zoned {key}: {function.__qualname__} yields; call ctx.save instead")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise UsageError(f"zoned {key}: {function.__qualname__} is called with one context: {error}") from error


def _code(function: Callable[..., Any]) -> Callable[[ShardRun, float], Awaitable[None]]:
    if inspect.iscoroutinefunction(function):
        code = guarded(function)

        async def call(run: ShardRun, pause_s: float) -> None:
            await code(ZoneContext(run, pause_s))

        return call
    return _PlainCode(function).call


class _StillRuns(Exception):
    """The call before was given up, and its thread has not ended."""


class _PlainCode:
    """Calls a plain function, in a thread that stays."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._thread: WorkThread | None = None
        self._given_up: WorkThread | None = None

    async def call(self, run: ShardRun, pause_s: float) -> None:
        if self._given_up is not None and self._given_up.is_busy:
            raise _StillRuns(f"{self._function.__qualname__} was to return, and still runs in its thread")
        self._given_up = None
        thread = self._thread or WorkThread("zoned")
        try:
            _, error = await thread.run(self._function, PlainZoneContext(run, pause_s))
        except BaseException:
            thread.close()
            self._thread, self._given_up = None, thread
            raise
        self._thread = thread
        if error is not None:
            raise error if isinstance(error, Exception) else as_failure(error)
