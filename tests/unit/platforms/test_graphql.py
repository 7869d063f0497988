"""Errors inside a GraphQL answer under HTTP 200: what they mean, and which orders they concern."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.adapter import Bug, Later, Login, Outcome, Park, Response, SlowDown
from platforms.declared import DeclaredAdapter
from tests.unit.platforms.declared_example import adapter

AT = 1_700_000_000_000
NOTHING: dict[str, Any] = {"orders": None}


def shop() -> DeclaredAdapter:
    variables = {"from": "{window.start}", "to": "{window.end}", "after": "{page.token}"}
    graphql = {"query": "{ orders { edges { node { id } } } }", "variables": variables}
    record = {
        "rows": "data.orders.edges",
        "key": "node.id",
        "version": {"kind": "number", "path": "node.v"},
        "modified": {"path": "node.at", "format": "unix_ms"},
    }
    return adapter(request={"params": {}, "graphql": graphql}, record=record, pages={"style": "token", "next": "next"})


def answer(body: object) -> Response:
    return Response(200, {}, json.dumps(body).encode())


def error(message: str, code: str = "", *path: str | int) -> dict[str, Any]:
    return {"message": message} | ({"extensions": {"code": code}} if code else {}) | ({"path": [*path]} if path else {})


def edges(count: int, *broken: int) -> dict[str, Any]:
    listed = [{"node": None if at in broken else {"id": f"o{at}", "v": 1, "at": AT}} for at in range(count)]
    return {"orders": {"edges": listed}}


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"errors": [error("Throttled", "THROTTLED")]}, SlowDown(None, "Throttled")),
        ({"errors": [error("oops", "INTERNAL_SERVER_ERROR")], "data": NOTHING}, Later(None, "oops")),
        ({"errors": [error("oops", "", "orders")], "data": NOTHING}, Later(None, "oops")),
        ({"errors": [error("oops")], "data": None}, Later(None, "oops")),
        ({"errors": "back soon"}, Later(None, "back soon")),
        ({"errors": [error("who?", "UNAUTHENTICATED")], "data": None}, Login("who?")),
        (
            {"errors": [error("no scope", "ACCESS_DENIED", "orders")], "data": NOTHING},
            Park("the platform forbids this account the query: no scope"),
        ),
        ({"errors": [error("no field 'ids'")]}, Bug("the platform refuses the query: no field 'ids'")),
        ({"errors": [error("too dear", "MAX_COST")]}, Bug("the platform refuses the query: too dear")),
        ({"errors": [], "data": edges(1)}, None),
        ({"errors": None, "data": edges(1)}, None),
    ],
)
def test_errors_are_judged_without_rules(body: object, outcome: Outcome | None) -> None:
    """Without `data` the request was refused. With it, something failed while it was answered, and may pass."""
    assert shop().outcome(answer(body)) == outcome


@given(st.integers(1, 30), st.data())
def test_errors_of_some_orders_set_these_aside_and_no_other(count: int, data: st.DataObject) -> None:
    broken = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    null = data.draw(st.sets(st.sampled_from(sorted(broken))))  # the others lack a field that may be null
    errors = [error(f"no customer {at}", "", "orders", "edges", at, "node", "customer") for at in broken]
    body = answer({"data": edges(count, *null), "errors": errors})
    outcome = shop().outcome(body)
    assert isinstance(outcome, Later)
    assert outcome.is_partial
    page = shop().page(body)
    assert [row.key for row in page.rows] == [f"o{at}" for at in range(count) if at not in broken]
    assert [bad.reason for bad in page.bad] == [
        f"data.orders.edges[{at}]: the platform says: no customer {at}" for at in sorted(broken)
    ]
    assert [bad.key for bad in page.bad] == [None if at in null else f"o{at}" for at in sorted(broken)]


@pytest.mark.parametrize(
    "path", [(), ("orders",), ("orders", "pageInfo"), ("orders", "edges", "x"), ("orders", "edges", 9), ("a", "b", 0)]
)
def test_an_error_of_more_than_an_order_sets_no_order_aside(path: tuple[str | int, ...]) -> None:
    """The answer may be short then."""
    errors = [error("one", "", "orders", "edges", 0), error("other", "", *path)]
    body = answer({"data": edges(3, 0), "errors": errors})
    assert shop().outcome(body) == Later(None, "one")
    assert [row.key for row in shop().page(answer({"data": edges(2)})).rows] == ["o0", "o1"]
