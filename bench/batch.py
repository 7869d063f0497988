"""How fast two workers take a million no-op items from the split to the reduced result, and a sheet through it all.

Beside it, in the same run: two workers on bare nats-py that take a message for each item, and store a message for each
end. It also measures what reading and writing that sheet costs alone, since that is not ours to make faster.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import xlsxwriter
from msgspec import Raw

from actors.batch.desk import BatchDesk
from actors.batch.instances import Instances
from actors.batch.items import BatchItems
from actors.batch.tasks import Tasks
from actors.batch.views import View
from bench import _batch_theirs
from bench._fetch import Bench, fetch_bench
from bench._quiet import memory_mb
from bench.harness import Result, two_of
from penstock.rows.sheets.parsing import parse_sheet
from penstock.rows.sheets.writing import open_sheet
from streams.buckets.files import Files
from streams.clock import SYSTEM, monotonic_s
from streams.messages.batch import NewBatch

NAME = "batch"
LIMIT_S = 240
REACH = 100_000
ITEMS, ROWS = 1_000_000, 100_000
THEIRS = 40_000
MOST_MB = 250
SHEET_S, OWN_S = 20.0, 3.0
LOOK_S = 0.02


async def run() -> Result:
    """A node that conducts and two workers, each a process of its own, on one server."""
    async with fetch_bench() as bench:
        pids = {"node": (await bench.node("node1", "--roles", "conductor")).pid}
        for name in ("worker1", "worker2"):
            pids[name] = (await bench.node(name, "--roles", "executor", "--app", "bench._batch_app")).pid
        async with open_desk(bench) as desk:
            await _run(desk, "noop", {"items": 20_000})
            took_s, view = await _run(desk, "noop", {"items": ITEMS})
            is_whole = view.result == {"total": ITEMS} and view.counts.succeeded == ITEMS
            megabytes = {name: memory_mb(pid) for name, pid in pids.items()}
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
                path = Path(folder) / "rows.xlsx"
                await anyio.to_thread.run_sync(_make_sheet, path)
                alone_s = await _alone(path)
                sheet_s, sheet = await _run(desk, "sheet", None, path)
            is_whole = is_whole and sheet.counts.succeeded == ROWS
        theirs = await _theirs(bench)
    rate = ITEMS / took_s
    most_mb = max(megabytes.values())
    return Result(
        what="items of a batch of a million, split to reduced, by two workers",
        ours=round(rate),
        theirs=round(theirs),
        ratio=round(rate / theirs, 2),
        target=f">= {REACH:,}/s, <= {MOST_MB} MB a process; {ROWS:,} rows xlsx to xlsx <= {SHEET_S:g} s, ours of it <= "
        f"{OWN_S:g} s",
        ok=is_whole and rate >= REACH and most_mb <= MOST_MB and sheet_s <= SHEET_S and sheet_s - alone_s <= OWN_S,
        unit=" items/s",
        more={
            "is_whole": is_whole,
            "sheet_s": round(sheet_s, 1),
            "sheet_read_and_write_alone_s": round(alone_s, 1),
            **{f"{name}_mb": round(value) for name, value in megabytes.items()},
        },
    )


@asynccontextmanager
async def open_desk(bench: Bench) -> AsyncIterator[BatchDesk]:
    """Open a desk of this process's own, which follows the records until the block ends."""
    tasks, instances = Tasks(bench.bucket("TASKS")), Instances(bench.bucket("INSTANCES"))
    async with anyio.create_task_group() as following:
        await following.start(tasks.run)
        await following.start(instances.run)
        yield BatchDesk(
            tasks=tasks,
            instances=instances,
            items=BatchItems(bench.connection, bench.publisher),
            files=Files(bench.connection, bench.publisher, bench.connection.namespace.bucket("FILES")),
            beats=bench.bucket("BEATS"),
            clock=SYSTEM,
        )
        following.cancel_scope.cancel()


async def _run(
    desk: BatchDesk, task: str, given: Mapping[str, int] | None, path: Path | None = None
) -> tuple[float, View]:
    """Submit an instance and wait for its end. Return how long both took."""
    began_s = monotonic_s()
    upload = _parts(path) if path is not None else None
    view = await desk.submit(
        NewBatch(task=task, input=Raw(msgspec.json.encode(given)), name="rows.xlsx"), upload=upload
    )
    while not view.is_over:
        await anyio.sleep(LOOK_S)
        view = await desk.show(view.instance_id)
    if view.state != "done":
        raise AssertionError(f"{task} ended as {view.state}: {view.reason}")
    return monotonic_s() - began_s, view


async def _theirs(bench: Bench) -> float:
    """Return how many items a second two workers on bare nats-py take, from the first that is stored to the last
    end."""
    await _batch_theirs.prepare(bench.connection)
    async with two_of(_batch_theirs.__name__, bench.url):
        began_s = monotonic_s()
        await _batch_theirs.split(bench.url, THEIRS)
        await _batch_theirs.until_ended(bench.connection, THEIRS)
        return THEIRS / (monotonic_s() - began_s)


async def _parts(path: Path) -> AsyncIterator[bytes]:
    async with await anyio.open_file(path, "rb") as file:
        while part := await file.read(1 << 20):
            yield part


def _make_sheet(path: Path) -> None:
    with xlsxwriter.Workbook(str(path), {"constant_memory": True}) as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["sku", "name", "price", "stock", "active"])
        for row in range(1, ROWS + 1):
            sheet.write_row(row, 0, [f"SKU-{row:06}", f"product number {row}", row / 100, row % 50, "yes"])


async def _alone(path: Path) -> float:
    """Return how long the sheet takes to be read, and one with two columns more to be written, and nothing else."""
    began_s = monotonic_s()
    with open_sheet(
        path.with_name("out.xlsx"), "xlsx", ["row", "sku", "name", "price", "stock", "active", "status"]
    ) as out:
        async for rows in parse_sheet(path):
            await anyio.to_thread.run_sync(
                out.write, [{"row": number, **cells, "status": "succeeded"} for number, cells in rows]
            )
    return monotonic_s() - began_s
