"""An adapter file is checked whole when it is loaded, and makes the requests that it says."""

import copy
from typing import Any

import pytest

from platforms.adapter import Account, Request
from platforms.bounds import Window
from platforms.declared import declare, declare_toml
from platforms.errors import BadDeclaration, BrokenContract
from tests.unit.platforms.declared_example import adapter, table

NOW = 1_700_000_000_000
WINDOW = Window(NOW - 60_000, NOW)
ACCOUNT = Account("shop one", {"base_url": "https://api.example.com/v1/", "token": "s3cret", "shop": "7", "user": "u"})


def request(page: str | int | None = None, account: Account = ACCOUNT, **changes: Any) -> Request:
    return adapter(**changes).request(WINDOW, page, account, NOW)


def test_a_first_page_is_asked_for_without_a_token() -> None:
    made = request()
    assert (made.method, made.url, made.body) == ("GET", "https://api.example.com/v1/orders", b"")
    assert made.params == (("from", "1699999940000"), ("to", "1700000000000"))


def test_a_later_page_is_asked_for_with_its_token_as_it_came() -> None:
    assert ("after", "a b&c=d/é") in request("a b&c=d/é").params


@pytest.mark.parametrize(
    ("name", "pages", "page", "sent"),
    [
        ("number", {}, None, "1"),
        ("number", {}, 3, "4"),
        ("number", {"first": 0}, 3, "3"),
        ("offset", {}, None, "0"),
        ("offset", {}, 60, "60"),
        ("offset", {"first": 1}, 60, "61"),
        ("offset", {}, "a token", None),
    ],
)
def test_pages_by_number_and_offset_begin_where_the_platform_begins(
    name: str, pages: dict[str, Any], page: str | int | None, sent: str | None
) -> None:
    params = {"from": "{window.start}", "to": "{window.end}", "after": "{page.token}", "at": f"{{page.{name}}}"}
    assert dict(request(page, request={"params": params}, pages=pages).params).get("at") == sent
    assert adapter(request={"params": params}).declaration.pages.numbered == name


def test_values_are_put_where_the_file_says() -> None:
    params = {
        "from": "{window.start}",
        "to": "{window.end}",
        "after": "{page.token}",
        "n": "{page.size}",
        "shop": "{account.shop}",
    }
    made = request(
        request={"path": "/o", "params": params, "headers": {"x-time": "{now}"}, "now": {"format": "iso_z"}},
        window={"format": "wall", "zone": "Asia/Kathmandu", "step": "1s"},
    )
    assert dict(made.params) == {"from": "2023-11-15 03:57:20", "to": "2023-11-15 03:58:20", "n": "3", "shop": "7"}
    assert ("x-time", "2023-11-14T22:13:20Z") in made.headers


def test_a_form_is_posted() -> None:
    form = {"from": "{window.start}", "to": "{window.end}", "after": "{page.token}"}
    made = request("x y", request={"path": "/o", "method": "POST", "params": {}, "form": form})
    assert made.body == b"from=1699999940000&to=1700000000000&after=x+y"
    assert ("content-type", "application/x-www-form-urlencoded") in made.headers


def test_an_absent_bound_is_not_sent() -> None:
    made = request(request={"params": {"from": "{window.start}", "after": "{page.token}"}}, window={"upper": "absent"})
    assert made.params == (("from", "1699999940000"),)


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        ({"kind": "header", "name": "x-key", "value": "k {account.token}"}, ("x-key", "k s3cret")),
        (
            {"kind": "basic", "user": "{account.user}", "password": "{account.token}"},
            ("authorization", "Basic dTpzM2NyZXQ="),
        ),
    ],
)
def test_credentials_come_from_the_account(auth: dict[str, str], header: tuple[str, str]) -> None:
    assert header in request(auth=auth).headers
    assert "token" in adapter(auth=auth).declaration.account


def test_a_signature_covers_all_other_parameters() -> None:
    auth = {"kind": "sign", "name": "sign", "secret": "{account.token}", "recipe": {"algorithm": "hmac-sha256"}}
    first, again, other = request(auth=auth), request(auth=auth), request("page 2", auth=auth)
    assert first.params[-1][0] == "sign"
    assert first.params == again.params
    assert dict(first.params)["sign"] != dict(other.params)["sign"]
    assert "s3cret" not in repr(first.params)


def test_a_link_is_followed_as_it_is() -> None:
    pages = {"style": "link", "next": "next"}
    params = {"from": "{window.start}", "to": "{window.end}"}
    made = request("https://api.example.com/v1/orders?p=2", pages=pages, request={"params": params})
    assert (made.url, made.params) == ("https://api.example.com/v1/orders?p=2", ())


def test_a_link_to_another_host_is_not_followed() -> None:
    params = {"from": "{window.start}", "to": "{window.end}"}
    with pytest.raises(BrokenContract, match=r"leads to https?://evil\.example"):
        request("https://evil.example/orders", pages={"style": "link"}, request={"params": params})


def test_what_an_account_needs_is_declared() -> None:
    declared = adapter(request={"params": table()["request"]["params"] | {"shop": "{account.shop}"}}).declaration
    assert declared.account == ("base_url", "shop")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"token": "t"}, "base_url"),
        ({"base_url": "https://u:p@api.example.com", "token": "t"}, "holds a user"),
        ({"base_url": "https://api.example.com"}, "token: is missing"),
        ({"base_url": "https://api.example.com", "token": ""}, "token: is missing"),
        ({"base_url": "https://api.example.com", "token": "s3cret\r\nx-evil: 1"}, "cannot be sent"),
    ],
)
def test_an_account_that_lacks_something_is_refused_without_showing_it(values: dict[str, str], problem: str) -> None:
    with pytest.raises(BadDeclaration, match=problem) as refused:
        request(account=Account("a", values), auth={"kind": "header", "name": "x", "value": "{account.token}"})
    assert "s3cret" not in str(refused.value)


def test_neither_an_account_nor_a_request_shows_its_secrets() -> None:
    made = request(auth={"kind": "header", "name": "x-key", "value": "{account.token}"})
    assert "s3cret" not in repr(ACCOUNT) + repr(made) + str(made)


def test_loading_leaves_the_table_alone() -> None:
    before = table()
    given_table = copy.deepcopy(before)
    declare(given_table)
    assert given_table == before


BAD: list[tuple[dict[str, Any], str]] = [
    ({"recrod": {}}, r"recrod: unknown key \(did you mean 'record'\?\)"),
    ({"window": {"stpe": "1s"}}, r"window\.stpe: unknown key \(did you mean 'step'\?\)"),
    ({"record": {"version": {"kind": "number", "pfad": "v"}}}, r"record\.version\.pfad: unknown key"),
    ({"rate": [{"per_second": 1}, {"per_secnd": 1}]}, r"rate\[1\]\.per_secnd: unknown key"),
    ({"auth": {"kind": "sign", "recipe": {"algoritm": "md5"}}}, r"auth\.recipe\.algoritm: unknown key"),
    ({"settle": 5}, r"settle: 5 is no duration"),
    ({"settle": "5"}, r"settle: '5' is no duration: a number with a unit"),
    ({"settle": "-5s"}, "no duration"),
    ({"again": ["2h", "10m"]}, r"again: names durations that rise"),
    ({"again": ["0s"]}, r"again: names durations that rise"),
    ({"window": {"longest": "1 week"}}, r"window\.longest: '1 week' is no duration"),
    ({"window": {"format": "unix"}}, r"window\.format: .*unix"),
    ({"window": {"zone": "Asia/Shanghia"}}, r"window\.zone: 'Asia/Shanghia'"),
    ({"window": {"format": "unix_s"}}, r"window\.step: steps of 1 ms"),
    ({"pages": {"size": 0}}, r"pages\.size: "),
    ({"pages": {"next": ""}}, r"pages\.next: is needed for style 'token'"),
    ({"pages": {"next_header": "x-next"}}, "a path and a header for one thing"),
    ({"pages": {"total": "", "total_is_live": True}}, r"pages\.total_is_live"),
    ({"pages": {"first": 0}}, r"pages: first and deepest go with \{page\.number\}"),
    ({"pages": {"deepest": 5000}}, r"pages: first and deepest go with \{page\.number\}"),
    ({"request": {"headers": {"p": "{page.number}", "o": "{page.offset}"}}}, r"two ways to say one thing"),
    ({"name": "a b"}, "name: "),
    ({"name": ""}, "name: "),
    ({"request": {"path": "orders"}}, r"request\.path"),
    ({"request": {"path": "/orders?x=1"}}, r"request\.path"),
    ({"request": {"path": "/{account.shop"}}, r"request\.path"),
    ({"request": {"path": "/{page.token}"}}, r"request\.path: \{page\.token\} has no value for the first page"),
    ({"request": {"base_url": "file:///etc"}}, r"request\.base_url"),
    ({"request": {"method": "DELETE"}}, r"request\.method"),
    ({"request": {"method": "GET", "form": {"a": "b"}}}, "POST only"),
    (
        {"request": {"params": {"from": "{window.begin}"}}},
        r"unknown placeholder \{window\.begin\} \(did you mean 'window\.end'",
    ),
    ({"request": {"params": {"from": "{window.start", "to": "{window.end}"}}}, "brace"),
    ({"request": {"params": {"from": "{__import__('os')}"}}}, "unknown placeholder"),
    ({"request": {"params": {"from": "{account.__class__}"}}}, "unknown placeholder"),
    ({"request": {"params": {"from": "{window.start}", "after": "{page.token}"}}}, r"\{window\.end\}"),
    ({"request": {"params": {"from": "{window.start}", "to": "{window.end}"}}}, r"\{page\.token\} and pages\.next"),
    ({"window": {"lower": "absent"}}, r"\{window\.start\}"),
    (
        {"request": {"headers": {"Authorization": "Bearer abc"}}},
        r"request\.headers\.Authorization: looks like a secret",
    ),
    ({"request": {"headers": {"X-Api-Key": "abc"}}}, r"X-Api-Key: looks like a secret"),
    ({"auth": {"kind": "header", "name": "x", "value": "abc"}}, r"auth\.value: looks like a secret"),
    (
        {"auth": {"kind": "basic", "user": "{account.user}", "password": "hunter2"}},
        r"auth\.password: looks like a secret",
    ),
    ({"auth": {"kind": "header", "name": "x"}}, r"auth\.value: is needed"),
    ({"auth": {"kind": "header", "value": "{account.x}"}}, r"auth\.name: is needed"),
    ({"record": {"key": []}}, r"record\.key"),
    ({"record": {"key": "a..b"}}, r"record\.key: 'a\.\.b' is no path"),
    ({"record": {"key": "at.x"}}, "wanted"),
    ({"record": {"rows": ""}}, r"record\.rows: is empty"),
    ({"record": {"version": {"kind": "number"}}}, r"record\.version\.path"),
    ({"record": {"version": {"kind": "hash", "path": "v"}}}, r"record\.version\.path"),
    (
        {"record": {"version": {"kind": "time", "path": "t", "format": "wall", "zone": "Europe/Berlin"}}},
        "repeats an hour each year",
    ),
    ({"server_time_path": "now"}, "server_time"),
    ({"errors": [{"outcome": "later"}]}, r"errors\[0\]: has no condition"),
    ({"errors": [{"outcome": "later", "status": 42}]}, r"errors\[0\]\.status: 42 is no status"),
    ({"errors": [{"outcome": "later", "status": "5x"}]}, r"errors\[0\]\.status"),
    ({"errors": [{"outcome": "latr", "status": 500}]}, r"errors\[0\]\.outcome"),
    ({"errors": [{"outcome": "later", "status": 500, "equals": 7}]}, "compares with nothing"),
    ({"errors": [{"outcome": "later", "header": "x", "body": "y"}]}, "make two rules of it"),
]


@pytest.mark.parametrize(("changes", "problem"), BAD)
def test_a_file_that_cannot_be_meant_is_refused_where_it_is_wrong(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadDeclaration, match=problem):
        adapter(**changes)


@pytest.mark.parametrize(
    ("changes", "place", "problem"),
    [
        (
            {"window": {"format": "unix"}},
            "[window] format",
            "allowed: 'unix_s', 'unix_ms', 'iso_z', 'iso_offset', 'wall'",
        ),
        ({"window": {"total": "n"}}, "[window] total", "unknown key (it belongs into [pages])"),
        ({"errors": [{"outcome": "latr", "status": 500}]}, "[[errors]] number 1 outcome", "'latr' is not allowed"),
        ({"record": {"key": 7}}, "[record] key", "is text or a list, and not 7"),
        ({"name": 7}, "name", "is text, and not 7"),
    ],
)
def test_a_fault_names_its_table_and_what_is_allowed_there(changes: dict[str, Any], place: str, problem: str) -> None:
    with pytest.raises(BadDeclaration) as refused:
        adapter(**changes)
    assert (refused.value.in_table, problem in refused.value.problem) == (place, True), refused.value


@pytest.mark.parametrize("missing", ["name", "request", "record"])
def test_a_file_without_its_main_parts_is_refused(missing: str) -> None:
    made = table()
    del made[missing]
    with pytest.raises(BadDeclaration, match=missing):
        declare(made)


def test_what_is_no_toml_is_refused() -> None:
    with pytest.raises(BadDeclaration, match="is no TOML"):
        declare_toml("name = ")


def test_a_refused_secret_is_not_shown() -> None:
    with pytest.raises(BadDeclaration) as refused:
        adapter(auth={"kind": "header", "name": "x", "value": "hunter2"})
    assert "hunter2" not in str(refused.value)
