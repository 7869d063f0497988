"""An upload on its way through the gateway: never whole in memory, and never above the size limit. And the file name
of a download, written so that a browser reads it only as a name (RFC 6266, RFC 8187)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote, unquote

from penstock.api.http.limits import LARGEST_UPLOAD
from penstock.api.http.multipart import boundary_of
from penstock.api.http.problems import RefusedRequest, refused

__all__ = [
    "FORM",
    "SHEETS",
    "Upload",
    "charset_of",
    "content_disposition",
    "is_sheet",
    "is_upload_path",
    "name_of_header",
]

SHEETS = (
    "text/csv",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/x-ndjson",
    "application/vnd.apache.parquet",
)
"""The content types of an upload. Its real format is checked when it is read."""
FORM = "multipart/form-data"
LONGEST_NAME = 200
_PATH = re.compile(rb"/v1/batches(?:/[^/]+(?:/check)?)?")
_PLAIN = re.compile(r"[^A-Za-z0-9._ -]")


def is_upload_path(method: str, path: bytes) -> bool:
    """True if a client may send a file to this path."""
    return method == "POST" and _PATH.fullmatch(path) is not None


def is_sheet(media_type: str) -> bool:
    """True for a Content-Type of a file, and for that of a form, which may have one."""
    if boundary_of(media_type):
        return True
    return media_type.partition(";")[0].strip().lower() in SHEETS


def charset_of(media_type: str) -> str:
    """Return the encoding that the Content-Type of a csv names, empty if it names none."""
    kind, *settings = media_type.split(";")
    named = (each.partition("=") for each in settings if kind.strip().lower() == "text/csv")
    return next((value.strip().strip('"') for name, _, value in named if name.strip().lower() == "charset"), "")


def name_of_header(value: bytes) -> str:
    """Return a file's name as `X-File-Name` has it: UTF-8, or percent escapes of it."""
    return unquote(value.decode(errors="replace"))


def content_disposition(name: str) -> bytes:
    """Return the header value that makes a browser store a file under the last part of this name, in ASCII for old
    clients, and whole in the form of RFC 8187. Line ends, quotes and slashes are removed or escaped."""
    last = re.split(r"[/\\]", name)[-1]
    kept = "".join(sign for sign in last if sign.isprintable()).strip(" .")[:LONGEST_NAME] or "result"
    plain = _PLAIN.sub("_", kept)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(kept, safe='')}".encode("ascii")


class Upload:
    """The body of a request that is a file. Iterate over it once."""

    def __init__(
        self, receive: Callable[[], Awaitable[Any]], length: int, name: str, charset: str = "", boundary: str = ""
    ) -> None:
        self.length = length
        """In bytes, -1 if the client did not announce it."""
        self.name = name
        self.charset = charset
        self.boundary = boundary
        """Of a form, in which the file is. Empty: the body is the file."""
        self.is_read = length == 0
        self._receive = receive

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts as they arrive. Raises RefusedRequest if the file is too large, or the client disconnects."""
        size = 0
        while not self.is_read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise refused(400, "malformed", "the upload ended too early; nothing was kept", closes=True)
            part = message.get("body", b"")
            size += len(part)
            if size > LARGEST_UPLOAD:
                raise too_large(size)
            self.is_read = not message.get("more_body")
            if part:
                yield part


def too_large(size: int) -> RefusedRequest:
    """Return the problem of a file that is too large."""
    detail = f"{size} bytes, or more; a file has up to {LARGEST_UPLOAD}"
    return refused(413, "too_large", detail, what="body", hint="send it in parts", closes=True)
