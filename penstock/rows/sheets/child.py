"""The reading process: `python -m penstock.rows.sheets.child PATH KIND LIMITS SHEET ENCODING`, memory and time bounded.

Writes lines of JSON to its standard output: `{"rows": [[number, {…}], …]}` some hundred at a time, of large rows fewer,
and at the end `{"count": N}` or `{"error": "…"}`. Whatever a file does to its reader, this process is all that it does
it to.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.rows.sheets.kinds import InputKind
from penstock.rows.sheets.limits import BadSheet, SheetLimits
from penstock.rows.sheets.reading import read_rows
from penstock.rows.sheets.rows import Row

AT_ONCE = 500
BYTES_AT_ONCE = 256 * 1024
"""Who reads a line decodes it in one turn of its loop, and holds it in memory."""


def main(arguments: list[str]) -> None:
    path, kind, raw_limits, sheet, encoding = arguments
    limits = msgspec.json.decode(raw_limits, type=SheetLimits)
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        rows = read_rows(Path(path), msgspec.convert(kind, InputKind), limits, sheet=sheet, encoding=encoding)
        _tell({"count": _tell_all(rows)})
    except BadSheet as error:
        _tell({"error": str(error)})
    except MemoryError:
        _tell({"error": "it takes more memory than allowed; send it in parts"})
    except Exception as error:  # an unforeseen error, whose trace would stand between the lines of the node's log
        _tell({"error": f"the file cannot be read: {type(error).__name__}: {str(error)[:300]}"})


def _tell_all(rows: Iterator[Row]) -> int:
    count, size, taken = 0, 0, list[msgspec.Raw]()
    for row in rows:
        encoded = msgspec.json.encode(row)
        taken.append(msgspec.Raw(encoded))
        size += len(encoded)
        if len(taken) == AT_ONCE or size >= BYTES_AT_ONCE:
            count += len(taken)
            _tell({"rows": taken})
            size, taken = 0, []
    if taken:
        _tell({"rows": taken})
    return count + len(taken)


def _tell(message: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
