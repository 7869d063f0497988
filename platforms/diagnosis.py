"""Says what of an adapter file does not fit an answer, and where in the file: pure functions on decoded JSON.

A person who writes a file sees the answer's own names beside the wrong one, and a guess."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from platforms.adapter import Page, Row
from platforms.bounds import RequestedBounds, is_asked, until_ms
from platforms.declared_file import AdapterFile
from platforms.fields import steps_of, value_at
from platforms.mending import read_json
from platforms.times import TimeFormat, TimeStyle, time_reader
from platforms.told_limits import header_of, places_of

_DEEPEST = 4
_MOST_NAMES = 12
_SHOWN = 60
_FORMATS: tuple[TimeFormat, ...] = ("unix_ms", "unix_s", "iso_offset", "wall")
_KEYS = ("id", "no", "number", "sn", "code", "key", "name")
_TIMES = ("modified", "updated", "changed", "update", "modify")
_TOTALS = ("total", "count", "size")
_NEXT = ("next", "cursor", "token", "after")
_LIMITS = ("limit", "remaining", "quota", "rate", "call", "throttle", "reset")
_QUARTER_MS = 900_000
_FARTHEST_MS = 14 * 3_600_000


class Leaf(NamedTuple):
    """A value in an answer, with the path that leads to it."""

    path: str
    value: Any

    def __str__(self) -> str:
        return f"{self.path} = {shown(self.value)}"


class FieldReading(Struct, frozen=True):
    """One field of the first row: its path, the raw value, and what it was read as. `problem`: why it could not be."""

    path: str
    raw: str
    read: str
    problem: str = ""


def decoded(body: bytes) -> Any:
    """Return the answer as Python values. Raises ValueError for what is no JSON."""
    try:
        return read_json(msgspec.json.decode, body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(
            f"the answer is no JSON ({error}); it begins with {shown(body[:80].decode(errors='replace'))}"
        ) from error


def shown(value: Any) -> str:
    """Return a value for a person, short."""
    if isinstance(value, dict):
        return "{" + ", ".join(list(value)[:5]) + "}"
    if isinstance(value, list):
        return f"list of {len(value)}"
    text = msgspec.json.encode(value).decode() if not isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def at(value: Any, path: str) -> Any:
    """Return what lies at a path, None if nothing does."""
    return value_at(value, steps_of("path", path)) if path else value


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[Leaf]:
    """Yield the plain values and the lists below `value`, without going into lists."""
    if isinstance(value, dict) and depth < _DEEPEST:
        for name, below in value.items():
            yield from leaves(below, f"{path}.{name}" if path else str(name), depth + 1)
    elif path:
        yield Leaf(path, value)


def names(found: Sequence[Leaf]) -> str:
    return ", ".join(str(each) for each in found[:_MOST_NAMES]) or "none"


def _guess(wanted: str, found: Sequence[Leaf], hints: Sequence[str]) -> str:
    paths = [leaf.path for leaf in found]
    near = difflib.get_close_matches(wanted, paths, n=1, cutoff=0.75)
    for hint in () if near else hints:
        near = [path for path in paths if hint in path.rpartition(".")[2].lower()][:1] or near
        if near:
            break
    return f"; is it {near[0]!r}?" if near else ""


# ---- rows, and what is in them


def rows_hint(file: AdapterFile, answer: Any) -> str:
    """Return why there are no rows at the declared path. Empty if there are, or an empty list."""
    found = at(answer, file.record.rows)
    if isinstance(found, list):
        return ""
    lists = [Leaf(leaf.path, leaf.value) for leaf in leaves(answer) if isinstance(leaf.value, list)]
    if isinstance(answer, list):
        return "[record] rows: the answer itself is the list; leave rows out"
    where = f"has no list at {file.record.rows!r}" if file.record.rows else "is no list, and rows is not given"
    only = [leaf for leaf in lists if len(lists) == 1 or (leaf.value and isinstance(leaf.value[0], dict))][:1]
    guess = _guess(file.record.rows, lists, ()) or (f"; is it {only[0].path!r}?" if only else "")
    return f"[record] rows: the answer {where}; lists in it: {names(lists)}{guess}"


def row_hints(file: AdapterFile, row: Any) -> list[str]:
    """Return what of the record's paths and formats does not fit a row."""
    found = list(leaves(row))
    plain = [leaf for leaf in found if isinstance(leaf.value, str | int | float) and not isinstance(leaf.value, bool)]
    record, hints = file.record, []
    for path in [record.key] if isinstance(record.key, str) else record.key:
        if not isinstance(at(row, path), str | int):
            hints.append(_missing("[record] key", path, at(row, path), plain, _KEYS))
    version = record.version
    if version.kind != "hash":
        value = at(row, version.path)
        if value is None:
            hints.append(_missing("[record] version", version.path, value, plain, ("version", *_TIMES)))
        elif version.kind == "time":
            style = TimeStyle(version.format, version.zone, version.pattern)
            hints += _time_hint("[record] version", style, value)
        elif not str(value).isdecimal():
            is_time = (
                ""
                if guessed_format(value) is None
                else f'; it is a time: kind = "time", format = "{guessed_format(value)}"'
            )
            hints.append(f"[record] version: {shown(value)} at {version.path!r} is no number{is_time}")
    if record.modified is not None:
        value = at(row, record.modified.path)
        if value is None:
            hints.append(_missing("[record] modified", record.modified.path, value, plain, _TIMES))
        else:
            style = TimeStyle(record.modified.format, record.modified.zone, record.modified.pattern)
            hints += _time_hint("[record] modified", style, value)
    return hints


def record_hints(file: AdapterFile, rows: Sequence[Row]) -> list[str]:
    """Return why the key is none, and why the version does not rise with each change."""
    record, hints = file.record, list[str]()
    keys = len({row.key for row in rows})
    if 0 < 2 * keys <= len(rows) and file.pages.total_counts == "orders":
        hints.append(f"[record] key: {record.key!r} has {keys} values in {len(rows)} rows, so it is no key of an order")
    is_listed = file.detail is None or file.detail.version is None
    if (
        is_listed
        and record.version.kind == "number"
        and len(rows) > 1
        and all(str(row.version) == row.key for row in rows)
    ):
        hints.append(f"[record] version: {record.version.path!r} is the key, which no change of an order raises")
    if record.modified is None:
        return hints
    older = sum(row.modified_ms is not None and until_ms(row.version) <= row.modified_ms for row in rows)
    is_other = is_listed and record.version.kind == "time" and record.version.path != record.modified.path
    if is_other and older:
        hints.append(
            f"[record] version: in {older} of {len(rows)} orders {record.version.path!r} is earlier than "
            f"{record.modified.path!r}, so it does not rise with each change"
        )
    return hints


def creation_hint(file: AdapterFile) -> str:
    """Return why the one list of a file may show no change."""
    modified = file.record.modified
    if modified is None or file.window.time != "updated" or "creat" not in modified.path.lower():
        return ""
    return (
        f"[record] modified: {modified.path!r} looks like the time of the creation. By that no change of an order is "
        'seen: ask by the last change, or say [window] time = "created"'
    )


def _missing(where: str, path: str, value: Any, found: Sequence[Leaf], hints: Sequence[str]) -> str:
    what = f"the rows have no {path!r}" if value is None else f"{path!r} is {shown(value)}, and no text or number"
    return f"{where}: {what}; they have {names(found)}{_guess(path, found, hints)}"


def _time_hint(where: str, style: TimeStyle, value: Any) -> list[str]:
    try:
        time_reader(style)(value)
    except (ValueError, TypeError) as error:
        right = guessed_format(value)
        guess = f'; it looks like format = "{right}"' if right and right != style.format else ""
        return [f"{where}: with format = {style.format!r} the {error}{guess}"]
    return []


def guessed_format(value: Any) -> TimeFormat | None:
    """Return the format in which a value is a time of these years, None if it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    for name in _FORMATS:
        try:
            time_reader(TimeStyle(name))(value)
        except (ValueError, TypeError):
            continue
        return name
    return None


def first_fields(file: AdapterFile, row: Any, read: Row | None) -> dict[str, FieldReading]:
    """Return key, version and time of a row: raw, and as read."""
    record = file.record
    keys = [record.key] if isinstance(record.key, str) else record.key
    problems = {hint.split(":")[0]: hint for hint in row_hints(file, row)}
    made = {
        "key": FieldReading(
            " + ".join(keys),
            ", ".join(shown(at(row, path)) for path in keys),
            read.key if read else "",
            problems.get("[record] key", ""),
        )
    }
    version = "(hash)" if record.version.kind == "hash" else shown(at(row, record.version.path))
    made["version"] = FieldReading(
        record.version.path or "hash of the content",
        version,
        str(read.version) if read else "",
        problems.get("[record] version", ""),
    )
    if record.modified is not None:
        modified_ms = read.modified_ms if read else None
        made["time"] = FieldReading(
            record.modified.path,
            shown(at(row, record.modified.path)),
            "" if modified_ms is None else str(modified_ms),
            problems.get("[record] modified", ""),
        )
    return made


# ---- what lies beside the rows


def envelope_hints(file: AdapterFile, answer: Any, page: Page) -> list[str]:
    """Return which of the declared fields beside the rows the answer does not have."""
    if isinstance(answer, list):
        return []
    found = [leaf for leaf in leaves(answer) if not isinstance(leaf.value, list)]
    hints, pages = [], file.pages
    if pages.total and page.total is None:
        numbers = [leaf for leaf in found if isinstance(leaf.value, int) and not isinstance(leaf.value, bool)]
        hints.append(
            f"[pages] total: the answer has no {pages.total!r}; numbers in it: {names(numbers)}"
            f"{_guess(pages.total, numbers, _TOTALS)}"
        )
    count = len(page.rows) + len(page.bad)
    if pages.total and page.total is not None and page.total < count:
        larger = [leaf for leaf in found if type(leaf.value) is int and leaf.value >= count]
        hints.append(
            f"[pages] total: {pages.total!r} is {page.total}, and the answer has {count} rows; larger numbers in it: "
            f"{names(larger)}{_guess(pages.total, larger, _TOTALS)}"
        )
    if page.total and not count:
        hints.append(
            f"[pages] first: the first page has none of the {page.total} orders of the total; the platform may count "
            "its pages from another number"
        )
    is_full = count >= pages.size or (page.total or 0) > len(page.rows)
    if pages.next and page.next is None and at(answer, pages.next) is None and is_full:
        tokens = [leaf for leaf in found if isinstance(leaf.value, str) and leaf.value]
        hints.append(
            f"[pages] next: the answer has no {pages.next!r}, and there is more to list; texts in it: {names(tokens)}"
            f"{_guess(pages.next, tokens, _NEXT)}"
        )
    return hints


def told_hints(file: AdapterFile, answer: Any, headers: Mapping[str, str]) -> list[str]:
    """Return which of the places that tell of limits the answer does not have."""
    hints = []
    for rate in file.rate:
        for name, place in places_of(rate.told).items():
            header = header_of(place)
            if header is not None and header not in headers:
                near = ", ".join(each for each in headers if any(hint in each for hint in _LIMITS)) or "none"
                hints.append(f"[rate.told] {name}: the answer has no header {header!r}; about limits are: {near}")
            elif header is None and (not isinstance(answer, dict) or at(answer, place) is None):
                numbers = [leaf for leaf in leaves(answer) if type(leaf.value) in (int, float)]
                is_header = f'; it is a header: write "header:{place}"' if place.lower() in headers else ""
                hint = is_header or _guess(place, numbers, ())
                hints.append(f"[rate.told] {name}: the answer has no {place!r}; numbers in it: {names(numbers)}{hint}")
    return hints


def is_about_size(hint: str) -> bool:
    """Return whether a hint is one of `size_hint`."""
    return ": asked for " in hint


def size_hint(file: AdapterFile, page: Page) -> str:
    """Return why the number of rows does not fit the size that was asked for."""
    count = len(page.rows) + len(page.bad)
    if count > file.pages.size:
        return (
            f"{sent(file, 'page.size')}: asked for {file.pages.size} orders, and {count} came: the platform ignores it"
        )
    has_more = page.next is not None or page.has_more or (page.total or 0) > count
    if 0 < count < file.pages.size and has_more:
        return (
            f"{sent(file, 'page.size')}: asked for {file.pages.size} orders, and {count} came although there are more: "
            f"the platform does not know that name, or returns {count} at most (then say size = {count})"
        )
    return ""


def is_outside(bounds: RequestedBounds, page: Page) -> bool:
    """Return whether most rows are not from the window."""
    times = [row.modified_ms for row in page.rows if row.modified_ms is not None]
    return 2 * sum(not is_asked(bounds, at_ms) for at_ms in times) > len(times)


def outside_hint(file: AdapterFile, bounds: RequestedBounds, page: Page, *, is_moving: bool) -> str:
    """Return what rows from outside of the window show. `is_moving`: another window lists other orders."""
    times = [row.modified_ms for row in page.rows if row.modified_ms is not None]
    outside = [at_ms for at_ms in times if not is_asked(bounds, at_ms)]
    earliest, latest = bounds.earliest_ms, bounds.latest_ms
    if is_moving and earliest is not None and latest is not None and (shift := _shift(times, earliest, latest)):
        hours = f"{abs(shift) / 3_600_000:g} h {'after' if shift > 0 else 'before'}"
        return (
            f"[record] modified or [window]: zone: all times lie {hours} the window; one of the two is wall time of "
            "another zone than the file says"
        )
    below = sum(earliest is not None and at_ms < earliest for at_ms in outside)
    which = "window.end" if not below else "window.start" if below == len(outside) else "window.start and window.end"
    parts = [sent(file, name) for name in which.split(" and ")]
    return (
        f"{' and '.join(parts)}: {len(outside)} of {len(times)} orders are not from the window: the platform ignores it"
    )


def _shift(times: Sequence[int], earliest: int, latest: int) -> int:
    """Return by how much all times lie beside the window, in whole quarters of an hour, as zones do. 0: they do not."""
    if max(times) - min(times) > latest - earliest or len(times) < 2:
        return 0
    off = (max(times) + min(times) - earliest - latest) / 2
    quarters = range(-_FARTHEST_MS // _QUARTER_MS, _FARTHEST_MS // _QUARTER_MS + 1)
    shifts = [each * _QUARTER_MS for each in quarters if each]
    fitting = [shift for shift in shifts if all(earliest <= at_ms - shift <= latest for at_ms in times)]
    # most zones are whole hours apart, and the rows of a window fill it
    return min(fitting, key=lambda shift: (shift % (4 * _QUARTER_MS) > 0, abs(shift - off)), default=0)


def sent(file: AdapterFile, placeholder: str) -> str:
    """Return where the file sends a placeholder: `[request.params] limit = "{page.size}"`."""
    request = file.request
    tables: dict[str, Any] = {"params": request.params, "form": request.form, "headers": request.headers}
    tables["body"] = request.body
    if request.graphql is not None:
        tables["graphql.variables"] = request.graphql.variables
    for table, fields in tables.items():
        for leaf in leaves(fields):
            if isinstance(leaf.value, str) and f"{{{placeholder}" in leaf.value:
                return f'[request.{table}] {leaf.path} = "{leaf.value}"'
    return f"{{{placeholder}}}"
