"""Rows 96 to 104 of the catalogue of bad input: what platforms answer, each with what becomes of it.

The bombs of row 104 need a transport: tests/integration/fetch/test_transport.py."""

import json
from typing import Any

import pytest

from platforms.adapter import Later, Park, Response, SlowDown
from platforms.bounds import Window
from platforms.errors import BrokenContract, Unreadable
from platforms.reading import Reading
from tests.unit.platforms.declared_example import adapter

AT = 1_700_000_000_000
MINUTE_MS = 60_000
ISO = {"path": "at", "format": "iso_offset"}
GOOD = {"id": "good", "v": 1, "at": AT}


def said(body: object, status: int = 200, **headers: str) -> Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


def read(*answers: object, **changes: Any) -> tuple[Reading, dict[str, int]]:
    """Read a window of one millisecond, which cannot be cut, until the answers are over."""
    declared = adapter(**changes)
    reading = Reading(declared.declaration, Window(AT, AT + 1), sets_bad_aside=True)
    found: dict[str, int] = {}
    for answer in answers:
        if reading.next() is None:
            break
        found |= {row.key: row.version for row in reading.feed(declared.page(said(answer)))}
    return reading, found


@pytest.mark.parametrize("body", [b"<!doctype html><title>Back soon</title>", b"Service is down\n", b""])
def test_96_a_maintenance_page_under_200_comes_later(body: bytes) -> None:
    assert isinstance(adapter().outcome(said(body)), Later)


def test_97_an_error_object_under_200_is_no_empty_page_and_is_told_in_the_platforms_words() -> None:
    answer = said({"error": {"code": "E9", "message": "shop is suspended"}})
    assert adapter().outcome(answer) is None
    with pytest.raises(Unreadable, match="orders") as refused:
        adapter().page(answer)
    assert b"shop is suspended" in refused.value.said
    ruled = adapter(errors=[{"status": 200, "body": "error.code", "outcome": "park"}])
    assert ruled.outcome(answer) == Park(
        "the platform's answer (200) meets the rule on body error.code: shop is suspended"
    )


def test_98_a_total_of_100_with_99_rows_is_short_by_one() -> None:
    rows = [{"id": number, "v": 1, "at": AT} for number in range(99)]
    reading, found = read(*[{"orders": rows, "total": 100}] * 9, pages={"size": 200})
    assert (len(found), reading.result.missing, reading.result.is_proven) == (99, 1, False)


def test_99_of_an_order_on_two_pages_the_later_version_counts() -> None:
    pages = [{"orders": [{**GOOD, "v": version}], "next": f"t{version}", "total": 2} for version in (1, 3, 2)]
    assert read(*pages)[1] == {"good": 3}


@pytest.mark.parametrize(
    "at", ["2023-11-14T22:13:20", "2023-11-14T24:00:00Z", "1970-01-01T00:00:00Z", "2099-06-01T00:00:00Z", AT, "", None]
)
def test_100_a_time_that_may_mean_anything_costs_its_own_row(at: object) -> None:
    good = [{"id": number, "v": 1, "at": "2023-11-14T22:13:20+00:00"} for number in range(3)]
    reading, found = read({"orders": [*good, {"id": "bad", "v": 1, "at": at}], "total": 4}, record={"modified": ISO})
    assert (sorted(found), [bad.key for bad in reading.bad]) == (["0", "1", "2"], ["bad"])


@pytest.mark.parametrize("price", [b"0.1", b'"1.234,56"', b'""', b"null", b"1e400"])
def test_101_prices_arrive_as_they_came(price: bytes) -> None:
    row = b'{"id":"a","v":1,"at":%d,"price":%b}' % (AT, price)
    assert adapter().page(said(b'{"orders":[%b]}' % row)).rows[0].body == row


def test_102_a_cursor_equal_to_the_one_before_ends_the_reading() -> None:
    page = {"orders": [GOOD], "next": "t1", "total": 9}
    with pytest.raises(BrokenContract, match="same next page again"):
        read(page, {**page, "orders": [{**GOOD, "id": "b"}]})


def test_103_an_order_of_ten_megabytes_is_set_aside_alone() -> None:
    huge = {**GOOD, "id": "huge", "note": "x" * 10_000_000}
    reading, found = read({"orders": [GOOD, {**GOOD, "id": "c"}, huge], "total": 3})
    assert (sorted(found), [(bad.key, len(bad.body)) for bad in reading.bad]) == (["c", "good"], [("huge", 4096)])


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (said(b"", 429, retry_after="1000000000"), SlowDown(15 * MINUTE_MS)),
        (
            said(b"", 429, retry_after="Sun, 06 Nov 1994 08:00:00 GMT", date="Sun, 06 Nov 1994 08:49:37 GMT"),
            SlowDown(0),
        ),
        (said(b"", 503, retry_after="-1"), Later()),
    ],
)
def test_104_waits_are_bounded(response: Response, outcome: object) -> None:
    assert adapter().outcome(response) == outcome


def test_104_a_redirect_to_another_host_is_not_followed() -> None:
    outcome = adapter().outcome(said(b"", 301, location="https://evil.example/orders?token=s3cret"))
    assert isinstance(outcome, Park)
    assert ("evil.example" in outcome.reason, "s3cret" in outcome.reason) == (True, False)
