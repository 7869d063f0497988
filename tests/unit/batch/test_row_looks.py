"""A first look at rows: what of them a task's code takes, page by page."""

from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import Meta, Raw

from actors.batch.rules.row_looks import (
    MOST_FAULTS,
    SHOWN,
    SHOWN_BYTES,
    FirstLook,
    UnreadableRow,
    cells_alone,
    look_at,
    readable_cells,
    with_page,
)
from actors.batch.rules.sheet_lines import FAULT
from penstock.rows.batch_rows import fields_of
from streams.messages.batch import FaultyRow, FieldSeen, RowsSeen


class Tea(msgspec.Struct):
    sku: str
    price: Annotated[float, Meta(gt=0)]
    tags: list[str] = []
    kind: Literal["green", "black"] | None = None


FIELDS = (
    FieldSeen("sku", "str", True),
    FieldSeen("price", "float(gt=0)", True),
    FieldSeen("tags", "list[str]"),
    FieldSeen("kind", "'black' | 'green' | None"),
)
Rows = list[tuple[int, dict[str, Any]]]


def read(row: Raw) -> Tea:
    return msgspec.convert(cells_alone(row), Tea, strict=False)


def seen(rows: Rows, shown: int = 0) -> RowsSeen:
    return look_at([Raw(msgspec.json.encode(row)) for row in rows], read, str, shown=shown, fields=FIELDS)


def looked(rows: Rows, cuts: list[int]) -> FirstLook:
    look, places = FirstLook(task="t"), [0, *sorted(cuts), len(rows)]
    for start, end in pairwise(places):
        look = with_page(look, rows[start:end], seen(rows[start:end], SHOWN - len(look.first)))
    return look


def test_a_types_fields_are_told_as_people_write_them() -> None:
    assert fields_of(Tea) == FIELDS
    assert fields_of(dict[str, Any]) is None
    assert fields_of(Any) is None


cells = some.fixed_dictionaries({"sku": some.sampled_from(["A", "B"]), "price": some.sampled_from([1, -1, "x", "2.5"])})


@given(some.lists(cells, max_size=30), some.data())
def test_a_look_is_the_same_wherever_its_pages_end(found: list[dict[str, Any]], data: some.DataObject) -> None:
    rows = list(enumerate(found, 2))
    cuts = data.draw(some.lists(some.integers(0, len(rows)), max_size=3))
    look = looked(rows, cuts)
    assert look == looked(rows, [])
    assert look.failing == len([each for each in found if each["price"] in (-1, "x")])
    assert (look.rows, look.missing) == (len(rows), () if rows else FIELDS[:2])


def test_a_row_that_the_code_does_not_take_is_named_and_shown_as_it_stands() -> None:
    look = looked([(2, {"sku": "A", "price": "cheap", "odd": 1})], [])
    assert look.faults == (FaultyRow(2, "Expected `float`, got `str` - at `$.price`"),)
    assert msgspec.json.decode(look.first[0].item) == {"sku": "A", "price": "cheap", "odd": 1}
    assert [(each.name, each.type) for each in look.columns] == [("sku", "str"), ("price", "float(gt=0)"), ("odd", "")]
    assert not look.is_fine


def test_a_column_that_every_row_needs_and_none_has_is_missing() -> None:
    assert looked([(2, {"sku": "A"})], []).missing == (FIELDS[1],)


def test_many_faults_are_counted_and_the_first_ones_named() -> None:
    look = looked([(number, {"sku": "A", "price": -1}) for number in range(2, 502)], [250])
    assert (look.failing, len(look.faults), look.faults[-1].row) == (500, MOST_FAULTS, MOST_FAULTS + 1)


def test_long_rows_are_not_shown_and_an_answer_fits_a_message() -> None:
    long = {"sku": "A" * (SHOWN_BYTES // 2), "price": 1}
    assert len(seen([(2, long), (3, long), (4, long)], 3).rows) == 1


def test_a_row_that_was_not_read_as_it_should_is_shown_by_its_cells_alone() -> None:
    row = Raw(msgspec.json.encode([3, {"sku": "A", FAULT: "price: a formula without a value"}]))
    look = look_at([row], readable_cells, str, shown=1)
    assert (msgspec.json.decode(look.rows[0].item), look.failing) == ({"sku": "A"}, 1)


def test_without_code_a_row_that_was_not_read_as_it_should_is_a_fault() -> None:
    row = Raw(msgspec.json.encode([3, {"sku": "A", FAULT: "price: a formula without a value"}]))
    assert cells_alone(row)[FAULT]
    with pytest.raises(UnreadableRow, match="without a value"):
        readable_cells(row)
