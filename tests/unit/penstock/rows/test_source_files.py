"""A file of sources is read the same in each form, and a bad row is told by its number and its field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.source_import import SourceRow
from penstock.errors import UsageError
from penstock.rows.source_files import FORMS, form_of, read_rows, write_rows

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,9}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=9)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "retries": st.integers(0, 9),
        "rate": st.floats(0.5, 9),
        "slice": st.just("5m"),
        "again": st.just(["1h"]),
    },
)
ROWS = st.lists(
    st.builds(
        SourceRow,
        source=st.builds("{}/{}".format, NAMES, NAMES),
        adapter=NAMES,
        account=st.dictionaries(NAMES, TEXTS, max_size=3),
        settings=SETTINGS,
        start=st.sampled_from(["", "-90d", "2026-01-31T08:00:00Z"]),
        paused=st.booleans(),
    ),
    max_size=4,
)


@given(ROWS, st.sampled_from(FORMS))
def test_what_is_written_is_read_again(rows: list[SourceRow], form: str) -> None:
    if form == "toml" and not rows:
        return
    found = read_rows(write_rows(rows, form).encode(), form, where="file")
    assert found.faults == []
    assert found.rows == rows
    assert found.numbers == list(range(1, len(rows) + 1))


@pytest.mark.parametrize(
    ("form", "text", "row", "field"),
    [
        ("csv", "source,adapter\nm/1,mall\n,mall\n", 2, "source"),
        ("csv", "source,adapter,paused\nm/1,mall,maybe\n", 1, "paused"),
        ("csv", "source,adapter\nm/1,mall,more\n", 1, "row"),
        ("jsonl", '{"source":"m/1","adapter":"mall"}\n\n{"source":"m/2"}\n', 2, "adapter"),
        ("jsonl", '{"source":"m/1","adapter":"mall","account":{"shop":7}}\n', 1, "account[...]"),
        ("jsonl", "{\n", 1, "row"),
        ("jsonl", '{"source":"m/1","adapter":"mall","shop":"s1"}\n', 1, "shop"),
        ("toml", '[[source]]\nsource = "m/1"\nadapter = 7\n', 1, "adapter"),
    ],
)
def test_a_bad_row_is_told_by_its_number_and_its_field(form: str, text: str, row: int, field: str) -> None:
    found = read_rows(text.encode(), form, where="file")
    assert [(fault.row, fault.field) for fault in found.faults] == [(row, field)]


@pytest.mark.parametrize(
    ("form", "data", "what"),
    [
        ("csv", b"source,shop\n", "column 'shop'"),
        ("csv", b"source,source\n", "column 'source'"),
        ("csv", b'source\n"a\n', "line"),
        ("jsonl", b"\xff", "no UTF-8"),
        ("toml", b"source = 1\n", r"\[\[source\]\]"),
        ("toml", b"[[source]]\n[other]\n", r"\[\[source\]\]"),
        ("toml", b"[[", "no TOML"),
    ],
)
def test_a_file_that_is_none_is_refused(form: str, data: bytes, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        read_rows(data, form, where="file")


def test_the_form_is_that_of_the_name_unless_it_is_given() -> None:
    assert (form_of("a.csv"), form_of("-", "toml"), form_of("b.txt", "jsonl")) == ("csv", "toml", "jsonl")
    for path in ("-", "a.txt"):
        with pytest.raises(UsageError, match="--form csv, jsonl, toml"):
            form_of(path)
