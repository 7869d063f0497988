"""Each usual mistake of an adapter file is named, with its place in the file and what the answer has instead."""

import json
from typing import Any

import pytest

from platforms.adapter import Page, Response, Row
from platforms.bounds import RequestedBounds
from platforms.declared import DeclaredAdapter
from platforms.diagnosis import (
    Leaf,
    creation_hint,
    decoded,
    envelope_hints,
    first_fields,
    guessed_format,
    is_about_size,
    is_outside,
    leaves,
    outside_hint,
    record_hints,
    row_hints,
    rows_hint,
    sent,
    shown,
    size_hint,
)
from tests.unit.platforms.declared_example import adapter

AT = 1_700_000_000_000
ORDER: dict[str, Any] = {"number": 7, "rev": 3, "updated": "2023-11-14T22:13:20+00:00", "buyer": {"name": "x"}}
RECORD = {
    "rows": "data.orders",
    "key": "number",
    "version": {"kind": "number", "path": "rev"},
    "modified": {"path": "updated", "format": "iso_offset"},
}
PAGES = {"style": "token", "next": "meta.cursor", "total": "meta.count", "size": 2}
REQUEST = {
    "path": "/orders",
    "params": {
        "since": "{window.start}",
        "until": "{window.end}",
        "after": "{page.token}",
        "limit": "{page.size}",
        "page": "{page.number}",
    },
}


def file_with(**changes: Any) -> DeclaredAdapter:
    made: dict[str, Any] = {"record": RECORD, "pages": PAGES, "request": REQUEST}
    return adapter(**{name: {**each, **changes.get(name, {})} for name, each in made.items()})


def answer(*rows: Any, **meta: Any) -> dict[str, Any]:
    return {"data": {"orders": list(rows)}, "meta": {"count": len(rows), "cursor": None, **meta}}


def page_of(declared: DeclaredAdapter, said: Any) -> Page:
    return declared.page(Response(200, {}, json.dumps(said).encode()))


def window_page(*times_ms: int) -> Page:
    return Page([Row(f"o{number}", 1, at_ms, b"{}") for number, at_ms in enumerate(times_ms)])


def test_a_right_file_has_no_hint() -> None:
    right, said = file_with(), answer(ORDER)
    page = page_of(right, said)
    assert rows_hint(right.file, said) == ""
    assert row_hints(right.file, ORDER) == []
    assert envelope_hints(right.file, said, page) == []
    assert size_hint(right.file, page) == ""


@pytest.mark.parametrize(
    ("rows", "said", "parts"),
    [
        (
            "data.items",
            answer(ORDER),
            ("has no list at 'data.items'", "data.orders = list of 1", "is it 'data.orders'?"),
        ),
        ("data.orders", [ORDER], ("the answer itself is the list; leave rows out",)),
        ("data.orders", {"error": "no"}, ("lists in it: none",)),
    ],
)
def test_wrong_rows_are_named_with_the_lists_that_there_are(rows: str, said: Any, parts: tuple[str, ...]) -> None:
    hint = rows_hint(file_with(record={"rows": rows}).file, said)
    assert hint.startswith("[record] rows: ")
    assert all(part in hint for part in parts), hint


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        ({"key": "order_number"}, ("[record] key: the rows have no 'order_number'", "number = 7", "is it 'number'?")),
        ({"key": "buyer"}, ("[record] key: 'buyer' is {name}, and no text or number",)),
        (
            {"version": {"kind": "number", "path": "revision"}},
            ("[record] version: the rows have no 'revision'", "rev = 3"),
        ),
        (
            {"version": {"kind": "number", "path": "updated"}},
            ("at 'updated' is no number; it is a time", 'kind = "time", format = "iso_offset"'),
        ),
        (
            {"modified": {"path": "updated", "format": "unix_s"}},
            ("[record] modified: with format = 'unix_s'", 'it looks like format = "iso_offset"'),
        ),
        (
            {"modified": {"path": "changed", "format": "iso_offset"}},
            ("[record] modified: the rows have no 'changed'", "is it 'updated'?"),
        ),
    ],
    ids=["key", "key that is a table", "version", "version that is a time", "time format", "time"],
)
def test_what_does_not_fit_a_row_is_named_with_what_the_row_has(record: dict[str, Any], parts: tuple[str, ...]) -> None:
    (hint,) = row_hints(file_with(record=record).file, ORDER)
    assert all(part in hint for part in parts), hint


def test_a_wrong_total_is_named_with_the_numbers_that_there_are() -> None:
    wrong, said = file_with(pages={"total": "meta.total"}), answer(ORDER)
    (hint,) = envelope_hints(wrong.file, said, page_of(wrong, said))
    assert hint == "[pages] total: the answer has no 'meta.total'; numbers in it: meta.count = 1; is it 'meta.count'?"


def test_a_total_below_the_rows_is_another_number() -> None:
    wrong, said = file_with(pages={"total": "meta.page"}), answer(ORDER, ORDER, page=1, cursor="x")
    (hint,) = envelope_hints(wrong.file, said, page_of(wrong, said))
    assert hint == (
        "[pages] total: 'meta.page' is 1, and the answer has 2 rows; larger numbers in it: meta.count = 2; "
        "is it 'meta.count'?"
    )


def test_a_wrong_next_page_is_named_if_there_is_more() -> None:
    wrong, said = file_with(pages={"next": "meta.next_page"}), answer(ORDER, ORDER, count=5, cursor="abc")
    (hint,) = envelope_hints(wrong.file, said, page_of(wrong, said))
    assert hint.startswith("[pages] next: the answer has no 'meta.next_page', and there is more to list")
    assert hint.endswith("; is it 'meta.cursor'?")
    last = answer(ORDER)
    assert envelope_hints(wrong.file, last, page_of(wrong, last)) == []


def test_a_size_that_the_platform_does_not_take_is_named_by_its_parameter() -> None:
    declared = file_with()
    three = page_of(declared, answer(ORDER, ORDER, ORDER))
    assert size_hint(declared.file, three).startswith(
        '[request.params] limit = "{page.size}": asked for 2 orders, and 3'
    )
    one = page_of(declared, answer(ORDER, count=9, cursor="x"))
    assert size_hint(declared.file, one).endswith("or returns 1 at most (then say size = 1)")
    assert is_about_size(size_hint(declared.file, one))


BOUNDS = RequestedBounds("a", "b", AT, AT + 3_600_000)


@pytest.mark.parametrize(
    ("times_ms", "names"),
    [
        ((AT - 10_000, AT - 5_000, AT + 1), ["since"]),
        ((AT + 4_000_000, AT + 5_000_000, AT + 1), ["until"]),
        ((AT - 10_000, AT + 5_000_000, AT + 1), ["since", "until"]),
    ],
)
def test_a_bound_that_is_ignored_is_named_by_its_parameter(times_ms: tuple[int, ...], names: list[str]) -> None:
    page = window_page(*times_ms)
    assert is_outside(BOUNDS, page)
    hint = outside_hint(file_with().file, BOUNDS, page, is_moving=False)
    assert [name for name in ("since", "until") if f"[request.params] {name} = " in hint] == names
    assert "2 of 3 orders are not from the window: the platform ignores it" in hint


def test_times_that_lie_hours_beside_a_window_that_moves_are_of_another_zone() -> None:
    page = window_page(AT + 8 * 3_600_000 + 1, AT + 8 * 3_600_000 + 900_000)
    hint = outside_hint(file_with().file, BOUNDS, page, is_moving=True)
    assert "[record] modified or [window]: zone: all times lie 8 h after the window" in hint
    assert not is_outside(BOUNDS, window_page(AT, AT + 1))


def test_the_first_row_is_shown_raw_and_as_read() -> None:
    declared = file_with(record={"modified": {"path": "updated", "format": "unix_s"}})
    fields = first_fields(declared.file, ORDER, Row("7", 3, None, b"{}"))
    assert {name: (each.raw, each.read) for name, each in fields.items()} == {
        "key": ("7", "7"),
        "version": ("3", "3"),
        "time": ("'2023-11-14T22:13:20+00:00'", ""),
    }
    assert fields["time"].problem.startswith("[record] modified: with format = 'unix_s'")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (AT, "unix_ms"),
        (AT // 1000, "unix_s"),
        ("2023-11-14T22:13:20Z", "iso_offset"),
        ("2023-11-14 22:13:20", "wall"),
        ("tea", None),
        (7, None),
        (True, None),
        ({}, None),
    ],
)
def test_the_format_of_a_time_is_guessed(value: Any, name: str | None) -> None:
    assert guessed_format(value) == name


def test_a_placeholder_is_found_wherever_it_is_sent() -> None:
    nested = {"path": "/orders", "params": {}, "body": {"filter": {"from": "{window.start}", "to": "{window.end}"}}}
    declared = adapter(request=nested, pages={"style": "one", "next": ""})
    assert sent(declared.file, "window.start") == '[request.body] filter.from = "{window.start}"'
    assert sent(declared.file, "page.size") == "{page.size}"


def test_values_are_shown_short_and_lists_are_not_entered() -> None:
    assert list(leaves({"a": {"b": 1}, "c": [1, 2]})) == [Leaf("a.b", 1), Leaf("c", [1, 2])]
    assert [shown(each) for each in ({"x": 1}, [1], "t", 1.5, "y" * 99)] == [
        "{x}",
        "list of 1",
        "'t'",
        "1.5",
        f"'{'y' * 59}…",
    ]
    with pytest.raises(ValueError, match="the answer is no JSON"):
        decoded(b"<html>")


@pytest.mark.parametrize(
    ("record", "pages", "rows", "hint"),
    [
        ({}, {}, [("7", 3, AT), ("8", 3, AT)], ""),
        ({}, {}, [], ""),
        ({"version": {"kind": "number", "path": "number"}}, {}, [("7", 7, AT), ("8", 8, AT)], "'number' is the key"),
        ({"version": {"kind": "number", "path": "number"}}, {}, [("7", 7, AT)], ""),
        ({}, {}, [("3", 1, AT), ("3", 2, AT)], "[record] key: 'number' has 1 values in 2 rows"),
        ({}, {"total_counts": "rows"}, [("3", 1, AT), ("3", 2, AT)], ""),
        (
            {"version": {"kind": "time", "path": "placed"}},
            {},
            [("7", AT, AT), ("8", AT - 60_000, AT), ("9", AT + 1, AT)],
            "in 1 of 3 orders 'placed' is earlier than 'updated'",
        ),
        ({"version": {"kind": "time", "path": "updated"}}, {}, [("8", AT - 60_000, AT)], ""),
    ],
)
def test_a_key_or_version_that_is_none_is_named(
    record: dict[str, Any], pages: dict[str, Any], rows: list[tuple[str, int, int]], hint: str
) -> None:
    file = file_with(record={**RECORD, **record}, pages={**PAGES, **pages}).file
    hints = record_hints(file, [Row(key, version, at_ms, b"{}") for key, version, at_ms in rows])
    assert [hint in each for each in hints] == [True] * bool(hint)


def test_a_list_by_creation_shows_no_change_unless_the_file_says_so() -> None:
    record = {**RECORD, "modified": {"path": "created_at"}}
    assert "'created_at' looks like the time of the creation" in creation_hint(file_with(record=record).file)
    assert creation_hint(file_with().file) == ""
    file = adapter(record=record, pages={"style": "one"}, window={"time": "created"}).file
    assert creation_hint(file) == ""


def test_a_first_page_without_orders_of_its_total_is_named() -> None:
    file, answer = file_with().file, {"data": {"orders": []}, "meta": {"count": 9, "cursor": None}}
    assert (
        "[pages] first: the first page has none of the 9 orders" in envelope_hints(file, answer, Page([], total=9))[0]
    )
