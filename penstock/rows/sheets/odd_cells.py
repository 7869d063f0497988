"""The cells of an xlsx file that hold an error (#DIV/0!, #N/A), or a formula without a value, made text: its reader
takes them for empty ones, and an empty price is another thing than one that was not, or could not be, worked out.

Excel stores an empty text that a formula has as a value of the type `str`. Programs that write a formula and do not
work it out store an empty value without a type, or none."""

import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from penstock.rows.sheets.rows import NO_VALUE

__all__ = ["odd_cells_as_text"]

_CHUNK = 1 << 20
_CELL_END, _LAST = re.compile(rb"</(?:\w+:)?c\s*>"), 1 << 17
"""A cell has up to 32,767 characters, and its formula up to 8,192."""
_QUICK = (b't="e"', b"t='e'", b"<f", b":f")
_ERROR = re.compile(rb"""(<(?:\w+:)?c\s[^<>]*?\bt=["'])e(?=["'])""")
_NO_VALUE = re.compile(
    rb"""<(?P<p>\w+:|)c(?P<facts>(?:\s(?!t\s*=)[\w:]+\s*=\s*(?:"[^"<]*"|'[^'<]*'))*)\s*>\s*"""
    rb"""(?P<f><(?P=p)f(?:\s[^<>]*)?(?:/>|>[^<]*</(?P=p)f>))\s*"""
    rb"""(?:<(?P=p)v\s*/>\s*|<(?P=p)v\s*>\s*</(?P=p)v>\s*|)</(?P=p)c\s*>"""
)
_MARKED = rb"<\g<p>c\g<facts> t='str'>\g<f><\g<p>v>" + NO_VALUE.encode() + rb"</\g<p>v></\g<p>c>"


def odd_cells_as_text(path: Path) -> BinaryIO | None:
    """Return a copy of a workbook with its odd cells as text. None: it has none, or is damaged, which its reader
    tells."""
    with suppress(zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError):
        with zipfile.ZipFile(path) as packed:
            sheets = [entry for entry in packed.infolist() if entry.filename.startswith("xl/worksheets/")]
            if any(_has_odd_cell(packed, sheet) for sheet in sheets):
                return _rewritten(packed)
    return None


def _has_odd_cell(packed: zipfile.ZipFile, sheet: zipfile.ZipInfo) -> bool:
    return any(
        any(sign in piece for sign in _QUICK) and (_ERROR.search(piece) or _NO_VALUE.search(piece))
        for piece in _pieces(packed, sheet)
    )


def _rewritten(packed: zipfile.ZipFile) -> BinaryIO:
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as after:
        for entry in packed.infolist():
            with after.open(entry.filename, "w", force_zip64=True) as to:
                if entry.filename.startswith("xl/worksheets/"):
                    to.writelines(
                        _NO_VALUE.sub(_MARKED, _ERROR.sub(rb"\1str", piece)) for piece in _pieces(packed, entry)
                    )
                else:
                    with packed.open(entry) as part:
                        shutil.copyfileobj(part, to)
    copy.seek(0)
    return copy


def _pieces(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield what a part has in it, cut behind the end of a cell, or of a tag, wherever one comes soon enough."""
    rest = b""
    with packed.open(entry) as part:
        while chunk := part.read(_CHUNK):
            piece = rest + chunk
            end = max((at.end() for at in _CELL_END.finditer(piece, max(0, len(piece) - _LAST))), default=0)
            end = end or piece.rfind(b">") + 1 or len(piece)
            yield piece[:end]
            rest = piece[end:]
    yield rest
