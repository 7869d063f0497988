"""An adapter from a file of settings. Loading checks everything, and nothing in the file can run code.

`declare(table)` takes the table of a TOML file, `declare_toml` the text itself. `declared_file` lists the keys.
`plain.toml` is an example that explains all of them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from platforms.adapter import (
    Account,
    Declaration,
    Outcome,
    Page,
    PageRules,
    RateBucket,
    Request,
    Response,
    Row,
    SlowDown,
    WindowRules,
)
from platforms.bounds import Bounds, Window
from platforms.calls import CompiledRequest
from platforms.declared_file import (
    AdapterFile,
    ModifiedPart,
    TimePart,
    VersionPart,
    WindowPart,
    in_list,
    read_lists,
)
from platforms.details import DetailCall
from platforms.errors import BadDeclaration, Garbled
from platforms.fields import Steps
from platforms.graphql import graphql_outcome
from platforms.lists import combined
from platforms.login import LoginCall
from platforms.outcomes import json_outcome, platform_text, tells_of_error, told_error, usual_outcome, with_text
from platforms.pages import PageReader
from platforms.rules import Rules
from platforms.templates import KeyList, Values
from platforms.times import TimeStyle, has_jumps
from platforms.told_limits import ToldLimit, ToldReader, strictest, told_limit
from platforms.urls import check_base_url, next_url

_NUMBERED = frozenset({"page.number", "page.offset"})
_NUMBERS = frozenset({"unix_s", "unix_ms"})
_KNOWN = _NUMBERED | {"window.start", "window.end", "page.token", "page.size", "now"}
TimesPart = TimePart | WindowPart | VersionPart | ModifiedPart
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def declare_toml(text: str) -> DeclaredAdapter:
    """Return the adapter of a TOML text. BadDeclaration when it is no TOML, or as `declare`."""
    try:
        return declare(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BadDeclaration("file", f"is no TOML: {error}") from error


def declare(table: Mapping[str, object]) -> DeclaredAdapter:
    """Return the adapter that a table describes. BadDeclaration with the path of its first fault."""
    files = read_lists(table)
    _check_lists(list(files.values()))
    lists: dict[str, DeclaredAdapter] = {}
    for number, (name, file) in enumerate(files.items()):
        with in_list(number, _own_table(table, number)):
            lists[name] = _adapter(file)
    first = next(iter(files.values()))
    return lists[""] if "" in lists else _adapter(first, lists)


def _check_lists(files: Sequence[AdapterFile]) -> None:
    """Refuse lists in which one order has two keys, or versions that cannot be compared."""
    for number, file in enumerate(files):
        if isinstance(file.record.key, str) != isinstance(files[0].record.key, str):
            raise BadDeclaration(f"list[{number}].record.key", "has one path in all lists, or several in all")
        if file.record.version.kind != files[0].record.version.kind:
            raise BadDeclaration(
                f"list[{number}].record.version.kind", "is the same in all lists, or an order would have two versions"
            )


def _own_table(table: Mapping[str, object], number: int) -> object:
    lists = table.get("list")
    return lists[number] if isinstance(lists, list) else None


def _adapter(file: AdapterFile, lists: Mapping[str, DeclaredAdapter] | None = None) -> DeclaredAdapter:
    return DeclaredAdapter(file, lists) if file.login is None else DeclaredLoginAdapter(file, lists)


class DeclaredAdapter:
    """A platform that is wholly data. Where it has several lists, it is the first one, beside the declaration of all
    together."""

    def __init__(self, file: AdapterFile, lists: Mapping[str, DeclaredAdapter] | None = None) -> None:
        check_file(file)
        self.file = file
        self.lists: Mapping[str, DeclaredAdapter] = lists or {"": self}
        self._call = _call(file)
        self._now = _style("request.now", file.request.now)
        self._rules = Rules(file.errors, int(file.longest_wait))
        self._reader = PageReader(file)
        self._told = _told_readers(file)
        self._first_place = _first_place(file)
        self._login = None if file.login is None else LoginCall(file.login)
        self._detail = None if file.detail is None else DetailCall(file.detail, file.auth)
        self._account_names = _account_names(self._call, self._detail)
        self._declaration = _declaration(file, *_needed(file, self._account_names, self._login))
        self._whole = combined([each.declaration for each in lists.values()]) if lists else self._declaration

    @property
    def declaration(self) -> Declaration:
        return self._whole

    def request(self, window: Window, page: str | int | None, account: Account, now_ms: int) -> Request:
        base_url = self._base_url(account)
        is_link = isinstance(page, str) and self.file.pages.style == "link"
        url = next_url(page, base_url) if is_link and isinstance(page, str) else None
        return self._call.make(base_url, self._values(window, page, account, now_ms), url=url)

    def outcome(self, response: Response) -> Outcome | None:
        found = self._meaning(response)
        if isinstance(found, SlowDown) and found.after_ms is None:
            told = self.told(response)
            if not told.left and told.reset_ms:
                return replace(found, after_ms=min(told.reset_ms, self._declaration.longest_wait_ms))
        return found

    def told(self, response: Response, *, is_detail: bool = False) -> ToldLimit:
        """Return what an answer tells of the platform's limits, for `told_limits.told_by`."""
        if not self._told:
            return told_limit(response.headers)
        return strictest([reader.read(response, is_detail=is_detail) for reader in self._told])

    def _meaning(self, response: Response) -> Outcome | None:
        ruled = self._rules.judge(response)
        if ruled == "fine":
            return None
        if ruled is not None:
            return ruled
        usual = usual_outcome(response, longest_wait_ms=self._declaration.longest_wait_ms) or json_outcome(response)
        if usual is None and self.file.request.graphql is not None:
            return graphql_outcome(response, self._reader.row_steps)
        return None if usual is None else with_text(usual, response)

    def page(self, response: Response) -> Page:
        page, rows = self._reader.read(response), self._reader.row_steps
        if not (page.rows or page.bad):
            self._check_empty(response, rows)
        elif page.total is None and self.file.request.graphql is None and tells_of_error(response.body, rows):
            page.is_unsure = page.is_unsure or self._rules.judge(response) != "fine"
        return page

    def _check_empty(self, response: Response, rows: Steps) -> None:
        """Raise Garbled if an answer without orders tells of an error, and no rule says that it is fine."""
        told = "" if self.file.request.graphql is not None else told_error(response.body, rows)
        if told and self._rules.judge(response) != "fine":
            said = platform_text(response.body)
            raise Garbled(f"the answer lists no orders, and {told}{said and f': {said}'}")

    def detail_request(self, keys: Sequence[str], account: Account, now_ms: int) -> Request:
        """Return the request for the whole orders of up to `Declaration.detail_batch` keys."""
        detail, part = self._detail, self.file.detail
        assert detail is not None
        assert part is not None
        style = _style("detail.request.now", part.request.now)
        values: dict[str, str | int | KeyList | None] = {
            "now": _kept_number(style.write(now_ms), is_number=style.format in _NUMBERS),
            "detail.keys": KeyList(keys, part.join),
            "detail.key": keys[0],
        }
        values |= {f"account.{name}": account_value(account, name) for name in self._account_names}
        return detail.request.make(part.request.base_url.rstrip("/") or self._base_url(account), values)

    def detail_page(self, response: Response, listed: Sequence[Row]) -> Page:
        """Return the whole orders of a part of a list."""
        assert self._detail is not None
        page = self._detail.page(response, listed)
        if not page.rows:
            self._check_empty(response, self._detail.row_steps)
        return page

    def _values(self, window: Window, page: str | int | None, account: Account, now_ms: int) -> Values:
        asked = self._declaration.window.bounds.request(window)
        place = None if isinstance(page, str) else (page or 0) + self._first_place
        is_number = self.file.window.format in _NUMBERS
        now = self._now.write(now_ms)
        values: dict[str, str | int | None] = {
            "window.start": _kept_number(asked.lower, is_number=is_number),
            "window.end": _kept_number(asked.upper, is_number=is_number),
            "page.token": page if isinstance(page, str) else None,
            "page.number": place,
            "page.offset": place,
            "page.size": self.file.pages.size,
            "now": _kept_number(now, is_number=self._now.format in _NUMBERS),
        }
        for name in self._account_names:
            values[f"account.{name}"] = account_value(account, name)
        return values

    def _base_url(self, account: Account) -> str:
        own = account.values.get("base_url")
        if own or not self.file.request.base_url:
            own = account_value(account, "base_url")
            return check_base_url(f"account {account.name}: base_url", own)
        return self.file.request.base_url.rstrip("/")


class DeclaredLoginAdapter(DeclaredAdapter):
    """A platform whose file has a login: see `adapter.Refreshing`."""

    def refresh(self, account: Account, now_ms: int) -> Request:
        login, part = self._login, self.file.login
        assert login is not None
        assert part is not None
        style = _style("login.request.now", part.request.now)
        values: dict[str, str | int | None] = {
            "now": _kept_number(style.write(now_ms), is_number=style.format in _NUMBERS)
        }
        values |= {f"account.{name}": account_value(account, name) for name in login.account_names}
        return login.request.make(part.request.base_url.rstrip("/") or self._base_url(account), values)

    def login_outcome(self, response: Response) -> Outcome | None:
        ruled = self._rules.judge(response)
        if ruled is not None:
            return None if ruled == "fine" else ruled
        usual = usual_outcome(response, longest_wait_ms=self._declaration.longest_wait_ms)
        if usual is None and response.body and self._login is not None and self._login.reads_body:
            text = response.body.strip()
            if self._login.reads_text and len(text) > 1 and text[:1] == text[-1:] == b'"':
                return None
            return json_outcome(response)  # half an answer has no token, and that is nobody's mistake
        return None if usual is None else with_text(usual, response)

    def refreshed(self, response: Response) -> Mapping[str, str]:
        assert self._login is not None
        return self._login.granted(response, self._declaration.granted)


def _account_names(call: CompiledRequest, detail: DetailCall | None) -> tuple[str, ...]:
    templates = [*call.templates, *([] if detail is None else detail.request.templates)]
    return tuple(sorted({name for template in templates for name in template.account_names}))


def _needed(
    file: AdapterFile, own: tuple[str, ...], login: LoginCall | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the account values that a person gives, those that a login brings, and those that only it needs."""
    given, granted = set(own), set[str]()
    if login is not None:
        granted = given.intersection(login.takes)
        given = given - granted | login.account_names
        granted -= login.account_names
    if not file.request.base_url:
        given.add("base_url")
    for_login = set[str]() if login is None else login.account_names - set(own)
    return tuple(sorted(given)), tuple(sorted(granted)), tuple(sorted(for_login))


def _kept_number(text: str | None, *, is_number: bool) -> str | int | None:
    return int(text) if is_number and text is not None else text


def account_value(account: Account, name: str) -> str:
    """Return an account's value. BadDeclaration, which never shows it, when it is missing or not one line of text."""
    value = account.values.get(name)
    where = f"account {account.name}: {name}"
    if not value:
        raise BadDeclaration(where, "is missing; set it with the source")
    if not value.isprintable():
        raise BadDeclaration(
            where, "holds a line end or another sign that cannot be sent; look at where it is read from"
        )
    return value


def check_file(file: AdapterFile) -> None:
    """Raise BadDeclaration for parts that are valid alone, but not together."""
    request, pages = file.request, file.pages
    if not _NAME.fullmatch(file.name):
        raise BadDeclaration("name", f"{file.name!r} is not made of 1 to 64 letters, digits, - and _")
    if request.base_url:
        check_base_url("request.base_url", request.base_url)
    for table, other in (("login", file.login), ("detail", file.detail)):
        if other is not None and other.request.base_url:
            check_base_url(f"{table}.request.base_url", other.request.base_url)
    if pages.style != "one" and not (pages.next or pages.next_header):
        raise BadDeclaration("pages.next", f"is needed for style {pages.style!r}")
    if (pages.next and pages.next_header) or (pages.total and pages.total_header):
        raise BadDeclaration("pages", "names a path and a header for one thing")
    if pages.total_is_live and not (pages.total or pages.total_header):
        raise BadDeclaration("pages.total_is_live", "says something about a total that is not declared")
    if pages.style == "link" and file.auth.kind == "sign" and file.auth.place != "headers":
        raise BadDeclaration("auth.place", "a next link cannot be signed again; use style 'token'")
    if file.again is not None and list(file.again) != sorted({each for each in file.again if each > 0}):
        raise BadDeclaration("again", "names durations that rise from one to the next, each once")
    for number, rate in enumerate(file.rate):
        if rate.detail_cost is not None and file.detail is None:
            raise BadDeclaration(f"rate[{number}].detail_cost", "goes with [detail], and the file has none")
        if not rate.cost and not rate.detail_cost:
            raise BadDeclaration(f"rate[{number}].cost", "is 0, so the limit limits nothing")
    _check_placeholders(file)
    _check_version("record.version", file.record.version)
    if file.detail is not None and file.detail.version is not None:
        _check_version("detail.version", file.detail.version)
    for where, part in _times_in(file).items():
        _check_time(where, part)


def _times_in(file: AdapterFile) -> dict[str, TimesPart]:
    """Return each part of a file that says how a time is written, by its place."""
    found: dict[str, TimesPart | None] = {
        "request.now": file.request.now,
        "window": file.window,
        "server_time": file.server_time,
    }
    found |= {"record.version": file.record.version, "record.modified": file.record.modified}
    if file.login is not None:
        found["login.request.now"] = file.login.request.now
    if file.detail is not None:
        found |= {"detail.request.now": file.detail.request.now, "detail.version": file.detail.version}
    return {where: part for where, part in found.items() if part is not None}


def _check_time(where: str, part: TimesPart) -> None:
    """Refuse a zone that nobody knows, and what says something about another way to write times."""
    style = _style(where, part)
    if isinstance(part, VersionPart) and part.kind != "time":
        usual = VersionPart()
        for name in ("format", "zone", "pattern"):
            if getattr(part, name) != getattr(usual, name):
                raise BadDeclaration(f"{where}.{name}", f"goes with kind 'time', and not with {part.kind!r}")
    if part.pattern != TimePart().pattern and part.format != "wall":
        raise BadDeclaration(f"{where}.pattern", f"goes with format 'wall', and not with {part.format!r}")
    if part.format == "wall" and style.write(0) == style.write(1_000_000_000_000):
        raise BadDeclaration(f"{where}.pattern", f"{part.pattern!r} writes every time alike; use signs such as %Y")


def _check_version(where: str, version: VersionPart) -> None:
    if (version.kind == "hash") == bool(version.path):
        raise BadDeclaration(f"{where}.path", "goes with kind 'number' or 'time', and not with 'hash'")
    if version.kind == "time" and version.format == "wall" and has_jumps(version.zone):
        raise BadDeclaration(
            where,
            f"wall time of {version.zone} repeats an hour each year, so a later version can look older",
        )


def _told_readers(file: AdapterFile) -> list[ToldReader]:
    has_body = bool(file.record.rows)
    return [
        ToldReader(f"rate[{number}].told", rate, rate.told, has_body=has_body)
        for number, rate in enumerate(file.rate)
        if rate.told is not None
    ]


def _call(file: AdapterFile) -> CompiledRequest:
    return CompiledRequest("request", file.request, file.auth, _KNOWN)


def _check_placeholders(file: AdapterFile) -> None:
    """Refuse a request without its window or page token: it would read the whole history again and again."""
    used = _call(file).names
    for bound, name in ((file.window.lower, "window.start"), (file.window.upper, "window.end")):
        if (bound == "absent") == (name in used):
            raise BadDeclaration("request.params", f"{{{name}}} and the bound {bound!r} do not go together")
    has_next = bool(file.pages.next or file.pages.next_header)
    if file.pages.style != "link" and has_next != ("page.token" in used):
        raise BadDeclaration("request.params", "{page.token} and pages.next go together")


def _numbered(file: AdapterFile) -> Literal["", "number", "offset"]:
    """Return how any page can be asked for, by the placeholders that the request has."""
    used = _call(file).names & _NUMBERED
    if len(used) > 1:
        raise BadDeclaration("request.params", "{page.number} and {page.offset} are two ways to say one thing")
    if not used and (file.pages.first is not None or file.pages.deepest):
        raise BadDeclaration("pages", "first and deepest go with {page.number} or {page.offset} in the request")
    return "number" if "page.number" in used else "offset" if used else ""


def _first_place(file: AdapterFile) -> int:
    """Return what the platform calls its first page or row: page 1, or row 0, unless the file says otherwise."""
    return file.pages.first if file.pages.first is not None else int(_numbered(file) == "number")


def _style(where: str, part: TimesPart) -> TimeStyle:
    try:
        return TimeStyle(part.format, part.zone, part.pattern)
    except BadDeclaration as error:
        raise BadDeclaration(f"{where}.zone", error.problem) from error


def _version_part(file: AdapterFile) -> VersionPart:
    return file.record.version if file.detail is None or file.detail.version is None else file.detail.version


def _declaration(
    file: AdapterFile, account: tuple[str, ...], granted: tuple[str, ...], for_login: tuple[str, ...]
) -> Declaration:
    window, pages = file.window, file.pages
    bounds = Bounds(window.lower, window.upper, int(window.step), int(window.clock), _style("window", window))
    return Declaration(
        name=file.name,
        window=WindowRules(window.time, bounds, int(window.longest), window.look_back and int(window.look_back)),
        pages=PageRules(
            style=pages.style,
            size=pages.size,
            has_next=bool(pages.next or pages.next_header),
            has_total=bool(pages.total or pages.total_header),
            has_live_total=pages.total_is_live,
            numbered=_numbered(file),
            deepest=pages.deepest,
            sort=pages.sort,
            most_requests=pages.most_requests,
            counts_rows=pages.total_counts == "rows",
            has_end=bool(pages.next or pages.next_header or pages.more),
            end_is_proof=pages.end_is_proof,
        ),
        settle_ms=int(file.settle),
        overlap_ms=int(file.overlap),
        again_ms=None if file.again is None else tuple(int(each) for each in file.again),
        sweep_ms=int(file.sweep),
        rate=tuple(
            RateBucket(part.per_second, part.burst, part.scope, part.cost, part.detail_cost) for part in file.rate
        ),
        has_times=file.record.modified is not None,
        account=account,
        granted=granted,
        for_login=for_login if granted else (),
        is_version_ordered=_version_part(file).kind != "hash",
        detail_batch=0 if file.detail is None else file.detail.batch,
        largest_row=file.record.largest,
        largest_answer=file.largest_answer,
        longest_wait_ms=int(file.longest_wait),
        timeout_s=file.timeout / 1000,
    )
