"""Each key of an adapter file refuses a wrong value, names the table in which it stands, and says what is allowed."""

import copy
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from platforms.declared import declare
from platforms.declared_file import Duration, WithLists, literals_in, struct_in
from platforms.errors import BadDeclaration
from tests.unit.platforms.declared_example import table

ZONE, PATTERN = "Nowhere/City", "every day"
SAYS = {
    "zone": "is no IANA time zone known here",
    "pattern": "goes with",
    "path": "is no path such as",
}
FREE = {"recipe.pattern", "request.path"}
"""Keys whose names stand for something else there."""


class Key(NamedTuple):
    path: tuple[str, ...]
    type: Any

    @property
    def table(self) -> str:
        """The place as an error says it. The file below has one table of each array."""
        *tables, name = self.path
        if tables and tables[0] in ("rate", "errors"):
            below = f", [{'.'.join(tables)}]" if len(tables) > 1 else ""
            return f"[[{tables[0]}]] number 1{below} {name}"
        return f"[{'.'.join(tables)}] {name}" if tables else name


def keys_of(struct: type[msgspec.Struct], above: tuple[str, ...] = ()) -> Iterator[Key]:
    for field in msgspec.structs.fields(struct):
        path = (*above, field.encode_name)
        yield Key(path, field.type)
        if (below := struct_in(field.type)) is not None and field.encode_name != "list":
            yield from keys_of(below, path)


KEYS = [key for key in keys_of(WithLists) if key.path != ("list",)]


def whole() -> dict[str, Any]:
    """Return a file that has every table."""
    return table(
        login={"request": {"path": "/login"}, "take": {"token": "token"}, "auth": {}},
        detail={"request": {"path": "/d", "params": {"keys": "{detail.keys}"}}, "key": "id", "version": {"path": "v"}},
        auth={"kind": "sign", "name": "sign", "secret": "{account.key}", "recipe": {}},
        rate=[{"scope": "shop"}],
        errors=[{"outcome": "later", "status": 500, "wait": {"header": "x-wait"}}],
        server_time={"format": "unix_s"},
        server_time_path="now",
    )


def refused(key: Key, value: object) -> BadDeclaration:
    file = copy.deepcopy(whole())
    at: Any = file
    for name in key.path[:-1]:
        at = at.setdefault(name, {})
        at = at[0] if isinstance(at, list) else at
    at[key.path[-1]] = value
    with pytest.raises(BadDeclaration) as told:
        declare(file)
    return told.value


def test_the_file_with_every_table_is_right() -> None:
    declare(whole())
    assert len(KEYS) > 140


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ".".join(key.path))
def test_a_value_of_another_kind_is_refused_in_its_table(key: Key) -> None:
    is_table = "dict" in str(key.type) or struct_in(key.type) is not None
    wrong = 7.5 if is_table else {"x": 1}
    fault = refused(key, wrong)
    assert fault.in_table.startswith(key.table), fault
    assert re.search(r"is (text|a |true or false)|no duration|allowed: |is no status", fault.problem), fault


@pytest.mark.parametrize("key", [key for key in KEYS if literals_in(key.type)], ids=lambda key: ".".join(key.path))
def test_a_word_that_is_not_known_is_refused_with_all_that_are(key: Key) -> None:
    fault = refused(key, "zzz")
    assert fault.in_table == key.table
    assert "'zzz' is not allowed" in fault.problem
    assert all(repr(word) in fault.problem for word in literals_in(key.type))


@pytest.mark.parametrize("key", [key for key in KEYS if key.type is Duration], ids=lambda key: ".".join(key.path))
def test_a_duration_without_a_unit_is_refused_with_an_example(key: Key) -> None:
    for wrong in (5, "5", "-5s", "1 week", ["5s"]):
        fault = refused(key, wrong)
        assert (fault.in_table, "such as '60s' or '5m'" in fault.problem) == (key.table, True), fault


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.path[-1] in SAYS and len(key.path) > 1], ids=lambda key: ".".join(key.path)
)
def test_what_a_text_may_say_is_checked_in_every_table(key: Key) -> None:
    name = key.path[-1]
    if ".".join(key.path[-2:]) in FREE:
        pytest.skip("another test has it")
    fault = refused(key, {"zone": ZONE, "pattern": PATTERN, "path": "a..b"}[name])
    assert (fault.in_table, SAYS[name] in fault.problem) == (key.table, True), fault


@pytest.mark.parametrize(
    ("changes", "place", "problem"),
    [
        ({"auth": {"kind": "none", "value": "x"}}, "[auth] value", "goes with kind 'header', and not with 'none'"),
        ({"auth": {"kind": "basic", "user": "{account.u}", "secret": "x"}}, "[auth] secret", "goes with kind 'sign'"),
        ({"login": {"auth": {"secret": "x"}}}, "[login.auth] secret", "goes with kind 'sign', and not with 'none'"),
        ({"auth": {**whole()["auth"], "recipe": {"pair": "{k}"}}}, "[auth.recipe] pair", "signs no value"),
        ({"window": {"format": "wall", "pattern": "x", "step": "1d"}}, "[window] pattern", "writes every time alike"),
        ({"record": {"version": {"path": "v", "format": "wall"}}}, "[record.version] format", "goes with kind 'time'"),
        ({"errors": [{"outcome": "later", "status": []}]}, "[[errors]] number 1 status", "would never hold"),
        ({"errors": [{"outcome": "later", "status": 1, "equals": 7}]}, "[[errors]] number 1", "is no status"),
        ({"errors": [{"outcome": "later", "equals": 7}]}, "[[errors]] number 1", "has no condition"),
        ({"rate": [{"per_second": 5, "cost": 0}]}, "[[rate]] number 1 cost", "the limit limits nothing"),
        ({"detail": None, "rate": [{"detail_cost": 1}]}, "[[rate]] number 1 detail_cost", "goes with [detail]"),
        ({"rate": [7]}, "[[rate]] number 1", "is a table, and not 7"),
        ({"again": ["1m", 7]}, "again, number 2", "7 is no duration"),
        ({"record": {"key": ["a", 7]}}, "[record] key, number 2", "is text, and not 7"),
        ({"detail": {"request": {"base_url": "ftp://x"}}}, "[detail.request] base_url", "is no http or https address"),
    ],
)
def test_what_does_not_go_together_is_refused_in_its_table(changes: dict[str, Any], place: str, problem: str) -> None:
    file = whole()
    for name, change in changes.items():
        if change is None:
            del file[name]
            continue
        below = "request" if "request" in change else None
        if below is not None:
            change = {**file[name], below: {**file[name][below], **change[below]}}
        file[name] = {**file[name], **change} if isinstance(change, dict) and name != "auth" else change
    with pytest.raises(BadDeclaration) as told:
        declare(file)
    assert told.value.in_table.startswith(place), told.value
    assert problem in told.value.problem
