"""Reads one file's rows, in this process. Only `child` calls it, and bounds its memory and time.

Unless its encoding is named, a csv file's text is UTF-8, UTF-16 with its mark, or GB 18030 (what Excel writes in
China), if that is likely. Any other text is an error that names the byte that does not fit. Its separator is the one of
a first line `sep=;`, or else the one that the header has most of. A quotation that never ends is an error.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import python_calamine

from actors.batch.rules.encodings import ENCODINGS
from actors.batch.rules.sheet_lines import FAULT, LINE
from actors.runtime.rules.depth import DEEPEST, is_too_deep
from penstock.rows.sheets.kinds import InputKind
from penstock.rows.sheets.limits import BadSheet, SheetLimits
from penstock.rows.sheets.odd_cells import odd_cells_as_text
from penstock.rows.sheets.parquet import read_parquet
from penstock.rows.sheets.rows import Row, handed_back, named_rows
from penstock.rows.sheets.zip_guard import check_xlsx

__all__ = ["read_rows"]

_SEPARATORS = (",", ";", "\t", "|")
_TOLD_SEPARATOR = re.compile(r'"?sep=([^\w"\s]|\t)"?\r?\n?', re.IGNORECASE)
"""Excel's own first line of a csv: no row, but what its cells are separated by."""
_QUOTED = re.compile(r'"[^"]*(?:"|$)')
_CHUNK = 1024 * 1024
_LEAST_COMMON = 0.8
_MOST_ODD, _LONGEST_LINE = 100, 1_000
"""Lines that are no JSON objects before the first one that is, and characters that are kept of such a line."""


def read_rows(
    path: Path, kind: InputKind, limits: SheetLimits, *, sheet: str = "", encoding: str = ""
) -> Iterator[Row]:
    """Yield the rows of a file, of a workbook those of the first or the named sheet. `encoding`: of a csv, one
    of ENCODINGS. Raises BadSheet."""
    return handed_back(_read(path, kind, limits, sheet, encoding), is_csv=kind == "csv")


def _read(path: Path, kind: InputKind, limits: SheetLimits, sheet: str, encoding: str) -> Iterator[Row]:
    if sheet and kind != "xlsx":
        raise BadSheet(f"a {kind} file has no sheets; leave the sheet {sheet[:80]!a} out")
    if encoding and kind != "csv" and (kind, encoding) != ("jsonl", "utf-8"):
        raise BadSheet(f"only a csv file has an encoding of its own, and this is {kind}; leave {encoding} out")
    match kind:
        case "xlsx":
            return named_rows(_xlsx(path, limits, sheet), limits)
        case "csv":
            return named_rows(_csv(path, limits, encoding), limits)
        case "jsonl":
            return _jsonl(path, limits)
        case "parquet":
            return read_parquet(path, limits)


def _xlsx(path: Path, limits: SheetLimits, sheet: str) -> Iterable[Sequence[object]]:
    check_xlsx(path, limits)
    try:
        book = python_calamine.CalamineWorkbook.from_object(odd_cells_as_text(path) or path)
        if not book.sheet_names:
            raise BadSheet("the workbook has no sheet")
        if sheet and sheet not in book.sheet_names:
            raise BadSheet(f"no sheet {sheet[:80]!a}; there are {', '.join(map(ascii, book.sheet_names[:20]))}")
        cells = book.get_sheet_by_name(sheet or book.sheet_names[0])
        left = cells.start[1] if cells.start else 0
        for line in cells.iter_rows():  # empty rows at the top are among them, empty columns at the left are not
            yield [*[""] * left, *line]
    except python_calamine.PasswordError as error:
        raise BadSheet("the workbook has a password; save it without one") from error
    except python_calamine.CalamineError as error:
        raise BadSheet(f"the workbook cannot be read: {error}") from error


def _csv(path: Path, limits: SheetLimits, encoding: str) -> Iterator[Sequence[object]]:
    csv.field_size_limit(4 * limits.cell_chars)
    with path.open(encoding=_codec(path, encoding), newline="") as file:
        first = file.readline(1_000_000)
        told = _TOLD_SEPARATOR.fullmatch(first)
        if told is None:
            file.seek(0)
        skipped = 0 if told is None else 1  # Excel does not show that line, nor count it
        separator = max(_SEPARATORS, key=_QUOTED.sub("", first).count) if told is None else told[1]
        lines = csv.reader(_without_nul(file, 1 + skipped), delimiter=separator, strict=True)
        try:
            yield from lines
        except csv.Error as error:
            number = lines.line_num + skipped
            hint = "is a quotation mark never closed? double those within a cell"
            raise BadSheet(f"line {number}: {error}; {hint}") from error


def _without_nul(file: io.TextIOBase, first: int) -> Iterator[str]:
    for number, line in enumerate(file, first):
        if "\0" in line:
            raise BadSheet(f"line {number}: a NUL character; this is no text")
        yield line


def _codec(path: Path, encoding: str) -> str:
    with path.open("rb") as file:
        start = file.read(4)
    if encoding:
        codec = ENCODINGS[encoding]
        if codec == "utf-16" and not start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            codec = "utf-16-be" if start.startswith(b"\0") else "utf-16-le"
        fault = _fault(path, codec)
        if fault is not None:
            raise BadSheet(
                f"its text is not {encoding} at byte {fault}; name its own encoding, or save it as CSV UTF-8"
            )
        return codec
    if start.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    faults = []
    for name in ("utf-8", "gb18030"):
        fault = _fault(path, name)
        if fault is None and (name == "utf-8" or _is_likely(path)):
            return name
        faults.append(
            f"{name} at byte {fault}" if fault is not None else f"{name}, in which it would be of rare characters"
        )
    raise BadSheet(f"its text is neither {' nor '.join(faults)}; save it as CSV UTF-8, or name its encoding")


def _fault(path: Path, encoding: str) -> int | None:
    """Return the place of the first byte that does not fit the encoding, None if all do."""
    decoder, place = codecs.getincrementaldecoder(encoding)(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            held = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                return place - held + error.start
            place += len(chunk)
    return None


def _is_likely(path: Path) -> bool:
    """Return whether text in GB 18030 is meant so: Chinese text is nearly all of the 6,763 characters of GB 2312, while
    the pairs of bytes that most other encodings make are of the others. (Those of Korea and of Japan's EUC
    are not: it stays a guess, and is told.)"""
    decoder, others, common = codecs.getincrementaldecoder("gb18030")(), 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            text = decoder.decode(chunk).replace("\u2014", "").replace("\u00b7", "")  # Python's GB 2312 has not these
            plain = len(text.encode("ascii", "ignore"))
            others += len(text) - plain
            common += (len(text.encode("gb2312", "ignore")) - plain) // 2
    return common >= others * _LEAST_COMMON


def _jsonl(path: Path, limits: SheetLimits) -> Iterator[Row]:
    """Yield the rows. A line that is no object has a fault, once another line has shown that this is a jsonl."""
    decode = msgspec.json.Decoder(dict[str, object]).decode
    odd: list[Row] | None = []
    with path.open("rb") as file:
        count = 0
        for number, line in enumerate(_lines(file, limits), 1):
            if not line.strip():
                continue
            count += 1
            if count > limits.rows:
                raise BadSheet(f"line {number}: more than {limits.rows} rows; send it in parts")
            try:
                cells = {name: "" if value is None else value for name, value in decode(line).items()}
                if is_too_deep(line, DEEPEST - 1):  # its number stands around it
                    raise RecursionError(f"nested more deeply than {DEEPEST - 1} levels")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                text = line.decode("utf-8", "replace").strip()[:_LONGEST_LINE]
                cells = {LINE: text, FAULT: f"no JSON object ({error})"}
                if odd is not None:
                    odd.append((number, cells))
                    if len(odd) > _MOST_ODD:
                        break
                    continue
            yield from odd or ()
            odd = None
            yield number, cells
    if odd:
        raise BadSheet(f"line {odd[0][0]}: {odd[0][1][FAULT]}; a jsonl has an object on each line")


def _lines(file: io.BufferedReader, limits: SheetLimits) -> Iterator[bytes]:
    most = 4 * limits.cell_chars * 8
    number = 0
    while line := file.readline(most + 1):
        number += 1
        if len(line) > most:
            raise BadSheet(f"line {number}: longer than {most} bytes")
        yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
