"""Parquet is read a batch of rows at a time, in the process that may die of it, into the cells of any other sheet."""

import datetime
import decimal
import math
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from penstock.rows.sheets.limits import BadSheet, SheetLimits
from penstock.rows.sheets.parsing import parse_sheet
from penstock.rows.sheets.reading import read_rows

ZONED = datetime.datetime(2026, 3, 1, 12, 30, 0, 250_000, datetime.timezone(datetime.timedelta(hours=8)))
MOMENT = ZONED.replace(tzinfo=None)
CELLS: list[tuple[Any, Sequence[Any], Sequence[Any]]] = [
    (pyarrow.string(), ["Größe", None, "=x"], ["Größe", "", "=x"]),
    (pyarrow.large_string(), ["a", "b", ""], ["a", "b", ""]),
    (pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), ["tea", "tea", None], ["tea", "tea", ""]),
    (pyarrow.bool_(), [True, False, None], [True, False, ""]),
    (pyarrow.int64(), [5, -(2**62), None], [5, -(2**62), ""]),
    (pyarrow.uint64(), [2**64 - 1, 0, None], [2**64 - 1, 0, ""]),
    (pyarrow.float64(), [0.5, 3.0, math.nan], [0.5, 3, ""]),
    (pyarrow.float32(), [0.5, 3.0, None], [0.5, 3, ""]),
    (
        pyarrow.decimal128(20, 2),
        [decimal.Decimal("123456789012345678.90"), None, 0],
        ["123456789012345678.90", "", "0.00"],
    ),
    (pyarrow.date32(), [MOMENT.date(), None, None], ["2026-03-01", "", ""]),
    (pyarrow.timestamp("ms"), [MOMENT, None, None], ["2026-03-01T12:30:00.250000", "", ""]),
    (pyarrow.timestamp("ns"), [MOMENT, None, None], ["2026-03-01T12:30:00.250000", "", ""]),
    (
        pyarrow.timestamp("us", "+08:00"),
        [ZONED, None, None],
        ["2026-03-01T04:30:00.250000+00:00", "", ""],
    ),
    (pyarrow.time64("ns"), [MOMENT.time(), None, None], ["12:30:00.250000", "", ""]),
    (pyarrow.duration("ns"), [datetime.timedelta(minutes=1.5), None, None], [90, "", ""]),
    (pyarrow.uuid(), [uuid.UUID(int=7).bytes, None, None], ["00000000-0000-0000-0000-000000000007", "", ""]),
    (pyarrow.null(), [None, None, None], ["", "", ""]),
]
PLAIN: dict[str, Any] = {"use_dictionary": False, "write_statistics": False}


def written(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    parquet.write_table(pyarrow.table(dict(columns)), path, **options)
    return path


async def rows_of(path: Path, limits: SheetLimits | None = None) -> list[Any]:
    return [row async for part in parse_sheet(path, limits=limits) for row in part]


async def refusal(path: Path, limits: SheetLimits | None = None) -> str:
    with pytest.raises(BadSheet) as told:
        await rows_of(path, limits)
    return str(told.value)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return written(tmp_path / "a.parquet", {"sku": ["a", "b"], "n": [1, 2]})


# ---- what is read


async def test_cells_are_those_of_any_other_sheet(tmp_path: Path) -> None:
    names = [f"{number} {kind}" for number, (kind, _, _) in enumerate(CELLS)]
    columns = {name: pyarrow.array(cells, kind) for name, (kind, cells, _) in zip(names, CELLS, strict=True)}
    columns["row"] = pyarrow.array([1, 2, 3])
    rows = await rows_of(written(tmp_path / "a.parquet", columns))
    assert [number for number, _ in rows] == [1, 2, 3]
    for name, (_, _, expected) in zip(names, CELLS, strict=True):
        assert [row[name] for _, row in rows] == list(expected), name


async def test_rows_come_in_order_over_row_groups_with_blank_ones_left_out(tmp_path: Path) -> None:
    numbers = [None if number in (7, 1500) else number for number in range(2_100)]
    path = written(tmp_path / "a.parquet", {"n": numbers}, row_group_size=600, compression="zstd")
    rows = await rows_of(path)
    assert [(number, row["n"]) for number, row in rows] == [
        (at, number) for at, number in enumerate(numbers, 1) if number is not None
    ]


@pytest.mark.parametrize("row_group", [40_000, 4_000], ids=["one group", "many groups"])
async def test_memory_does_not_grow_with_the_row_group(tmp_path: Path, row_group: int) -> None:
    texts = [f"{number:0750}" for number in range(40_000)]
    path = written(
        tmp_path / "a.parquet",
        dict.fromkeys("abcd", texts),
        row_group_size=row_group,
        **PLAIN,
    )
    count = sum([len(part) async for part in parse_sheet(path, limits=SheetLimits(memory_bytes=400 << 20))])
    assert count == 40_000  # 120 MB unpacked, beside the 340 that the reader takes by itself


# ---- what is refused


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (pyarrow.array([["a"], []]), "column B ('odd') is nested: list<"),
        (pyarrow.array([{"x": 1}, None]), "column B ('odd') is nested: struct<x: int64>"),
        (pyarrow.array([[("a", 1)], []], pyarrow.map_(pyarrow.string(), pyarrow.int64())), "is nested: map<string"),
        (pyarrow.array([b"\xff", b""]), "column B ('odd') holds binary; make it text, or leave it out"),
        (pyarrow.array([b"1234", b"5678"], pyarrow.binary(4)), "column B ('odd') holds fixed_size_binary[4]"),
        (pyarrow.array([0.5, math.inf]), "row 2, column B: inf is no number"),
        (pyarrow.array(["x" * 40_000, ""]), "row 1, 'odd': 40000 characters, at most 32767"),
        (pyarrow.array([2**62, 0], pyarrow.timestamp("ms")), "cannot be read: "),
        (pyarrow.array([b"\xff", b""]).cast(pyarrow.string(), safe=False), "cannot be read: "),
    ],
    ids=["list", "struct", "map", "bytes", "few bytes", "infinite", "long", "year", "no UTF-8"],
)
async def test_what_is_no_cell_is_told_by_its_column(tmp_path: Path, cells: Any, said: str) -> None:
    assert said in await refusal(written(tmp_path / "a.parquet", {"sku": ["a", "b"], "odd": cells}))


async def test_columns_of_one_name_are_told(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert "columns A and B are both called 'a'" in await refusal(tmp_path / "a.parquet")


async def test_what_is_more_than_allowed_is_known_from_the_files_end(small: Path) -> None:
    assert await refusal(small, SheetLimits(rows=1)) == "2 rows, at most 1; send it in parts"
    assert "columns, at most 1" in await refusal(small, SheetLimits(columns=1))
    assert "bytes unpacked, at most 10" in await refusal(small, SheetLimits(unpacked_bytes=10))


def changed(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(path.read_bytes()))
    return path


def short(data: bytes) -> bytes:
    return data[: len(data) // 2]


def without_end(data: bytes) -> bytes:
    return data[:-8]


def long_footer(data: bytes) -> bytes:
    return data[:-8] + (1 << 31).to_bytes(4, "little") + b"PAR1"


def odd_footer(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - size] + b"\xff" * size + data[-8:]


def one_row_more(data: bytes) -> bytes:
    """Change the file's own count of rows, the first of those in its end, from 77 to 78."""
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert data.count(b"\x16\x9a\x01", start) == 3  # 77 as thrift writes it: of the file, a row group, a column
    return data[:start] + data[start:].replace(b"\x16\x9a\x01", b"\x16\x9c\x01", 1)


def odd_pages(data: bytes) -> bytes:
    return data[:4] + b"\xff" * 40 + data[44:]


@pytest.mark.parametrize("damage", [short, without_end, long_footer, odd_footer, odd_pages])
async def test_a_damaged_file_is_told(small: Path, damage: Callable[[bytes], bytes]) -> None:
    said = await refusal(changed(small, damage))
    assert "cannot be read: " in said or "takes more memory than allowed" in said
    assert len(said) < 400


async def test_a_footer_that_lies_about_its_rows_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"n": list(range(77))}, compression="none")
    said = await refusal(changed(path, one_row_more))
    assert said == "77 rows, though the file's end speaks of 78; write it again"


async def test_a_row_group_that_unpacks_beyond_all_memory_ends_its_reader_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"n": ["x" * 100_000_000]}, compression="zstd", **PLAIN)
    assert path.stat().st_size < 1_000_000
    said = await refusal(path, SheetLimits(memory_bytes=400 << 20))
    assert "takes more memory than allowed" in said
    assert await rows_of(written(tmp_path / "b.parquet", {"n": [1]})) == [(1, {"n": 1})]


async def test_an_encrypted_file_is_told(small: Path) -> None:
    hidden = changed(small, lambda data: b"PARE" + data[4:-4] + b"PARE")
    assert await refusal(hidden) == "it is encrypted parquet; send xlsx, csv, jsonl or parquet"


async def test_without_its_package_it_says_what_to_install(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadSheet, match=r"pip install 'penstock\[parquet\]'; or send xlsx"):
        list(read_rows(small, "parquet", SheetLimits()))
