"""What the rules of a declaration make of an answer, the paths they look along, and the waits they read."""

import pytest

from platforms.adapter import Bug, Empty, Later, Login, Outcome, Park, Response, SlowDown, Split
from platforms.errors import BadDeclaration, Unreadable
from tests.unit.platforms.declared_example import AT, adapter, answer, row

RULES = [
    {"outcome": "empty", "status": 404, "body": "code", "equals": "no_orders"},
    {"outcome": "throttled", "body": "code", "equals": [7, "limit"], "after": "30s"},
    {"outcome": "login", "body": "error.sub", "contains": "session"},
    {"outcome": "split", "body": "code", "equals": "too_wide"},
    {"outcome": "park", "header": "X-Shop", "equals": "closed", "reason": "the shop is closed"},
    {"outcome": "bug", "body": "code", "equals": "bad_param"},
    {"outcome": "fine", "status": 404, "body": "orders"},
    {"outcome": "later", "body": "error", "after": "5s"},
    {"outcome": "later", "status": [403, "4xx"], "after": "1m"},
]


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (answer({"code": "no_orders"}, 404), Empty()),
        (answer({"code": 7}), SlowDown(30_000)),
        (answer({"code": "7"}), SlowDown(30_000, "7")),
        (answer({"code": "limit"}, retry_after="2"), SlowDown(2_000, "limit")),
        (answer({"code": "limit"}, retry_after="1000000000"), SlowDown(900_000, "limit")),
        (answer({"error": {"sub": "isv.session-expired"}}), Login()),
        (answer({"code": "too_wide"}), Split()),
        (answer({"orders": []}, x_shop="closed"), Park("the shop is closed")),
        (answer({"code": "bad_param"}), Bug("the platform's answer (200) meets the rule on body code: bad_param")),
        (answer({"orders": [row()]}, 404), None),
        (answer({"error": {"x": 1}}), Later(5_000)),
        (answer({"error": {}}), None),
        (answer({"error": None, "orders": []}), None),
        (answer({"error": False, "orders": []}), None),
        (answer({"error": "", "orders": []}), None),
        (answer({"code": 0, "orders": []}), None),
        (answer({"code": True}), None),
        (answer({"code": {"code": "limit"}}), None),
        (answer(b'{"code": "limit"'), Later(reason="""the answer is no JSON, it begins with '{"code": "limit"'""")),
        (answer({}, 418), Later(60_000)),
        (answer({}, 500), Later()),
        (answer({}, 429, retry_after="3"), Later(3_000)),
        (answer({"orders": [row(), row(code="limit")]}), None),
    ],
)
def test_the_first_rule_that_holds_says_what_an_answer_means(response: Response, outcome: Outcome | None) -> None:
    assert adapter(errors=RULES).outcome(response) == outcome


def test_a_rule_on_a_body_that_is_the_list_is_refused_or_never_holds() -> None:
    declared = adapter(
        record={"rows": ""}, pages={"style": "one", "next": "", "total": ""}, errors=[RULES[1]],
        request={"params": {"from": "{window.start}", "to": "{window.end}"}},
    )  # fmt: skip
    assert declared.outcome(answer([row(code="limit")])) is None
    with pytest.raises(BadDeclaration):
        adapter(record={"rows": ""})


def test_paths_lead_into_lists_from_either_end() -> None:
    declared = adapter(
        record={"rows": "parts[0].orders", "key": "lines[0].sku", "version": {"kind": "number", "path": "log[-1]"}},
        pages={"next": "parts[0].orders[-1].id", "total": "parts[1].total"},
    )
    orders = [
        {"id": "a", "lines": [{"sku": "x"}, {"sku": None}], "log": [1, 5], "at": AT},
        {"id": "b", "lines": [], "log": [2], "at": AT},
    ]
    read = declared.page(answer({"parts": [{"orders": orders}, {"total": 9}]}))
    assert [(each.key, each.version) for each in read.rows] == [("x", 5)]
    assert [each.reason for each in read.bad] == ["parts[0].orders[1]: there is no [0] for 'lines[0].sku'"]
    assert (read.next, read.total) == ("b", 9)
    with pytest.raises(Unreadable, match=r"there is no \[0\] for 'parts\[0\]\.orders'"):
        declared.page(answer({"parts": []}))


@pytest.mark.parametrize("path", ["a[", "a[x]", "a[0]b", "[0].a", "a..b", "a[0]."])
def test_a_path_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(BadDeclaration, match="is no path such as"):
        adapter(record={"key": path})


def test_rules_look_into_lists() -> None:
    declared = adapter(
        errors=[{"outcome": "later", "body": "errors[0].code", "equals": "busy", "text": "errors[0].why"}]
    )
    assert declared.outcome(answer({"errors": [{"code": "busy", "why": "wait\n a bit\x1b"}]})) == Later(
        None, "wait a bit?"
    )
    assert declared.outcome(answer({"errors": [], "orders": []})) is None
    assert declared.outcome(answer({"errors": {"code": "busy"}})) is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error_response": {"code": 15, "msg": "Remote service error", "sub_msg": "no such shop"}}, "no such shop"),
        ({"error": "invalid_grant", "error_description": "expired"}, "expired"),
        ({"errors": [{"message": "Not found", "longMessage": "x"}]}, "Not found"),
        ({"error": {"code": 4}, "message": "closed"}, "closed"),
        ({"orders": []}, ""),
        (b"<html>", ""),
        ({"message": "x" * 400}, "x" * 300),
    ],
)
def test_the_platform_s_own_words_are_in_the_reason(body: object, said: str) -> None:
    outcome = adapter().outcome(answer(body, 404))
    assert isinstance(outcome, Bug)
    assert outcome.reason == "the platform refuses the request as it stands (404)" + (f": {said}" if said else "")


@pytest.mark.parametrize(
    ("wait", "response", "after_ms"),
    [
        ({"header": "x-rate", "is": "rate"}, answer({"code": 7}, 429, x_rate="0.0167"), 59_881),
        ({"header": "x-rate", "is": "rate"}, answer({"code": 7}, 429, x_rate="0.000001"), 900_000),
        ({"header": "x-rate", "is": "rate"}, answer({"code": 7}, 429, x_rate="0"), 5_000),
        ({"header": "x-wait", "is": "ms"}, answer({"code": 7}, x_wait="250"), 250),
        ({"body": "e.msg"}, answer({"code": 7, "e": {"msg": "This ban will last for 3 more seconds"}}), 4_000),
        ({"body": "e.msg"}, answer({"code": 7, "e": {"msg": "banned"}}), 5_000),
        ({"body": "e.msg"}, answer({"code": 7}, retry_after="2"), 2_000),
    ],
)
def test_a_wait_is_read_as_the_platform_writes_it(wait: dict[str, str], response: Response, after_ms: int) -> None:
    rule = {"outcome": "throttled", "body": "code", "equals": 7, "after": "5s", "wait": wait}
    outcome = adapter(errors=[rule]).outcome(response)
    assert isinstance(outcome, SlowDown)
    assert outcome.after_ms == after_ms


def test_a_wait_has_one_place() -> None:
    with pytest.raises(BadDeclaration, match=r"errors\[0\]\.wait: needs a header or a path in the body"):
        adapter(errors=[{"outcome": "throttled", "status": 429, "wait": {"is": "ms"}}])
