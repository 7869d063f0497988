"""Asks for the whole orders of a partial list, in batches, and reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from platforms.adapter import BadRow, Page, Response, Row
from platforms.calls import CompiledRequest
from platforms.declared_file import AuthPart, DetailPart, RecordPart, VersionPart
from platforms.errors import BadDeclaration, Garbled, Unreadable
from platforms.fields import Field, Picker, steps_of
from platforms.mending import read_json
from platforms.pages import RowReader

KNOWN = frozenset({"now", "detail.keys", "detail.key"})
_SHOWN = 4096


def without_details(row: Row) -> BadRow:
    """Return a listed order whose details do not exist."""
    return BadRow(row.key, "the answer to the detail request does not have it", row.body[:_SHOWN], row)


class DetailCall:
    """The compiled detail request of a file."""

    def __init__(self, part: DetailPart, auth: AuthPart) -> None:
        self.part = part
        self.request = CompiledRequest("detail.request", part.request, auth, KNOWN)
        named = self.request.names & {"detail.keys", "detail.key"}
        if not named:
            raise BadDeclaration("detail.request", "names no order; put {detail.keys} or {detail.key} into it")
        if "detail.key" in named and part.batch > 1:
            raise BadDeclaration("detail.batch", "{detail.key} is one order; write {detail.keys} for a batch")
        try:
            self._rows = RowReader(RecordPart(part.key, part.rows, part.version or VersionPart(kind="hash")))
        except BadDeclaration as error:
            raise BadDeclaration(f"detail.{error.where.removeprefix('record.')}", error.problem) from error
        field = {"rows": Field("detail.rows", part.rows, Raw)} if part.rows else {}
        self._envelope = Picker("Details", field) if part.rows else None
        self.row_steps = steps_of("detail.rows", part.rows) if part.rows else ()
        self._list = msgspec.json.Decoder(list[Raw])
        self._any = msgspec.json.Decoder(Raw)

    def page(self, response: Response, listed: Sequence[Row]) -> Page:
        """Return the whole orders of `listed`, in its order. An order that the answer does not have is a bad row, and
        so is one that cannot be read. Unreadable, Garbled as `Adapter.page`."""
        read = Page([])
        self._rows.read(self._raws(response.body), read)
        known = {row.key: row for row in read.rows}
        page = Page([], bad=read.bad)
        bad = {each.key for each in read.bad}
        for row in listed:
            found = known.get(row.key)
            if found is not None:
                version = row.version if self.part.version is None else found.version
                page.rows.append(found._replace(version=version, modified_ms=row.modified_ms))
            elif row.key not in bad:
                page.bad.append(without_details(row))
        return page

    def _raws(self, body: bytes) -> list[Raw]:
        try:
            found: Any = read_json(self._decode, body)
            text = bytes(found)
            if text == b"null":
                return []
            return self._list.decode(text) if text[:1] == b"[" else [Raw(text)]
        except msgspec.ValidationError as error:
            raise Unreadable(f"the details are not as declared: {error}", body[:_SHOWN]) from error
        except msgspec.DecodeError as error:
            raise Garbled(f"the details are no whole JSON: {error}") from error
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"the details are not as declared: {error}", body[:_SHOWN]) from error

    def _decode(self, body: bytes) -> Any:
        if self._envelope is None:
            return self._any.decode(body)
        return self._envelope.getters["rows"](self._envelope.decode(body))
