"""A submission as an HTML form sends it: its fields, and then its file, which goes on while it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from penstock.api.http.multipart import BadForm, FormParts, PartHead
from penstock.api.http.problems import RefusedRequest, refused, shown
from penstock.api.http.uploads import Upload, charset_of

__all__ = ["FormFile", "SentForm", "read_form"]

MOST_FIELDS, MOST_FIELD_BYTES = 30, 128 * 1024
"""Fields of a form, and bytes of all of them together."""
LAST = "put the fields before the file, which is passed on while it arrives"


class SentForm(NamedTuple):
    """The fields with a value, and the file. `None`: nobody chose one."""

    fields: dict[str, str]
    file: FormFile | None


async def read_form(upload: Upload) -> SentForm:
    """Read a form up to its file. Raises RefusedRequest."""
    reading = _Reading(upload)
    fields, raw, name, size = dict[str, str](), b"", "", 0
    async for each in reading.events():
        if isinstance(each, bytes):
            size += len(each)
            if size > MOST_FIELD_BYTES:
                raise _bad(f"fields of more than {MOST_FIELD_BYTES} bytes", name)
            raw += each
            continue
        _take(fields, name, raw)
        name, raw = each.name, b""
        if len(fields) > MOST_FIELDS:
            raise _bad(f"more than {MOST_FIELDS} fields", name)
        if each.file_name:
            return SentForm(fields, FormFile(each, reading))
        if each.file_name == "":
            name = ""  # nobody chose a file
    _take(fields, name, raw)
    return SentForm(fields, None)


class FormFile:
    """The file of a form, in place of an `Upload` without a form."""

    def __init__(self, head: PartHead, reading: _Reading) -> None:
        self.length = -1
        self.name = head.file_name or ""
        self.charset = charset_of(head.media_type)
        self._reading = reading

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the file's bytes as they arrive. Raises RefusedRequest also for what comes behind it."""
        behind: PartHead | None = None
        async for each in self._reading.events():
            if not isinstance(each, bytes):
                if each.file_name:
                    raise _bad("a second file; send one at a time", each.name)
                behind = each
            elif behind is not None:
                raise _bad("comes behind the file", behind.name, LAST)
            else:
                yield each


class _Reading:
    """The parts of a form as they arrive, from where the last reader stopped."""

    def __init__(self, upload: Upload) -> None:
        self._pieces = upload.parts()
        self._parts = FormParts(upload.boundary)
        self._events = self._all()

    def events(self) -> AsyncIterator[PartHead | bytes]:
        return self._events

    async def _all(self) -> AsyncIterator[PartHead | bytes]:
        try:
            async for piece in self._pieces:
                for each in self._parts.feed(piece):
                    yield each
        except BadForm as error:
            raise refused(400, "malformed", f"no form: {shown(str(error))}", what="body", closes=True) from None
        if not self._parts.is_whole:
            raise refused(400, "malformed", "the form ends in the middle; nothing was kept", what="body", closes=True)


def _take(fields: dict[str, str], name: str, raw: bytes) -> None:
    """Keep a field that has a value."""
    if not name or not raw:
        return
    if name in fields:
        raise _bad("given more than once", name)
    try:
        fields[name] = raw.decode()
    except UnicodeDecodeError:
        raise _bad("is not UTF-8", name) from None


def _bad(detail: str, name: str, hint: str = "") -> RefusedRequest:
    return refused(422, "bad", detail, what=shown(name), hint=hint)
