"""From cells to rows by column name."""

from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.rows.sheets.limits import BadSheet, SheetLimits
from penstock.rows.sheets.rows import letters_of, named_rows

LIMITS = SheetLimits(rows=3, columns=4, cell_chars=10)


def test_the_first_row_with_a_value_names_the_columns() -> None:
    lines: list[list[object]] = [["", None], ["sku", " price ", ""], ["A", 2.0, ""], ["", "  "], ["B"]]
    assert list(named_rows(lines, LIMITS)) == [(3, {"sku": "A", "price": 2}), (5, {"sku": "B", "price": ""})]


def test_a_column_without_a_name_has_its_letter() -> None:
    assert list(named_rows([["a", "", "c"], [1, 2, 3]], LIMITS)) == [(2, {"a": 1, "B": 2, "c": 3})]


def test_numbers_name_columns_as_people_see_them() -> None:
    assert list(named_rows([[2024.0, 1.5, "n"], [1, 2, 3]], LIMITS)) == [(2, {"2024": 1, "1.5": 2, "n": 3})]


def test_moments_are_text_and_whole_numbers_are_whole() -> None:
    line = [datetime.fromisoformat("2026-01-02T03:04:00"), date(2026, 1, 2), timedelta(seconds=90), 1.5]
    row = next(named_rows([["a", "b", "c", "d"], line], SheetLimits()))[1]
    assert row == {"a": "2026-01-02T03:04:00", "b": "2026-01-02", "c": 90.0, "d": 1.5}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "no row has a value"),
        ([["a", "b", "a"]], "columns A and C are both called 'a'"),
        ([["", "A", "price"]], "columns A and B are both called 'A'"),
        ([["B", None, "price"]], "columns A and B are both called 'B'"),
        ([["7", 7.0]], "columns A and B are both called '7'"),
        ([["a", "b", "c", "d", "e"]], "5 columns, at most 4"),
        ([["a"], ["x" * 11]], "row 2, 'a': 11 characters, at most 10"),
        ([["a"], *[[1]] * 4], "row 5: more than 3 rows"),
    ],
)
def test_what_does_not_hold_is_told_by_its_place(lines: list[list[object]], said: str) -> None:
    with pytest.raises(BadSheet, match=said):
        list(named_rows(lines, LIMITS))


@given(st.integers(0, 16_383))
def test_letters_count_as_people_do(column: int) -> None:
    letters, number = letters_of(column), 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    assert number == column + 1
