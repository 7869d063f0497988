"""Looks at an xlsx file's directory before anything is unpacked: no bomb, no way out of it, no macros."""

import zipfile
from pathlib import Path, PurePosixPath

from penstock.rows.sheets.limits import BadSheet, SheetLimits

__all__ = ["check_xlsx"]

_MACROS = ("vbaProject.bin", "macrosheets/")
_SAVE_AS = "open it and save it as xlsx (Excel workbook), without macros and without a password"


def check_xlsx(path: Path, limits: SheetLimits) -> None:
    """Raise BadSheet unless the file is a plain xlsx within the limits. Nothing is unpacked but its directory."""
    try:
        with zipfile.ZipFile(path) as packed:
            entries = packed.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise BadSheet(f"not an xlsx file ({error}); {_SAVE_AS}") from error
    if len(entries) > limits.entries:
        raise BadSheet(f"{len(entries)} parts in the file, at most {limits.entries}")
    if "xl/workbook.xml" not in {entry.filename for entry in entries}:
        raise BadSheet(f"a zip file, but no xlsx (it has no xl/workbook.xml); {_SAVE_AS}")
    for entry in entries:
        _check_entry(entry, limits)
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > limits.unpacked_bytes:
        raise BadSheet(f"{unpacked} bytes unpacked, at most {limits.unpacked_bytes}; send it in parts")


def _check_entry(entry: zipfile.ZipInfo, limits: SheetLimits) -> None:
    name = entry.filename
    if name.startswith(("/", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts or ":" in name:
        raise BadSheet(f"a part {name[:80]!a} that leads out of the file")
    if any(sign in name for sign in _MACROS):
        raise BadSheet(f"it has macros ({name[:80]!a}); {_SAVE_AS}")
    if name.lower().endswith((".zip", ".xlsx", ".xlsm", ".jar")):
        raise BadSheet(f"an archive within the file ({name[:80]!a}); {_SAVE_AS}")
    if entry.file_size > 1024 * 1024 and entry.file_size > limits.ratio * max(1, entry.compress_size):
        raise BadSheet(f"{name[:80]!a} unpacks from {entry.compress_size} to {entry.file_size} bytes: a bomb")
