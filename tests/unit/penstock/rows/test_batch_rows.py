"""From a row's cells to an item of the task's own type."""

from dataclasses import dataclass, field, make_dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from penstock.rows.batch_rows import row_reader
from penstock.rows.sheets.rows import Cell


class Inner(msgspec.Struct):
    name: str


class Product(msgspec.Struct, rename={"size": "Size (cm)"}):
    sku: str
    price: float | None
    size: Annotated[str, Meta(max_length=5)] | None
    stock: int = 7
    colour: str = "green"
    note: Any = "none"


@dataclass
class Plain:
    sku: str
    stock: int = field(default_factory=lambda: 7)


class Typed(TypedDict):
    sku: str
    stock: NotRequired[int]


def test_a_number_is_text_where_text_is_wanted_and_an_empty_cell_is_none_or_the_default() -> None:
    cells: dict[str, Cell] = {"sku": 10045.0, "price": "", "Size (cm)": "", "stock": "", "colour": "", "note": ""}
    assert row_reader(Product)(cells) == Product("10045", None, None, 7, "green", "")
    told: dict[str, Cell] = {"sku": "", "price": "4.5", "Size (cm)": 12, "stock": "3", "colour": 2.5, "note": 1}
    assert row_reader(Product)(told) == Product("", 4.5, "12", 3, "2.5", 1)
    assert row_reader(Plain)({"sku": 1, "stock": ""}) == Plain("1", 7)
    assert row_reader(Typed)({"sku": 1, "stock": ""}) == {"sku": "1"}
    assert row_reader(Annotated[Plain, Meta(description="x")])({"sku": 1}) == Plain("1")


@pytest.mark.parametrize(
    ("kind", "cell", "said"),
    [
        (str, True, "Expected `str`, got `bool`"),
        (float, "", "Expected `float`, got `str`"),
        (int, "2.5", "Expected `int`, got `str`"),
        (float, "NaN", "Expected a finite number, got `NaN`"),
        (float | None, " -inf", "Expected a finite number, got `-inf`"),
        (Decimal, "Infinity", "Expected a finite number, got `Infinity`"),
        (date, 45_000, "Expected `date`, got `int`"),
        (Annotated[str, Meta(min_length=1)], "", "Expected `str` of length >= 1"),
        (Inner, "x", "Expected `object`, got `str`"),
    ],
)
def test_what_does_not_fit_is_told_by_its_column(kind: Any, cell: Cell, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as told:
        row_reader(make_dataclass("Item", [("sku", kind)]))({"sku": cell})
    assert said in str(told.value)
    assert "`$.sku`" in str(told.value)


def test_blanks_around_a_number_do_not_count() -> None:
    cells: dict[str, Cell] = {"sku": " a ", "price": " 4.5 ", "Size (cm)": "", "stock": "  "}
    assert row_reader(Product)(cells) == Product(" a ", 4.5, None, 7)


def test_text_that_reads_like_no_number_is_text_where_text_fits() -> None:
    assert row_reader(make_dataclass("Item", [("sku", str | float)]))({"sku": "NaN"}).sku == "NaN"


def test_other_items_are_as_the_cells_are() -> None:
    assert row_reader(dict[str, str | int])({"sku": 1, "price": ""}) == {"sku": 1, "price": ""}
    with pytest.raises(msgspec.ValidationError, match="Expected `str`, got `int`"):
        row_reader(dict[str, str])({"sku": 1})


CELLS = st.text() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
KINDS: list[Any] = [str, int, float, bool, date, str | None, int | None, float | str, int | str | None, Any]


@given(st.sampled_from(KINDS), CELLS, st.booleans())
def test_what_fitted_before_fits_the_same(kind: Any, cell: Cell, has_default: bool) -> None:
    """All but two kinds of cells are as msgspec takes them; a number that became text says the same number."""
    default = object()
    item = make_dataclass("Item", [("x", kind, field(default=default))] if has_default else [("x", kind)])

    def ended(read: Any) -> tuple[str, Any]:
        try:
            return "", read({"x": cell}).x
        except msgspec.ValidationError as error:
            return str(error), None

    said, value = ended(row_reader(item))
    allows_none = kind in (str | None, int | None, int | str | None)
    if cell == "" and kind is not Any and (allows_none or has_default):
        assert (said, value) == ("", None if allows_none else default)
    elif kind in (str, str | None) and isinstance(cell, int | float) and not isinstance(cell, bool):
        assert isinstance(value, str)
        assert float(value) == cell or int(value) == cell
        assert not value.endswith(".0") or abs(cell) >= 2**53
    else:
        assert (said, value) == ended(lambda cells: msgspec.convert(cells, item, strict=False))
