"""A file's login: its request, what it takes from the answer, and which values a person still has to give."""

import json
from typing import Any

import pytest

from actors.fetch.sources import SourceKey
from penstock.admin.source_door import check_account
from penstock.errors import UsageError
from platforms.adapter import Account, Bug, Later, Login, Outcome, Refreshing, Response
from platforms.declared import DeclaredLoginAdapter
from platforms.errors import BadDeclaration, BrokenContract
from tests.unit.platforms.declared_example import adapter

NOW = 1_700_000_000_000
AUTH = {"kind": "header", "name": "authorization", "value": "Bearer {account.access_token}"}
TAKE = {"access_token": "data.token", "refresh_token": "data.refresh"}
FORM = {"grant_type": "refresh_token", "refresh_token": "{account.refresh_token}", "client": "{account.client}"}
GIVEN = {"base_url": "https://api.example.com/v1", "refresh_token": "r1", "client": "c"}


def made(
    take: dict[str, str] | None = None, auth: dict[str, Any] | None = None, **request: Any
) -> DeclaredLoginAdapter:
    login = {"request": {"path": "/token", "form": FORM, **request}, "take": take or TAKE}
    found = adapter(login=login, auth=auth or AUTH)
    assert isinstance(found, DeclaredLoginAdapter)
    return found


def said(body: object, status: int = 200, **headers: str) -> Response:
    return Response(status, {name.replace("_", "-"): text for name, text in headers.items()}, json.dumps(body).encode())


def test_a_file_with_a_login_renews_and_one_without_does_not() -> None:
    assert isinstance(made(), Refreshing)
    assert not isinstance(adapter(), Refreshing)


def test_a_person_gives_what_the_login_needs_and_the_login_brings_the_rest() -> None:
    declared = made().declaration
    assert declared.account == ("base_url", "client", "refresh_token")
    assert declared.granted == ("access_token",)


def test_an_account_that_has_what_the_login_brings_can_do_without_a_login() -> None:
    declared = made().declaration
    assert declared.for_login == ("client", "refresh_token")
    key = SourceKey("own", "s1")
    check_account(key, made(), {"base_url": "https://a.example.com", "access_token": "env:T"}, now_ms=NOW)
    with pytest.raises(UsageError, match="needs the account value 'client'"):
        check_account(key, made(), {"base_url": "https://a.example.com", "refresh_token": "env:T"}, now_ms=NOW)


def test_the_login_goes_to_its_own_host_with_its_own_credentials() -> None:
    login = made(base_url="https://login.example.org/").refresh(Account("a", GIVEN), NOW)
    assert (login.method, login.url) == ("POST", "https://login.example.org/token")
    assert login.body == b"grant_type=refresh_token&refresh_token=r1&client=c"
    assert not {"authorization"} & dict(login.headers).keys()
    assert made().refresh(Account("a", GIVEN), NOW).url == "https://api.example.com/v1/token"


@pytest.mark.parametrize(
    ("take", "response", "granted"),
    [
        (TAKE, said({"data": {"token": "t2", "refresh": "r2"}}), {"access_token": "t2", "refresh_token": "r2"}),
        (TAKE, said({"data": {"token": 17}}), {"access_token": "17"}),
        ({"access_token": "body:"}, said("t5"), {"access_token": "t5"}),
        ({"access_token": "header:X-Token"}, said("", x_token="t3"), {"access_token": "t3"}),
        (
            {"access_token": "cookie:SID"},
            said("", set_cookie="a=1; Path=/\nSID=abc=; Secure; HttpOnly\nb=2"),
            {"access_token": "abc="},
        ),
    ],
)
def test_credentials_are_taken_from_where_the_file_says(
    take: dict[str, str], response: Response, granted: dict[str, str]
) -> None:
    assert made(take).refreshed(response) == granted


@pytest.mark.parametrize("body", [{"data": {}}, {"error": "x"}, [], "no"])
def test_an_answer_without_the_credentials_is_a_broken_contract(body: object) -> None:
    with pytest.raises(BrokenContract, match=r"has no 'access_token'; look at \[login\.take\]"):
        made().refreshed(said(body))


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (Response(204, {}, b""), None),
        (said({"data": {}}), None),
        (said({"error": "invalid_grant", "error_description": "revoked"}, 401), Login("revoked")),
        (said({"message": "bad"}, 400), Bug("the platform refuses the request as it stands (400): bad")),
        (said({}, 503), Later()),
    ],
)
def test_what_a_login_means_is_said_by_its_status(response: Response, outcome: Outcome | None) -> None:
    assert made().login_outcome(response) == outcome


@pytest.mark.parametrize(
    ("login", "problem"),
    [
        ({"request": {"path": "/t"}, "take": {}}, r"login\.take: names no account value"),
        ({"request": {"path": "/t"}, "take": {"a": "b..c"}}, r"login\.take\.a: 'b\.\.c' is no path"),
        ({"request": {"path": "/t", "form": {"password": "hunter2"}}, "take": TAKE}, "looks like a secret"),
        ({"request": {"path": "/t", "form": {"w": "{window.start}"}}, "take": TAKE}, "unknown placeholder"),
        ({"request": {"path": "/t", "base_url": "ftp://x"}, "take": TAKE}, r"login\.request\.base_url"),
        ({"take": TAKE}, r"login\.request: is missing"),
    ],
)
def test_a_login_that_cannot_be_meant_is_refused(login: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadDeclaration, match=problem):
        adapter(login=login, auth=AUTH)
