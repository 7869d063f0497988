"""Flows: a class of your own says which shards there are, which rows wait in a shard, and what to do with a row.

    @penstock.flow("pay-prizes", rate=8_000, every="5s")
    class PayPrizes:
        def split(self, ctx): return [f"{n:02}" for n in range(25)]
        def load(self, ctx, shard, limit): return [(row.id, row) for row in ...]   # pairs of a key and a row
        def execute(self, ctx, row): ...                                         # or execute_many(self, ctxs, rows)

Every `every`, one node calls `split`. Each shard's rows are loaded by one call of `load`, on any node of its group.
Each row is executed by one call of `execute`, on any node, at `rate` rows a second over the whole cluster. A round
loads as many rows as are missing, so the interval and the number of nodes need not fit the rate.

A row has a key that is unique in its shard. A row that is in flight is not loaded again, nor one whose `execute`
returned after `load` began to read. So let `execute` change the row before it returns, in such a way that `load` does
not find it again. If it raises, the row runs again after a wait. After the last attempt it is a dead letter. `raise
penstock.Reject(reason)` makes it one at once. `raise penstock.Skip(reason)` says that there was nothing to do.

With `each_zone=True` the flow runs in each zone: `split` gets the shards that the zone owns in `ctx.shards`, and a row
whose shard has moved is left to the other zone.

A row may run twice, because its process may die before its end is stored: let the change name the state before, as
`UPDATE … SET state = 'paid' WHERE id = … AND state = 'new'`.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec

from actors.batch.executor.handler import Reject, Skip
from actors.flow.flows import LONGEST_FLOW, BadFlow, FlowLimits, checked_limits, rows_topic
from actors.flow.handler import ROW_PATH, FlowContext, FlowHandler, RowBody, ShardScope, StillRunning
from actors.flow.rates_desk import checked_rate
from actors.flow.rules.quotas import default_lead_ms
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Bury, Job, Retry, decoder_of
from actors.jobs.worker.threads import WorkThread
from actors.runtime.logs import fields
from actors.runtime.rules.setting_values import BadSetting, Duration, span_ms
from actors.runtime.rules.slot_keys import Slots
from actors.runtime.rules.spellings import hinted
from penstock.errors import UsageError
from penstock.sdk.batch_code import as_failure, guarded
from penstock.sdk.jobs import slots_of
from streams.messages.flow import ANY_GROUP
from streams.subjects import TOKEN

__all__ = ["FlowContext", "flow", "flow_handlers"]

log = logging.getLogger(__name__)

ClassT = TypeVar("ClassT", bound=type)
Every = Duration | tuple[Duration, Duration]


ZONE_PART = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*", re.ASCII)
LONGEST_IN_ZONES = 24
"""Characters of the key of a flow in each zone, whose name is a part of the topics beside it."""


class FlowCode(NamedTuple):
    """A registered flow: its rounds and loads, and the handler of its rows."""

    flow: FlowHandler
    rows: Handler
    app: str
    in_zone: Callable[[str, ShardScope], FlowCode] | None = None
    """Of a flow in each zone: returns that of one zone, under the key of that flow."""


_flows: dict[str, tuple[FlowCode, type]] = {}


@hinted("a flow")
def flow(
    key: str,
    *,
    rate: float = 0.0,
    every: Every = "5s",
    lead: Duration | None = None,
    groups: Mapping[str, float | str] | None = None,
    most_in_flight: int = 100_000,
    load_timeout: Duration = "10s",
    loads: int = 4,
    concurrency: int = 16,
    most: int = 100,
    attempts: int = 5,
    ttr: Duration = "30s",
    slots: Slots | None = None,
    zone: str = "",
    each_zone: bool = False,
    region_key: str = "",
) -> Callable[[ClassT], ClassT]:
    """Have the decorated class run the flow. It is made without arguments, once in each process.

    `rate`: rows a second over the whole cluster. 0: no limit. `every`: the interval between two rounds, or the shortest
    and the longest one, between which it adapts. `lead`: for how long rows are in flight beyond the interval, by
    default half of it, at least four seconds, or the interval and a second if that is less. So rows last until a round
    comes again whose node stands still. `groups`: labels of nodes, each with a weight or ALL, ODD, EVEN.
    `load_timeout`: of one shard. `loads` and `concurrency`: calls of `load` and of `execute` at the same time on a
    node. `most`: rows in one call of `execute_many`. `attempts` and `ttr` (time to run): of a row. `slots`: calls of
    `execute` at once under each key in the whole cluster, as `penstock.Slots(2, key="merchant.id")`, a path into the
    row. `zone`: where all of it runs, as `east`, or `shard:7` for the zone that owns that shard. `each_zone`: it runs
    in each zone, over the shards that the zone owns (`ctx.shards`), under the key `KEY__ZONE`. Then `rate` is that of
    each zone. `region_key`: where the key by which a row finds its shard of the map is in the row. A row of another
    zone is left out. Raises UsageError.
    """

    def register(cls: ClassT) -> ClassT:
        _check_key(key, cls, zone=zone, each_zone=each_zone)
        try:
            others = {
                "groups": dict(groups or {}),
                "most_in_flight": most_in_flight,
                "load_timeout_ms": span_ms("load_timeout", load_timeout),
                "zone": zone,
                "region_key": region_key,
            }
            limits = checked_limits({**_rounds(every, lead), **others}, FlowLimits())
            code = _code(key, cls, limits, rate, loads)
            calls = _RowCalls(concurrency, most, attempts, span_ms("ttr", ttr), _row_slots(slots))

            def made(name: str, scope: ShardScope | None) -> FlowCode:
                rows = _rows_handler(_Rows(key, scope), name, code.user, calls)
                return FlowCode(code.handler(attempts, name, scope), rows, cls.__module__)

            _flows[key] = made(key, None)._replace(in_zone=made if each_zone else None), cls
        except (BadFlow, BadSetting, ValueError) as error:
            raise UsageError(f"flow {key}: {error}") from error
        return cls

    if callable(key):
        raise UsageError(f"{key!r}: name its flow: @penstock.flow('pay')")
    return register


def _check_key(key: str, cls: type, *, zone: str, each_zone: bool) -> None:
    """Raise UsageError for a flow's key that is none, or that another class has."""
    if not isinstance(key, str) or not TOKEN.fullmatch(key) or len(key) > LONGEST_FLOW:
        raise UsageError(f"flow {key!r}: name it with 1 to {LONGEST_FLOW} of A-Z a-z 0-9 _ -: @penstock.flow('pay')")
    known = _flows.get(key)
    if known is not None and known[1] is not cls:
        raise UsageError(f"flow {key!r}: {cls.__qualname__} and {known[1].__qualname__} both serve it")
    if each_zone and (zone or not ZONE_PART.fullmatch(key) or len(key) > LONGEST_IN_ZONES):
        raise UsageError(
            f"flow {key!r}: in each zone it has no `zone` of its own, and a key of 1 to {LONGEST_IN_ZONES} of"
            " A-Z a-z 0-9 - and single _ inside"
        )


def _rounds(every: Every, lead: Duration | None) -> dict[str, int]:
    """Return when rounds come, as the fields of FlowLimits. Raises BadSetting, ValueError."""
    shortest, longest = every if isinstance(every, tuple) else (every, every)
    every_ms = span_ms("every", shortest)
    lead_ms = default_lead_ms(every_ms) if lead is None else span_ms("lead", lead)
    return {"every_ms": every_ms, "longest_ms": span_ms("every", longest), "lead_ms": lead_ms}


def _row_slots(slots: Slots | None) -> Slots | None:
    """Return the slots with a path into a row's job (`RowBody`)."""
    found = slots_of(slots)
    return msgspec.structs.replace(found, key=f"{ROW_PATH}{found.key}") if found is not None and found.key else found


def flow_handlers() -> Mapping[str, FlowCode]:
    """Return the registered flows, by key."""
    return {key: code for key, (code, _) in _flows.items()}


def _check_numbers(*, rate: object, loads: int, limits: FlowLimits) -> None:
    if isinstance(rate, str):  # the commands take it so
        raise ValueError(f"rate: {rate[:80]!r}: is text; write a number a second, as 1/60 for one a minute")
    if checked_rate(rate) is None:
        raise ValueError("rate: None: use 0 for no limit")
    if isinstance(loads, bool) or not isinstance(loads, int) or not 1 <= loads <= 1_000:
        raise ValueError(f"loads: {loads!r}: use 1 to 1000")
    for group in limits.groups:
        if not TOKEN.fullmatch(group) or group == ANY_GROUP:
            raise ValueError(
                f"group {group!r}: is no label of nodes; use 1 to 64 of A-Z a-z 0-9 _ -, not {ANY_GROUP!r}"
            )


class _Code(NamedTuple):
    user: Any
    key: str
    limits: FlowLimits
    rate: float
    loads: int

    def handler(self, attempts: int, name: str, scope: ShardScope | None) -> FlowHandler:
        limits = self.limits if scope is None else msgspec.structs.replace(self.limits, zone=scope.zone)
        return FlowHandler(
            flow=name,
            key=self.key,
            scope=scope,
            limits=limits,
            rate=float(self.rate),
            attempts=attempts,
            split=_async(self.user.split),
            load=_async(self.user.load),
            loads_at_once=self.loads,
        )


def _code(key: str, cls: object, limits: FlowLimits, rate: float, loads: int) -> _Code:
    _check_numbers(rate=rate, loads=loads, limits=limits)
    if not isinstance(cls, type):
        hint = "write a class with `split`, `load` and `execute`; see help(penstock.flow)"
        raise UsageError(f"flow {key}: {getattr(cls, '__qualname__', cls)} is no class; {hint}")
    try:
        user: Any = cls()
    except TypeError as error:
        raise UsageError(f"flow {key}: {cls.__qualname__} is made without arguments: {error}") from error
    for name, takes in (("split", 1), ("load", 3)):
        function = getattr(user, name, None)
        if not callable(function):
            raise UsageError(f"flow {key}: {cls.__qualname__} has no `{name}`; see help(penstock.flow)")
        _check_takes(key, function, name, takes)
    if (getattr(user, "execute", None) is None) == (getattr(user, "execute_many", None) is None):
        raise UsageError(f"flow {key}: {cls.__qualname__} needs either `execute(self, ctx, row)` or `execute_many`")
    return _Code(user, key, limits, rate, loads)


def _check_takes(key: str, function: Callable[..., Any], name: str, count: int) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"flow {key}: `{name}` yields; return a list")
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as error:
        words = {"split": "ctx", "load": "ctx, shard, limit", "execute": "ctx, row", "execute_many": "ctxs, rows"}
        raise UsageError(f"flow {key}: `{name}` is called as {name}({words[name]}): {error}") from error


def _async(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    if inspect.iscoroutinefunction(function):
        return guarded(function)

    return _KeptThreads(function).call


class _KeptThreads:
    """Calls a plain function in threads that stay, so that what it keeps for a thread, such as a connection, stays."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._idle: list[WorkThread] = []
        self._given_up: dict[str, list[WorkThread]] = {}

    async def call(self, context: FlowContext, *arguments: Any) -> Any:
        """Return the result of the function. Raises its exception, or CodeEnded. If cancelled, the thread ends with the
        function. Until then there is no other call for that shard: StillRunning. So one database that does not answer
        takes one thread, and not one more with each round."""
        shard = str(arguments[0]) if arguments else ""
        if any(given_up.is_busy for given_up in self._given_up.get(shard, ())):
            raise StillRunning(f"shard {shard!r}" if arguments else "split")
        self._given_up.pop(shard, None)
        thread = self._idle.pop() if self._idle else WorkThread("flow")
        try:
            result, error = await thread.run(lambda given: self._function(*given), (context, *arguments))
        except BaseException:
            thread.close()
            self._given_up.setdefault(shard, []).append(thread)
            raise
        self._idle.append(thread)
        if error is not None:
            raise error if isinstance(error, Exception) else as_failure(error)
        return result


# ---- rows


class _RowCalls(NamedTuple):
    """How rows are executed, as `flow` takes it."""

    concurrency: int
    most: int
    attempts: int
    ttr_ms: int
    slots: Slots | None


def _rows_handler(rows: _Rows, flow: str, user: Any, calls: _RowCalls) -> Handler:
    many = getattr(user, "execute_many", None)
    function = user.execute if many is None else many
    _check_takes(flow, function, function.__name__, 2)
    is_async = inspect.iscoroutinefunction(function)
    rows.decode = decoder_of(_row_type(function, is_list=many is not None))
    take: Callable[..., Any]
    if many is None:
        take = rows.async_one(function) if is_async else rows.plain_one(function)
    else:
        take = rows.async_many(function) if is_async else rows.plain_many(function)
    handler = Handler(
        topic=rows_topic(flow),
        name=f"{type(user).__qualname__}.{function.__name__}",
        take=take,
        is_async=is_async,
        concurrency=calls.concurrency,
        most=1 if many is None else calls.most,
        ttr_ms=calls.ttr_ms,
        attempts=calls.attempts,
        slots=calls.slots,
    )
    checked = {name: getattr(handler, name) for name in ("concurrency", "most", "ttr_ms", "attempts")}
    for field in msgspec.structs.fields(Handler):
        if field.name in checked:
            try:
                msgspec.convert(checked[field.name], field.type)
            except msgspec.ValidationError as error:
                raise ValueError(f"{field.name}: {checked[field.name]!r}: {error}") from error
    return handler


def _row_type(function: Callable[..., Any], *, is_list: bool) -> Any:
    """Return the annotation of the row, Any if it has none."""
    parameter = list(inspect.signature(function, eval_str=True).parameters.values())[1]
    if parameter.annotation is parameter.empty:
        return Any
    return (get_args(parameter.annotation) or (Any,))[0] if is_list else parameter.annotation


class _Calls:
    """The rows of one call. `unfit`: what is no row, by the id of its job."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.contexts: list[FlowContext] = []
        self.rows: list[Any] = []
        self.unfit: dict[str, Bury] = {}

    def of_one(self) -> Iterator[tuple[FlowContext, Any]]:
        """Return the arguments for one row, if it is to be called. Raises Bury."""
        for error in self.unfit.values():
            raise error
        return zip(self.contexts, self.rows, strict=True)

    def of_many(self, jobs: Sequence[Job]) -> bool:
        """Bury what is no row. Return whether there are rows to call."""
        for job in jobs:
            if job.id in self.unfit:
                job.bury(self.unfit[job.id].reason)
        return bool(self.jobs)


@contextmanager
def _one() -> Iterator[None]:
    """Take what the code of one row raises to say how it ended."""
    try:
        yield
    except Skip:
        return
    except Reject as error:
        raise Bury(str(error)) from error


class _Rows:
    """Turns jobs into calls of the user's code. `scope`: of a flow in each zone. A row of a shard that has left the
    zone since it was loaded ends without a call: the zone that owns the shard now loads it again."""

    def __init__(self, key: str, scope: ShardScope | None) -> None:
        self._key = key
        self._scope = scope
        self._bodies = msgspec.json.Decoder(RowBody)
        self.decode: Callable[[Any], Any] = decoder_of(Any)

    @contextmanager
    def _calls(self, jobs: Sequence[Job]) -> Iterator[_Calls]:
        """Give the rows to call, and their contexts. Their shards stay in the zone until the block ends."""
        found = _Calls()
        with ExitStack() as held:
            for job in jobs:
                try:
                    body = self._bodies.decode(job.record.body)
                    row = self.decode(body.row)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    found.unfit[job.id] = Bury(f"the row is not what `execute` takes: {error}")
                    continue
                scope, zone = self._scope, ""
                if scope is not None:
                    zone = scope.zone
                    if held.enter_context(scope.hold(body.shard)) != body.since:
                        log.info("flow.row_left", extra=fields(flow=self._key, zone=zone, shard=body.shard))
                        # nothing was done that a reader might miss
                        job.record = msgspec.structs.replace(job.record, late_s=0)
                        continue
                key = job.id.removeprefix(f"{body.shard}:")
                found.jobs.append(job)
                found.contexts.append(
                    FlowContext(flow=self._key, shard=body.shard, key=key, attempt=job.attempt, zone=zone)
                )
                found.rows.append(row)
            yield found

    def async_one(self, function: Callable[..., Awaitable[Any]]) -> Callable[[Job], Awaitable[None]]:
        async def take(job: Job) -> None:
            with self._calls([job]) as calls, _one():
                for arguments in calls.of_one():
                    await function(*arguments)

        return take

    def plain_one(self, function: Callable[..., Any]) -> Callable[[Job], None]:
        def take(job: Job) -> None:
            with self._calls([job]) as calls, _one():
                for arguments in calls.of_one():
                    function(*arguments)

        return take

    def async_many(self, function: Callable[..., Awaitable[Any]]) -> Callable[[list[Job]], Awaitable[None]]:
        async def take(jobs: list[Job]) -> None:
            with self._calls(jobs) as calls:
                if calls.of_many(jobs):
                    self._answer(calls.jobs, await function(calls.contexts, calls.rows))

        return take

    def plain_many(self, function: Callable[..., Any]) -> Callable[[list[Job]], None]:
        def take(jobs: list[Job]) -> None:
            with self._calls(jobs) as calls:
                if calls.of_many(jobs):
                    self._answer(calls.jobs, function(calls.contexts, calls.rows))

        return take

    def _answer(self, jobs: Sequence[Job], answers: Any) -> None:
        """Take the outcomes of a list: None if all went well, else one for each row, an exception for one that
        failed."""
        if answers is None:
            return
        if len(answers) != len(jobs):
            raise ValueError(f"`execute_many` got {len(jobs)} rows and returned {len(answers)} outcomes; give one each")
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Reject | Bury):
                job.bury(str(answer))
            elif isinstance(answer, Retry):
                job.answer = answer
            elif isinstance(answer, Exception) and not isinstance(answer, Skip):
                job.retry(reason=f"{type(answer).__name__}: {answer}")
