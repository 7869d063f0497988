"""Batches over HTTP: submit a file or an input, follow and control the instance, and download the result.

An instance belongs to its tenant. Other callers get 404, and so does a token whose topics do not name its task. The ids
of tenants are separate, as their topics are. Tasks belong to the operator: a tenant sees those that the token's topics
name, and changes no limit.
"""

import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.batch.instances import UnknownInstance
from actors.batch.rules.meant import Meant
from actors.batch.rules.refusals import BatchRefused
from actors.batch.rules.row_looks import FirstLook
from actors.batch.tasks import UnknownTask
from actors.batch.views import ItemPage, View, pages_of
from penstock.api.forms.batch import (
    BatchesQuery,
    BatchesShown,
    BatchShown,
    ItemsQuery,
    ItemsShown,
    ResultQuery,
    SheetQuery,
    SubmitQuery,
    TaskChanges,
    TasksQuery,
    TasksShown,
    ToRetry,
    WhyQuery,
    batch_shown,
    task_shown,
)
from penstock.api.http.callers import PART
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded, query_of
from penstock.api.http.form_uploads import FormFile, read_form
from penstock.api.http.problems import RefusedRequest, refused, shown
from penstock.api.http.routes.jobs import audit
from penstock.api.http.uploads import Upload, content_disposition
from penstock.api.replies import NUMBERS, refusal_of
from streams.errors import StreamError
from streams.messages.batch import NewBatch
from streams.messages.jobs import MOST_JOBS

_any = msgspec.json.Decoder()
_retry = msgspec.json.Decoder(ToRetry)
_changes = msgspec.json.Decoder(TaskChanges)
_values = msgspec.json.Decoder(dict[str, Any])


async def submit(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Make an instance of the task. The body is its input as JSON, or a file of up to 200 MiB, or a form with a file,
    as a page sends it. The Content-Type names the file's kind, and `name` or the header `X-File-Name` its name. The
    node passes a file on while it arrives. The fields of a form are the parameters, `task`, and `input` (JSON, without
    a file). They stand before its file."""
    new, file = await _asked(call)
    await _check_after(shared, call, new)
    with _telling(call):
        if file is None:
            with shared.load.work("add", call.caller.key):
                view = await shared.batches.submit(new)
        else:
            with shared.load.move(call.caller.key):
                view = await shared.batches.submit(new, upload=file.parts())
    return HttpAnswer(_batch(call, view), 201)


async def check(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Look at a submission and make no batch. The body is as for a submission. Of a file the answer has the columns,
    each with the type that the task's code declares, the first rows as the code would get them, and the rows that it
    would not take. Nothing is stored, and none of the code's own work runs."""
    new, file = await _asked(call)
    with _telling(call):
        if file is None:
            with shared.load.work("other", call.caller.key):
                seen = await shared.batches.new.look(new, [])
            return HttpAnswer(FirstLook(task=new.task, unchecked=seen.unchecked))
        shared.batches.new.check(new, has_file=True)  # before the file is read
        with shared.load.move(call.caller.key), shared.load.look():
            look = await shared.look_at_file(
                new.task,
                file.parts(),
                lambda rows, shown: shared.batches.new.look(new, rows, shown=shown),
                name=new.name,
                sheet=new.sheet,
                encoding=new.encoding,
            )
    return HttpAnswer(look)


async def _asked(call: HttpCall) -> tuple[NewBatch, Upload | FormFile | None]:
    """Return what a submission asks for, and its file, which is read later. Raises RefusedRequest."""
    file: Upload | FormFile | None = call.upload
    body, fields = call.body or b"null", dict[str, str]()
    if call.upload is not None and call.upload.boundary:
        fields, file = await read_form(call.upload)
        if file is None:
            body = fields.pop("input", "null").encode()
    task = call.value("task") if "task" in call.values else fields.pop("task", "")
    if not task:
        hint = "GET /v1/tasks lists them; a form has it before the file"
        raise refused(422, "bad", "say which task is to run", what="task", hint=hint)
    asked = query_of(SubmitQuery, call.query, fields)
    if not call.caller.may_run(task):
        raise _told(call, UnknownTask(task))
    if not call.caller.may_name(asked.id):
        raise refused(422, "bad", f"{PART} parts tenants' ids from their tenants", what="id", value=asked.id)
    new = NewBatch(
        task=task,
        id=call.caller.inner_id(asked.id or _fresh_id(task, call.key)),
        tenant=call.caller.tenant,
        priority=asked.priority,
        callback=asked.callback,
        delay_ms=asked.delay_ms,
        due_ms=asked.due_ms,
        after=call.caller.inner_id(asked.after) if asked.after else "",
        after_state=asked.after_state,
        nonce=call.key,
    )
    return (_with_input(body, asked, new) if file is None else _with_file(file, asked, new)), file


def _fresh_id(task: str, key: str) -> str:
    """Return an id for a submission that brings none: the same for each repeat with an `Idempotency-Key`."""
    if not key:
        return secrets.token_hex(8)
    return hashlib.blake2b(f"{task} {key}".encode(), digest_size=8).hexdigest()


async def _check_after(shared: GatewayState, call: HttpCall, new: NewBatch) -> None:
    """Raise RefusedRequest if a submission shall wait for an instance that is none of the caller's."""
    if new.after:
        after = call.caller.outer(new.after)
        try:
            await _seen(shared, call, after)
        except RefusedRequest as error:
            if error.problem.status != 404:
                raise
            if not await _is_repeat(shared, call, new):
                raise _no_batch(after, what="after") from None


async def _is_repeat(shared: GatewayState, call: HttpCall, new: NewBatch) -> bool:
    """Return whether the caller has this instance, and the one that it followed is nobody's any more."""
    with _telling(call), suppress(UnknownInstance):
        await shared.batches.show(new.after)
        return False
    with suppress(RefusedRequest):
        await _seen(shared, call, call.caller.outer(new.id))
        return True
    return False


def _with_file(file: Upload | FormFile, asked: SubmitQuery, new: NewBatch) -> NewBatch:
    if file.length == 0:
        raise refused(422, "bad", "the file is empty", what="body")
    params = asked.params.encode() or b"null"
    decoded(_any, params, what="params")
    name, encoding = asked.name or file.name, asked.encoding or file.charset
    return replace(new, input=Raw(params), name=name, sheet=asked.sheet, encoding=encoding)


def _with_input(body: bytes, asked: SubmitQuery, new: NewBatch) -> NewBatch:
    for field in ("name", "sheet", "encoding", "params"):
        if getattr(asked, field):
            raise refused(422, "bad", "goes with a file", what=field, value=getattr(asked, field))
    decoded(_any, body)
    return replace(new, input=Raw(body))


async def list_batches(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List your instances."""
    asked, caller = query_of(BatchesQuery, call.query), call.caller
    reached = caller.inner_id("")  # of the tenant's batches those whose ids a path can name

    def is_shown(view: View) -> bool:
        return caller.may_run(view.task) and view.instance_id.startswith(reached)

    created, _, last_id = asked.after.partition(".")
    after = f"{created}.{caller.inner_id(last_id)}" if last_id else asked.after
    with shared.load.work("other", caller.key), _telling(call):
        views, has_more = await shared.batches.all(
            task=asked.task,
            state=asked.state,
            tenant=caller.shown_tenant,
            most=asked.limit,
            after=after,
            is_shown=is_shown,
        )
    shown = [_batch(call, view) for view in views]
    return HttpAnswer(BatchesShown(batches=shown, next=f"{shown[-1].created_ms}.{shown[-1].id}" if has_more else ""))


async def show(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show how an instance stands."""
    return HttpAnswer(_batch(call, await _own(shared, call)))


async def why(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Tell why an instance, or one item of it, is not running."""
    asked, view = query_of(WhyQuery, call.query), await _own(shared, call)
    with shared.load.work("other", call.caller.key), _telling(call):
        found = await shared.batches.why(view.instance_id, asked.item, row=asked.row)
    return HttpAnswer(replace(found, id=call.caller.outer(view.instance_id), reason=call.caller.said(found.reason)))


async def list_items(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List an instance's items in their order, those that ended as wanted."""
    asked, view = query_of(ItemsQuery, call.query), await _own(shared, call)
    with shared.load.work("other", call.caller.key), _telling(call):
        page: ItemPage = await shared.batches.items.page(
            view.instance_id, status=asked.status, cursor=asked.cursor, most=asked.limit
        )
    return HttpAnswer(ItemsShown(items=page.items, next=page.cursor))


async def start(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Let it begin now, though it waits for its time, or for the end of another one."""
    return await _steered(shared, call, "batch.started", shared.batches.start)


async def pause(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Start no more of its items. Items that run come to their end."""
    return await _steered(shared, call, "batch.paused", shared.batches.pause)


async def resume(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Go on with it."""
    return await _steered(shared, call, "batch.resumed", shared.batches.resume)


async def cancel(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """End it: what runs ends, the rest is cancelled."""
    return await _steered(shared, call, "batch.cancelled", shared.batches.cancel)


async def retry(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Run what failed or was cancelled again, or only some items, and make the result anew."""
    asked = decoded(_retry, call.body) if call.body else ToRetry()
    return await _steered(
        shared,
        call,
        "batch.retried",
        lambda batch, meant: shared.batches.retry(batch, asked.items, rows=asked.rows, meant=meant),
    )


async def delete(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Delete an instance that is over, with its items, its upload and its result. The answer says how it stood."""
    return await _steered(shared, call, "batch.deleted", shared.batches.delete)


async def result(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Download a file of the result, the first one if `name` is not given. It is sent as bytes, so that no browser
    shows it."""
    asked, view = query_of(ResultQuery, call.query), await _own(shared, call)
    with _telling(call):
        info, parts = await shared.batches.result(view.instance_id, asked.name)
    return _download(shared, call, info.name, parts, (b"content-length", b"%d" % info.size))


async def sheet(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Download a sheet of the items of an instance that is over: xlsx, csv or jsonl. The whole sheet has each item, its
    end and the reason. With `status` it has these items alone, as they were handed in, and the reason in a column
    that is ignored when the sheet is handed in again. It is made while it is sent, so it has no Content-Length."""
    asked, view = query_of(SheetQuery, call.query), await _own(shared, call)
    with shared.load.work("other", call.caller.key), _telling(call):
        head = await shared.batches.items.sheet(view.instance_id, status=asked.status)
    pages = pages_of(
        lambda cursor: shared.batches.items.page(view.instance_id, status=asked.status, cursor=cursor, most=MOST_JOBS),
        head.cursor,
    )
    part = "" if asked.status == "all" else f"-{asked.status}"
    name = f"{call.caller.outer(view.instance_id)}{part}.{asked.kind}"
    return _download(shared, call, name, shared.sheet_parts(head, pages, asked.kind))


def _download(
    shared: GatewayState, call: HttpCall, name: str, parts: AsyncIterator[bytes], *more: tuple[bytes, bytes]
) -> HttpAnswer:
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-disposition", content_disposition(name)),
        *more,
    ]

    async def stream(send: Callable[[Any], Awaitable[None]]) -> None:
        with shared.load.move(call.caller.key):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                async for part in parts:
                    if call.is_gone:
                        return
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except (StreamError, BatchRefused, UnknownInstance):
                return  # without its end: the client sees that it is not whole
            await send({"type": "http.response.body", "body": b""})

    return HttpAnswer(None, stream=stream)


async def list_tasks(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List the tasks that you may run, a page at a time."""
    asked = query_of(TasksQuery, call.query)
    with _telling(call):
        tasks, after = shared.batches.tasks(after=asked.after, most=asked.limit, is_shown=call.caller.may_run)
    return HttpAnswer(TasksShown(tasks=list(map(task_shown, tasks)), next=after))


async def change_task(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Change a task's limits. They act at once on every node."""
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
    return HttpAnswer(task_shown(changed))


async def _steered(
    shared: GatewayState, call: HttpCall, event: str, act: Callable[[str, Meant], Awaitable[View]]
) -> HttpAnswer:
    view = await _own(shared, call)
    with shared.load.work("settle", call.caller.key), _telling(call):
        after = await act(view.instance_id, Meant(view.created_ms, call.key))
    audit(call, event, batch=view.instance_id)
    return HttpAnswer(_batch(call, after))


async def _own(shared: GatewayState, call: HttpCall) -> View:
    """Return the path's instance. Raises the same RefusedRequest for an unknown one and another tenant's."""
    return await _seen(shared, call, call.value("batch_id"))


async def _seen(shared: GatewayState, call: HttpCall, instance_id: str) -> View:
    with shared.load.work("other", call.caller.key), _telling(call):
        view = await shared.batches.show(call.caller.inner_id(instance_id))
    if not call.caller.is_of(view.tenant) or not call.caller.may_run(view.task):
        raise _no_batch(instance_id)
    return view


@contextmanager
def _telling(call: HttpCall) -> Iterator[None]:
    """Turn an error of the desk into the client's problem."""
    try:
        yield
    except RefusedRequest:
        raise
    except Exception as error:  # of a fault, or of the broker's trouble, somebody else tells
        raise _told(call, error) from error


def _told(call: HttpCall, error: Exception) -> Exception:
    if isinstance(error, UnknownTask) and not call.caller.is_operator:
        error = UnknownTask(error.task)  # the desk's text may name another one
    code, field = refusal_of(error)
    match code:
        case "" | "unknown" | "unavailable":
            return error
        case "not_found" if field == "id":
            return _no_batch(call.values.get("batch_id", ""))
        case "bad":
            return refused(422, "bad", shown_long(call.caller.said(str(error))), what=field)
    return refused(NUMBERS[code], code, shown_long(call.caller.said(str(error))), what=field)  # type: ignore[arg-type]  # all are ours


def _batch(call: HttpCall, view: View) -> BatchShown:
    return batch_shown(view, call.caller.outer, call.caller.said)


def _no_batch(instance_id: str, what: str = "id") -> RefusedRequest:
    return refused(404, "not_found", "no such batch, or none of yours", what=what, value=instance_id)


def shown_long(text: str) -> str:
    """Return a reason in printable ASCII, with room for a sentence."""
    return "".join(shown(text[start : start + 70]) for start in range(0, min(len(text), 420), 70))
