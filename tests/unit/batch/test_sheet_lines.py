"""What a sheet of items has in it, and which item a row of a missing chunk was."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, json

from actors.batch.rules.sheet_lines import FAILED, FAULT, cells_of, head_of, index_in_gap, row_of

names = st.lists(st.sampled_from(["sku", "row", "status", "reason", "penstock_row", "price"]), unique=True)


@given(names)
def test_own_columns_hide_none_that_was_handed_in(given_names: list[str]) -> None:
    head = head_of(given_names, is_rows=True, is_whole=True)
    line = head.line(0, [7, {name: f"own {name}" for name in given_names}], "ok", "told")
    assert len({*head.columns}) == len(head.columns) == len(given_names) + 3
    assert {name: line[name] for name in given_names} == {name: f"own {name}" for name in given_names}
    assert (line[head.row], line[head.status], line[head.reason]) == (7, "succeeded", "told")
    assert list(line) == head.columns


@given(names)
def test_rows_to_hand_in_again_have_one_column_more(given_names: list[str]) -> None:
    head = head_of(given_names, is_rows=True, is_whole=False)
    assert head.columns == [*given_names, FAILED]
    assert head.line(0, [7, dict.fromkeys(given_names, 1)], "failed", "why") == {
        **dict.fromkeys(given_names, 1),
        FAILED: "why",
    }


def test_a_lost_row_has_no_number_and_a_fault_is_no_column() -> None:
    assert cells_of(3, None, is_rows=True) == (None, {})
    assert cells_of(3, [5, {"sku": "A", FAULT: "odd"}], is_rows=True) == (5, {"sku": "A"})
    assert cells_of(3, "text", is_rows=False) == (4, {"item": "text"})


@given(st.integers(1, 10**7), st.dictionaries(st.text(), st.integers()))
def test_a_row_knows_its_number(number: int, cells: dict[str, int]) -> None:
    assert row_of(Raw(json.encode((number, cells)))) == number


def test_what_is_no_row_has_none() -> None:
    assert [row_of(Raw(raw)) for raw in (b"1", b"{}", b"[]", b'["a", {}]', b"null")] == [None] * 5


@given(st.lists(st.integers(2, 60), unique=True, min_size=1).map(sorted), st.data())
def test_the_index_of_a_lost_row_is_right_or_not_known(rows: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    before = rows[start - 1] if start else None
    after = rows[stop] if stop < len(rows) else None
    for row in range(1, 62):
        found = index_in_gap(row, before, after, range(start, stop))
        assert found is None or (start <= found < stop and rows[found] == row)
