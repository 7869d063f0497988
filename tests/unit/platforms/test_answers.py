"""What platforms really answer ends in rows, an outcome, a row set aside or a broken contract; never in silence."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from platforms.adapter import Empty, Later, Page, Response
from platforms.bounds import Window
from platforms.declared import DeclaredAdapter
from platforms.errors import BrokenContract, Garbled, Unreadable
from platforms.reading import Reading
from tests.unit.platforms.declared_example import AT, adapter, answer, page, row

ISO = {"path": "at", "format": "iso_offset"}


def test_a_page_is_read() -> None:
    read = page(row(), row(id=7, v="2"), next="t2", total=2)
    assert [(each.key, each.version, each.modified_ms) for each in read.rows] == [("a", 1, AT), ("7", 2, AT)]
    assert (read.next, read.total, read.bad) == ("t2", 2, [])


def read_answer(declared: DeclaredAdapter, said: Response) -> Page:
    """Return the page as a caller reads it: first the outcome, which is none, then the page."""
    assert declared.outcome(said) is None
    return declared.page(said)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Back soon</html>",
        b"",
        b'{"orders":[{"id":"a","v":1,',
        b"OK",
        b"\xff\xfe{}",
        b"\x1f\x8b\x08\x00",
    ],
)
def test_200_with_what_is_no_json_comes_later_and_is_never_an_empty_page(body: bytes) -> None:
    outcome = adapter().outcome(answer(body))
    assert isinstance(outcome, Later)
    assert outcome.reason.startswith("the answer is empty" if not body else "the answer is no JSON, it begins with ")
    assert "Back soon" not in outcome.reason or "'<html>Back soon</html>'" in outcome.reason
    with pytest.raises(BrokenContract):
        adapter().page(answer(body))


def test_an_answer_that_begins_with_a_byte_order_mark_is_read() -> None:
    """A file of the shop's own program that was saved with one is enough."""
    body = b"\xef\xbb\xbf" + json.dumps({"orders": [row()], "total": 1}).encode()
    assert adapter().outcome(answer(body)) is None
    assert [each.key for each in adapter().page(answer(body)).rows] == ["a"]


@pytest.mark.parametrize(
    "body", [b'{"orders":[{"id":"a","v":1,"x":{}}', b'{"orders":[]}{}', b'{"orders":[],}', b'{"orders":[nan]}']
)
def test_json_that_is_not_whole_passes_by_itself(body: bytes) -> None:
    """It looks like JSON from both ends, as half an answer does that ends in a brace."""
    assert adapter().outcome(answer(body)) is None
    with pytest.raises(Garbled, match="no whole JSON"):
        adapter().page(answer(body))


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "oops"}},
        {"orders": "none"},
        {"orders": {}},
        {"orders": {"a": {}}},
        {"orders": {"0": {}, "b": {}}},
        {"data": {"orders": []}},
        [],
        {"orders": [], "total": "many"},
        {"orders": [], "total": -1},
        {"orders": [], "total": 1.5},
        {"orders": [], "next": {"token": "x"}},
        b"[" * 100_000 + b"]" * 100_000,
        b'{"orders":' * 3_000 + b"{}" + b"}" * 3_000,
    ],
)
def test_json_that_is_not_as_declared_is_a_broken_contract(body: object) -> None:
    with pytest.raises(BrokenContract):
        adapter().page(answer(body))


def test_a_list_that_is_an_object_of_numbers_has_its_members_as_rows() -> None:
    """PHP writes so a list that something was taken out of. One order in place of the list of it is no list."""
    rows = {"0": row(), "2": row(id="b")}
    assert [each.key for each in adapter().page(answer({"orders": rows, "total": 2})).rows] == ["a", "b"]
    with pytest.raises(Unreadable, match=r"Expected `array`, got `object` - at `\$\.orders`"):
        adapter().page(answer({"orders": row(), "total": 1}))


def test_a_list_that_is_null_is_empty() -> None:
    assert adapter().page(answer({"orders": None, "total": 0})).rows == []


@pytest.mark.parametrize(
    "beside",
    [
        {"error": "overloaded"},
        {"error": {"code": 503, "message": "overloaded"}},
        {"errors": [{"message": "overloaded"}]},
        {"error": True, "message": "overloaded"},
        {"error_response": {"sub_msg": "overloaded"}},
        {"success": False, "message": "overloaded"},
        {"ok": "false", "description": "overloaded"},
    ],
)
@pytest.mark.parametrize("listed", [{"orders": []}, {"orders": None}, {"total": 0}], ids=["empty", "null", "left out"])
def test_an_error_beside_no_orders_is_never_an_empty_page(beside: dict[str, Any], listed: dict[str, Any]) -> None:
    """Under HTTP 200, where no rule of the file knows it."""
    with pytest.raises(Garbled) as refused:
        read_answer(adapter(), answer(listed | beside))
    assert refused.value.reason == "the answer lists no orders, and tells of an error: overloaded"


@pytest.mark.parametrize(
    ("beside", "told"),
    [
        ({"code": 500}, "code 500"),
        ({"code": "500", "message": "busy"}, "code 500"),
        ({"status": 503}, "status 503"),
        ({"status": "error"}, "status error"),
        ({"status": "FAILED"}, "status FAILED"),
        ({"status": False}, "status False"),
        ({"code": -1}, "code -1"),
        ({"code": 36009004, "message": "Invalid page_token"}, "code 36009004"),
        ({"code": "SystemBusy"}, "code SystemBusy"),
        ({"code": "A0500"}, "code A0500"),
        ({"errcode": 1}, "errcode 1"),
        ({"errorCode": "40001"}, "errorCode 40001"),
        ({"ret_code": 9.0}, "ret_code 9.0"),
        ({"status": {"code": 500}}, "code 500"),
    ],
)
@pytest.mark.parametrize("listed", [{"orders": []}, {"orders": None}, {"total": 0}], ids=["empty", "null", "left out"])
def test_a_code_beside_no_orders_is_never_an_empty_page(
    beside: dict[str, Any], told: str, listed: dict[str, Any]
) -> None:
    with pytest.raises(Garbled) as refused:
        read_answer(adapter(), answer(listed | beside))
    assert refused.value.reason.startswith(f"the answer lists no orders, and has the {told}: if that is no error, ")


@pytest.mark.parametrize(
    "beside",
    [
        *({"code": code} for code in (0, 1, 200, 204, 10000, "0", "0000", "00000", "200", "A00000", "OK", "Success")),
        *({"code": code} for code in (None, "", True, "SUCCEED", "sys.success")),
        *({"status": status} for status in (0, 1, 5, 200, "ok", "open", "transferred", "1", True, {"code": 0})),
        *({name: 0} for name in ("errcode", "error_code", "errno", "ret", "retCode", "statusCode")),
        {"errcode": "200", "code": []},
        {"country_code": 49, "encode": "gzip"},
    ],
)
def test_a_code_that_means_no_error_is_an_empty_page(beside: dict[str, Any]) -> None:
    assert read_answer(adapter(), answer({"orders": [], "total": 0} | beside)).rows == []


@pytest.mark.parametrize("beside", [{"code": 500}, {"error": "busy"}, {"success": False}])
def test_an_error_stands_at_any_level_above_the_orders(beside: dict[str, Any]) -> None:
    declared = adapter(record={"rows": "data.result.list"}, pages={"total": "data.result.total"})
    for answered in (
        {"data": {"result": {"list": [], "total": 0} | beside}},
        {"data": {"result": {"list": [], "total": 0}} | beside},
        {"data": {"result": {"list": [], "total": 0}}} | beside,
    ):
        with pytest.raises(Garbled):
            read_answer(declared, answer(answered))
        assert read_answer(declared, answer({"data": {"result": {"list": [], "total": 0, "buyer": beside}}})).rows == []


def test_a_code_beside_orders_does_not_hide_them() -> None:
    assert len(read_answer(adapter(), answer({"orders": [row(code=500)], "code": 500})).rows) == 1


def test_a_rule_says_what_an_error_beside_no_orders_means() -> None:
    for beside, equals in (({"success": False}, False), ({"code": 500}, 500)):
        said = answer({"orders": [], **beside})
        for outcome, meant in (("fine", None), ("empty", Empty())):
            rules = [{"body": next(iter(beside)), "equals": equals, "outcome": outcome}]
            assert adapter(errors=rules).outcome(said) == meant
        assert adapter(errors=[{**rules[0], "outcome": "fine"}]).page(said).rows == []


def test_an_error_in_place_of_orders_is_named_by_the_page() -> None:
    said = answer({"error": "overloaded"})
    assert adapter().outcome(said) is None
    with pytest.raises(Unreadable, match="the platform says: overloaded"):
        adapter().page(said)


@pytest.mark.parametrize(
    "beside",
    [
        {"error": None, "errors": [], "success": True},
        {"error": "", "fault": {}, "ok": 1},
        {"error": "none"},
        {"error": 0},
        {"error": {"code": 0, "message": "OK"}},
        {"error": {"code": "200", "message": "done"}},
        {"error_response": {"code": None, "msg": ""}},
    ],
)
def test_an_answer_that_tells_of_no_error_is_an_empty_page(beside: dict[str, Any]) -> None:
    said = answer({"orders": [], "total": 0} | beside)
    assert read_answer(adapter(), said).rows == []


def test_an_error_beside_orders_does_not_hide_them() -> None:
    said = answer({"orders": [row()], "error": "one order could not be loaded"})
    assert len(read_answer(adapter(), said).rows) == 1
    assert [each.key for each in adapter().page(said).rows] == ["a"]


@pytest.mark.parametrize(
    ("bad", "key", "problem"),
    [
        (row(id=None), None, "id"),
        (row(id=""), None, "key is empty"),
        (row(id=1.5), None, "id"),
        (row(id=True), None, "id"),
        (row(id=["a"]), None, "id"),
        ({"v": 1, "at": AT}, None, "id"),
        (row(v=None), "a", "v"),
        (row(v="v2"), "a", "is no number"),
        (row(v=-1), "a", "from 0 to"),
        (row(v=2**63), "a", "from 0 to"),
        (row(v=1e30), "a", "v"),
        (row(at=None), "a", "at"),
        (row(at=0), "a", "2000 and 2099"),
        (row(at=4_102_444_800_000), "a", "2000 and 2099"),
        ("a", None, "object"),
        (None, None, "object"),
    ],
)
def test_a_row_that_cannot_be_trusted_goes_aside_alone(bad: object, key: str | None, problem: str) -> None:
    read = page(row(id="before"), bad, row(id="after"))
    assert [each.key for each in read.rows] == ["before", "after"]
    (aside,) = read.bad
    assert aside.key == key
    assert problem in aside.reason
    assert json.loads(aside.body) == bad


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        ("2026-01-01T00:00:00", "has no zone"),
        ("2026-01-01 24:00:00+00:00", "hour 24"),
        ("1970-01-01T00:00:00Z", "2000 and 2099"),
        ("2099-12-31T23:59:59Z", "2000 and 2099"),
        ("", "cannot be read"),
        (AT, "is a number where text was declared"),
    ],
)
def test_of_two_time_formats_in_one_page_the_undeclared_goes_aside(at: object, problem: str) -> None:
    declared = adapter(record={"modified": ISO})
    read = page(row(at="2026-01-01T00:00:00Z"), row(id="b", at=at), adapter_=declared)
    assert [each.key for each in read.rows] == ["a"]
    assert problem in read.bad[0].reason
    assert read.bad[0].key == "b"


@pytest.mark.parametrize("price", [b"1e400", b'"1,50"', b'""', b"null", b"0.1000", b'"\xe2\x82\xac 5"', b"-0"])
def test_prices_are_none_of_our_business_and_arrive_byte_for_byte(price: bytes) -> None:
    raw = b'{ "price":%b , "id":"a","v":1,"at":%d}' % (price, AT)
    (read,) = adapter().page(answer(b'{"orders":[%b]}' % raw)).rows
    assert read.body == raw


def test_repeated_fields_and_unknown_ones_are_let_through() -> None:
    raw = b'{"id":"a","id":"b","v":1,"at":%d,"new":{"deep":[1,2,{"x":null}]}}' % AT
    (read,) = adapter().page(answer(b'{"orders":[%b],"more":1}' % raw)).rows
    assert (read.key, read.body) == ("b", raw)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (7, "7"),
        (0, "0"),
        (2**63 + 1, "9223372036854775809"),
        ("7", "7"),
        ("Ünïcode 订单", "Ünïcode 订单"),
        ("a b/../%00", "a b/../%00"),
        ("x" * 5_000, "x" * 5_000),
    ],
)
def test_keys_may_be_numbers_or_any_text(key: object, expected: str) -> None:
    assert page(row(id=key)).rows[0].key == expected


def test_several_fields_make_one_key_without_running_into_each_other() -> None:
    declared = adapter(record={"key": ["shop.id", "no"]})
    keys = [
        page(row(shop={"id": shop}, no=number), adapter_=declared).rows[0].key
        for shop, number in (("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), (1, 2))
    ]
    assert len(set(keys)) == 4
    assert keys[3] == "1:2"


def test_versions_may_be_times_or_hashes() -> None:
    by_time = adapter(record={"version": {"kind": "time", "path": "at", "format": "unix_ms"}})
    assert page(row(), adapter_=by_time).rows[0].version == AT
    by_hash = adapter(record={"version": {"kind": "hash"}})
    assert not by_hash.declaration.is_version_ordered
    first, same, other = (page(row(x=x), adapter_=by_hash).rows[0].version for x in (1, 1, 2))
    assert first == same != other
    assert 0 <= other < 2**63


def test_nested_paths_are_followed_and_missing_ones_of_the_envelope_are_no_harm() -> None:
    declared = adapter(
        record={"rows": "data.list", "key": "o.id"}, pages={"next": "data.page.next", "total": "data.page.total"}
    )
    bodies = [{"id": 1, "o": {"id": "x"}, "v": 1, "at": AT}]
    assert declared.page(answer({"data": {"list": bodies}})).next is None
    read = declared.page(answer({"data": {"list": bodies, "page": {"next": "n", "total": 1}}}))
    assert (read.rows[0].key, read.next, read.total) == ("x", "n", 1)
    with pytest.raises(BrokenContract):
        declared.page(answer({"data": {"page": {}}}))
    with pytest.raises(BrokenContract):
        declared.page(answer({}))


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), ("", None), (0, None), (False, None), ("t", "t"), (12, "12"), ("0", "0")]
)
def test_an_empty_next_is_the_end(value: object, expected: str | None) -> None:
    assert page(next=value).next == expected


def test_a_flag_may_end_the_pages() -> None:
    declared = adapter(pages={"more": "more"})
    assert page(next="t", more=False, adapter_=declared).next is None
    assert page(next="t", more=True, adapter_=declared).next == "t"


@pytest.mark.parametrize(
    "is_written", [lambda more: int(more), lambda more: str(more).lower(), lambda more: str(int(more))]
)
def test_a_flag_may_be_a_number_or_a_word(is_written: Callable[[bool], object]) -> None:
    declared = adapter(pages={"more": "more"})
    assert page(next="t", more=is_written(False), adapter_=declared).next is None
    more = page(next="t", more=is_written(True), adapter_=declared)
    assert (more.next, more.has_more) == ("t", True)


@pytest.mark.parametrize("more", ["perhaps", 7, "", []])
def test_a_flag_that_cannot_be_read_breaks_the_answer(more: object) -> None:
    with pytest.raises(BrokenContract, match="more"):
        page(next="t", more=more, adapter_=adapter(pages={"more": "more"}))


def test_a_next_page_that_is_true_breaks_the_answer() -> None:
    with pytest.raises(BrokenContract, match="next"):
        page(next=True)


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ('<https://a.example/o?page=2>; rel="next"', "https://a.example/o?page=2"),
        ('<https://a.example/o?page=1>; rel="prev", </o?page=3>; rel="next"', "/o?page=3"),
        ("<https://a.example/o?page=2>; title=x; rel=next", "https://a.example/o?page=2"),
        ('<https://a.example/o?page=1>; rel="prev"', None),
        ('<https://a.example/o?page=2>; rel="next last"', "https://a.example/o?page=2"),
        ("<https://a.example/o?page=2>; REL = 'Next'", "https://a.example/o?page=2"),
        ('<https://a.example/>; rel="https://a.example/next"; title="next"', None),
        ("", None),
        ("<" * 20_000, None),
        ("<x>;" + " " * 20_000, None),
        ("<x>" + ";" * 20_000, None),
    ],
)
def test_the_next_link_may_stand_in_a_header(link: str, expected: str | None) -> None:
    params = {"from": "{window.start}", "to": "{window.end}"}
    pages = {"style": "link", "next": "", "next_header": "Link", "total": "", "total_header": "X-Total"}
    declared = adapter(pages=pages, request={"params": params}, record={"rows": ""})
    read = declared.page(answer([row()], link=link, x_total="12"))
    assert (read.next, read.total, len(read.rows)) == (expected, 12, 1)


def test_the_platform_s_clock_is_read_from_the_body_or_the_date_header() -> None:
    date = "Sun, 06 Nov 1994 08:49:37 GMT"
    declared = adapter(server_time={"format": "unix_ms"}, server_time_path="now")
    assert declared.page(answer({"orders": [], "now": AT}, date=date)).server_time_ms == AT
    assert declared.page(answer({"orders": [], "now": "noon"}, date=date)).server_time_ms == 784_111_777_000
    assert adapter().page(answer({"orders": []}, date=date)).server_time_ms == 784_111_777_000
    assert adapter().page(answer({"orders": []})).server_time_ms is None


def test_a_cursor_equal_to_the_one_before_is_a_broken_contract() -> None:
    declared = adapter()
    reading = Reading(declared.declaration, Window(AT, AT + 1_000))
    reading.feed(declared.page(answer({"orders": [row()], "next": "t1", "total": 9})))
    with pytest.raises(BrokenContract, match="same next page again"):
        reading.feed(declared.page(answer({"orders": [row(id="b")], "next": "t1", "total": 9})))


def test_the_same_order_on_two_pages_is_handed_out_in_its_later_version() -> None:
    declared = adapter()
    reading = Reading(declared.declaration, Window(AT, AT + 1_000))
    first = reading.feed(declared.page(answer({"orders": [row(v=2)], "next": "t1", "total": 2})))
    second = reading.feed(declared.page(answer({"orders": [row(v=1)], "next": "t2", "total": 2})))
    assert [(each.key, each.version) for each in first + second] == [("a", 2)]


def test_a_list_of_nothing_may_be_left_out_if_the_total_says_so() -> None:
    declared = adapter(record={"rows": "result.trades.trade"}, pages={"total": "result.total"})
    empty = declared.page(answer({"result": {"total": "0"}}))
    assert (empty.rows, empty.total) == ([], 0)
    with pytest.raises(Unreadable, match="trades"):
        declared.page(answer({"result": {"total": 3}}))


def read_pages(answers: list[dict[str, Any]], **changes: Any) -> tuple[bool, int, int]:
    declared = adapter(**changes)
    reading = Reading(declared.declaration, Window(AT, AT + 1))
    left = iter(answers)
    while reading.next() is not None:
        reading.feed(declared.page(answer(next(left))))
    return reading.result.is_proven, reading.result.distinct, reading.result.missing


@pytest.mark.parametrize(
    ("pages", "rules", "is_proven"),
    [
        ([{"orders": [row()]}], {}, True),
        ([{"orders": []}], {}, True),
        ([{"orders": [row(), row(id="b"), row(id="c")]}], {}, False),
        ([{"orders": [row()], "next": "t"}, {"orders": [row(id="b")]}], {}, False),
        ([{"orders": [row()], "next": "t"}, {"orders": [row(id="b")]}], {"end_is_proof": True}, True),
        ([{"orders": [row()], "next": "t"}, {"orders": []}], {"end_is_proof": True}, True),
        ([{"orders": [row(), row(id="b"), row(id="c")], "next": "t"}, {"orders": []}], {"end_is_proof": True}, False),
        ([{"orders": [row()]}], {"more": "more"}, False),
        ([{"orders": []}], {"more": "more"}, False),
        ([{"orders": [row()], "more": False}], {"more": "more"}, True),
        ([{"orders": [row()], "error": "one order could not be loaded"}], {}, False),
        ([{"orders": [row()], "success": False}], {}, False),
        ([{"orders": [row(status="failed")], "error": None, "code": 500}], {}, True),
    ],
)
def test_an_end_with_fewer_rows_than_a_page_is_a_proof(
    pages: list[dict[str, Any]], rules: dict[str, Any], is_proven: bool
) -> None:
    """Unless it may be none: an empty page after a full one may be what a dead token gets, a flag that ends the list is
    not there, or the answer tells of an error."""
    assert read_pages(pages, pages={"total": "", **rules})[0] is is_proven


@pytest.mark.parametrize(
    ("versions", "total", "counts", "told"),
    [
        ((1, 2, 3), 3, "rows", (True, 1, 0)),
        ((1, 2, 3), 3, "orders", (False, 1, 2)),
        ((1, 1, 2), 3, "rows", (True, 1, 0)),
        ((1, 2, 3), 4, "rows", (False, 1, 1)),
    ],
)
def test_a_total_may_count_rows(
    versions: tuple[int, ...], total: int, counts: str, told: tuple[bool, int, int]
) -> None:
    page = {"orders": [row(v=version) for version in versions], "total": total}
    params = {"from": "{window.start}", "to": "{window.end}"}
    style = {"style": "one", "next": "", "total_counts": counts, "size": 50}
    assert read_pages([page] * 3, pages=style, request={"params": params}) == told
