"""Sheets are read in a process that may die of them, and written so that nothing in them runs."""

import csv
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest
import xlsxwriter

from actors.batch.rules.sheet_lines import FAULT, LINE
from penstock.rows.sheets.kinds import SheetKind
from penstock.rows.sheets.limits import BadSheet, SheetLimits
from penstock.rows.sheets.parsing import parse_sheet
from penstock.rows.sheets.writing import open_sheet

Cells = Sequence[Sequence[object]]


def workbook(path: Path, cells: Cells, *, far: bool = False) -> Path:
    with xlsxwriter.Workbook(str(path)) as book:
        sheet = book.add_worksheet("rows")
        for at, line in enumerate(cells):
            sheet.write_row(at, 0, line)
        if far:
            sheet.write(1_048_575, 16_383, "far")
    return path


def changed(path: Path, change: Callable[[str, bytes], bytes], extra: Mapping[str, bytes] | None = None) -> Path:
    """Return a copy of a zip file with its parts changed, and more parts."""
    copy = path.with_name(f"changed-{path.name}")
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            after.writestr(name, change(name, before.read(name)))
        for name, data in (extra or {}).items():
            after.writestr(name, data)
    return copy


def same(_name: str, data: bytes) -> bytes:
    return data


async def rows_of(
    path: Path, limits: SheetLimits | None = None, *, name: str = "", sheet: str = "", encoding: str = ""
) -> list[object]:
    parts = parse_sheet(path, limits=limits, name=name, sheet=sheet, encoding=encoding)
    return [row async for part in parts for row in part]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def make(data: str | bytes) -> Path:
        path = tmp_path / "upload"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return make


# ---- what is read


async def test_the_three_kinds_read_the_same_rows(tmp_path: Path, file: Callable[[str], Path]) -> None:
    expected = [(2, {"sku": "Größe 1", "n": 5}), (3, {"sku": "=x", "n": 0.5})]
    assert await rows_of(workbook(tmp_path / "a.xlsx", [["sku", "n"], ["Größe 1", 5], ["'=x", 0.5]])) == [
        (2, {"sku": "Größe 1", "n": 5}),
        (3, {"sku": "'=x", "n": 0.5}),
    ]
    assert await rows_of(file('{"sku":"Größe 1","n":5}\n\n{"sku":"=x","n":0.5}\n')) == [
        (1, expected[0][1]),
        (3, expected[1][1]),
    ]
    assert await rows_of(file("sku;n\nGröße 1;5\n=x;0.5\n")) == [
        (2, {"sku": "Größe 1", "n": "5"}),
        (3, {"sku": "=x", "n": "0.5"}),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
async def test_text_is_read_in_the_encodings_that_programs_write(file: Callable[[bytes], Path], encoding: str) -> None:
    assert await rows_of(file("名称,价格\n茶壶,8\n".encode(encoding))) == [(2, {"名称": "茶壶", "价格": "8"})]


async def test_a_workbook_tells_cached_values_and_takes_no_lie_about_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    with xlsxwriter.Workbook(str(path)) as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["a", "b"])
        sheet.write_formula(1, 0, "=1+1", None, 2)
        sheet.write_string(1, 1, "x")
    lie = changed(
        path, lambda name, data: data.replace(b'<dimension ref="A1:B2"/>', b'<dimension ref="A1:XFD1048576"/>')
    )
    assert await rows_of(lie) == [(2, {"a": 2, "b": "x"})]


@pytest.mark.parametrize("claim", ["C4:D10", "A1:D10", "A1", ""])
async def test_rows_of_a_workbook_are_numbered_as_people_see_them(tmp_path: Path, claim: str) -> None:
    path = tmp_path / "a.xlsx"
    with xlsxwriter.Workbook(str(path)) as book:
        sheet = book.add_worksheet()
        sheet.write_row(3, 2, ["sku", "n"])
        sheet.write_row(4, 2, ["T-1", 1])
        sheet.write_row(9, 2, ["T-2", 2])
    said, claimed = b'<dimension ref="C4:D10"/>', f'<dimension ref="{claim}"/>'.encode() if claim else b""
    rows = await rows_of(changed(path, lambda name, data: data.replace(said, claimed)))
    assert rows == [
        (5, {"A": "", "B": "", "sku": "T-1", "n": 1}),
        (10, {"A": "", "B": "", "sku": "T-2", "n": 2}),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("first", ["sep=;\r\n", '"sep=;"\n', "SEP=;\n"])
async def test_excels_own_first_line_says_the_separator(
    file: Callable[[bytes], Path], first: str, encoding: str
) -> None:
    assert await rows_of(file(f"{first}a,b;n\n1,2;3\n".encode(encoding))) == [(2, {"a,b": "1,2", "n": "3"})]
    with pytest.raises(BadSheet, match="line 3: "):
        await rows_of(file(f'{first}a;b\n1;"2\n'.encode(encoding)))


async def test_a_named_sheet_is_read(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", [["a"], [1]])
    assert await rows_of(path, sheet="rows") == [(2, {"a": 1})]
    with pytest.raises(BadSheet, match="no sheet 'other'; there are 'rows'"):
        await rows_of(path, sheet="other")
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n", encoding="utf-8")
    with pytest.raises(BadSheet, match="a csv file has no sheets; leave the sheet 'rows' out"):
        await rows_of(path, sheet="rows")


async def test_an_encoding_is_for_a_csv_file_alone(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", [["a"], [1]])
    with pytest.raises(BadSheet, match="only a csv file has an encoding of its own, and this is xlsx; leave gb18030"):
        await rows_of(path, encoding="gb18030")
    path = tmp_path / "a.jsonl"
    path.write_text('{"a":1}\n', encoding="utf-8")
    assert await rows_of(path, encoding="utf-8") == [(1, {"a": 1})], "what it is"
    with pytest.raises(BadSheet, match="this is jsonl; leave windows-1252 out"):
        await rows_of(path, encoding="latin1")


# ---- what is refused

BOMB = b"\0" * 30_000_000
LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><x>&b;</x>"""


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"xl/media/bomb.bin": BOMB}, "a bomb"),
        ({"../../etc/passwd": b"x"}, "leads out of the file"),
        ({"/etc/passwd": b"x"}, "leads out of the file"),
        ({"xl/vbaProject.bin": b"x"}, "it has macros"),
        ({"inner.zip": b"x"}, "an archive within the file"),
        ({f"part{number}": b"" for number in range(1001)}, "parts in the file, at most 1000"),
    ],
    ids=["bomb", "parent", "root", "macros", "nested", "many parts"],
)
async def test_a_workbook_that_could_hurt_is_refused(tmp_path: Path, extra: dict[str, bytes], said: str) -> None:
    path = workbook(tmp_path / "a.xlsx", [["a"], [1]])
    with pytest.raises(BadSheet, match=said):
        await rows_of(changed(path, same, extra))


async def test_entities_are_not_expanded(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", [["a"], ["x"]])
    laughing = changed(path, lambda name, data: LAUGHS if name == "xl/sharedStrings.xml" else data)
    with pytest.raises(BadSheet, match="cannot be read"):
        await rows_of(laughing)


async def test_a_workbook_that_takes_too_much_memory_ends_its_reader_alone(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", [["a"], [1]], far=True)
    with pytest.raises(BadSheet, match="memory"):
        await rows_of(path, SheetLimits(memory_bytes=1 << 30))
    assert await rows_of(workbook(tmp_path / "b.xlsx", [["a"], [1]])) == [(2, {"a": 1})]


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        (b"", "", "the file is empty"),
        (b"PK\x03\x04rubbish", "", "not an xlsx file"),
        (b"\xd0\xcf\x11\xe0" + b"\0" * 600, "a.xlsx", "an old xls file, or one with a password"),
        (b"a,b\n1,2\n", "a.xlsx", "no workbook is in it"),
        (b"%PDF-1.7", "", "it is a PDF"),
        (b"\x1f\x8b\x08", "", "packed with gzip"),
        (b"a,b\n1,\x002\n", "", "neither text nor xlsx"),
        (b'a,b\n1,"2\n3,4\n', "", "never closed"),
        (b"a,b\n\xff\xff,1\n", "", "neither utf-8 at byte 4 nor gb18030 at byte 4"),
        (b"a,a\n1,2\n", "", "both called 'a'"),
        (b'{\n  "a": 1\n}\n', "", "line 1: no JSON object"),
        (b'{"a"\n' * 101 + b'{"a":1}\n', "", "line 1: no JSON object"),
        (b'{"a":' + b"[" * 5000 + b"\n", "", "line 1: no JSON object"),
        ('{"a":1}\n'.encode("utf-16"), "", "no jsonl: that is UTF-8"),
        (b'[{"a":1},\n{"a":2}]\n', "", "no jsonl: that is UTF-8"),
        (b"[\n\t[1]]\n", "", "no jsonl: that is UTF-8"),
        (b"a,b\n1,2\n", "rows.jsonl", "no jsonl: that is UTF-8"),
    ],
)
async def test_a_file_that_cannot_be_read_is_told_by_its_place(
    file: Callable[[bytes], Path], data: bytes, name: str, said: str
) -> None:
    with pytest.raises(BadSheet, match=said):
        await rows_of(file(data), name=name)


async def test_a_line_that_is_no_object_costs_its_row_alone(file: Callable[[bytes], Path]) -> None:
    lines = b'{"a"\n\n{"a":1}\n[1]\n{"a":2}\n{"a": "\xff"}\n'
    found = dict(cast("list[tuple[int, dict[str, object]]]", await rows_of(file(lines))))
    assert [(number, cells.get("a")) for number, cells in found.items()] == [
        (1, None),
        (3, 1),
        (4, None),
        (5, 2),
        (6, None),
    ]
    assert [found[number][LINE] for number in (1, 4)] == ['{"a"', "[1]"]
    assert all("no JSON object" in str(found[number][FAULT]) for number in (1, 4, 6))


async def test_a_line_that_is_nested_too_deeply_costs_its_row_alone(file: Callable[[bytes], Path]) -> None:
    lines = b"".join(b'{"a":%s}\n' % (b"[" * levels + b"]" * levels) for levels in (126, 127, 960, 5_000))
    found = dict(cast("list[tuple[int, dict[str, object]]]", await rows_of(file(lines))))
    assert [FAULT in cells for cells in found.values()] == [False, True, True, True]


async def test_the_text_of_a_line_that_was_put_right_is_no_column(file: Callable[[bytes], Path]) -> None:
    again = b'{"a": 1, "penstock_line": "{a", "penstock_failed": "no JSON object"}\n'
    assert await rows_of(file(again)) == [(1, {"a": 1})]


async def test_utf_16_without_its_mark_is_read_if_it_is_named(file: Callable[[bytes], Path]) -> None:
    path = file("sku,name\n1,Größe\n".encode("utf-16-le"))
    rows = [row async for part in parse_sheet(path, encoding="utf-16") for row in part]
    assert rows == [(2, {"sku": "1", "name": "Größe"})]
    with pytest.raises(BadSheet, match="name the encoding of a text in UTF-16"):
        await rows_of(path)


async def test_a_zip_of_another_kind_is_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("readme.txt", "x")
    with pytest.raises(BadSheet, match="a zip file, but no xlsx"):
        await rows_of(tmp_path / "a.zip")


async def test_what_is_longer_than_allowed_is_refused(file: Callable[[str], Path]) -> None:
    with pytest.raises(BadSheet, match="row 4: more than 2 rows"):
        await rows_of(file("a\n1\n2\n3\n"), SheetLimits(rows=2))
    with pytest.raises(BadSheet, match="8 bytes, at most 3"):
        await rows_of(file("a\n1\n2\n3\n"), SheetLimits(file_bytes=3))


async def test_large_rows_come_few_at_a_time(file: Callable[[str], Path]) -> None:
    """Whoever reads them holds what comes at once, and the loop serves nobody else while it is decoded."""
    path = file("".join(json.dumps({"n": n, "text": "x" * 200_000}) + "\n" for n in range(12)))
    parts = [part async for part in parse_sheet(path, name="rows.jsonl")]
    assert [number for part in parts for number, _ in part] == list(range(1, 13))
    assert max(len(part) for part in parts) <= 2
    small = [part async for part in parse_sheet(file('{"a":1}\n' * 1_000), name="rows.jsonl")]
    assert [len(part) for part in small] == [500, 500], "a million small rows cost few steps"


async def test_a_reader_that_is_left_early_ends(file: Callable[[str], Path]) -> None:
    rows = parse_sheet(file("a\n" + "1\n" * 20_000))
    assert len(await anext(rows)) == 500
    await rows.aclose()  # type: ignore[attr-defined] # a generator


# ---- what is written


@pytest.mark.parametrize("kind", ["xlsx", "csv", "jsonl"])
async def test_what_is_written_is_read(tmp_path: Path, kind: SheetKind) -> None:
    path = tmp_path / "out"
    with open_sheet(path, kind, ["sku", "n", "why"]) as sheet:
        sheet.write([{"sku": "Größe", "n": 5, "why": "line\nbreak"}, {"sku": "b", "n": 0.5, "why": "x"}])
    rows = [row async for part in parse_sheet(path) for _, row in part]
    assert [(row["sku"], float(row["n"]), row["why"]) for row in rows] == [
        ("Größe", 5, "line\nbreak"),
        ("b", 0.5, "x"),
    ]


def test_formulas_are_text_in_every_kind(tmp_path: Path) -> None:
    row = {"=a": "=1+1"}
    kinds: tuple[SheetKind, ...] = ("xlsx", "csv")
    for kind in kinds:
        with open_sheet(tmp_path / kind, kind, ["=a"]) as sheet:
            sheet.write([row])
    with zipfile.ZipFile(tmp_path / "xlsx") as packed:
        assert b"<f>" not in packed.read("xl/worksheets/sheet1.xml")
    text = (tmp_path / "csv").read_text("utf-8-sig")
    assert list(csv.reader(io.StringIO(text))) == [["'=a"], ["'=1+1"]]


def test_more_rows_than_a_sheet_holds_go_on_in_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.rows.sheets.workbook.SHEET_ROWS", 3)
    with open_sheet(tmp_path / "a.xlsx", "xlsx", ["n"]) as sheet:
        sheet.write([{"n": number} for number in range(5)])
    with zipfile.ZipFile(tmp_path / "a.xlsx") as packed:
        assert len([name for name in packed.namelist() if name.startswith("xl/worksheets/sheet")]) == 3


async def test_a_workbook_keeps_every_text_and_number(tmp_path: Path) -> None:
    texts = ["a\x01b", "_x0041_", "<&>\"'", " x ", "a\r\nb", "\u8336\u58f6", "=1+1", "1e5"]
    numbers = [0, -5, 0.1, 1e-300, 2**53 - 1, True]
    with open_sheet(tmp_path / "a.xlsx", "xlsx", ["text", "<number>"]) as sheet:
        sheet.write([{"text": text} for text in texts] + [{"text": "n", "<number>": number} for number in numbers])
        sheet.write([{"text": "half \ud800", "<number>": {"a": [2**60]}}])
    rows = [row async for part in parse_sheet(tmp_path / "a.xlsx") for _, row in part]
    assert [row["text"] for row in rows[: len(texts)]] == texts
    assert [row["<number>"] for row in rows[len(texts) : -1]] == numbers
    assert rows[-1] == {"text": "half ?", "<number>": f'{{"a":[{2**60}]}}'}


def test_a_workbooks_columns_are_as_wide_as_needed_and_have_a_filter(tmp_path: Path) -> None:
    with open_sheet(tmp_path / "a.xlsx", "xlsx", ["n", "name"]) as sheet:
        sheet.write([{"n": 1, "name": "x" * 20}, {"n": 2, "name": "\u8336" * 12}])
    with zipfile.ZipFile(tmp_path / "a.xlsx") as packed:
        part = packed.read("xl/worksheets/sheet1.xml").decode()
    assert 'max="1" width="8.71"' in part
    assert 'max="2" width="24.71"' in part
    assert '<autoFilter ref="A1:B3"/>' in part


@pytest.mark.parametrize("kind", ["xlsx", "csv", "jsonl"])
def test_a_writer_left_by_an_error_leaves_no_file(tmp_path: Path, kind: SheetKind) -> None:
    def write_and_fail() -> None:
        with open_sheet(tmp_path / "out", kind, ["a"]) as sheet:
            sheet.write([{"a": 1}])
            raise KeyError("ours")

    with pytest.raises(KeyError):
        write_and_fail()
    assert not (tmp_path / "out").exists()


def test_limits_are_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(SheetLimits(rows=5)), type=SheetLimits).rows == 5
