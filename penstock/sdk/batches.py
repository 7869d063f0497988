"""Batches: a class of your own says what to do with each row of an upload, and with all of them at the end.

    @penstock.batch("register-products", item_rate=200)
    class RegisterProducts:
        async def map(self, product: Product) -> str | None: ...

Only `map` is needed, or `map_many`, which takes a list. `split(self, ctx)` commits the items. By default they are the
rows of the uploaded sheet. `reduce(self, ctx)` makes the result. By default it is a sheet with each row, its end and
the reason. Penstock does the rest: storing, distribution, pacing, retries, counts, progress.

An item succeeds when `map` returns. Penstock keeps the returned value with it (any JSON value up to 2 KiB). If `map`
raises, the item runs again after a wait. After the last attempt it has failed, with that reason. `raise
penstock.Reject(reason)` fails it at once. `raise penstock.Skip(reason)` says that there was nothing to do.

An item may run twice, because its process may die before its end is stored. With `is_idempotent=False` no item begins
twice. If the end of such an item is not known, the item ends as `unknown`, unless `check(self, item)` knows whether it
happened (True, False, None). An item that exceeds its time may still run. It ends as `unknown` too, unless `check`
returns True.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypedDict, TypeVar, Unpack, get_args
from urllib.parse import urlsplit

import anyio.to_thread
import msgspec

from actors.batch.executor.contexts import ItemContext, ItemResult, ReduceContext, SplitContext
from actors.batch.executor.handler import Reject, Skip, TaskHandler
from actors.batch.rules.sheet_lines import FAULT
from actors.batch.tasks import TaskLimits, TaskRecord
from actors.runtime.rules.bounds import read_bound
from actors.runtime.rules.setting_values import BadSetting, Duration, shown, span_ms
from actors.runtime.rules.slot_keys import Slots, check_path
from actors.runtime.rules.spellings import unknown_option
from penstock.errors import UsageError
from penstock.rows.batch_rows import fields_of, row_reader
from penstock.rows.sheets.limits import BadSheet, ReaderEnded
from penstock.sdk.batch_code import CodeEnded, each_in_a_thread, guarded, in_a_thread
from penstock.sdk.batch_sheets import SheetRow, reduce_to_sheet, split_sheet
from penstock.sdk.jobs import slots_of
from streams.subjects import TOKEN

__all__ = [
    "ItemContext",
    "ItemResult",
    "ReduceContext",
    "Reject",
    "Skip",
    "SplitContext",
    "batch",
    "external_batch",
    "task_handlers",
]

ClassT = TypeVar("ClassT", bound=type)
_handlers: dict[str, tuple[TaskHandler, type]] = {}


class TaskOptions(TypedDict, total=False):
    """The options of a task: those of `TaskRecord` and `TaskLimits`, which have the ranges and the other defaults.
    `retry_base` and `retry_cap` are lengths of time: `"30s"`, seconds, or a timedelta. Their older names, with `_s` at
    the end, mean the same.

    Limits over the whole cluster: `item_rate` is items a second, `item_concurrency` items at the same time, `main_rate`
    instances begun a second, `main_concurrency` instances at the same time. 0 is no limit. `slots`: items at the same
    time under each key, as `penstock.Slots(2, key="merchant.id")`, a path into the item. `most_failures`: the share
    of the items that may fail before the instance is stopped. `chunk_items`: the most items of a chunk, from 1 to
    10,000. A process runs a chunk's items, and stores their ends together. `keep_days`: how many days an instance that
    is over stays with its items and files, from 1 to 365. `streaming`: items run while the split still runs. If the
    split begins again, it must give the same items in the same order. `callback`: the URL for instances whose submitter
    names none. The operator must allow its host. `zone`: where its code runs, as `east`, or `shard:7` for the zone that
    owns that shard. `region_key`: where the key by which an item finds its shard is in the item. One of another zone
    fails."""

    item_rate: float
    item_concurrency: int
    main_concurrency: int
    main_rate: float
    attempts: int
    retry_base: Duration
    retry_cap: Duration
    retry_base_s: float
    retry_cap_s: float
    most_failures: float
    streaming: bool
    chunk_items: int
    keep_days: int
    callback: str
    version: str
    slots: Slots | None
    zone: str
    region_key: str


class BatchOptions(TaskOptions, total=False):
    """The options of a task that a class serves. `item_timeout`: the limit of one item. `step_timeout`: the limit of a
    split or a reduce. Both are lengths of time, as `retry_cap` is, and have older names with `_s`, too."""

    is_idempotent: bool
    item_timeout: Duration
    step_timeout: Duration
    item_timeout_s: float
    step_timeout_s: float


STATED: TaskOptions = {"retry_base": 1.0, "retry_cap": 60.0, "most_failures": 1.0, "chunk_items": 1_000}
"""The defaults that a stored record states, so that its readers need not know them."""
SPANS = ("item_timeout", "step_timeout", "retry_base", "retry_cap")
TIMEOUT_S, STEP_TIMEOUT_S = 60.0, 21_600.0
ASYNC_AT_ONCE, PLAIN_AT_ONCE, MOST_AT_ONCE = 16, 4, 1_000
"""Items of a chunk at the same time. A process works on two chunks. An `async` map waits, and its limits bound what it
calls. Each item of a plain one has a thread, and the threads of a process share one interpreter."""


def batch(task: str, *, concurrency: int | None = None, **options: Unpack[BatchOptions]) -> Callable[[ClassT], ClassT]:
    """Have the decorated class run the instances of the task. It is made without arguments, once in each process.

    `concurrency`: how many items of one chunk run at the same time, 1 to 1000. By default 16 of an `async` map, and 4
    of a plain one, in a thread each, if an item takes longer than a hundredth of a second. A process works on two
    chunks of a task at the same time. `map_many` gets all items of a chunk at once. With `is_idempotent=False` the
    items of a chunk run one after the other. The other options are those of `BatchOptions`. Raises UsageError.
    """
    _check_options(options, BatchOptions.__optional_keys__)
    if concurrency is not None and not 1 <= concurrency <= MOST_AT_ONCE:
        raise UsageError(f"task {task!r}: concurrency {concurrency}: use 1 to {MOST_AT_ONCE}")
    stated: dict[str, Any] = {"item_timeout": TIMEOUT_S, "step_timeout": STEP_TIMEOUT_S, **_in_spans(task, options)}

    def register(cls: ClassT) -> ClassT:
        known = _handlers.get(task)
        if known is not None and known[1] is not cls:
            raise UsageError(f"task {task!r}: {cls.__qualname__} and {known[1].__qualname__} both serve it")
        record = _record(
            task, cls.__module__, stated, has_check=hasattr(cls, "check"), is_sheet=not hasattr(cls, "split")
        )
        _handlers[task] = _handler(record, cls, concurrency), cls
        return cls

    if callable(task):
        raise UsageError(f"{task!r}: name its task: @penstock.batch('register-products')")
    return register


def external_batch(
    task: str,
    place: str,
    *,
    timeout: Duration | None = None,
    timeout_s: float = TIMEOUT_S,
    **options: Unpack[TaskOptions],
) -> None:
    """Have a program of any language run the items of a task. `place` is `http://…` or `https://…`, to which chunks are
    posted, or `nats:SUBJECT`, to which they are sent as requests. A chunk has at most `chunk_items` items, 100 by
    default. actors/batch/executor/external.py shows the JSON.

    `timeout`: the limit of one answer, by default a minute. `timeout_s` is its older name. The items are the rows of
    the uploaded sheet, and the result is a sheet. The other options are those of `TaskOptions`. The program may get an
    item twice. Raises UsageError.
    """
    _check_options(options, TaskOptions.__optional_keys__)
    if task in _handlers and _handlers[task][1] is not External:
        raise UsageError(f"task {task!r}: {_handlers[task][1].__qualname__} serves it, and {place[:80]!a} shall, too")
    stated: dict[str, Any] = {
        "chunk_items": 100,
        **_in_spans(task, options),
        "item_timeout": timeout_s if timeout is None else timeout,
    }
    app = sys._getframe(1).f_globals.get("__name__", "")  # the module that calls this has no class to name it
    record = _record(task, app, stated, executor=_checked_place(task, place), is_sheet=True)
    _handlers[task] = _handler(record, External, None), External


def _check_options(options: Mapping[str, object], known: frozenset[str]) -> None:
    if unknown := options.keys() - known:
        raise TypeError(unknown_option("a task", min(unknown), sorted(known)))


def _in_spans(task: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options with lengths of time under their own names, and not with `_s`. Raises UsageError."""
    if twice := [name for name in SPANS if name in options and f"{name}_s" in options]:
        raise UsageError(f"task {task!r}: {twice[0]} and {twice[0]}_s: give one of them")
    return {name[:-2] if name[:-2] in SPANS else name: value for name, value in options.items()}


def _millis(task: str, name: str, value: object) -> int:
    try:
        return span_ms(name, value)
    except BadSetting as error:
        raise UsageError(f"task {task!r}: {name}: {shown(value)} {error.why}; {error.do}") from error


def _record(task: str, app: str, options: Mapping[str, Any], **fields: Any) -> TaskRecord:
    """Return the record that these options make. Raises UsageError."""
    limits: dict[str, Any] = {}
    for name, value in {**STATED, **options}.items():
        if name == "slots":
            limits |= _slot_limits(task, value)
        elif name in TaskLimits.__struct_fields__:
            limits[name] = value
        elif name in SPANS:
            fields[f"{name}_ms"] = _millis(task, name, value)
        else:
            fields["is_streaming" if name == "streaming" else name] = value
    record = TaskRecord(task=_checked_key(task), app=app, limits=TaskLimits(**limits), **fields)
    try:
        read_bound("zone", record.limits.zone)
        check_path("region_key", record.limits.region_key)
        return msgspec.convert(msgspec.to_builtins(record), TaskRecord)
    except (BadSetting, msgspec.ValidationError) as error:
        raise UsageError(f"task {task!r}: {error}") from error


def _slot_limits(task: str, given: object) -> dict[str, object]:
    try:
        slots = slots_of(given)
    except ValueError as error:
        raise UsageError(f"task {task!r}: {error}") from error
    return {} if slots is None else {"slots": slots.most, "slot_key": slots.key, "when_full": slots.when_full}


class External:
    """Stands for an external program until an executor opens the connection to it."""

    async def map_many(self, items: list[Any]) -> None:
        raise AssertionError("nobody has opened the way")


def _checked_place(task: str, place: str) -> str:
    """Return the place as the record names it. Raises UsageError, whose text shows no user and no query."""
    if place.startswith("nats:"):
        if all(TOKEN.fullmatch(token) for token in place[5:].split(".")):
            return place
    elif place.startswith(("http://", "https://")):
        with suppress(ValueError):  # no URL, or no port
            parsed = urlsplit(place)
            if parsed.hostname and parsed.username is None and not parsed.fragment and parsed.port != 0:
                return f"http:{place}"
    shown = place.partition("?")[0].rpartition("@")[2][:80]
    raise UsageError(
        f"task {task!r}: {shown!a}: say http://HOST/PATH, https://HOST/PATH without a user, or nats:SUBJECT"
    )


def task_handlers() -> Mapping[str, TaskHandler]:
    """Return the registered tasks, by key."""
    return {task: handler for task, (handler, _) in _handlers.items()}


def _checked_key(task: object) -> str:
    if isinstance(task, str) and TOKEN.fullmatch(task):
        return task
    raise UsageError(f"task {task!r}: name it with 1 to 64 of A-Z a-z 0-9 _ -: @penstock.batch('register-products')")


def _handler(record: TaskRecord, cls: object, concurrency: int | None) -> TaskHandler:
    if not isinstance(cls, type):
        hint = "write a class with `map(self, item)`, or `map_many(self, items)`"
        raise UsageError(f"task {record.task}: {getattr(cls, '__qualname__', cls)} is no class; {hint}")
    own = cls.__qualname__
    try:
        user: Any = cls()
    except TypeError as error:
        raise UsageError(f"task {record.task}: {own} is made without arguments: {error}") from error
    one, many = getattr(user, "map", None), getattr(user, "map_many", None)
    if (one is None) == (many is None):
        raise UsageError(f"task {record.task}: {own} needs either `map(self, item)` or `map_many(self, items)`")
    split, reduce = getattr(user, "split", None), getattr(user, "reduce", None)
    for name in ("split", "map", "map_many", "reduce"):
        code = getattr(user, name, None)
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            do = "give its items to `ctx.commit(…)`" if name == "split" else "return a value"
            raise UsageError(f"task {record.task}: {own}.{name} yields, and nobody takes what it yields; {do}")
    function: Callable[..., Any] = one if one is not None else many  # type: ignore[assignment] # one of them is there
    item_type = _item_type(function, is_list=many is not None, own=own)
    decode = _decoder(item_type, is_row=split is None)
    is_async = inspect.iscoroutinefunction(function)
    return TaskHandler(
        record=record,
        split=_rejecting(_step(split) if split is not None else split_sheet),
        reduce=_step(reduce) if reduce is not None else functools.partial(reduce_to_sheet, is_rows=split is None),
        decode=decode,
        run=_with_context(one) if one is not None and is_async else None,
        run_many=_looped(one, record.item_timeout_ms / 1000) if one is not None and not is_async else _many(many),
        check=_with_context(user.check) if record.has_check else None,
        fields=functools.partial(fields_of, item_type) if split is None else lambda: None,
        concurrency=concurrency or (ASYNC_AT_ONCE if is_async else PLAIN_AT_ONCE),
        is_thread=not is_async,
        is_loop=one is not None and not is_async,
    )


def _decoder(item_type: Any, *, is_row: bool) -> Callable[[Any], Any]:
    """Return the function that decodes an item. It looks at the item's type with the first row, when all names of the
    type exist."""
    if not is_row:
        return msgspec.json.Decoder(item_type).decode
    rows = msgspec.json.Decoder(SheetRow)
    reader = functools.lru_cache(1)(lambda: row_reader(item_type))

    def decode(raw: Any) -> Any:
        cells = rows.decode(raw).cells
        if FAULT in cells:
            raise Reject(str(cells[FAULT]))
        return cells if item_type is Any else reader()(cells)

    return decode


def _item_type(function: Callable[..., Any], *, is_list: bool, own: str) -> Any:
    """Return the annotation of the first parameter, Any if it has none."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise UsageError(f"{own}.{function.__name__}: it takes the item as its first argument")
    annotation = parameters[0].annotation
    if isinstance(annotation, str):
        try:
            hints = typing.get_type_hints(function)
        except NameError as error:
            raise UsageError(f"{own}.{function.__name__}: {error}; import its types at run time") from error
        annotation = hints.get(parameters[0].name, Any)
    if annotation is inspect.Parameter.empty:
        return Any
    return (get_args(annotation) or (Any,))[0] if is_list else annotation


def _many(function: Callable[..., Any] | None) -> Callable[[Any, Any], Awaitable[Any]] | None:
    return None if function is None else _with_context(function)


def _looped(function: Callable[..., Any], within_s: float) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return a plain function of one item as a function of a list. A thread for each item would cost more than most
    items."""
    takes_context = len(inspect.signature(function).parameters) > 1

    def run(items: list[Any], contexts: list[ItemContext]) -> Awaitable[list[object]]:
        pairs = zip(items, contexts, strict=True)
        calls = [functools.partial(function, *(pair if takes_context else pair[:1])) for pair in pairs]
        return each_in_a_thread(calls, within_s=within_s)

    return run


def _with_context(function: Callable[..., Any]) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return the function as one of two arguments. If it has a second parameter, that gets the context."""
    takes_context = len(inspect.signature(function).parameters) > 1
    run = _async(function)
    if takes_context:
        return run

    def alone(item: Any, _context: Any) -> Awaitable[Any]:
        return run(item)

    return alone


def _async(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return the function as an async one. A plain function runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return guarded(function)

    def in_thread(*arguments: Any) -> Awaitable[Any]:
        return in_a_thread(functools.partial(function, *arguments))

    return in_thread


def _step(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return a split or a reduce as an async function. A plain one runs in a thread from which it can call what the
    context has, by `anyio.from_thread.run`."""
    if inspect.iscoroutinefunction(function):
        return guarded(function)

    def run(context: Any) -> object:
        try:
            return function(context)
        except Exception:
            raise
        except BaseException as error:
            raise CodeEnded(f"{type(error).__name__}: {error}") from error

    async def in_thread(context: Any) -> Any:
        return await anyio.to_thread.run_sync(run, context, abandon_on_cancel=True)

    return in_thread


def _rejecting(split: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a split that ends its batch at a bad sheet. Another try would read the same file."""

    async def run(context: SplitContext) -> None:
        try:
            await split(context)
        except ReaderEnded:
            raise
        except BadSheet as fault:
            raise Reject(str(fault)) from fault

    return run
