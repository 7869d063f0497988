"""Writes an xlsx file while its rows come, in constant memory (ADR 62).

A sheet is one part of a zip file and grows row by row. Text is written within its cell, as text, so that nothing in it
runs. The first rows decide how wide the columns are. The header is bold, stays in view, and has a filter.
"""

import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

import msgspec

from penstock.rows.sheets.rows import letters_of

__all__ = ["SHEET_ROWS", "Workbook"]

SHEET_ROWS = 1_048_576
"""Rows of one sheet of a workbook, the header among them: Excel's own limit."""
CELL_CHARS = 32_767
LEVEL = 4
"""Of the compression. Level 6 takes a third longer for files that are a tenth smaller."""
LOOKED_AT = 1_000
"""Rows whose texts decide the columns' widths."""
NARROWEST, WIDEST, ROOM = 8, 60, 2
"""Widths in characters. `ROOM`: for the mark of the filter."""
_SPECIAL = re.compile("[&<>\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]|_x[0-9a-fA-F]{4}_")
_NO_XML = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]")
_LIKE_A_CODE = re.compile("_(?=x[0-9a-fA-F]{4}_)")

_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPES = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_STYLES = (
    f'{_XML}<styleSheet xmlns="{_MAIN}"><fonts count="2"><font><sz val="11"/><name val="Calibri"/></font>'
    '<font><b/><sz val="11"/><name val="Calibri"/></font></fonts><fills count="2"><fill><patternFill '
    'patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill></fills><borders count="1"><border>'
    '<left/><right/><top/><bottom/><diagonal/></border></borders><cellStyleXfs count="1"><xf/></cellStyleXfs><cellXfs '
    'count="2"><xf xfId="0"/><xf fontId="1" xfId="0" applyFont="1"/></cellXfs>'
    '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
)


class Workbook:
    """A workbook in writing, as a context manager that ends it. After an exception there is no file."""

    def __init__(self, place: Path | IO[bytes], columns: Sequence[str]) -> None:
        self._place = place
        self._columns = columns
        self._letters = [letters_of(at) for at in range(len(columns))]
        self._zip = zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL)
        self._sheet: IO[bytes] | None = None
        self._first: list[Mapping[str, object]] = []
        """The rows that come before the first sheet is opened. Its columns' widths stand before all rows."""
        self._widths = ""
        self._rows: list[int] = []
        """How many rows each sheet has, the header among them."""

    def write(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add rows."""
        rows = list(rows)
        if self._sheet is None:
            self._first += rows
            if len(self._first) < LOOKED_AT:
                return
            rows, self._first = self._first, []
            self._open(rows[:LOOKED_AT])
        self._spread(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._end()
            elif self._sheet is not None:
                self._sheet.close()
        finally:
            self._zip.close()
            if kind is not None and isinstance(self._place, Path):
                self._place.unlink(missing_ok=True)

    # ---- a sheet

    def _open(self, rows: Sequence[Mapping[str, object]]) -> None:
        if not self._rows:
            self._widths = _widths(self._columns, rows)
        self._sheet = self._zip.open(f"xl/worksheets/sheet{len(self._rows) + 1}.xml", "w", force_zip64=True)
        cells = (_text_cell(f"{at}1", name, ' s="1"') for at, name in zip(self._letters, self._columns, strict=True))
        selected = "" if self._rows else ' tabSelected="1"'
        view = f'<sheetViews><sheetView{selected} workbookViewId="0"><pane ySplit="1" topLeftCell="A2" '
        frozen = 'activePane="bottomLeft" state="frozen"/></sheetView></sheetViews>'
        head = f'{_XML}<worksheet xmlns="{_MAIN}">{view}{frozen}{self._widths}'
        self._sheet.write(f'{head}<sheetData><row r="1">{"".join(cells)}</row>'.encode())
        self._rows.append(1)

    def _spread(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Add rows to the sheet, and to further ones when it is full."""
        while rows:
            if self._rows[-1] >= SHEET_ROWS:
                self._close()
                self._open([])
            part = rows[: SHEET_ROWS - self._rows[-1]]
            self._append(part)
            rows = rows[len(part) :]

    def _append(self, rows: Sequence[Mapping[str, object]]) -> None:
        assert self._sheet is not None
        out: list[str] = []
        columns, at = list(zip(self._letters, self._columns, strict=True)), self._rows[-1]
        for row in rows:
            at += 1
            out.append(f'<row r="{at}">')
            for letters, name in columns:
                value = row.get(name)
                kind = type(value)
                if value is None or value == "":
                    continue
                if kind is str:
                    out.append(_text_cell(f"{letters}{at}", value))  # type: ignore[arg-type] # it is a str
                elif isinstance(value, bool):
                    out.append(f'<c r="{letters}{at}" t="b"><v>{value:d}</v></c>')
                elif isinstance(value, int | float) and abs(value) < 2**53:
                    out.append(f'<c r="{letters}{at}"><v>{value!r}</v></c>')
                else:
                    out.append(_text_cell(f"{letters}{at}", shown_text(value)))
            out.append("</row>")
        self._sheet.write("".join(out).encode())
        self._rows[-1] = at

    def _close(self) -> None:
        assert self._sheet is not None
        span = f'<autoFilter ref="A1:{self._letters[-1]}{self._rows[-1]}"/>' if self._letters else ""
        self._sheet.write(f"</sheetData>{span}</worksheet>".encode())
        self._sheet.close()

    # ---- the workbook

    def _end(self) -> None:
        if self._sheet is None:
            self._open(self._first)
            self._spread(self._first)
        self._close()
        numbers = range(1, len(self._rows) + 1)
        sheets = "".join(f'<sheet name="Sheet{at}" sheetId="{at}" r:id="rId{at}"/>' for at in numbers)
        filters = "".join(map(self._filter, numbers)) if self._letters else ""
        names = f"<definedNames>{filters}</definedNames>" if filters else ""
        book = f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><bookViews><workbookView/></bookViews>'
        links = [(f"rId{at}", "worksheet", f"worksheets/sheet{at}.xml") for at in numbers]
        parts = [(f"/xl/worksheets/sheet{at}.xml", "worksheet") for at in numbers]
        self._put("xl/workbook.xml", f"{_XML}{book}<sheets>{sheets}</sheets>{names}</workbook>")
        self._put("xl/_rels/workbook.xml.rels", _relations([*links, ("rId0", "styles", "styles.xml")]))
        self._put("xl/styles.xml", _STYLES)
        self._put("_rels/.rels", _relations([("rId1", "officeDocument", "xl/workbook.xml")]))
        self._put(
            "[Content_Types].xml", _types([("/xl/workbook.xml", "sheet.main"), ("/xl/styles.xml", "styles"), *parts])
        )

    def _filter(self, number: int) -> str:
        span = f"Sheet{number}!$A$1:${self._letters[-1]}${self._rows[number - 1]}"
        return f'<definedName name="_xlnm._FilterDatabase" localSheetId="{number - 1}" hidden="1">{span}</definedName>'

    def _put(self, name: str, text: str) -> None:
        self._zip.writestr(name, text)


def shown_text(value: object) -> str:
    """Return a value as a cell's text: JSON, unless it is text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _text_cell(place: str, text: str, style: str = "") -> str:
    text = text[:CELL_CHARS]
    if _SPECIAL.search(text):
        text = _LIKE_A_CODE.sub("_x005F_", text)  # Excel reads _x000D_ as the character
        text = escape(_NO_XML.sub(lambda found: f"_x{ord(found[0]):04X}_", text))
        text = text.encode("utf-8", "replace").decode()
    keep = ' xml:space="preserve"' if text != text.strip() else ""
    return f'<c r="{place}"{style} t="inlineStr"><is><t{keep}>{text}</t></is></c>'


def _widths(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return the columns' widths, as wide as the widest text of these rows."""
    longest = [_width(name) + ROOM for name in columns]
    for row in rows:
        for at, name in enumerate(columns):
            if (value := row.get(name)) is not None and longest[at] < WIDEST:
                longest[at] = max(longest[at], _width(shown_text(value)))
    each = (
        f'<col min="{at}" max="{at}" width="{min(WIDEST, max(NARROWEST, width)) + 0.71}" customWidth="1"/>'
        for at, width in enumerate(longest, 1)
    )
    return f"<cols>{''.join(each)}</cols>" if columns else ""


def _width(text: str) -> int:
    """Return how wide a text is, in characters of a narrow font: a Chinese one takes two."""
    widest = max((line[:WIDEST] for line in text.split("\n")), key=len)
    return len(widest) if widest.isascii() else sum(1 + (east_asian_width(each) in "WF") for each in widest)


def _relations(links: Sequence[tuple[str, str, str]]) -> str:
    each = (f'<Relationship Id="{name}" Type="{_OFFICE}/{kind}" Target="{to}"/>' for name, kind, to in links)
    return f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">{"".join(each)}</Relationships>'


def _types(parts: Sequence[tuple[str, str]]) -> str:
    each = (f'<Override PartName="{name}" ContentType="{_TYPES}.{kind}+xml"/>' for name, kind in parts)
    rels = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    xml = '<Default Extension="xml" ContentType="application/xml"/>'
    return f'{_XML}<Types xmlns="{_PACKAGE}/content-types">{rels}{xml}{"".join(each)}</Types>'
