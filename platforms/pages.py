"""Reads one answer of a declared platform: the rows, the next page, the total, and the platform's clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from platforms.adapter import BadRow, Page, Response, Row, content_version
from platforms.declared_file import AdapterFile, RecordPart
from platforms.errors import BadDeclaration, BrokenContract, Garbled, Unreadable
from platforms.fields import Field, Picker, steps_of
from platforms.graphql import broken_rows
from platforms.mending import read_json
from platforms.outcomes import http_date_ms, platform_text
from platforms.times import TimeStyle, WireTime, time_reader

_SHOWN = 4096
_LARGEST_VERSION = 2**63 - 1
NOTHING_BROKEN: Mapping[int, str] = {}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_LINK = re.compile(r"<([^<>]*)>([^<]*)")
_REL = re.compile(r""";\s*rel\s*=\s*["']?([^"';,]*)""", re.IGNORECASE)


class PageReader:
    """A decoding plan made once for one file."""

    def __init__(self, file: AdapterFile) -> None:
        self._file = file
        self._rows = RowReader(file.record)
        self._envelope = _envelope(file) if file.record.rows else None
        total = {"total": Field("pages.total", file.pages.total, str | int)} if file.pages.total else {}
        self._total_alone = Picker("Total", total) if total else None
        self._list = msgspec.json.Decoder(list[Raw])
        self.row_steps = steps_of("record.rows", file.record.rows) if file.record.rows else ()
        self._server_time = _server_time(file)
        if self._envelope is None and (file.pages.next or file.pages.total or file.pages.more or file.server_time_path):
            raise BadDeclaration("record.rows", "is empty, so the body is the list and holds no other fields")

    def read(self, response: Response) -> Page:
        """Return the page. BrokenContract when the body does not fit the declaration, Garbled for no whole JSON."""
        values = self._values(response.body)
        page = Page([], self._next(values, response.headers), self._total(values, response.headers))
        more = self._more(values)
        page.has_more = more is True
        page.is_unsure = more is None and page.next is None and bool(self._file.pages.more)
        page.server_time_ms = self._clock(values, response.headers)
        broken = broken_rows(response.body, self.row_steps) if self._file.request.graphql is not None else {}
        rows = values.get("rows")
        self._rows.read(self._listed(rows, response.body) if isinstance(rows, dict) else rows or (), page, broken)
        return page

    def _values(self, body: bytes) -> dict[str, Any]:
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            if self._is_empty(body):
                return {"total": 0}
            raise self._unreadable(str(error), body) from error
        except msgspec.DecodeError as error:
            raise Garbled(f"the answer of {self._file.name} is no whole JSON: {error}") from error
        except (RecursionError, ValueError) as error:
            raise self._unreadable(str(error), body) from error

    def _decode(self, body: bytes) -> dict[str, Any]:
        if self._envelope is None:
            return {"rows": read_json(self._list.decode, body)}
        head = read_json(self._envelope.decode, body)
        return {label: get(head) for label, get in self._envelope.getters.items()}

    def _listed(self, rows: dict[str, Raw], body: bytes) -> list[Raw]:
        """Return the rows of an object whose names are numbers: PHP writes so a list that lost some of its members."""
        if not rows or not all(name.isdecimal() for name in rows):
            raise self._unreadable(f"Expected `array`, got `object` - at `$.{self._file.record.rows}`", body)
        return list(rows.values())

    def _is_empty(self, body: bytes) -> bool:
        """Return whether the answer leaves out a list of nothing, as its total says."""
        if self._total_alone is None:
            return False
        try:
            return str(self._total_alone.getters["total"](read_json(self._total_alone.decode, body))) == "0"
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False

    def _unreadable(self, problem: str, body: bytes) -> Unreadable:
        said = platform_text(body)
        words = f"; the platform says: {said}" if said else ""
        return Unreadable(f"the answer of {self._file.name} is not as declared: {problem}{words}", body[:_SHOWN])

    def _next(self, values: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
        if self._more(values) is False:
            return None
        name = self._file.pages.next_header.lower()
        if name == "link":
            return _next_link(headers.get(name, ""))
        value = headers.get(name) if name else values.get("next")
        if value is True:
            raise BrokenContract(f"the next page of {self._file.name} is `true`, which is no page")
        return str(value) if value not in (None, "", 0) else None  # and False is 0

    def _more(self, values: Mapping[str, Any]) -> bool | None:
        """Return whether the answer says that there is more. None: it says nothing. BrokenContract for other words."""
        told = values.get("more")
        if told is None or isinstance(told, bool):
            return told
        found = _FLAGS.get(str(told).lower())
        if found is None:
            raise BrokenContract(f"the answer of {self._file.name} says {str(told)[:40]!r} for pages.more")
        return found

    def _total(self, values: Mapping[str, Any], headers: Mapping[str, str]) -> int | None:
        name = self._file.pages.total_header.lower()
        value = headers.get(name) if name else values.get("total")
        if isinstance(value, str):
            value = int(value) if value.isascii() and value.isdecimal() and len(value) < 16 else -1
        if value is not None and value < 0:
            raise BrokenContract(f"the total of {self._file.name} is no count")
        return value

    def _clock(self, values: Mapping[str, Any], headers: Mapping[str, str]) -> int | None:
        told = values.get("server_time")
        if told is None or self._server_time is None:
            return http_date_ms(headers.get("date", ""))
        try:
            return self._server_time(told)
        except ValueError:
            return http_date_ms(headers.get("date", ""))


def _next_link(header: str) -> str | None:
    """Return the target with rel="next" of a Link header (RFC 8288, as far as platforms use it)."""
    for target, params in _LINK.findall(header):
        rel = _REL.search(params)
        if rel is not None and "next" in rel[1].lower().split():
            return str(target)
    return None


class RowReader:
    """Makes rows of raw JSON objects, and sets rows aside that cannot be trusted, one by one."""

    def __init__(self, record: RecordPart) -> None:
        key_paths = [record.key] if isinstance(record.key, str) else record.key
        if not key_paths:
            raise BadDeclaration("record.key", "names no path")
        keys = {f"key{n}": Field("record.key", path, str | int) for n, path in enumerate(key_paths)}
        fields = dict(keys)
        if record.version.path:
            type_ = str | int if record.version.kind == "number" else str | int | float
            fields["version"] = Field("record.version.path", record.version.path, type_)
        if record.modified is not None:
            fields["modified"] = Field("record.modified.path", record.modified.path, str | int | float)
        self._path = record.rows
        self._picker = Picker("Row", fields)
        self._key_picker = Picker("Key", keys)
        self._key = _key(self._picker, len(keys))
        self._key_alone = _key(self._key_picker, len(keys))
        self._version = _version(self._picker, record)
        self._modified = _modified(self._picker, record)

    def read(self, raws: list[Raw] | tuple[()], page: Page, broken: Mapping[int, str] = NOTHING_BROKEN) -> None:
        """Add each row to `page.rows`, or to `page.bad` with its fault. `broken`: faults that the platform names, by
        the place of the row."""
        decode, key, version, modified = self._picker.decode, self._key, self._version, self._modified
        rows, new = page.rows, tuple.__new__  # a named tuple's own constructor costs three times as much
        for raw in raws:
            body = bytes(raw)
            if broken and (place := len(rows) + len(page.bad)) in broken:
                page.bad.append(self._broken(place, body, broken[place]))
                continue
            try:
                head = decode(body)
                rows.append(new(Row, (key(head), version(head, body), modified(head), body)))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                reason = f"{self._path}[{len(rows) + len(page.bad)}]: {error}"
                page.bad.append(BadRow(self._key_or_none(body), reason, body[:_SHOWN]))

    def _broken(self, place: int, body: bytes, fault: str) -> BadRow:
        """Return the row with the platform's words in it, if nothing else tells such rows from each other."""
        key = self._key_or_none(body)
        shown = body if key is not None else msgspec.json.encode({"error": fault, "row": Raw(body)})
        return BadRow(key, f"{self._path}[{place}]: the platform says: {fault}", shown[:_SHOWN])

    def _key_or_none(self, body: bytes) -> str | None:
        try:
            return self._key_alone(self._key_picker.decode(body))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None


def _key(picker: Picker, count: int) -> Callable[[Any], str]:
    if count == 1:
        get = picker.getters["key0"]

        def single(head: Any) -> str:
            value = get(head)
            return value if type(value) is str and value else _key_text(value)

        return single
    getters = [picker.getters[f"key{n}"] for n in range(count)]

    def joined(head: Any) -> str:
        parts = [_key_text(get(head)) for get in getters]
        return ":".join(part.replace("%", "%25").replace(":", "%3A") for part in parts)

    return joined


def _key_text(value: str | int) -> str:
    """Return the key as text. Platforms send keys as numbers, as text, or as both: 7 and "7" are one order."""
    text = value if isinstance(value, str) else str(value)
    if not text:
        raise ValueError("the key is empty")
    return text


def _version(picker: Picker, record: RecordPart) -> Callable[[Any, bytes], int]:
    if record.version.kind == "hash":
        return lambda head, body: content_version(body)
    get = picker.getters["version"]
    if record.version.kind == "number":

        def number(head: Any, body: bytes) -> int:
            value = get(head)
            return value if type(value) is int and 0 <= value <= _LARGEST_VERSION else _version_number(value)

        return number
    read = time_reader(TimeStyle(record.version.format, record.version.zone, record.version.pattern))

    def version(head: Any, body: bytes) -> int:
        at_ms = read(get(head))
        assert at_ms is not None  # zones whose wall times are ambiguous are refused for versions
        return at_ms

    return version


def _version_number(value: str | int) -> int:
    if isinstance(value, str):
        if not (value.isascii() and value.isdecimal() and len(value) < 20):
            raise ValueError(f"version {value[:40]!r} is no number")
        value = int(value)
    if not 0 <= value <= _LARGEST_VERSION:
        raise ValueError("the version is no number from 0 to 2**63 - 1")
    return value


def _modified(picker: Picker, record: RecordPart) -> Callable[[Any], int | None]:
    part = record.modified
    if part is None:
        return lambda head: None
    get, read = picker.getters["modified"], time_reader(TimeStyle(part.format, part.zone, part.pattern))

    def modified(head: Any) -> int | None:
        return read(get(head))

    return modified


def _server_time(file: AdapterFile) -> Callable[[WireTime], int | None] | None:
    part = file.server_time
    if (part is None) == bool(file.server_time_path):
        raise BadDeclaration("server_time", "and server_time_path go together")
    return None if part is None else time_reader(TimeStyle(part.format, part.zone, part.pattern))


def _envelope(file: AdapterFile) -> Picker:
    fields = {"rows": Field("record.rows", file.record.rows, list[Raw] | dict[str, Raw] | None)}
    optional = {
        "next": ("pages.next", file.pages.next, str | int | bool),
        "more": ("pages.more", file.pages.more, str | int | bool),
        "total": ("pages.total", file.pages.total, str | int),
        "server_time": ("server_time_path", file.server_time_path, str | int | float),
    }
    for label, (where, path, type_) in optional.items():
        if path:
            fields[label] = Field(where, path, type_, is_optional=True)
    return Picker("Answer", fields)
