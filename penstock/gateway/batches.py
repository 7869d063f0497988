"""Batches over HTTP: a file or an input handed in, followed, steered, and the result fetched.

An instance is its tenant's: everybody else is told that there is none, and so is a token whose topics do not name its
task. Tenants' ids are apart from each other, as their topics are. Tasks are the operator's: a tenant sees those that
the token's topics name, and changes no limit.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from actors.batch_tasks import TaskRecord, UnknownTask
from actors.callback_transport import LONGEST_URL
from actors.model.batch_record import Moment
from penstock.answering import NUMBERS, refusal_of
from penstock.batch_views import Beat, ItemPage, ItemView, View, Wanted
from penstock.gateway.callers import PART
from penstock.gateway.calls import Answer, Call, Shared, decoded, query_of
from penstock.gateway.jobs import audit
from penstock.gateway.problems import RefusedRequest, refused, shown
from penstock.gateway.shapes import MOST, Asked
from penstock.gateway.uploads import content_disposition
from streams.batch_messages import Status
from streams.errors import StreamError

__all__ = ["BatchShown", "BatchesQuery", "BatchesShown", "ItemsQuery", "ItemsShown", "ResultQuery", "SubmitQuery"]

Text = Annotated[str, Meta(max_length=255)]
Limit = Annotated[int, Meta(ge=1, le=MOST)]
Number = Annotated[int, Meta(ge=0, le=1_000_000)]
Rate = Annotated[float, Meta(ge=0, le=1_000_000)]


class SubmitQuery(Asked, frozen=True, kw_only=True):
    """`id`: of your own, under which the same again is one instance. `callback`: the URL that is told of its first
    failure and its end, `none` for nobody, else the task's. Of a file: its `name`, which of a workbook's sheets, the
    `encoding` of a csv (else its Content-Type's charset, UTF-8 or GB 18030), and `params`, JSON for the task's code."""

    id: Annotated[str, Meta(max_length=64)] = ""
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    name: Text = ""
    sheet: Text = ""
    encoding: Text = ""
    params: Annotated[str, Meta(max_length=2048)] = ""
    callback: Annotated[str, Meta(max_length=LONGEST_URL)] = ""


class BatchesQuery(Asked, frozen=True, kw_only=True):
    task: Annotated[str, Meta(max_length=64)] = ""
    state: Annotated[str, Meta(max_length=20)] = ""
    limit: Limit = 100


class ItemsQuery(Asked, frozen=True, kw_only=True):
    """`cursor`: the `next` of the page before."""

    status: Wanted = "all"
    cursor: Annotated[str, Meta(max_length=40)] = ""
    limit: Limit = 100


class ResultQuery(Asked, frozen=True, kw_only=True):
    name: Text = ""


class ToRetry(Asked, frozen=True, kw_only=True):
    """Which items, by index from 0; none: all that failed or were cancelled."""

    items: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MOST)] = msgspec.field(default_factory=list)


class TaskChanges(Asked, frozen=True, kw_only=True):
    """Limits over the whole cluster, 0: none; null takes one back to what the code says. Rates are per second."""

    main_concurrency: Number | UnsetType | None = UNSET
    main_rate: Rate | UnsetType | None = UNSET
    item_rate: Rate | UnsetType | None = UNSET
    item_concurrency: Number | UnsetType | None = UNSET


class BatchCounts(Struct, frozen=True, kw_only=True):
    """Items whose end is known."""

    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    skipped: int = 0
    cancelled: int = 0


class BatchCall(Struct, frozen=True, kw_only=True):
    """What the callback is told: `event` is `first_failure`, `done`, `failed` or `cancelled`, of which pass. `state`:
    `owed`, `waiting` for the next try, `taken`, or `given_up`; `info`: why the last try was not taken."""

    event: str
    pass_no: int
    at_ms: int
    state: str
    tries: int
    info: str


class BatchShown(Struct, frozen=True, kw_only=True):
    """An instance as it stands. `items`: null before all are known; `step`: how far a split or a reduce is; `waits`:
    for whom, if nobody who is there can work on it; `files`: of the result; `result`: what the task's own code said at
    the end; `callback`: without its query."""

    id: str
    task: str
    state: str
    items: int | None
    counts: BatchCounts
    created_ms: int
    started_ms: int
    ended_ms: int
    priority: int
    passes: int
    reason: str
    reasons: tuple[str, ...]
    step: Beat | None
    waits: str
    files: list[str]
    result: Any
    callback: str
    calls: list[BatchCall]


class BatchesShown(Struct, frozen=True, kw_only=True):
    """The newest first."""

    batches: list[BatchShown]


class ItemShown(Struct, frozen=True, kw_only=True):
    """An item; `status` null: it has not ended. `info`: what its code returned, or why it failed."""

    index: int
    item: Any
    status: Status | None
    info: Any


class ItemsShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page. It may be short, or empty, and still have a `next`."""

    items: list[ItemShown]
    next: str = ""


class TaskShown(Struct, frozen=True, kw_only=True):
    task: str
    main_concurrency: int
    main_rate: float
    item_rate: float
    item_concurrency: int
    attempts: int
    is_idempotent: bool
    is_streaming: bool


class TasksShown(Struct, frozen=True, kw_only=True):
    tasks: list[TaskShown]


_any = msgspec.json.Decoder().decode
_retry = msgspec.json.Decoder(ToRetry).decode
_changes = msgspec.json.Decoder(TaskChanges).decode
_values = msgspec.json.Decoder(dict[str, Any]).decode


async def submit(shared: Shared, call: Call) -> Answer:
    """Make an instance of the task: of a JSON body, which is its input; or of a file as the body, its kind as the
    Content-Type, its name by `name` or the header `X-File-Name`. A file goes on as it comes, up to 200 MiB."""
    task, asked = call.value("task"), query_of(SubmitQuery, call.query)
    if not call.caller.may_run(task):
        raise _told(call, UnknownTask(task))
    if not call.caller.may_name(asked.id):
        raise refused(422, "bad", f"{PART} parts tenants' ids from their tenants", what="id", value=asked.id)
    own: dict[str, Any] = {
        "instance_id": call.caller.inner_id(asked.id or secrets.token_hex(8)),
        "tenant": call.caller.tenant,
        "priority": asked.priority,
        "callback": asked.callback,
    }
    with _telling(call):
        if call.upload is not None:
            view = await _submit_file(shared, call, task, asked, own)
        else:
            view = await _submit_input(shared, call, task, asked, own)
    return Answer(_shown(call, view), 201)


async def _submit_file(shared: Shared, call: Call, task: str, asked: SubmitQuery, own: dict[str, Any]) -> View:
    assert call.upload is not None
    if call.upload.length == 0:
        raise refused(422, "bad", "the file is empty", what="body")
    params = Raw(asked.params.encode() or b"null")
    decoded(_any, bytes(params), what="params")
    name = asked.name or call.upload.name
    with shared.load.move(call.caller.key):
        parts = call.upload.parts()
        own |= {"name": name, "sheet": asked.sheet, "encoding": asked.encoding or call.upload.charset}
        return await shared.batches.submit(task, params, upload=parts, **own)


async def _submit_input(shared: Shared, call: Call, task: str, asked: SubmitQuery, own: dict[str, Any]) -> View:
    for field in ("name", "sheet", "encoding", "params"):
        if getattr(asked, field):
            raise refused(422, "bad", "goes with a file", what=field, value=getattr(asked, field))
    body = call.body or b"null"
    decoded(_any, body)
    with shared.load.work("add", call.caller.key):
        return await shared.batches.submit(task, Raw(body), **own)


async def list_batches(shared: Shared, call: Call) -> Answer:
    """List your instances."""
    asked, caller = query_of(BatchesQuery, call.query), call.caller
    with shared.load.work("other", caller.key), _telling(call):
        views = await shared.batches.all(task=asked.task, state=asked.state, tenant=caller.shown_tenant, most=MOST)
    reached = caller.inner_id("")  # of the tenant's batches those whose ids a path can name
    mine = [view for view in views if caller.may_run(view.task) and view.instance_id.startswith(reached)]
    return Answer(BatchesShown(batches=[_shown(call, view) for view in mine[: asked.limit]]))


async def show(shared: Shared, call: Call) -> Answer:
    """Show how an instance stands."""
    return Answer(_shown(call, await _own(shared, call)))


async def list_items(shared: Shared, call: Call) -> Answer:
    """List an instance's items in their order, those that ended as wanted."""
    asked, view = query_of(ItemsQuery, call.query), await _own(shared, call)
    with shared.load.work("other", call.caller.key), _telling(call):
        page: ItemPage = await shared.batches.items(
            view.instance_id, status=asked.status, cursor=asked.cursor, most=asked.limit
        )
    return Answer(ItemsShown(items=[_item(item) for item in page.items], next=page.cursor))


async def pause(shared: Shared, call: Call) -> Answer:
    """Start nothing more of it; what runs, ends."""
    return await _steered(shared, call, "batch.paused", shared.batches.pause)


async def resume(shared: Shared, call: Call) -> Answer:
    """Go on with it."""
    return await _steered(shared, call, "batch.resumed", shared.batches.resume)


async def cancel(shared: Shared, call: Call) -> Answer:
    """End it: what runs ends, the rest is cancelled."""
    return await _steered(shared, call, "batch.cancelled", shared.batches.cancel)


async def retry(shared: Shared, call: Call) -> Answer:
    """Run what failed or was cancelled again, or only some items, and make the result anew."""
    items = decoded(_retry, call.body).items if call.body else []
    return await _steered(shared, call, "batch.retried", lambda batch: shared.batches.retry(batch, items))


async def result(shared: Shared, call: Call) -> Answer:
    """Download a file of the result, its first one if `name` is not given; as bytes, for no browser to show."""
    asked, view = query_of(ResultQuery, call.query), await _own(shared, call)
    with _telling(call):
        info, parts = await shared.batches.result(view.instance_id, asked.name)
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % info.size),
        (b"content-disposition", content_disposition(info.name)),
    ]

    async def stream(send: Callable[[Any], Awaitable[None]]) -> None:
        with shared.load.move(call.caller.key):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                async for part in parts:
                    if call.is_gone:
                        return
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except StreamError:
                return  # shorter than its length: the client sees that it is not whole
            await send({"type": "http.response.body", "body": b""})

    return Answer(None, stream=stream)


async def list_tasks(shared: Shared, call: Call) -> Answer:
    """List the tasks that you may run."""
    tasks = [task for task in shared.batches.tasks() if call.caller.may_run(task.task)]
    return Answer(TasksShown(tasks=[_task(task) for task in tasks]))


async def change_task(shared: Shared, call: Call) -> Answer:
    """Change a task's limits; they act at once, on every node."""
    task = call.value("task")
    if call.caller.tenant:
        raise refused(403, "forbidden", "a task's limits are the operator's")
    if not call.caller.may_run(task):
        raise _told(call, UnknownTask(task))
    decoded(_changes, call.body)
    values = decoded(_values, call.body)
    with shared.load.work("other", call.caller.key), _telling(call):
        changed = await shared.batches.limit(task, values)
    audit(call, "task.changed", task=task, limits=values)
    return Answer(_task(changed))


async def _steered(shared: Shared, call: Call, event: str, act: Callable[[str], Awaitable[View]]) -> Answer:
    view = await _own(shared, call)
    with shared.load.work("settle", call.caller.key), _telling(call):
        after = await act(view.instance_id)
    audit(call, event, batch=view.instance_id)
    return Answer(_shown(call, after))


async def _own(shared: Shared, call: Call) -> View:
    """Return the path's instance. Raises RefusedRequest, the same for one that is not there and another's."""
    instance_id = call.value("batch_id")
    with shared.load.work("other", call.caller.key), _telling(call):
        view = await shared.batches.show(call.caller.inner_id(instance_id))
    if not call.caller.is_of(view.tenant) or not call.caller.may_run(view.task):
        raise _no_batch(instance_id)
    return view


@contextmanager
def _telling(call: Call) -> Iterator[None]:
    """Turn what the desk refuses into the client's problem."""
    try:
        yield
    except RefusedRequest:
        raise
    except Exception as error:  # of a fault, or of the broker's trouble, somebody else tells
        raise _told(call, error) from error


def _told(call: Call, error: Exception) -> Exception:
    code, field = refusal_of(error)
    match code:
        case "" | "unknown" | "unavailable":
            return error
        case "not_found" if field == "id":
            return _no_batch(call.values.get("batch_id", ""))
        case "bad":
            return refused(422, "bad", shown_long(call.caller.said(str(error))), what=field)
    return refused(NUMBERS[code], code, shown_long(call.caller.said(str(error))), what=field)  # type: ignore[arg-type]  # all are ours


def _no_batch(instance_id: str) -> RefusedRequest:
    return refused(404, "not_found", "no such batch, or none of yours", what="id", value=instance_id)


def shown_long(text: str) -> str:
    """Return a reason in printable ASCII, with room for a sentence."""
    return "".join(shown(text[start : start + 70]) for start in range(0, min(len(text), 420), 70))


def _shown(call: Call, view: View) -> BatchShown:
    told = view.result.get("files") if isinstance(view.result, dict) else None
    return BatchShown(
        id=call.caller.outer(view.instance_id),
        task=view.task,
        state=view.state,
        items=view.items,
        counts=BatchCounts(**msgspec.structs.asdict(view.counts)),
        created_ms=view.created_ms,
        started_ms=view.started_ms,
        ended_ms=view.ended_ms,
        priority=view.priority,
        passes=view.passes,
        reason=view.reason,
        reasons=view.reasons,
        step=view.step,
        waits=view.waits,
        files=[each for each in told if isinstance(each, str)] if isinstance(told, list) else [],
        result=view.result,
        callback=view.callback,
        calls=[_called(each) for each in view.calls],
    )


def _called(moment: Moment) -> BatchCall:
    return BatchCall(
        event=moment.name,
        pass_no=moment.pass_no,
        at_ms=moment.at_ms,
        state=moment.state,
        tries=moment.tries,
        info=moment.info,
    )


def _item(item: ItemView) -> ItemShown:
    return ItemShown(index=item.index, item=item.item, status=item.status, info=item.info)


def _task(task: TaskRecord) -> TaskShown:
    limits = task.limits
    return TaskShown(
        task=task.task,
        main_concurrency=limits.main_concurrency,
        main_rate=limits.main_rate,
        item_rate=limits.item_rate,
        item_concurrency=limits.item_concurrency,
        attempts=task.attempts,
        is_idempotent=task.is_idempotent,
        is_streaming=task.is_streaming,
    )
