"""Batches of the client: submit them, follow them, change them, and fetch their result.

    view = await client.batches.submit("register-products", file="products.xlsx")
    view = await client.batches.wait(view.instance_id)
    await client.batches.result(view.instance_id, "result.xlsx")

A file goes directly into the server's object store, some megabytes at a time. So `submit` with a file, and `result`,
need a node's login if the server has logins (docs/operations.md). A program with another login sends files over HTTP
(docs/howto/batch.md).
"""

import builtins
import itertools
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Unpack, get_args

import anyio
import anyio.to_thread
import msgspec
from anyio import open_file
from msgspec import Raw

from actors.batch.rules.obstacles import BatchWhy
from actors.batch.rules.refusals import BatchRefused
from actors.batch.rules.row_looks import FirstLook
from actors.batch.rules.sheet_lines import SheetHead, SheetKind
from actors.batch.tasks import TaskRecord
from actors.batch.views import (
    UPLOAD_BYTES,
    ItemPage,
    ItemShown,
    View,
    Wanted,
    find_file,
    pages_of,
    result_file,
    upload_name,
)
from actors.runtime.rules.spellings import unknown_option
from actors.runtime.tracing import traces
from penstock.api.forms.batch import SubmitOptions, TaskList, ViewList
from penstock.errors import NotAccepted, Timeout, UsageError
from penstock.rows.first_look import first_look
from penstock.rows.sheet_stream import sheet_parts
from penstock.rows.whole_file import write_whole
from penstock.sdk.calls import ServiceClient, client_error
from penstock.sdk.client_forms import MILLISECONDS
from penstock.sdk.pages import all_lines
from streams.buckets.files import Files
from streams.clock import monotonic_s
from streams.errors import PermissionDenied, StreamError
from streams.link.connection import Connection
from streams.messages.batch import RowsSeen
from streams.messages.nonces import fresh_nonce
from streams.publish.publisher import Publisher
from streams.subjects import check_token

__all__ = ["Batches"]

LOOK_S, FIRST_LOOK_S = 0.5, 0.1
PART = 1 << 20
ROOM_S = 1.0
"""Seconds between two looks whether there is room for more of a file. Nodes look at the store as often."""


class Batches:
    """The batches of one namespace. The methods raise NotAccepted (`code`: `bad`, `not_found`, `exists`, `state`),
    Timeout, Unavailable, and UsageError for arguments that cannot be sent."""

    def __init__(self, service: ServiceClient, connection: Connection) -> None:
        self._service = service
        self._connection = connection

    async def submit(
        self,
        task: str,
        input: object = None,
        *,
        file: str | os.PathLike[str] | None = None,
        on_sent: Callable[[float], None] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> View:
        """Make an instance of a task from `input`, any JSON value, or from a `file` (xlsx, csv, jsonl, parquet, up to
        200 MiB) with `input` as its params.

        The options are those of `SubmitOptions`. `id`: an id of your own. `sheet`: the sheet of a workbook, by default
        the first. `encoding`: of a csv ("shift-jis", "windows-1252", …), by default UTF-8 or GB 18030. `tenant`: the
        owner. `priority`: from -100 to 100, higher ones begin first. `weight`: from 1 to 1000, the share beside
        instances of other tenants. `callback`: the URL to which Penstock reports the first failure and the end. `none`
        is no callback. The default is the task's own. `delay` or `due`: it begins then at the earliest. `after`: the id
        of the instance after whose end it begins. `after_state`: how that one has to end: `done` by default, `clean`
        (done, and no item failed), `not_done`, or `over`. If that one ends otherwise, this one fails and says so.

        With an `id` of your own it is safe to repeat an interrupted call: the same id is one instance. `on_sent` gets
        the share of the file that is sent, from 0 to 1."""
        chosen = options.get("id") or secrets.token_hex(8)  # made here, so that asking again makes no second one
        ask = {**_fields(options), "task": task, "input": input, "id": chosen, "nonce": fresh_nonce()}
        if not traces.is_on:
            return await self._submit(ask, file, on_sent)
        with traces.span(f"submit {task}", "producer", {"task": task, "batch": chosen}):
            return await self._submit({**ask, "traceparent": traces.current()}, file, on_sent)

    async def check(
        self,
        task: str,
        input: object = None,
        *,
        file: str | os.PathLike[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> FirstLook:
        """Look at a submission and make no instance: of a `file` its columns with the types that the task's code
        declares, the first rows as the code would get them, and the rows that it would not take. The file is read here,
        and nothing is stored. The arguments are those of `submit`."""
        new = {**_fields(options), "task": task, "input": input}

        async def ask(rows: Sequence[Raw], shown: int) -> RowsSeen:
            return await self._service.ask("check", {**new, "rows": rows, "shown": shown}, RowsSeen)

        seen = await ask([], 0)  # before the file is read
        if file is None:
            return FirstLook(task=task, unchecked=seen.unchecked)
        path = Path(file)
        named = {"sheet": options.get("sheet", ""), "encoding": options.get("encoding", "")}
        try:
            return await first_look(task, path, ask, name=path.name, **named)
        except BatchRefused as refused:
            raise NotAccepted(f"{path.name}: {refused}", code=refused.code, field=refused.field) from refused

    async def _submit(
        self,
        ask: Mapping[str, object],
        file: str | os.PathLike[str] | None,
        on_sent: Callable[[float], None] | None,
    ) -> View:
        if file is None:
            return await self._view("submit", ask)
        chosen = str(ask["id"])
        path, stored = Path(file), upload_name(check_token("batch", chosen))
        await self._send(path, stored, ask, on_sent)
        try:
            return await self._view("submit", {**ask, "file": stored, "name": path.name})
        except NotAccepted as refused:
            if not refused.is_repeated:  # an earlier try may have made the batch of this file
                async with self._files() as files:
                    await files.delete(stored)
            raise

    async def show(self, id: str) -> View:
        """Return an instance as it is now."""
        return await self._view("show", {"id": id})

    async def why(self, id: str, item: int | None = None, *, row: int | None = None) -> BatchWhy:
        """Return why an instance is not running, or one of its items, by index from 0, or by its row in the sheet."""
        named = {name: value for name, value in (("item", item), ("row", row)) if value is not None}
        return await self._service.ask("why", {"id": id, **named}, BatchWhy)

    async def wait(
        self, id: str, *, timeout_s: float | None = None, on_look: Callable[[View], None] | None = None
    ) -> View:
        """Return the instance once it is done, failed or cancelled. `on_look` gets each view before that. Raises
        Timeout after `timeout_s`."""
        with anyio.move_on_after(timeout_s):
            for look in itertools.count(1):
                view = await self.show(id)
                if on_look is not None:
                    on_look(view)
                if view.is_over:
                    return view
                await anyio.sleep(min(FIRST_LOOK_S * look, LOOK_S))
        raise Timeout(f"{id} is not over after {timeout_s:g} s; it goes on")

    async def list(
        self, *, task: str = "", state: str = "", tenant: str | None = None, most: int = 100, after: str = ""
    ) -> list[View]:
        """Return instances, the newest first, up to `most` in all. `after`: the `place` of the last one of an earlier
        list."""
        which = {"task": task, "state": state, "tenant": tenant}
        return await all_lines(
            self._service, "list", ViewList, lambda page: page.batches, after=after, limit=most, length="most", **which
        )

    async def items(self, id: str, *, status: Wanted = "all") -> AsyncIterator[ItemShown]:
        """Yield an instance's items of this status, in their order."""
        cursor = ""
        while True:
            page = await self.page(id, status=status, cursor=cursor, most=1_000)
            for item in page.items:
                yield item
            cursor = page.cursor
            if not cursor:
                return

    async def page(self, id: str, *, status: Wanted = "all", cursor: str = "", most: int = 100) -> ItemPage:
        """Return a page of items, and the `cursor` of the next page, which is empty on the last one. A page may hold
        fewer than `most` items, or none, and still not be the last."""
        ask = {"id": id, "status": status, "cursor": cursor, "most": most}
        return await self._service.ask("items", ask, ItemPage)

    async def start(self, id: str) -> View:
        """Let the instance begin now, though it waits for its time, or for the end of another one."""
        return await self._change("start", await self.show(id))

    async def pause(self, id: str) -> View:
        """Pause the instance. Chunks that run end, and no other begins."""
        return await self._change("pause", await self.show(id))

    async def resume(self, id: str) -> View:
        """Resume the instance."""
        return await self._change("resume", await self.show(id))

    async def cancel(self, id: str) -> View:
        """Cancel the instance. Chunks that run end, and the rest is cancelled."""
        return await self._change("cancel", await self.show(id))

    async def retry(self, id: str, items: Sequence[int] = (), *, rows: Sequence[int] = ()) -> View:
        """Run the failed and cancelled items again, or only those of these indexes, or of these rows of the sheet, and
        make the result again."""
        return await self._change("retry", await self.show(id), items=items, rows=rows)

    async def delete(self, id: str) -> View:
        """Delete an instance that is over, with its items and files. Return how it stood before."""
        before = await self.show(id)
        try:
            return await self._change("delete", before)
        except NotAccepted as refused:
            if refused.code == "not_found" and refused.is_repeated:
                return before  # an earlier try of this call did it, and its answer was lost
            raise

    async def result(self, id: str, path: str | os.PathLike[str], *, name: str = "") -> Path:
        """Fetch a file of the result, by default its first, and return its path. The file at `path` is complete or not
        there. Its ending must not be that of another kind of sheet."""
        view = await self.show(id)
        chosen = chosen_file(view, name)
        target = Path(path)
        endings = {target.suffix.lower()[1:], Path(chosen).suffix[1:]}
        if len(endings) > 1 and endings <= {*get_args(SheetKind)}:
            raise UsageError(
                f"{target}: the file is {chosen}; name it so, or have `penstock batch sheet` write a sheet"
            )
        async with self._files() as files:
            info = await find_file(files, view, chosen)
            if info is None:
                raise NotAccepted(f"{id}: the file {chosen[:80]!a} is not there any more", code="not_found")
            await _write(target, files.read(info))
        return target

    async def sheet(self, id: str, path: str | os.PathLike[str], *, status: Wanted = "all") -> Path:
        """Write a sheet of the items of an instance that is over, and return its path. The ending of the path is the
        format: xlsx, csv or jsonl. With a `status` it has these items alone, as they were handed in, and the reason in
        a column that is ignored when the sheet is handed in again."""
        target = Path(path)
        ending = target.suffix.removeprefix(".").lower()
        if ending not in get_args(SheetKind):
            raise UsageError(f"{target}: the ending is the format; use .xlsx, .csv or .jsonl")
        head = await self._service.ask("sheet", {"id": id, "status": status}, SheetHead)
        pages = pages_of(lambda cursor: self.page(id, status=status, cursor=cursor, most=1_000), head.cursor)
        await _write(target, sheet_parts(head, pages, msgspec.convert(ending, SheetKind)))
        return target

    async def tasks(self, *, after: str = "", limit: int | None = None) -> builtins.list[TaskRecord]:
        """Return all tasks that applications have declared, by name, or up to `limit` of those after `after`."""
        return await all_lines(
            self._service, "tasks", TaskList, lambda page: page.tasks, after=after, limit=limit, length="most"
        )

    async def limit(self, task: str, **limits: object) -> TaskRecord:
        """Change limits of a task (`item_rate=200`), and return the values now in force. `None`: the default of the
        task's code."""
        return await self._service.ask("limit", {"task": task, "set": limits}, TaskRecord)

    # ---- the service, and the object store

    async def _view(self, endpoint: str, ask: Mapping[str, object]) -> View:
        return await self._service.ask(endpoint, ask, View)

    async def _change(self, endpoint: str, before: View, **more: object) -> View:
        """Change the instance that was seen, once. A try that comes late changes no later instance of its id."""
        meant = {"id": before.instance_id, "created_ms": before.created_ms, "nonce": fresh_nonce()}
        return await self._view(endpoint, {**meant, **more})

    async def _send(
        self, path: Path, stored: str, ask: Mapping[str, object], on_sent: Callable[[float], None] | None
    ) -> None:
        """Store the file, while the nodes would take the submission: they know whether the store has room."""
        size = (await anyio.Path(path).stat()).st_size
        if size > UPLOAD_BYTES:
            raise UsageError(f"{path}: {size} bytes, at most {UPLOAD_BYTES}; send it in parts")
        sent, look_s = 0, 0.0

        async def parts() -> AsyncIterator[bytes]:
            nonlocal sent, look_s
            async with await open_file(path, "rb") as file:
                while part := await file.read(PART):
                    if monotonic_s() >= look_s:
                        await self._service.ask("check", {**ask, "stores_file": True}, RowsSeen)
                        look_s = monotonic_s() + ROOM_S
                    yield part
                    sent += len(part)
                    if on_sent is not None:
                        on_sent(sent / max(1, size))

        async with self._files() as files:
            await files.put(stored, parts(), most_bytes=UPLOAD_BYTES, description=path.name)

    @asynccontextmanager
    async def _files(self) -> AsyncIterator[Files]:
        try:
            async with Publisher(self._connection) as publisher:
                yield Files(self._connection, publisher, self._connection.namespace.bucket("FILES"))
        except PermissionDenied as error:
            reason = "this login may not use the server's files; send and fetch them over HTTP, or log in as a node"
            raise NotAccepted(reason, code="forbidden") from error
        except StreamError as error:
            raise client_error(error) from error


def _fields(options: SubmitOptions) -> dict[str, object]:
    """Return the options as fields of a request. An older node knows fewer fields, so it gets no empty ones."""
    if unknown := options.keys() - SubmitOptions.__optional_keys__:
        raise TypeError(unknown_option("a batch", min(unknown), sorted(SubmitOptions.__optional_keys__)))
    fields = dict[str, object]()
    for name, value in options.items():
        if value is None or value == "":
            continue
        read = MILLISECONDS.get(name)
        fields[name if read is None else f"{name}_ms"] = value if read is None else read(name, value)
    return fields


async def _write(target: Path, parts: AsyncIterator[bytes]) -> None:
    """Write a file that is complete or not there."""
    place = anyio.Path(target)
    if await place.is_dir():
        raise UsageError(f"{target}: a directory; name the file that the result shall be written to")
    if not await place.parent.is_dir():
        raise UsageError(f"{target}: there is no directory {target.parent}; make it first")
    await write_whole(target, parts, growing=target.with_name(f".{target.name}.{secrets.token_hex(4)}"))


def chosen_file(view: View, name: str) -> str:
    """Return the name of a result's file, by default its first. Raises NotAccepted if there is none."""
    try:
        return result_file(view, name)
    except BatchRefused as refused:
        raise NotAccepted(str(refused), code=refused.code, field=refused.field) from refused
