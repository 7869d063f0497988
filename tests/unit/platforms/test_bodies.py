"""Requests of a file with JSON in them, with braces, and with values in the path."""

import base64
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import parse_qs

import pytest

from platforms.adapter import Account, Request
from platforms.bounds import Window
from platforms.errors import BadDeclaration
from tests.unit.platforms.declared_example import adapter

NOW = 1_700_000_000_000
WINDOW = Window(NOW - 60_000, NOW)
ACCOUNT = Account("one", {"base_url": "https://api.example.com/v1/", "token": "s3cret", "shop": "7 é/x", "id": "42"})
SORTED = '{"b":{"a":1699999940000,"z":1},"e":1700000000000,"size":3}'
BOUNDS = {"from": "{window.start}", "to": "{window.end}", "after": "{page.token}"}


def made(page: str | int | None = None, account: Account = ACCOUNT, *, auth: Any = None, **request: Any) -> Request:
    changes = {"auth": auth} if auth else {}
    return adapter(request={"params": {}, **request}, **changes).request(WINDOW, page, account, NOW)


def test_a_json_body_is_nested_and_its_numbers_stay_numbers() -> None:
    body = {
        "query": {"filter": [{"field": "updated", "gte": "{window.start}", "lt": "{window.end}"}], "all": True},
        "page": {"cursor": "{page.token}", "limit": "{page.size}", "shops": ["{account.id}", "{page.token}"]},
        "rate": 0.5,
    }
    first, later = made(body=body), made("t2", body=body)
    assert json.loads(first.body) == {
        "query": {"filter": [{"field": "updated", "gte": NOW - 60_000, "lt": NOW}], "all": True},
        "page": {"limit": 3, "shops": ["42"]},
        "rate": 0.5,
    }
    assert (first.method, ("content-type", "application/json") in first.headers) == ("POST", True)
    assert json.loads(later.body)["page"] == {"cursor": "t2", "limit": 3, "shops": ["42", "t2"]}


def test_a_value_says_which_kind_it_has() -> None:
    body = {**BOUNDS, "text": "{window.start:text}", "number": "{account.id:number}", "joined": "u>{window.start}"}
    sent = json.loads(made(body=body).body)
    assert (sent["text"], sent["number"], sent["joined"]) == (str(NOW - 60_000), 42, f"u>{NOW - 60_000}")
    with pytest.raises(BadDeclaration, match=r"\{account\.shop:number\} is no whole number"):
        made(body={**BOUNDS, "n": "{account.shop:number}"})
    with pytest.raises(BadDeclaration, match="is no kind of value; write :text or :number"):
        made(body={**BOUNDS, "n": "{account.id:int}"})


def test_a_graphql_query_is_sent_as_it_stands() -> None:
    query = "query($n: Int!) { orders(first: $n) { nodes { id } } }"
    variables = {"n": "{page.size}", "after": "{page.token}", "q": "updated_at:>={window.start} AND <{window.end}"}
    sent = made("c1", graphql={"query": query, "variables": variables})
    assert (sent.method, json.loads(sent.body)["query"]) == ("POST", query)
    wanted = {"n": 3, "after": "c1", "q": f"updated_at:>={NOW - 60_000} AND <{NOW}"}
    assert json.loads(sent.body)["variables"] == wanted


def test_a_brace_is_written_twice() -> None:
    sent = made(params={**BOUNDS, "q": "{{a}} {{{window.start}}}"})
    assert dict(sent.params)["q"] == f"{{a}} {{{NOW - 60_000}}}"


def test_a_table_in_a_parameter_is_json_with_sorted_keys_and_is_signed_so() -> None:
    param = {"size": "{page.size}", "after": "{page.token}", "b": {"z": 1, "a": "{window.start}"}, "e": "{window.end}"}
    assert parse_qs(made(form={"m": "list", "param_json": param}).body.decode())["param_json"] == [SORTED]
    recipe = {"pattern": "{param.param_json}{secret}", "algorithm": "md5"}
    auth = {"kind": "sign", "name": "sign", "secret": "{account.token}", "recipe": recipe}
    signed = made(params={"param_json": param}, auth=auth)
    assert dict(signed.params)["param_json"] == SORTED
    assert dict(signed.params)["sign"] == hashlib.md5(f"{SORTED}s3cret".encode()).hexdigest().upper()


def test_a_signature_may_cover_the_body_and_be_base64() -> None:
    recipe = {"pattern": "{path}{body}", "algorithm": "hmac-sha256", "encoding": "base64"}
    auth = {"kind": "sign", "name": "x-sign", "secret": "{account.token}", "place": "headers", "recipe": recipe}
    signed = made(path="/shops/{account.id}", body=BOUNDS, auth=auth)
    wanted = hmac.digest(b"s3cret", b"/shops/42" + signed.body, "sha256")
    assert dict(signed.headers)["x-sign"] == base64.b64encode(wanted).decode()


def test_values_in_the_path_are_encoded_and_never_lead_elsewhere() -> None:
    sent = made(path="/shops/{account.shop}/p/{page.number}", params={k: BOUNDS[k] for k in BOUNDS})
    assert sent.url == "https://api.example.com/v1/shops/7%20%C3%A9%2Fx/p/1"
    up = Account("one", {**ACCOUNT.values, "shop": ".."})
    with pytest.raises(BadDeclaration, match=r"\{account\.shop\} has no value that can stand in a path"):
        made(account=up, path="/shops/{account.shop}", params=BOUNDS)


def test_basic_goes_without_a_password() -> None:
    assert ("authorization", "Basic czNjcmV0Og==") in made(
        params=BOUNDS, auth={"kind": "basic", "user": "{account.token}"}
    ).headers


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"form": {"a": "b"}, "body": BOUNDS}, r"request\.body: a request has one body"),
        ({"method": "GET", "body": BOUNDS}, r"request\.body: is sent with POST only"),
        ({"body": {**BOUNDS, "deep": [{"x": "{window.strt}"}]}}, r"request\.body\.deep\[0\]\.x: unknown placeholder"),
        ({"body": {**BOUNDS, "auth": {"api_key": "abc"}}}, r"request\.body\.auth\.api_key: looks like a secret"),
        ({"body": {"from": "{window.start}"}}, r"window\.end"),
        ({"graphql": {"query": "{ a }", "vars": {}}}, r"request\.graphql\.vars: unknown key"),
    ],
)
def test_a_body_that_cannot_be_meant_is_refused_where_it_is_wrong(request_: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadDeclaration, match=problem):
        made(**request_)
