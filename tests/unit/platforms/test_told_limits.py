"""A file says where its platform's answers tell how full a limit is, and what it names is read in requests."""

import json
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.adapter import Response, SlowDown
from platforms.declared import DeclaredAdapter
from platforms.diagnosis import told_hints
from platforms.errors import BadDeclaration
from platforms.registry import adapter_named
from platforms.told_limits import ToldLimit, strictest, told_by
from tests.unit.platforms.declared_example import adapter

NOW = "Mon, 24 Nov 2025 10:00:00 GMT"
POINTS = {
    "left": "cost.status.left",
    "most": "cost.status.most",
    "restore": "cost.status.back",
    "needs": "cost.wanted",
    "cost": "cost.taken",
}
LEFT_UNTIL = {"left": "header:x-left", "reset": "header:X-Reset"}
DETAIL = {"request": {"path": "/d", "params": {"keys": "{detail.keys}"}}, "key": "id"}


def told(table: dict[str, str], *, body: Any = None, is_detail: bool = False, **facts: Any) -> ToldLimit:
    """Return what an answer tells a file with one limit. `rate`: of the limit. The rest are headers."""
    made = adapter(rate=[{**facts.pop("rate", {}), "told": table}], **facts.pop("file", {}))
    headers = {name.replace("_", "-"): value for name, value in facts.items()}
    return made.told(Response(200, {"date": NOW, **headers}, json.dumps(body or {}).encode()), is_detail=is_detail)


def points(left: float, *, wanted: int = 252, taken: int | None = 52) -> dict[str, Any]:
    return {"cost": {"wanted": wanted, "taken": taken, "status": {"left": left, "most": 2_000.0, "back": 100.0}}}


def test_points_in_the_body_are_read_in_requests() -> None:
    """A request has to find 252 points, and takes 52 of them."""
    assert told(POINTS, body=points(1_948)) == ToldLimit(7, None, 100 / 52, 7, is_rough=True)
    assert told(POINTS, body=points(52.0)) == ToldLimit(0, 2_000, 100 / 52, 7, is_rough=True)
    assert told(POINTS, body=points(52, taken=None)) == ToldLimit(0, 2_000, 100 / 252, 7)


def test_a_file_without_a_table_of_its_own_reads_the_usual_headers() -> None:
    response = Response(200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"}, b"{}")
    assert told_by(adapter(), response) == ToldLimit(0, 30_000)
    own = adapter(rate=[{"told": {"left": "header:X-Mine"}}])
    assert told_by(own, response) == ToldLimit()


@pytest.mark.parametrize(
    ("table", "headers", "rate", "wanted"),
    [
        ({"used": "header:X-Calls"}, {"x_calls": "32/40"}, {"per_second": 2}, ToldLimit(8, None, None, 40)),
        ({"used": "header:X-Calls"}, {"x_calls": "40/40"}, {"per_second": 2}, ToldLimit(0, 500, None, 40)),
        ({"used": "header:X-Calls"}, {"x_calls": "40/40"}, {}, ToldLimit(0, None, None, 40)),
        ({"used": "header:X-Calls"}, {"x_calls": "38/40"}, {"per_second": 2, "cost": 5}, ToldLimit(0, 1_500, None, 8)),
        ({"used": "header:X-Used", "most": "header:X-Of"}, {"x_used": "3", "x_of": "5"}, {}, ToldLimit(2, most=5)),
        ({"used": "header:X-Calls"}, {"x_calls": "32"}, {}, ToldLimit()),
        (LEFT_UNTIL, {"x_left": "0", "x_reset": "2.5"}, {}, ToldLimit(0, 2_500)),
        (LEFT_UNTIL, {"x_left": "0", "x_reset": "1763978407"}, {}, ToldLimit(0, 7_000)),
        (LEFT_UNTIL, {"x_left": "0", "x_reset": "1763978407500"}, {}, ToldLimit(0, 7_500)),
        (LEFT_UNTIL, {"x_left": "0", "x_reset": "2025-11-24T10:00:07Z"}, {}, ToldLimit(0, 7_000)),
        ({"left": "header:x-left", "reset": "header:r"}, {"x_left": "0", "r": "soon"}, {}, ToldLimit(0)),
        ({"left": "header:x-left", "reset": "header:r"}, {"x_left": "0", "r": "2025-99-24T10"}, {}, ToldLimit(0)),
        ({"restore": "header:x-rate"}, {"x_rate": "0.0167"}, {}, ToldLimit(per_s=0.0167)),
        ({"restore": "header:x-rate"}, {"x_rate": "50"}, {"cost": 10}, ToldLimit(per_s=5.0)),
        ({"restore": "header:x-rate"}, {"x_rate": "0"}, {}, ToldLimit()),
        ({"left": "header:x-left"}, {"x_left": "many"}, {}, ToldLimit()),
    ],
)
def test_headers_of_the_platforms_own_are_read(
    table: dict[str, str], headers: dict[str, str], rate: dict[str, Any], wanted: ToldLimit
) -> None:
    facts: dict[str, Any] = {"rate": rate, **headers}
    assert told(table, **facts) == wanted


@pytest.mark.parametrize("body", [[], "x", {"cost": 7}, {"cost": {"status": {"left": True}}}, {"cost": {"taken": []}}])
def test_an_answer_that_tells_nothing_readable_tells_nothing(body: Any) -> None:
    assert told(POINTS, body=body) == ToldLimit()
    assert adapter(rate=[{"told": POINTS}]).told(Response(200, {}, b'{"cost"')) == ToldLimit()


def test_a_limit_of_the_details_is_read_from_their_answers() -> None:
    made: dict[str, Any] = {"rate": {"cost": 0, "detail_cost": 5}, "file": {"detail": DETAIL}, "x_left": "20"}
    assert told({"left": "header:x-left"}, **made) == ToldLimit()
    made = {"rate": {"cost": 0, "detail_cost": 5}, "file": {"detail": DETAIL}, "x_left": "20"}
    assert told({"left": "header:x-left"}, is_detail=True, **made) == ToldLimit(4)


def test_of_several_limits_the_strictest_one_counts() -> None:
    one, other = ToldLimit(3, 100, 5.0, 40), ToldLimit(0, 900, 9.0, 10, is_rough=True)
    assert strictest([one, other]) == ToldLimit(0, 900, 5.0, 10)
    assert strictest([one, ToldLimit()]) == one
    assert strictest([ToldLimit(), ToldLimit()]) == ToldLimit()


def test_a_refusal_that_tells_what_is_left_names_its_wait() -> None:
    """252 points have to be there, and 52 are: two seconds at 100 a second."""
    made = adapter(rate=[{"told": POINTS}], errors=[{"body": "error", "outcome": "throttled"}])
    body = json.dumps({"error": 1, **points(52, taken=None)}).encode()
    assert made.outcome(Response(200, {}, body)) == SlowDown(2_000)
    assert made.outcome(Response(200, {"retry-after": "9"}, body)) == SlowDown(9_000)
    late = json.dumps({"error": 1, **points(52, wanted=200_000)}).encode()
    assert made.outcome(Response(200, {}, late)) == SlowDown(900_000)
    has_left = json.dumps({"error": 1, **points(1_000)}).encode()
    assert made.outcome(Response(200, {}, has_left)) == SlowDown(None)


def test_shopify_tells_its_points() -> None:
    cost: dict[str, Any] = {
        "requestedQueryCost": 202,
        "actualQueryCost": None,
        "throttleStatus": {"maximumAvailable": 1000.0, "currentlyAvailable": 118, "restoreRate": 50.0},
    }
    errors = [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}]
    body = json.dumps({"errors": errors, "extensions": {"cost": cost}}).encode()
    assert adapter_named("shopify").outcome(Response(200, {}, body)) == SlowDown(1_680, "Throttled")


@given(st.floats(0, 5_000), st.integers(1, 1_000), st.integers(1, 1_000), st.floats(0.01, 1_000))
def test_after_the_wait_that_is_told_a_request_fits(left: float, wanted: int, taken: int, back: float) -> None:
    body = {"cost": {"wanted": wanted, "taken": taken, "status": {"left": left, "most": 5_000, "back": back}}}
    said = told(POINTS, body=body)
    assert said.left is not None
    assert said.left * wanted <= left
    assert (said.left == 0) == (left < wanted)
    assert (said.reset_ms is None) == (said.left > 0)
    if said.reset_ms is not None and said.reset_ms < 86_400_000:
        assert left + said.reset_ms / 1_000 * back >= wanted * (1 - 1e-9)
        assert said.reset_ms <= ceil((wanted - left) / back * 1_000)


@pytest.mark.parametrize("name", ["left", "used", "most", "restore", "reset", "cost", "needs"])
@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("header:", "'header:' names no header; write 'header:X-Limit-Left', or a path in the body"),
        ("header:x limit", "'header:x limit' names no header"),
        ("a..b", "'a..b' is no path such as"),
        ("a[x]", "'a[x]' is no path such as"),
    ],
)
def test_a_place_that_cannot_be_is_refused_with_its_key(name: str, place: str, problem: str) -> None:
    table = {"restore": "r", name: place} if name in ("left", "used") else {"left": "l", name: place}
    with pytest.raises(BadDeclaration) as fault:
        told(table)
    assert fault.value.in_table == f"[[rate]] number 1, [rate.told] {name}"
    assert problem in fault.value.problem


@pytest.mark.parametrize(
    ("table", "file", "place", "problem"),
    [
        ({}, {}, "[[rate]] number 1 told", "write left, used or restore"),
        ({"reset": "r", "most": "m"}, {}, "[[rate]] number 1 told", "write left, used or restore"),
        ({"left": "l", "used": "u"}, {}, "[[rate]] number 1, [rate.told] used", "goes without left"),
        ({"left": "l", "needs": "l.x"}, {}, "[[rate]] number 1, [rate.told] needs", "leads through"),
        ({"lefts": "l"}, {}, "[[rate]] number 1, [rate.told] lefts", "did you mean 'left'?"),
        (
            {"left": "header:l", "reset": "r"},
            {
                "record": {"rows": ""},
                "pages": {"style": "one", "next": "", "total": ""},
                "request": {"params": {"from": "{window.start}", "to": "{window.end}"}},
            },
            "[[rate]] number 1, [rate.told] reset",
            "the body is the list; name a header",
        ),
    ],
)
def test_what_tells_nothing_is_refused(table: dict[str, str], file: dict[str, Any], place: str, problem: str) -> None:
    with pytest.raises(BadDeclaration) as fault:
        told(table, file=file)
    assert fault.value.in_table == place
    assert problem in fault.value.problem


def test_a_place_that_the_answer_does_not_have_is_named_with_what_it_has() -> None:
    def hints(table: dict[str, str]) -> list[str]:
        made: DeclaredAdapter = adapter(rate=[{"told": table}])
        return told_hints(made.file, {"cost": {"lefts": 7}}, {"x-calls": "3/40", "date": NOW})

    assert hints({"left": "cost.lefts", "reset": "header:X-Calls"}) == []
    (wrong,) = hints({"left": "cost.left"})
    assert (
        wrong == "[rate.told] left: the answer has no 'cost.left'; numbers in it: cost.lefts = 7; is it 'cost.lefts'?"
    )
    assert '; it is a header: write "header:X-Calls"' in hints({"used": "X-Calls"})[0]
    assert "has no header 'x-call'; about limits are: x-calls" in hints({"used": "header:X-Call"})[0]
