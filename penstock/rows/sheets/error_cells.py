"""The cells of an xlsx file that hold an error (#DIV/0!, #N/A) made text: its reader takes them for empty ones, and an
empty price is another thing than one that could not be worked out."""

import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["errors_as_text"]

_CHUNK = 1 << 20
_QUICK = (b't="e"', b"t='e'")
_ERROR = re.compile(rb"""(<(?:\w+:)?c\s[^<>]*?\bt=["'])e(?=["'])""")


def errors_as_text(path: Path) -> BinaryIO | None:
    """Return a copy of a workbook with its errors as text. None: it has no errors, or is damaged, which its reader
    tells."""
    try:
        with zipfile.ZipFile(path) as packed:
            sheets = [entry for entry in packed.infolist() if entry.filename.startswith("xl/worksheets/")]
            if any(_has_error(packed, sheet) for sheet in sheets):
                return _rewritten(packed)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError):
        pass
    return None


def _has_error(packed: zipfile.ZipFile, sheet: zipfile.ZipInfo) -> bool:
    return any(any(sign in piece for sign in _QUICK) and _ERROR.search(piece) for piece in _pieces(packed, sheet))


def _rewritten(packed: zipfile.ZipFile) -> BinaryIO:
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as after:
        for entry in packed.infolist():
            with after.open(entry.filename, "w", force_zip64=True) as to:
                if entry.filename.startswith("xl/worksheets/"):
                    to.writelines(_ERROR.sub(rb"\1str", piece) for piece in _pieces(packed, entry))
                else:
                    with packed.open(entry) as part:
                        shutil.copyfileobj(part, to)
    copy.seek(0)
    return copy


def _pieces(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield what a part has in it, cut behind the end of a tag wherever one comes soon enough."""
    rest = b""
    with packed.open(entry) as part:
        while chunk := part.read(_CHUNK):
            piece = rest + chunk
            end = piece.rfind(b">") + 1 or len(piece)
            yield piece[:end]
            rest = piece[end:]
    yield rest
