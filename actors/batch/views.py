"""An instance, its items and its files as every door shows them to people and programs."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from actors.batch.rules.newest import LATEST
from actors.batch.rules.record import FINAL, Moment
from actors.batch.rules.refusals import BatchRefused
from streams.buckets.files import FileInfo, Files
from streams.messages.batch import Counts, Status

UPLOAD_BYTES = 200 * 1024 * 1024
MOST_ROWS = 100
"""Rows that a retry names: each is searched for among the chunks."""
Wanted = Literal["all", "ok", "failed", "unknown", "skipped", "cancelled"]


class Beat(Struct, frozen=True):
    """How far a split or a reduce is."""

    by: str = ""
    done: int = 0
    total: int | None = None


class SheetInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of an instance with a file. `file`: its name in the object store. `name`: the name that its sender
    gave. `params`: all other input."""

    file: str
    name: str = ""
    sheet: str = ""
    encoding: str = ""
    params: msgspec.Raw = msgspec.Raw(b"null")
    digest: str = ""
    """The digest of the file's bytes, so that the same file sent twice is recognised."""


class View(Struct, frozen=True, kw_only=True):
    """An instance as people see it. `items`: how many there are. `None`: the split has not ended."""

    instance_id: str
    task: str
    state: str
    items: int | None
    counts: Counts
    created_ms: int
    started_ms: int
    ended_ms: int
    tenant: str = ""
    priority: int = 0
    passes: int = 1
    reason: str = ""
    reasons: tuple[str, ...] = ()
    step: Beat | None = None
    waits: str = ""
    """What it waits for: its time, the end of another one, or a live node that can work on it."""
    result: Any = None
    files_at: str = ""
    """The prefix of its files in the object store. Each reduce has a place of its own."""
    callback: str = ""
    """Without its query."""
    calls: tuple[Moment, ...] = ()
    """The reports to the callback, and the state of each."""
    due_ms: int = 0
    """It begins then at the earliest."""
    after: str = ""
    """The instance after whose end it begins, and how that has to end."""
    after_state: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in FINAL

    def files(self) -> list[str]:
        """Return the names of the result's files, as the task's own code gives them."""
        names = self.result.get("files") if isinstance(self.result, dict) else None
        return [each for each in names if isinstance(each, str)] if isinstance(names, list) else []

    @property
    def place(self) -> str:
        """Where it stands in a list, the newest first."""
        return f"{self.created_ms}.{self.instance_id}"


def read_place(place: str) -> tuple[int, str]:
    """Return the moment and the id of a place, or the one before all. Raises BatchRefused for a text that is none."""
    created, _, instance_id = place.partition(".")
    if place and not (created.isascii() and created.isdecimal() and len(created) < 17 and instance_id):
        raise BatchRefused(f"after {place[:80]!a}: no place in a list; use the one that the last page gave")
    return (int(created), instance_id) if place else LATEST


class ItemShown(Struct, frozen=True, omit_defaults=True):
    """An item. `status` null: it has not ended. `info`: what its code returned, or why it failed. `row`: its number in
    the sheet that was handed in."""

    index: int
    item: Any
    status: Status | None
    info: Any
    row: int | None = None


class ItemPage(Struct, frozen=True):
    """Some items, and the cursor of the next page. Empty: there is none."""

    items: list[ItemShown]
    cursor: str = ""


async def pages_of(page: Callable[[str], Awaitable[ItemPage]], cursor: str = "") -> AsyncIterator[list[ItemShown]]:
    """Yield the items of all pages from `cursor` on. `page` returns the one at a cursor."""
    while True:
        found = await page(cursor)
        if found.items:
            yield found.items
        cursor = found.cursor
        if not cursor:
            return


def upload_name(instance_id: str) -> str:
    """Return a fresh name for an upload in the object store. A second upload does not overwrite the first one."""
    return f"{_uploads(instance_id)}{secrets.token_hex(4)}"


def is_upload_of(instance_id: str, file: str) -> bool:
    """Return whether `upload_name` made this name of the object store for this instance."""
    return file.startswith(_uploads(instance_id))


def _uploads(instance_id: str) -> str:
    return f"{instance_id}/upload-"


def sheet_of(instance_id: str, given: msgspec.Raw) -> SheetInput | None:
    """Return the sheet that an instance was submitted with. `None`: its input is another. A file that was not uploaded
    for this instance does not count: a submitter may write anything into an input, even other people's files."""
    try:
        sheet = msgspec.json.decode(given, type=SheetInput)
    except msgspec.MsgspecError:
        return None
    return sheet if is_upload_of(instance_id, sheet.file) else None


def result_file(view: View, name: str = "") -> str:
    """Return the name of a result's file. Without a name it is the first one. Raises BatchRefused if there is none."""
    names = [each for each in view.files() if each]
    if name in names or (names and not name):
        return name or names[0]
    has = f"it has {', '.join(names)}"[:200] if names else f"it is {view.state}, and has none"
    what = f"no file {name[:80]!a}" if name else "no file of a result"
    raise BatchRefused(f"{view.instance_id}: {what}; {has}", code="not_found", field="name")


async def find_file(files: Files, view: View, name: str) -> FileInfo | None:
    """Return a file of the result: one that its reduce wrote, else one that its code put beside the uploads."""
    return await files.info(view.files_at + name) or await files.info(f"{view.instance_id}/{name}")


def check_most(most: int, largest: int) -> None:
    """Refuse a page that is too large, or has no room."""
    if not 1 <= most <= largest:
        raise BatchRefused(f"most {most}: use 1 to {largest}")
