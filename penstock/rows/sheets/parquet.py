"""Reads a parquet file's rows, some hundred at a time and however large its row groups are. For `child` alone.

pyarrow is an extra (`penstock[parquet]`), so it is imported when such a file comes. Cells become the same values as
those of the other kinds: text, numbers, booleans. Moments become ISO 8601, those with a zone in UTC. Durations become
seconds. Decimals become text, to the last digit. Null and NaN become empty. Bytes and nested columns are refused, and
the error names the column.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.rows.sheets.limits import BadSheet, SheetLimits
from penstock.rows.sheets.rows import Row, letters_of, named_rows

__all__ = ["read_parquet"]

AT_ONCE = 500
BUFFER = 1 << 20
MOST_SAID = 300
INSTALL = "it is parquet, which is read with a package that is not installed here: pip install 'penstock[parquet]'"


def read_parquet(path: Path, limits: SheetLimits) -> Iterator[Row]:
    """Yield the rows, numbered from 1. Raises BadSheet."""
    return named_rows(_lines(path, limits), limits, first=0)


def _lines(path: Path, limits: SheetLimits) -> Iterator[Sequence[object]]:
    try:
        import pyarrow
        from pyarrow import compute, parquet
    except ImportError as error:
        raise BadSheet(f"{INSTALL}; or send xlsx, csv or jsonl") from error
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    try:
        file = parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True)
        _check_footer(file.metadata, limits)
        plain = [_plain(pyarrow, compute.CastOptions, column, at) for at, column in enumerate(file.schema_arrow)]
        yield file.schema_arrow.names
        count = 0
        for batch in file.iter_batches(batch_size=AT_ONCE, use_threads=False):
            columns = [read(column) for read, column in zip(plain, batch.columns, strict=True)]
            for at, line in enumerate(zip(*columns, strict=True), count + 1):
                yield _finite(at, line)
            count += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, BadSheet | MemoryError):
            raise
        raise BadSheet(f"the parquet file cannot be read: {str(error)[:MOST_SAID]}; was it sent whole?") from error
    if count != file.metadata.num_rows:
        raise BadSheet(f"{count} rows, though the file's end speaks of {file.metadata.num_rows}; write it again")


def _check_footer(told: Any, limits: SheetLimits) -> None:
    """Check the numbers at the file's end before anything is unpacked. They may be false: rows are counted again."""
    if told.num_rows > limits.rows:
        raise BadSheet(f"{told.num_rows} rows, at most {limits.rows}; send it in parts")
    unpacked = sum(told.row_group(number).total_byte_size for number in range(told.num_row_groups))
    if unpacked > limits.unpacked_bytes:
        raise BadSheet(f"{unpacked} bytes unpacked, at most {limits.unpacked_bytes}; send it in parts")


def _plain(pyarrow: Any, options: Any, column: Any, at: int) -> Callable[[Any], list[object]]:
    """Return how a column's cells are read. Raises BadSheet for a type that is no cell."""
    types, kind = pyarrow.types, column.type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_timestamp(kind):
        zone = None if kind.tz is None else "UTC"
        return _cast(options(pyarrow.timestamp("us", zone), allow_time_truncate=True))
    if types.is_time(kind):
        return _cast(options(pyarrow.time64("us"), allow_time_truncate=True))
    if types.is_duration(kind):
        return _cast(options(pyarrow.duration("us"), allow_time_truncate=True))
    if not any(is_one(kind) for is_one in _cells(types)) and kind != pyarrow.uuid():
        name, where = column.name[:80], letters_of(at)
        if types.is_nested(kind):
            raise BadSheet(f"column {where} ({name!a}) is nested: {str(kind)[:80]}; make it flat, or send jsonl")
        raise BadSheet(f"column {where} ({name!a}) holds {str(kind)[:80]}; make it text, or leave it out")
    return lambda cells: cells.to_pylist()


def _cells(types: Any) -> list[Callable[[Any], bool]]:
    text = [types.is_string, types.is_large_string, types.is_string_view]
    return [
        *text,
        types.is_boolean,
        types.is_integer,
        types.is_floating,
        types.is_decimal,
        types.is_date,
        types.is_null,
    ]


def _cast(options: Any) -> Callable[[Any], list[object]]:
    """Return how moments are read: to the microsecond, which is as fine as Python's are."""
    return lambda cells: cells.cast(options=options).to_pylist()


def _finite(at: int, line: Sequence[object]) -> Sequence[object]:
    """Return the cells without NaN, which writers put where there is no number. Raises BadSheet for an infinite one."""
    if all(not isinstance(cell, float) or math.isfinite(cell) for cell in line):
        return line
    for place, cell in enumerate(line):
        if isinstance(cell, float) and math.isinf(cell):
            raise BadSheet(f"row {at}, column {letters_of(place)}: {cell} is no number that can be told on")
    return [None if isinstance(cell, float) and math.isnan(cell) else cell for cell in line]
