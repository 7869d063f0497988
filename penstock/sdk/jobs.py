"""Handlers of jobs: functions of your own that `penstock up --app module` runs on the jobs of a topic.

    @penstock.job("close-order", ttr="30s")
    async def close(job: penstock.Job) -> None: ...

    @penstock.job("close-order")
    async def close(order: Order) -> None: ...             # the decoded body. A job with another body is buried

    @penstock.job("mails", most=100)
    async def send(jobs: list[penstock.Job]) -> None: ...  # up to 100 at once. It never waits for more

A job is finished when the function returns. If it raises, the attempt has failed. The next attempt comes after the
topic's backoff. After the last attempt the job becomes a dead letter with its history. `raise penstock.Retry("5m")`
names the wait. `raise penstock.Bury(reason)` makes a dead letter at once. A second parameter gets the Job beside its
body.

A job runs at least once. It comes again if its node died, or could not report in time that it is finished. An `async`
function is cancelled when its time to run is over. A plain function runs in a thread of its own, which nothing can
stop. Its place stays taken until it returns, and a late return does not count.
"""

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from actors.jobs.rules.topic_settings import DEFAULT
from actors.jobs.worker.handler import ALL_LANES, Handler, Taker, async_taker, plain_taker
from actors.jobs.worker.job import BadBody, Bury, Job, JobLost, Retry, ttr_of
from actors.runtime.rules.setting_values import Duration
from actors.runtime.rules.slot_keys import Slots, check_slots
from actors.runtime.rules.spellings import hinted
from penstock.errors import UsageError
from streams.messages.jobs import Priority

__all__ = ["BadBody", "Bury", "Job", "JobLost", "Retry", "handlers", "job"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
SINGLES, LISTS = 16, 4
"""Calls at the same time by default: of one job each, and of lists."""
LONGEST_IN_ZONES = 32
"""Characters of a topic whose jobs each zone runs: it is a part of the topics of the zones."""
ZONE_PART = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*", re.ASCII)
_handlers: dict[str, tuple[Handler, object]] = {}


@hinted("a handler")
def job(
    topic: str,
    *,
    concurrency: int | None = None,
    ttr: Duration | None = None,
    attempts: int | None = None,
    most: int = 1,
    priorities: Sequence[Priority] = ALL_LANES,
    slots: Slots | None = None,
    each_zone: bool = False,
) -> Callable[[FunctionT], FunctionT]:
    """Have the decorated function run the topic's jobs.

    `concurrency`: calls at the same time on each node, by default 16, or 4 with lists. `ttr` (time to run) and
    `attempts` replace the values of each job. `most`: jobs in one call. Above 1 the function takes a list.
    `priorities`: the lanes to serve, if some nodes are for urgent jobs only. `slots`: calls at once under each key in
    the whole cluster, as `penstock.Slots(2, key="merchant.id")`. `each_zone`: each job, as the tick of a schedule, is
    run by one node in each zone, as a job of the topic `each__ZONE__TOPIC`. Raises UsageError for values out of range.
    """

    def register(function: FunctionT) -> FunctionT:
        own = _name_of(function)
        if not isinstance(topic, str):
            raise UsageError(f"job handler {own}: name its topic: @penstock.job('topic')")
        if topic == DEFAULT:
            raise UsageError(f"job handler {own}: {DEFAULT!r} is what holds for all topics; use another name")
        known = _handlers.get(topic)
        if known is not None and known[1] is not function:
            raise UsageError(f"topic {topic!r}: {own} and {known[0].name} both handle it; it can have one handler")
        try:
            handler = Handler(
                topic=topic,
                name=own,
                take=_taker(function, own, most),
                is_async=_is_async(function),
                concurrency=(SINGLES if most == 1 else LISTS) if concurrency is None else concurrency,
                most=most,
                ttr_ms=None if ttr is None else ttr_of(ttr),
                attempts=attempts,
                lanes=tuple(priorities),
                slots=slots_of(slots),
                each_zone=each_zone,
            )
            _check(handler)
        except ValueError as error:
            raise UsageError(f"job handler {own}: {error}") from error
        _handlers[topic] = handler, function
        return function

    if callable(topic):
        raise UsageError(f"job handler {_name_of(topic)}: name its topic: @penstock.job('topic')")
    return register


def handlers() -> Mapping[str, Handler]:
    """Return the registered handlers, by topic."""
    return {topic: handler for topic, (handler, _) in _handlers.items()}


def slots_of(slots: object) -> Slots | None:
    """Return what a user gave. Raises ValueError."""
    if slots is None:
        return None
    if not isinstance(slots, Slots):
        raise ValueError(f"slots: {slots!r}: write penstock.Slots(2, key='merchant.id')")
    return check_slots(slots)


def _check(handler: Handler) -> None:
    """Raise ValueError for a value out of its range. A struct checks only decoded values."""
    plain = {name: getattr(handler, name) for name in ("topic", "concurrency", "most", "attempts", "lanes")}
    for name, value in plain.items():
        field = next(field for field in msgspec.structs.fields(Handler) if field.name == name)
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            raise ValueError(f"{name}: {str(value)[:80]!r}: {error}") from error
    if handler.each_zone and (not ZONE_PART.fullmatch(handler.topic) or len(handler.topic) > LONGEST_IN_ZONES):
        raise ValueError(
            f"topic {handler.topic!r}: in each zone use 1 to {LONGEST_IN_ZONES} of A-Z a-z 0-9 - and single _"
        )
    if not handler.lanes or len(set(handler.lanes)) < len(handler.lanes):
        raise ValueError(f"priorities: {handler.lanes!r}: name each lane once, out of {', '.join(ALL_LANES)}")


def _taker(function: Callable[..., Any], name: str, most: int) -> Taker:
    """Return the function that takes a job, by the handler's parameters."""
    if _is_generator(function):
        raise UsageError(f"job handler {name}: it yields; a handler is a function that returns when the job is done")
    first, has_job = _parameters(function, name)
    body_type = _body_type(_annotation(function, first, name), name, is_list=most != 1)
    if body_type is None:
        if has_job:
            raise UsageError(f"job handler {name}: it takes the job twice; annotate its first parameter with a type")
        return function
    try:
        make = async_taker if _is_async(function) else plain_taker
        return make(function, body_type, has_job=has_job, most=most)
    except TypeError as error:
        raise UsageError(
            f"job handler {name}: {first.name}: no body can be decoded to {body_type}: {error}; take a penstock.Job"
        ) from error


def _parameters(function: Callable[..., Any], name: str) -> tuple[inspect.Parameter, bool]:
    """Return the first parameter, and whether a second one gets the job."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(function).parameters.values())
    positional = [each for each in parameters if each.kind in kinds]
    needed = [each for each in positional if each.default is each.empty]
    keywords = [
        each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is each.empty
    ]
    if not positional or len(needed) > 2 or keywords:
        raise UsageError(
            f"job handler {name}: it is called with the job, or with its body and the job; let it take one or two"
        )
    return positional[0], len(needed) == 2


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter, name: str) -> object:
    """Return the parameter's annotation, None if it has none. A text is evaluated in the function's module."""
    if parameter.annotation is parameter.empty:
        return None
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    holder = _innermost(function)
    try:
        stub = type("Stub", (), {"__annotations__": {"it": parameter.annotation}})
        return typing.get_type_hints(stub, globalns=getattr(holder, "__globals__", {}))["it"]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise UsageError(
            f"job handler {name}: {parameter.name}: {parameter.annotation!r} cannot be looked up: {error}; import it"
            " where it stands at run time, not under TYPE_CHECKING or within a function"
        ) from error


def _body_type(annotation: object, name: str, *, is_list: bool) -> object | None:
    """Return the type of the decoded body. None: the function takes jobs."""
    if annotation is None or annotation is Any:
        return None
    item = annotation
    if is_list:
        if get_origin(annotation) not in (list, Sequence) and annotation not in (list, Sequence):
            raise UsageError(f"job handler {name}: with `most` above 1 it is called with a list; annotate it as one")
        item = (get_args(annotation) or (Job,))[0]
    if item in (bytes, bytearray, memoryview):
        raise UsageError(f"job handler {name}: JSON has no bytes; take a penstock.Job, and its `body`")
    return None if item in (Job, Any) else item


def _is_async(function: Callable[..., Any]) -> bool:
    inner = _innermost(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(type(inner), "__call__", None))  # noqa: B004  # the class's own, to see whether it is async


def _is_generator(function: Callable[..., Any]) -> bool:
    inner = _innermost(function)
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def _innermost(function: Callable[..., Any]) -> Any:
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return inner


def _name_of(function: object) -> str:
    return str(getattr(_innermost(function), "__qualname__", type(function).__qualname__))  # type: ignore[arg-type]
