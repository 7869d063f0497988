"""What a loader may return."""

import msgspec
import pytest

from actors.flow.handler import LONGEST_KEY, BadRows, Loaded, RowBody, rows_of


def test_pairs_and_mappings_are_rows() -> None:
    rows = rows_of([(1, {"a": 1}), ("x", None)], "07").rows
    assert [(row.key, row.id) for row in rows] == [("1", "07:1"), ("x", "07:x")]
    assert msgspec.json.decode(rows[0].body, type=RowBody) == RowBody("07", msgspec.Raw(b'{"a":1}'))
    assert [row.key for row in rows_of({1: "a"}, "0").rows] == ["1"]
    assert rows_of(None, "0") == Loaded([])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([1], "pairs of a key and a row"),
        ([(1, 2, 3)], "pairs of a key and a row"),
        (7, "pairs of a key and a row"),
        ("12", "'1' is no pair"),
        (["12", "34"], "'12' is no pair"),
    ],
)
def test_other_answers_are_refused(answer: object, why: str) -> None:
    with pytest.raises(BadRows, match=why):
        rows_of(answer, "0")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([(None, 1)], "key 'None'"),
        ([(True, 1)], "key 'True'"),
        ([("", 1)], "key ''"),
        ([("a\n", 1)], "printable"),
        ([("k" * (LONGEST_KEY + 1), 1)], "use 1 to"),
        ([(1, object())], "cannot be written as JSON"),
        ([(1, "x" * 300_000)], "at most"),
        ([(1, 1), ("1", 2)], "is there twice"),
        ([(1.5, 1)], "key '1.5'"),
        ([("\ud800", 1)], "printable"),
    ],
)
def test_a_row_that_cannot_be_in_flight_keeps_no_other_back(answer: list[tuple[object, object]], why: str) -> None:
    found = rows_of([("before", 1), *answer, ("after", 1)], "0")
    assert {"before", "after"} <= {row.key for row in found.rows}
    assert (found.read, len(found.refused), found.last) == (len(answer) + 2, 1, "after")
    assert f"1 of {found.read} rows left out: " in found.error
    assert why in found.error
