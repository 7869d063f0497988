"""The parts of a `multipart/form-data` body, as an HTML form sends it (RFC 7578), piece by piece. Pure.

A reader gets the body in pieces of any size, and gives what is in them: the head of each part, and its bytes as they
come. It keeps no more of them than a delimiter and the head of a part.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

__all__ = ["BadForm", "FormParts", "PartHead", "boundary_of"]

LONGEST_PART_HEAD = 4 * 1024
_BOUNDARY = re.compile(r""";\s*boundary=(?:"([^"]{1,70})"|([0-9A-Za-z'()+_,./:=?-]{1,70}))\s*(?:;|$)""", re.IGNORECASE)
_SETTING = re.compile(r';\s*([a-z]+\*?)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', re.IGNORECASE)
_ESCAPED = re.compile(r'\\(["\\])')
_BLANKS = b" \t"


class BadForm(ValueError):
    """A body that is no form. The text says what is wrong."""


class PartHead(NamedTuple):
    """The head of a part. `file_name`: `None` of a plain field."""

    name: str
    file_name: str | None = None
    media_type: str = ""


def boundary_of(media_type: str) -> str:
    """Return the boundary of a form's Content-Type, empty if it is no form."""
    if media_type.partition(";")[0].strip().lower() != "multipart/form-data":
        return ""
    found = _BOUNDARY.search(media_type)
    return (found[1] or found[2]).rstrip() if found else ""


class FormParts:
    """One body in reading."""

    def __init__(self, boundary: str) -> None:
        self._delimiter = b"\r\n--" + boundary.encode("latin-1")
        self._rest = b"\r\n"  # the first delimiter stands at the start of the body
        self._read = self._preamble

    @property
    def is_whole(self) -> bool:
        """Whether the delimiter that ends the body has come."""
        return self._read == self._epilogue

    def feed(self, piece: bytes) -> Iterator[PartHead | bytes]:
        """Yield what the body has up to the end of this piece. Raises BadForm."""
        self._rest += piece
        while True:
            before = self._read
            yield from self._read()
            if self._read == before:
                return

    def _preamble(self) -> Iterator[PartHead | bytes]:
        if (at := self._rest.find(self._delimiter)) >= 0:
            self._pass(at)
        elif len(self._rest) > LONGEST_PART_HEAD:
            raise BadForm("it does not begin with its boundary")
        yield from ()

    def _pass(self, at: int) -> None:
        """Go on behind the delimiter at this place."""
        self._rest = self._rest[at + len(self._delimiter) :]
        self._read = self._behind

    def _behind(self) -> Iterator[PartHead | bytes]:
        if self._rest.startswith(b"--"):
            self._rest, self._read = b"", self._epilogue
        elif (line := self._rest.lstrip(_BLANKS)).startswith(b"\r\n"):
            self._rest, self._read = line, self._head
        elif len(line) >= 2 or len(self._rest) > LONGEST_PART_HEAD:
            raise BadForm("something stands behind a boundary")
        yield from ()

    def _head(self) -> Iterator[PartHead | bytes]:
        end = self._rest.find(b"\r\n\r\n")
        if end > LONGEST_PART_HEAD or (end < 0 and len(self._rest) > LONGEST_PART_HEAD):
            raise BadForm(f"a part has a head of more than {LONGEST_PART_HEAD} bytes")
        if end >= 0:
            head = _head_of(self._rest[:end])
            self._rest, self._read = self._rest[end + 4 :], self._data
            yield head

    def _data(self) -> Iterator[PartHead | bytes]:
        at = self._rest.find(self._delimiter)
        ready = at if at >= 0 else max(0, len(self._rest) - len(self._delimiter) + 1)
        if ready:
            yield self._rest[:ready]
        if at >= 0:
            self._pass(at)
        else:
            self._rest = self._rest[ready:]

    def _epilogue(self) -> Iterator[PartHead | bytes]:
        self._rest = b""
        yield from ()


def _head_of(raw: bytes) -> PartHead:
    try:
        lines = raw.decode().split("\r\n")
    except UnicodeDecodeError as error:
        raise BadForm("the head of a part is not UTF-8") from error
    headers = {name.strip().lower(): value for name, _, value in (line.partition(":") for line in lines if line)}
    told = headers.get("content-disposition", "")
    settings = {found[1].lower(): _value(found) for found in _SETTING.finditer(told)}
    if told.partition(";")[0].strip().lower() != "form-data" or "name" not in settings:
        raise BadForm("a part has no name; each needs Content-Disposition: form-data; name=…")
    if headers.get("content-transfer-encoding", "binary").strip().lower() not in ("binary", "7bit", "8bit"):
        raise BadForm("a part is encoded for mail; send it as it is")
    file_name = settings.get("filename")
    if (other := settings.get("filename*", "")).lower().startswith("utf-8'"):
        file_name = unquote(other.split("'", 2)[-1])
    return PartHead(settings["name"], file_name, headers.get("content-type", "").strip())


def _value(found: re.Match[str]) -> str:
    """Return a setting's value. Browsers escape quotes and line ends by percents, curl quotes by backslashes."""
    if found[2] is None:
        return found[3] or ""
    text = _ESCAPED.sub(r"\1", found[2])
    return text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")
