"""The limits of a sheet, and the errors for a file that exceeds them or is no sheet. Pure.

An uploaded file is hostile until it has been read: a few kilobytes may unpack to gigabytes, claim a million columns, or
be another kind of file under a friendly name. `zip_guard` checks first what can be known without unpacking. The memory
and the time of the reading process bound the rest (`child`).
"""

import msgspec

__all__ = ["BadSheet", "ReaderEnded", "SheetLimits", "too_large"]


class BadSheet(ValueError):
    """A sheet that is not read. The message says where (row, column, part of the file), what, and what to do."""


class ReaderEnded(BadSheet):
    """The process that reads the sheet has ended. Another try may come to the sheet's end."""


class SheetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one sheet. Sizes are in bytes."""

    rows: int = 1_048_576
    """Rows below the header: what a sheet of Excel holds."""
    columns: int = 1_000
    cell_chars: int = 32_767
    """Excel's own limit of a cell."""
    file_bytes: int = 200 * 1024 * 1024
    unpacked_bytes: int = 2 * 1024 * 1024 * 1024
    """A million rows of twenty columns unpack to about one gigabyte."""
    ratio: int = 100
    """Unpacked size by packed size. Honest sheets stay below thirty."""
    entries: int = 1_000
    memory_bytes: int = 4 * 1024 * 1024 * 1024
    """Address space of the reading process."""
    seconds: int = 600
    """Processor time of the reading process."""


def too_large(row: int, size: int, most: int) -> str:
    """Return why a row becomes no item."""
    return f"row {row}: {size} bytes, at most {most}; put what is large into a file, and its name into the row"
