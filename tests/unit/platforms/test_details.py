"""The whole orders of a partial list: asked for in batches, none of them lost in silence."""

import json
from typing import Any

import pytest

from platforms.adapter import Account, Response, Row
from platforms.errors import BadDeclaration, Garbled, Unreadable
from tests.unit.platforms.declared_example import adapter

NOW = 1_700_000_000_000
ACCOUNT = Account("a", {"base_url": "https://api.example.com", "token": "s3cret"})
LISTED = [Row(key, 1, NOW, b'{"id":"%b"}' % key.encode()) for key in ("a", "b", "c")]


def detail(**changes: Any) -> dict[str, Any]:
    params = {"ids": "{detail.keys}", "t": "{account.token}"}
    made: dict[str, Any] = {
        "request": {"path": "/details", "params": params},
        "key": "id",
        "rows": "found",
        "batch": 50,
    }
    return {**made, **changes}


def said(body: object) -> Response:
    return Response(200, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_keys_are_joined_in_text_and_a_list_in_json() -> None:
    declared = adapter(detail=detail(join="|"))
    asked = declared.detail_request(["a", "b"], ACCOUNT, NOW)
    assert (asked.url, dict(asked.params)) == ("https://api.example.com/details", {"ids": "a|b", "t": "s3cret"})
    body = {"ids": "{detail.keys}", "text": "of {detail.keys}"}
    posted = adapter(detail=detail(request={"path": "/d", "body": body})).detail_request(["a", "b"], ACCOUNT, NOW)
    assert json.loads(posted.body) == {"ids": ["a", "b"], "text": "of a,b"}
    single = adapter(detail=detail(request={"path": "/orders/{detail.key}"}, batch=1))
    assert single.detail_request(["x/y"], ACCOUNT, NOW).url == "https://api.example.com/orders/x%2Fy"
    assert "token" in declared.declaration.account
    assert declared.declaration.detail_batch == 50


def test_whole_orders_take_the_place_of_the_listed_ones() -> None:
    found = [{"id": "c", "v": 9, "more": 1}, {"id": "a", "v": 7}, {"id": "other", "v": 1}]
    page = adapter(detail=detail()).detail_page(said({"found": found}), LISTED)
    assert [(row.key, row.version, row.modified_ms) for row in page.rows] == [("a", 1, NOW), ("c", 1, NOW)]
    assert [(each.key, each.reason) for each in page.bad] == [
        ("b", "the answer to the detail request does not have it")
    ]
    own = adapter(detail=detail(version={"kind": "number", "path": "v"}))
    assert [row.version for row in own.detail_page(said({"found": found}), LISTED).rows] == [7, 9]


@pytest.mark.parametrize(
    ("body", "keys"), [({"found": {"id": "a"}}, ["a"]), ({"found": None}, []), ({"found": []}, [])]
)
def test_one_order_needs_no_list(body: object, keys: list[str]) -> None:
    page = adapter(detail=detail()).detail_page(said(body), LISTED[:1])
    assert ([row.key for row in page.rows], len(page.bad)) == (keys, 1 - len(keys))


@pytest.mark.parametrize(
    ("body", "error"), [({"fund": []}, Unreadable), ({"found": 7}, None), (b'{"found":[', Garbled), ([], Unreadable)]
)
def test_details_that_are_not_as_declared_are_not_taken_for_none(body: object, error: type[Exception] | None) -> None:
    declared = adapter(detail=detail())
    if error is None:
        assert declared.detail_page(said(body), LISTED[:1]).rows == []
        return
    with pytest.raises(error):
        declared.detail_page(said(body), LISTED[:1])


@pytest.mark.parametrize("listed", [[], None])
def test_details_of_nothing_beside_an_error_are_asked_for_again(listed: object) -> None:
    """The list has its orders under another name, so its own look at an error says nothing here."""
    declared = adapter(detail=detail())
    with pytest.raises(Garbled, match=r"lists no orders, and has the code 50001: .*: busy"):
        declared.detail_page(said({"found": listed, "code": 50001, "message": "busy"}), LISTED)
    rule = {"body": "code", "equals": 50001, "outcome": "fine"}
    assert len(adapter(detail=detail(), errors=[rule]).detail_page(said({"found": [], "code": 50001}), LISTED).bad) == 3


def test_the_version_of_the_details_says_whether_versions_rise() -> None:
    record = {"version": {"kind": "hash"}}
    assert not adapter(record=record, detail=detail()).declaration.is_version_ordered
    with_own = adapter(record=record, detail=detail(version={"kind": "number", "path": "v"}))
    assert with_own.declaration.is_version_ordered


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"request": {"path": "/d"}}, r"detail\.request: names no order"),
        ({"request": {"path": "/d/{detail.key}"}}, r"detail\.batch: \{detail\.key\} is one order"),
        ({"batch": 0}, r"detail\.batch"),
        ({"key": ""}, r"is no path"),
        ({"version": {"kind": "number"}}, r"detail\.version\.path"),
    ],
)
def test_details_that_cannot_be_meant_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadDeclaration, match=problem):
        adapter(detail=detail(**changes))
