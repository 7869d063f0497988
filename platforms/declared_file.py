"""The form of an adapter file: every key, its type and its default.

An unknown key is refused, with the nearest known one. Durations are text with a unit (250ms, 60s, 5m, 2h, 1d)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from platforms.bounds import BoundKind
from platforms.errors import BadDeclaration, nearest
from platforms.signing import Recipe
from platforms.times import TimeFormat

LIST_NAME = re.compile(r"[a-z0-9_-]{1,64}")
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_USUAL_PATTERN = "%Y-%m-%d %H:%M:%S"
_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
"""What a person calls the kinds of values in a file."""

OutcomeName = Literal["later", "throttled", "login", "split", "park", "bug", "empty", "fine"]
Scalar = str | int | float | bool
FieldValue = str | int | float | bool | dict[str, Any] | list[Any]


class Duration(int):
    """Milliseconds, written as text with a unit."""


class TimePart(Struct, frozen=True, forbid_unknown_fields=True):
    """How a time is written: see `times.TimeStyle`."""

    format: TimeFormat = "unix_s"
    zone: str = "UTC"
    pattern: str = _USUAL_PATTERN


class GraphqlPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A GraphQL request. `query` is sent as it is: its braces are braces. Placeholders stand in `variables`."""

    query: str
    variables: dict[str, Any] = {}


class RequestPart(Struct, frozen=True, forbid_unknown_fields=True):
    """The request. All values may hold placeholders: {window.start} {window.end} {page.token} {page.number}
    {page.offset} {page.size} {now} {account.<name>}. A value whose placeholder is empty in this request is left out
    whole. A table as a value of params, headers or form is sent as JSON text, keys sorted. Of form, body (JSON) and
    graphql there is one at most, and then the method is POST. `base_url` is for accounts without their own. `now`: how
    {now} is written."""

    path: str
    method: Literal["GET", "POST"] | None = None
    base_url: str = ""
    params: dict[str, FieldValue] = {}
    headers: dict[str, FieldValue] = {}
    form: dict[str, FieldValue] = {}
    body: dict[str, Any] = {}
    graphql: GraphqlPart | None = None
    now: TimePart = TimePart()


class WindowPart(Struct, frozen=True, forbid_unknown_fields=True):
    """How the platform takes 'from' and 'to': see `bounds.Bounds` and `adapter.WindowRules`."""

    time: Literal["updated", "created", "ingested", "none"] = "updated"
    lower: BoundKind = "includes"
    upper: BoundKind = "excludes"
    step: Duration = Duration(1)
    clock: Duration = Duration(1)
    format: TimeFormat = "unix_ms"
    zone: str = "UTC"
    pattern: str = _USUAL_PATTERN
    longest: Duration = Duration(86_400_000)
    look_back: Duration | None = None


class PagesPart(Struct, frozen=True, forbid_unknown_fields=True):
    """How one window is read: see `adapter.PageRules`. next, total, more: paths in the body. next_header, total_header:
    header names (of a `Link` header, rel="next" is taken). `more`: a boolean that ends the pages when it is false.
    first: what {page.number} or {page.offset} is for the first page. total_counts: `rows` where a list that has an
    order more than once counts it so. end_is_proof: a page without a next one and below `size` proves the list."""

    style: Literal["one", "token", "link"] = "one"
    size: Annotated[int, Meta(ge=1)] = 100
    next: str = ""
    next_header: str = ""
    more: str = ""
    total: str = ""
    total_header: str = ""
    total_is_live: bool = False
    total_counts: Literal["orders", "rows"] = "orders"
    end_is_proof: bool = False
    first: Annotated[int, Meta(ge=0)] | None = None
    deepest: Annotated[int, Meta(ge=0)] = 0
    sort: Literal["", "ascending"] = ""
    most_requests: Annotated[int, Meta(ge=1)] = 5_000


class VersionPart(Struct, frozen=True, forbid_unknown_fields=True):
    """The version of an order, which orders its states: a number or a time at `path`. `hash` of the content shows only
    that a state differs."""

    kind: Literal["number", "time", "hash"] = "number"
    path: str = ""
    format: TimeFormat = "iso_offset"
    zone: str = "UTC"
    pattern: str = _USUAL_PATTERN


class ModifiedPart(Struct, frozen=True, forbid_unknown_fields=True):
    """The time by which the window selects, as the rows carry it."""

    path: str
    format: TimeFormat = "iso_offset"
    zone: str = "UTC"
    pattern: str = _USUAL_PATTERN


class RecordPart(Struct, frozen=True, forbid_unknown_fields=True):
    """The place of the orders. `rows` is the path of the list, empty when the body is the list. `key` is one path, or
    several that make a key together. Without `modified` no row is ever cut off as a neighbour's."""

    key: str | list[str]
    rows: str = ""
    version: VersionPart = VersionPart(kind="hash")
    modified: ModifiedPart | None = None
    largest: Annotated[int, Meta(ge=1)] = 512 * 1024


class ToldPart(Struct, frozen=True, forbid_unknown_fields=True):
    """Where an answer tells how full a limit is: paths in the body, or `header:NAME`. left, used, most: in the limit's
    units. A text such as `32/40` has `most` as well. restore: units that come back in a second. reset: when there are
    more, in seconds or as a time. cost: what the answered request took. needs: what had to be left for it."""

    left: str = ""
    used: str = ""
    most: str = ""
    restore: str = ""
    reset: str = ""
    cost: str = ""
    needs: str = ""


class RatePart(Struct, frozen=True, forbid_unknown_fields=True):
    """One limit of the platform: see `adapter.RateBucket`. told: where answers say how full it is."""

    per_second: Annotated[float, Meta(ge=0)] = 0.0
    burst: Annotated[int, Meta(ge=1)] = 1
    scope: Literal["app", "shop", "app_shop", "address", "endpoint"] = "shop"
    cost: Annotated[float, Meta(ge=0)] = 1.0
    detail_cost: Annotated[float, Meta(ge=0)] | None = None
    told: ToldPart | None = None


class WaitPart(Struct, frozen=True, forbid_unknown_fields=True):
    """Where an answer says how long to wait: the first number in a header or at a path in the body. is: seconds (one is
    added, since platforms round), ms, or rate: requests a second, so that the wait is that of one request."""

    header: str = ""
    body: str = ""
    is_: Literal["seconds", "ms", "rate"] = msgspec.field(default="seconds", name="is")


class ErrorPart(Struct, frozen=True, forbid_unknown_fields=True):
    """One rule. All its conditions must hold, and the first rule that matches wins. status: 429, '5xx', or a list of
    these. header, body: a header's name, a path in the body. The value must exist (and not be null, false, empty or 0),
    or be one of `equals`, or contain `contains`. `wait`: where the answer names a wait in its own way. `after`: the
    wait if it names none. `text`: the path of the platform's own words, for the reason."""

    outcome: OutcomeName
    status: int | str | list[int | str] | None = None
    header: str = ""
    body: str = ""
    equals: Scalar | list[Scalar] | None = None
    contains: str = ""
    after: Duration | None = None
    wait: WaitPart | None = None
    reason: str = ""
    text: str = ""


class AuthPart(Struct, frozen=True, forbid_unknown_fields=True):
    """The kinds are: none. header: `name` = `value`. basic: `user`, `password`. sign: `recipe` over `secret`, put as
    `name` into the params, the form or the headers. Secrets come from the account: {account.<name>}."""

    kind: Literal["none", "header", "basic", "sign"] = "none"
    name: str = ""
    value: str = ""
    user: str = ""
    password: str = ""
    secret: str = ""
    place: Literal["params", "form", "headers"] = "params"
    recipe: Recipe = Recipe()


class DetailPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A second request for the orders of a list that is partial. Its values may hold {detail.keys}: up to `batch` keys,
    joined by `join`, or a list of them where it is a JSON value of its own. {detail.key}: the key, if `batch` is 1.
    rows: a list, or one order. key and version: as in `record`. Without `version` the version of the list counts."""

    request: RequestPart
    key: str | list[str]
    rows: str = ""
    version: VersionPart | None = None
    batch: Annotated[int, Meta(ge=1, le=1_000)] = 1
    join: str = ","


class LoginPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A request that brings credentials. take: names of account values, and where the answer has each one: a path in
    its body, `body:` for a body that is the token alone, `header:NAME`, or `cookie:NAME`. They replace the account's
    own values of these names."""

    request: RequestPart
    take: dict[str, str]
    auth: AuthPart = AuthPart()


class ListPart(Struct, frozen=True, forbid_unknown_fields=True):
    """One of several lists of the same orders. Its tables are laid over those of the file: what it has in them counts
    before what the file has there, key by key."""

    name: str
    request: dict[str, Any] = {}
    window: dict[str, Any] = {}
    pages: dict[str, Any] = {}
    record: dict[str, Any] = {}


class AdapterFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A platform as data. settle, overlap, again: see `adapter.Declaration`."""

    name: str
    request: RequestPart
    record: RecordPart
    window: WindowPart = WindowPart()
    pages: PagesPart = PagesPart()
    auth: AuthPart = AuthPart()
    login: LoginPart | None = None
    detail: DetailPart | None = None
    rate: list[RatePart] = []
    errors: list[ErrorPart] = []
    settle: Duration = Duration(300_000)
    overlap: Duration = Duration(5_000)
    again: list[Duration] | None = None
    sweep: Duration = Duration(0)
    server_time: TimePart | None = None
    server_time_path: str = ""
    timeout: Duration = Duration(30_000)
    longest_wait: Duration = Duration(900_000)
    largest_answer: Annotated[int, Meta(ge=1)] = 64 * 1024 * 1024


class WithLists(AdapterFile, frozen=True, forbid_unknown_fields=True):
    """A file as it is written: with `[[list]]`, where a source has several lists."""

    lists: list[ListPart] = msgspec.field(default_factory=list, name="list")


def read_file(table: Mapping[str, object]) -> AdapterFile:
    """Return the checked file. BadDeclaration names the path of what is wrong, and the nearest known key."""
    _refuse_unknown(table, WithLists, "")
    return _converted(table, AdapterFile, "")


def read_lists(table: Mapping[str, object]) -> dict[str, AdapterFile]:
    """Return the checked file of each list by its name. A file without `[[list]]` has one list, without a name.
    BadDeclaration as `read_file`. What is wrong in a list's own table is named as a part of that."""
    if "list" not in table:
        return {"": read_file(table)}
    common = {key: value for key, value in table.items() if key != "list"}
    _refuse_unknown(table, WithLists, "")
    found: dict[str, AdapterFile] = {}
    parts = table["list"]
    if not isinstance(parts, list) or len(parts) < 2:
        raise BadDeclaration("list", "is for two lists or more; a file of one list has its tables at the top")
    for number, own in enumerate(parts):
        part = _converted(own, ListPart, f"list[{number}]")
        if not LIST_NAME.fullmatch(part.name) or part.name in found:
            raise BadDeclaration(f"list[{number}].name", f"{part.name!r}: use a name of its own, of a-z 0-9 _ -")
        with in_list(number, own):
            found[part.name] = read_file(_laid_over(common, {key: own[key] for key in own if key != "name"}))
    return found


@contextmanager
def in_list(number: int, own: object) -> Iterator[None]:
    """Name the place of a fault as a part of the list, if its own tables have it or a neighbour of it."""
    try:
        yield
    except BadDeclaration as error:
        table = error.where.partition(".")[0]
        is_own = isinstance(own, Mapping) and table in own
        if is_own:
            raise BadDeclaration(f"list[{number}].{error.where}", error.problem) from error
        name = own.get("name") if isinstance(own, Mapping) else None
        problem = f"{error.problem} (in the list {name!r})" if name else error.problem
        raise BadDeclaration(error.where, problem) from error


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both tables in one. Where both have a value, that of `above` counts, and tables are joined key by key."""
    made = dict(below)
    for key, value in above.items():
        old = made.get(key)
        made[key] = _laid_over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return made


StructT = TypeVar("StructT", bound=Struct)


def _converted(table: object, type_: type[StructT], where: str) -> StructT:
    try:
        return msgspec.convert(table, type_, dec_hook=_hook)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        fault = _fault(table, place.strip("`."), problem, type_)
        raise BadDeclaration(f"{where}.{fault.where}" if where else fault.where, fault.problem) from error


def _fault(table: object, where: str, problem: str, root: type[Struct]) -> BadDeclaration:
    """Return the fault with the field's name, what is allowed there, and what stands there."""
    if missing := re.fullmatch(r"Object missing required field `(.*)`", problem):
        return BadDeclaration(f"{where}.{missing[1]}" if where else missing[1], "is missing, and has no default")
    type_, value = _at(table, where, root)
    if type_ is not None and (allowed := [repr(each) for each in literals_in(type_)]):
        return BadDeclaration(where, f"{value!r} is not allowed; allowed: {', '.join(allowed)}")
    expected = re.match(r"Expected `([^`]+)`(.*?)(, got `\w+`)?$", problem)
    if expected is None:
        return BadDeclaration(where or "file", problem)
    kinds = " or ".join(_KINDS.get(kind, kind) for kind in expected[1].split(" | ") if kind != "null")
    return BadDeclaration(where or "file", f"is {kinds}{expected[2]}, and not {_shown(value)}")


def _shown(value: object) -> str:
    """Return a value of a file for a person, without what may be secret in a table."""
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)


def _at(table: object, where: str, root: type[Struct]) -> tuple[Any, object]:
    """Return the type and the value of a path, (None, None) if it leads nowhere."""
    type_: Any = root
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", where):
        if number and isinstance(table, list) and int(number) < len(table):
            table = table[int(number)]
        elif name and isinstance(table, Mapping) and (struct := struct_in(type_)) is not None:
            types = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
            type_, table = types.get(name), table.get(name)
        else:
            return None, None
    return type_, table


def literals_in(type_: Any) -> list[object]:
    """Return the values of the Literals in a type."""
    if get_origin(type_) is Literal:
        return list(get_args(type_))
    return [value for each in get_args(type_) for value in literals_in(each)]


def _hook(type_: type, value: object) -> object:
    if type_ is not Duration:
        raise NotImplementedError(type_)
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{value!r} is no duration: a number with a unit, such as '60s' or '5m'")
    return Duration(int(found[1]) * _UNITS[found[2]])


def _refuse_unknown(value: object, type_: Any, where: str) -> None:
    """Walk the table beside its type. What does not fit the type otherwise is left to the conversion."""
    struct = struct_in(type_)
    if isinstance(value, list):
        for number, each in enumerate(value):
            _refuse_unknown(each, type_, f"{where}[{number}]")
    elif isinstance(value, Mapping) and struct is not None:
        known = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        for key, below in value.items():
            path = f"{where}.{key}" if where else str(key)
            if key not in known:
                raise BadDeclaration(path, f"unknown key{_elsewhere(str(key)) or nearest(str(key), known)}")
            _refuse_unknown(below, known[key], path)


def _elsewhere(key: str, struct: type[Struct] = AdapterFile, table: str = "") -> str:
    """Return a hint if another table has this key."""
    for field in msgspec.structs.fields(struct):
        below = struct_in(field.type)
        if field.encode_name == key and table:
            return f" (it belongs into [{table}])"
        if below is not None and (found := _elsewhere(key, below, f"{table}.{field.encode_name}".lstrip("."))):
            return found
    return ""


def struct_in(type_: Any) -> type[Struct] | None:
    if isinstance(type_, type) and issubclass(type_, Struct):
        return type_
    if get_origin(type_) in (Union, UnionType, list):
        return next((found for each in get_args(type_) if (found := struct_in(each)) is not None), None)
    return None
