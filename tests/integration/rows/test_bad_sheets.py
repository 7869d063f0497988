"""The catalogue's bad uploads, rows 105 to 119, each by its number; what test_sheets.py and test_parquet.py have not.

Each is read as any upload is: in the limited process, which alone it may hurt. After each a sound sheet is read.
Formulas in what is written (116) are in tests/unit/penstock/rows/test_disarm.py, names of files (119) in
tests/unit/penstock/api/http/test_uploads.py and tests/integration/batch/test_batch_http.py.
"""

import csv
import random
import zipfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import xlsxwriter

from actors.batch.rules.encodings import ENCODINGS
from penstock.rows.sheets.kinds import check_encoding
from penstock.rows.sheets.limits import BadSheet, SheetLimits
from penstock.rows.sheets.parsing import parse_sheet
from penstock.rows.sheets.reading import read_rows
from penstock.rows.sheets.writing import open_sheet

SHEET, STRINGS = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"
MIB = 1 << 20
ENTITY = """<?xml version="1.0"?><!DOCTYPE sst [{entities}]><sst><si><t>sku</t></si><si><t>{text}</t></si></sst>"""
LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10)).join(['<!ENTITY a0 "ha">', ""])
Change = Callable[[bytes], bytes]


async def rows_of(
    path: Path, limits: SheetLimits | None = None, encoding: str = ""
) -> list[tuple[int, dict[str, object]]]:
    parts = parse_sheet(path, limits=limits, encoding=encoding)
    return [(number, dict(cells)) async for part in parts for number, cells in part]


async def refusal(path: Path, limits: SheetLimits | None = None, encoding: str = "") -> str:
    with pytest.raises(BadSheet) as told:
        await rows_of(path, limits, encoding)
    assert len(str(told.value)) < 500
    return str(told.value)


@pytest.fixture
async def book(tmp_path: Path) -> AsyncIterator[Path]:
    """A workbook to be changed; afterwards a sound one is read."""
    yield workbook(tmp_path / "book.xlsx")
    assert await rows_of(workbook(tmp_path / "sound.xlsx")) == [(2, {"sku": "T-1"})]


def workbook(path: Path) -> Path:
    with xlsxwriter.Workbook(str(path)) as made:
        made.add_worksheet().write_column(0, 0, ["sku", "T-1"])
    return path


def with_parts(path: Path, changes: Mapping[str, Change], compress: int = zipfile.ZIP_DEFLATED) -> Path:
    """Return a copy of a workbook, with these parts changed."""
    copy = path.with_name("changed.xlsx")
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(copy, "w", compress) as after:
        for name in before.namelist():
            after.writestr(name, changes.get(name, bytes)(before.read(name)))
    return copy


def put(before: str, after: str) -> Change:
    def change(data: bytes) -> bytes:
        assert before.encode() in data
        return data.replace(before.encode(), after.encode())

    return change


# ---- 105, 106, 111: what unpacks to more than it seems


async def test_105_a_bomb_in_a_sheet_is_refused_before_it_is_unpacked(book: Path) -> None:
    blanks = put("</sheetData>", " " * 40 * MIB + "</sheetData>")
    said = await refusal(with_parts(book, {SHEET: blanks}))
    assert f"'{SHEET}' unpacks from" in said
    assert said.endswith("a bomb")


async def test_105_a_bomb_that_lies_about_its_size_takes_no_memory(book: Path) -> None:
    bomb = with_parts(book, {SHEET: put("</sheetData>", " " * 60 * MIB + "</sheetData>")})
    said = await refusal(lying(bomb, SHEET, size=5_000), SheetLimits(memory_bytes=400 * MIB))
    assert "larger than its declared uncompressed size" in said


def lying(path: Path, part: str, *, size: int) -> Path:
    """Have the directory of a zip file say another size of a part."""
    data = bytearray(path.read_bytes())
    entry = data.index(part.encode(), data.index(b"PK\x01\x02")) - 46
    assert data[entry : entry + 4] == b"PK\x01\x02"
    data[entry + 24 : entry + 28] = size.to_bytes(4, "little")
    path.write_bytes(data)
    return path


async def test_106_a_workbook_in_a_workbook_is_refused(book: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(book, "a") as packed:
        packed.writestr("xl/embeddings/inner.xlsx", workbook(tmp_path / "inner.xlsx").read_bytes())
    assert "an archive within the file ('xl/embeddings/inner.xlsx')" in await refusal(book)


async def test_111_texts_of_many_bytes_are_refused_by_what_they_unpack_to(book: Path) -> None:
    noise = random.Random(1).randbytes(3 * MIB).hex()
    texts = put("<si><t>T-1</t></si>", f"<si><t>{noise}</t></si>")
    large = with_parts(book, {STRINGS: texts})
    assert "bytes unpacked, at most 5242880; send it in parts" in await refusal(
        large, SheetLimits(unpacked_bytes=5 * MIB)
    )
    assert "6291456 characters, at most 32767" in await refusal(large)


# ---- 107, 108: entities


@pytest.mark.parametrize(
    ("entities", "text"),
    [(LAUGHS, "&a9;"), ('<!ENTITY x "T-2">', "&x;"), ('<!ENTITY x SYSTEM "file:///etc/passwd">', "&x;")],
    ids=["107 laughs", "107 one", "108 file"],
)
async def test_entities_are_neither_fetched_nor_expanded(book: Path, entities: str, text: str) -> None:
    odd = with_parts(book, {STRINGS: lambda _: ENTITY.format(entities=entities, text=text).encode()})
    said = await refusal(odd, SheetLimits(memory_bytes=400 * MIB))
    assert f"unrecognized entity `{text}`" in said


async def test_108_what_a_definition_names_is_not_fetched(book: Path) -> None:
    entities = '<!ENTITY % p SYSTEM "http://127.0.0.1:9/x"> %p;'
    odd = with_parts(book, {STRINGS: lambda _: ENTITY.format(entities=entities, text="T-1").encode()})
    assert await rows_of(odd) == [(2, {"sku": "T-1"})]


# ---- 109, 110: sizes, true and claimed


async def test_109_a_row_more_than_a_sheet_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("n\n" + "1\n" * 1_048_577)
    rows = read_rows(path, "csv", SheetLimits())  # as the limited process does, which tells 1,048,576 rows before
    with pytest.raises(BadSheet, match="row 1048578: more than 1048576 rows; send it in parts"):
        deque(rows, maxlen=0)


async def test_109_columns_beyond_any_sheet_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "columns.csv"
    path.write_text(",".join(f"c{number}" for number in range(16_385)) + "\n1\n")
    assert await refusal(path) == "16385 columns, at most 1000"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("A99999999999", "memory"),
        ("ZZZZZZZZ2", "memory"),
        ("A0", "cannot be read"),
        ("2", "cannot be read"),
        ("", "cannot be read"),
    ],
)
async def test_109_a_cell_beyond_any_sheet_is_refused(
    book: Path, place: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = with_parts(book, {SHEET: put('r="A2"', f'r="{place}"')})
    assert said in await refusal(odd, SheetLimits(memory_bytes=400 * MIB))
    assert capfd.readouterr() == ("", "")  # whatever the reader died of: the node's log has whole lines alone


@pytest.mark.parametrize("claim", ["A1:XFD1048576", "A1", "XFD1048576:A1", "A1:ZZZZZ99999999999"])
async def test_110_what_a_sheet_claims_of_its_size_is_not_believed(book: Path, claim: str) -> None:
    lie = with_parts(book, {SHEET: put('<dimension ref="A1:A2"/>', f'<dimension ref="{claim}"/>')})
    assert await rows_of(lie, SheetLimits(memory_bytes=400 * MIB)) == [(2, {"sku": "T-1"})]


async def test_110_a_claim_that_is_none_is_refused(book: Path) -> None:
    lie = with_parts(book, {SHEET: put('<dimension ref="A1:A2"/>', '<dimension ref="nonsense"/>')})
    assert "cannot be read" in await refusal(lie)


# ---- 112 to 115: what it is, and what is in its cells


@pytest.mark.parametrize("name", ["book.xlsx", "book.xls", "book.csv", "book"])
async def test_112_a_file_is_what_is_in_it_and_not_what_it_is_called(book: Path, name: str) -> None:
    assert [part async for part in parse_sheet(book, name=name)] == [[(2, {"sku": "T-1"})]]
    macros = with_parts(book, {})
    with zipfile.ZipFile(macros, "a") as packed:
        packed.writestr("xl/vbaProject.bin", b"x")
    assert "it has macros" in await refusal(macros)


@pytest.mark.parametrize("name", ["../../x", "/x", "..\\..\\x", "C:\\x", "xl/../../x"])
async def test_113_a_part_that_leads_out_of_the_file_is_refused(book: Path, name: str) -> None:
    with zipfile.ZipFile(book, "a") as packed:
        packed.writestr(name, b"x")
    assert "leads out of the file" in await refusal(book)


async def test_114_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    with xlsxwriter.Workbook(str(path)) as made:
        made.add_worksheet().write_row(0, 0, ["sku", "price", " sku"])
    assert await refusal(path) == "columns A and C are both called 'sku'; give each its own name"


@pytest.mark.parametrize("is_1904", [False, True], ids=["since 1900", "since 1904"])
async def test_115_a_date_is_the_same_day_whichever_year_a_workbook_counts_from(tmp_path: Path, is_1904: bool) -> None:
    path = tmp_path / "a.xlsx"
    with xlsxwriter.Workbook(str(path), {"date_1904": is_1904, "remove_timezone": True}) as made:
        sheet = made.add_worksheet()
        sheet.write_row(0, 0, ["day", "at"])
        sheet.write_datetime(1, 0, datetime(2026, 3, 1, tzinfo=UTC), made.add_format({"num_format": "yyyy-mm-dd"}))
        at = made.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"})
        sheet.write_datetime(1, 1, datetime(2026, 3, 1, 12, 30, tzinfo=UTC), at)
    [(_, row)] = await rows_of(path)
    assert (str(row["day"])[:10], row["at"]) == ("2026-03-01", "2026-03-01T12:30:00")


async def test_115_a_formula_is_its_last_value_and_is_never_worked_out(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    with xlsxwriter.Workbook(str(path)) as made:
        sheet = made.add_worksheet()
        sheet.write_row(0, 0, ["n", "text", "none", "error"])
        sheet.write_formula(1, 0, "=1+1", None, 7)
        sheet.write_formula(1, 1, '=WEBSERVICE("http://127.0.0.1:9/")', None, "told")
        sheet.write_formula(1, 2, "=A1", None, "")
        sheet.write_formula(1, 3, "=1/0", None, "#DIV/0!")
    of_excel = put('<c r="C2"><f>A1</f><v></v>', '<c r="C2" t="str"><f>A1</f><v></v>')
    [(_, row)] = await rows_of(with_parts(path, {SHEET: of_excel}))
    assert (row["n"], row["text"], row["none"]) == (7, "told", "")
    assert row["error"] == "#DIV/0!"


@pytest.mark.parametrize(
    "value", ["<v></v>", "<v/>", "", "<v />"], ids=["empty", "short", "none", "as openpyxl writes it"]
)
async def test_115_a_formula_that_nobody_worked_out_costs_its_row_alone(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.xlsx"
    with xlsxwriter.Workbook(str(path)) as made:
        sheet = made.add_worksheet()
        sheet.write_row(0, 0, ["sku", "price"])
        for at in (1, 2, 3):
            sheet.write_row(at, 0, [f"T-{at}", at])
        sheet.write_formula(2, 1, "=A1*2", made.add_format({"bold": True}), "")
    odd = put('<c r="B3" s="1"><f>A1*2</f><v></v></c>', f'<c r="B3" s="1"><f>A1*2</f>{value}</c>')
    fault = "price: a formula without a value; open the file in Excel and save it"
    assert await rows_of(with_parts(path, {SHEET: odd})) == [
        (2, {"sku": "T-1", "price": 1}),
        (3, {"sku": "T-2", "price": "", "penstock_fault": fault}),
        (4, {"sku": "T-3", "price": 3}),
    ]


@pytest.mark.parametrize("at_end", range(0, 60, 7))
async def test_115_a_formula_without_a_value_is_seen_wherever_a_piece_ends(tmp_path: Path, at_end: int) -> None:
    path = tmp_path / "a.xlsx"
    with xlsxwriter.Workbook(str(path)) as made:
        sheet = made.add_worksheet()
        sheet.write_row(0, 0, ["a", "b"])
        sheet.write_formula(1, 0, "=B1", None, 5)
        sheet.write_formula(1, 1, "=A1", None, "")
    with zipfile.ZipFile(path) as packed:
        place = MIB - packed.read(SHEET).index(b'<c r="B2">') - at_end
    padded = with_parts(path, {SHEET: put("<sheetData>", " " * place + "<sheetData>")}, zipfile.ZIP_STORED)
    [(_, row)] = await rows_of(padded)
    assert (row["a"], str(row["penstock_fault"])[:2]) == (5, "b:")


@pytest.mark.parametrize("at_end", range(0, 18, 3))
async def test_115_an_error_is_no_empty_cell_wherever_a_piece_ends(tmp_path: Path, at_end: int) -> None:
    path = tmp_path / "a.xlsx"
    with xlsxwriter.Workbook(str(path)) as made:
        sheet = made.add_worksheet()
        sheet.write_row(0, 0, ["t", "a", "b", "c"])
        sheet.write_string(1, 0, '<c t="e"> t="e"')
        for at, error in enumerate(("#DIV/0!", "#N/A"), 1):
            sheet.write_formula(1, at, "=1/0", None, error)
    with zipfile.ZipFile(path) as packed:
        place = MIB - packed.read(SHEET).index(b'<c r="B2" t="e">') - at_end
    padded = with_parts(path, {SHEET: put("<sheetData>", " " * place + "<sheetData>")}, zipfile.ZIP_STORED)
    assert await rows_of(padded) == [(2, {"t": '<c t="e"> t="e"', "a": "#DIV/0!", "b": "#N/A", "c": ""})]
    odd = put('<c r="B2" t="e">', "<c  t='e'\nr='B2'>")
    assert await rows_of(with_parts(path, {SHEET: odd})) == await rows_of(path)


# ---- 116 to 118: text


ARMED = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\u00a0=1", "fine\n=1"]


async def test_116_what_came_as_a_formula_goes_back_as_text(tmp_path: Path) -> None:
    path, back = tmp_path / "a.csv", tmp_path / "back.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["sku"], *([text] for text in ARMED)])
    rows = [row for _, row in await rows_of(path)]
    assert [row["sku"] for row in rows] == ARMED
    with open_sheet(back, "csv", ["sku"]) as sheet:
        sheet.write(rows)
    assert [row["sku"] for _, row in await rows_of(back)] == [f"'{text}" for text in ARMED]


@pytest.mark.parametrize("text", ['sku\n"T-1\nT-2\n', 'sku\n"' + "x" * 300_000, 'sku\n"a"b,c\n'])
async def test_117_a_quotation_that_never_ends_is_told_by_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert "never closed" in await refusal(path)


async def test_117_signs_within_a_columns_name_separate_nothing(tmp_path: Path) -> None:
    names = ["size (S;M;L;XL)", "a|b|c|d", "sku"]
    with open_sheet(tmp_path / "odd.csv", "csv", names) as sheet:
        sheet.write([dict.fromkeys(names, "x")])
    assert await rows_of(tmp_path / "odd.csv") == [(2, dict.fromkeys(names, "x"))]


@pytest.mark.parametrize("encoding", ["utf-16", "gbk"])
async def test_118_text_of_other_encodings_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("sku\n茶壶\n".encode(encoding))
    assert await rows_of(path) == [(2, {"sku": "茶壶"})]


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("utf-16-le", "neither text nor xlsx"),
        ("utf-16-be", "neither text nor xlsx"),
        ("latin-1", "neither utf-8 at byte 6 nor gb18030 at byte 6; save it as CSV UTF-8"),
    ],
)
async def test_118_text_of_an_unknown_encoding_is_told(tmp_path: Path, encoding: str, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("sku\nwe\u00df\n".encode(encoding))
    assert said in await refusal(path)


@pytest.mark.parametrize(
    ("encoding", "word"),
    [
        ("windows-1252", "K\u00e4se, Br\u00f6tchen"),
        ("shift-jis", "\u7d05\u8336\u306e\u30bb\u30c3\u30c8"),
        ("big5", "\u81fa\u7063\u70cf\u9f8d\u8336"),
        ("iso-8859-2", "\u017b\u00f3\u0142ty ser, \u0142y\u017cka"),
    ],
)
async def test_118_what_would_be_nonsense_is_not_taken_for_gb_18030(tmp_path: Path, encoding: str, word: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(f'sku\n"{word}"\n'.encode(ENCODINGS[encoding]))
    word.encode(ENCODINGS[encoding]).decode("gb18030")
    said = await refusal(path)
    assert "nor gb18030, in which it would be of rare characters; save it as CSV UTF-8, or name its encoding" in said


async def test_118_a_rare_character_in_a_chinese_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\u59d3\u540d\n\u5f20\u5586\u2014\u2014\u7ecf\u7406\n".encode("gb18030"))
    assert await rows_of(path) == [(2, {"\u59d3\u540d": "\u5f20\u5586\u2014\u2014\u7ecf\u7406"})]


@pytest.mark.parametrize(
    ("encoding", "word"),
    [
        ("shift-jis", "\u7d05\u8336\u2460"),
        ("Shift_JIS", "\u534a\u89d2\uff76\uff85"),
        ("euc-jp", "\u7d05\u8336"),
        ("big5", "\u8336\u58fa"),
        ("euc-kr", "\uc8fc\uc804\uc790"),
        ("windows-1251", "\u0447\u0430\u0439\u043d\u0438\u043a"),
        ("windows-1252", "Wei\u00dfbier \u20ac"),
        ("utf-8", "th\u00e9"),
        ("GB2312", "\u8336\u58f6"),
        ("iso-8859-1", "Wei\u00dfbier"),
    ],
)
async def test_118_an_encoding_that_is_named_is_read(tmp_path: Path, encoding: str, word: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(f"sku\n{word}\n".encode(ENCODINGS[check_encoding(encoding)]))
    assert await rows_of(path, encoding=encoding) == [(2, {"sku": word})]


async def test_118_what_does_not_fit_the_named_encoding_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("sku\nwe\u00df\n".encode("latin-1"))
    assert "not utf-8 at byte 6; name its own encoding" in await refusal(path, encoding="utf-8")
    for unknown in ("zip", "rot13", "klingon", "../utf-8"):
        assert f"encoding {unknown!a}: not one of utf-8," in await refusal(path, encoding=unknown)
