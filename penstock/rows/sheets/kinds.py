"""Which kind of sheet a file is: by what is in it, never by its name alone."""

import codecs
import re
from pathlib import Path
from typing import Literal

from actors.batch.rules.encodings import known_encoding, unknown_encoding
from actors.batch.rules.sheet_lines import SheetKind
from penstock.rows.sheets.limits import BadSheet

__all__ = ["GUESSED", "MARKED", "InputKind", "SheetKind", "check_encoding", "kind_of"]

InputKind = SheetKind | Literal["parquet"]
"""What is read."""
GUESSED = "its text was read as GB 18030; if letters are wrong, hand it in again and name its encoding"
MARKED = (b"PK", b"PAR1", codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The first bytes of files that name their own format."""
_OLE = b"\xd0\xcf\x11\xe0"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_OTHERS = {b"%PDF": "a PDF", b"\x1f\x8b": "packed with gzip", b"Rar!": "a rar archive", b"PARE": "encrypted parquet"}


def check_encoding(name: str) -> str:
    """Return the name of an encoding in small letters. Raises BadSheet."""
    known = known_encoding(name)
    if known is None:
        raise BadSheet(unknown_encoding(name))
    return known


def kind_of(path: Path, name: str = "", encoding: str = "") -> InputKind:
    """Return the kind of the file at `path`. `name`: the name that its sender gave it. `encoding`: of a csv, as
    `check_encoding` returns it. Raises BadSheet."""
    with path.open("rb") as file:
        start = file.read(4096)
    if not start:
        raise BadSheet("the file is empty; its first row has to name the columns")
    if start.startswith(_ZIP):
        return "xlsx"
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(_OLE):
        raise BadSheet("an old xls file, or one with a password; open it and save it as xlsx without a password")
    for sign, what in _OTHERS.items():
        if start.startswith(sign):
            raise BadSheet(f"it is {what}; send xlsx, csv, jsonl or parquet")
    if name.lower().endswith((".xlsx", ".xlsm", ".xls")):
        raise BadSheet(f"called {name[-40:]!a}, but no workbook is in it; save it as xlsx, or name it .csv")
    is_utf16 = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or encoding == "utf-16"
    if b"\0" in start and not is_utf16:
        raise BadSheet("neither text nor xlsx; send xlsx, csv or jsonl, and name the encoding of a text in UTF-16")
    text = start.decode("utf-16" if is_utf16 else "utf-8-sig", "ignore").lstrip()
    if text.startswith("{") and not is_utf16:
        return "jsonl"
    if re.match(r"[{]|\[\s*[{\[]", text) or name.lower().endswith((".jsonl", ".ndjson", ".json")):
        raise BadSheet("it is no jsonl: that is UTF-8, with an object on each line and no array around them")
    return "csv"
