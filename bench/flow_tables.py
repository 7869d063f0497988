"""A campaign over 1,000 tables of a real database: 40,000 rows loaded each 5 s, and executed at 8,000 a second.

Three nodes load and execute, in SQLite, and in PostgreSQL where it is installed. Each round has to load what was
executed since the round before, no row is executed twice, and none is left at the end. `FLOW_TABLES_S=40` is the
short form: of 40 s of rows, those of the first 20 s and the last 5 s do not count."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec

from actors.flow.flows import FlowProgress, RoundReport
from bench._fetch import Bench, fetch_bench
from bench._flow_tables_app import NOTE, RATE, TABLES, connect, make
from bench.harness import Result
from streams.clock import monotonic_s
from tests.support.postgres import find_programs, postgres_server

NAME = "flow_tables"
LIMIT_S = 600
STEADY_S = float(os.environ.get("FLOW_TABLES_S", "60"))
EVERY_S = 5
WARM_ROUNDS = 4
"""Rounds at the start that do not count: the first one loads for the lead, too, and the next ones make up for it."""
NODES = ("node1", "node2", "node3")
ROLES = ("--roles", "worker,timer,desk", "--sink", "none", "--app", "bench._flow_tables_app")


class Run(msgspec.Struct):
    """What was measured over one database. `off`: by how much the loads of each interval differ from what was executed
    in it, as a part of that. `unheard`: loads of these intervals that failed, or did not answer in time. `cpu_s`: cores
    that all nodes use. `news`: what each round loaded, from the first one on."""

    loaded: list[int]
    executed: list[int]
    off: float
    twice: int
    left: int
    took_ms: list[int]
    unheard: int
    cpu_s: float
    news: list[int]

    @property
    def is_ok(self) -> bool:
        return self.off <= 0.01 and not self.twice and not self.left and not self.unheard and len(self.loaded) > 0


async def run() -> Result:
    """Measure over each database that is there."""
    runs: dict[str, Run] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for name in os.environ.get("FLOW_TABLES_ON", "sqlite,postgresql").split(","):
            with _database(name, Path(folder)) as address:
                if address:
                    runs[name] = await _campaign(address)
    worst = max(runs.values(), key=lambda each: each.off)
    return Result(
        what=f"a campaign over {TABLES} tables ({', '.join(runs)}), rows loaded in an interval beside those executed",
        ours=round(100 * worst.off, 2),
        ratio=round(sum(worst.loaded) / max(1, sum(worst.executed)), 4),
        unit="% off",
        target=f"{RATE * EVERY_S:,.0f} rows each {EVERY_S} s, each interval within 1 %, 0 rows twice, 0 left behind",
        ok=all(each.is_ok for each in runs.values()),
        more={
            f"{name}_{figure}": value
            for name, each in runs.items()
            for figure, value in {
                "loaded": each.loaded,
                "executed": each.executed,
                "loaded_from_the_start": each.news,
                "off_percent": round(100 * each.off, 2),
                "rows_twice": each.twice,
                "rows_left": each.left,
                "round_took_ms": round(statistics.median(each.took_ms)) if each.took_ms else 0,
                "shards_unheard": each.unheard,
                "node_cores": round(each.cpu_s, 2),
            }.items()
        },
    )


@contextmanager
def _database(name: str, folder: Path) -> Iterator[str]:
    """Run a database. Yield its address, empty if it is not installed."""
    if name == "sqlite":
        yield str(folder / "tables.db")
    elif find_programs() is not None:
        with postgres_server() as server:
            yield server.url
    else:
        yield ""


async def _campaign(address: str) -> Run:
    rows = round(RATE * STEADY_S / TABLES)
    await anyio.to_thread.run_sync(make, address, rows)
    async with fetch_bench() as bench:
        os.environ["FLOW_TABLES_DB"], os.environ["FLOW_TABLES_DIR"] = address, str(bench.folder)
        for node in NODES:
            await bench.node(node, *ROLES)
        rounds = await _rounds(bench, address, rows)
        calls = _calls(bench.folder)
        cpu_s = sum(_cpu_s(each.pid) for each in bench.nodes) / (len(rounds) * EVERY_S)
    pairs = [
        (before.began_ms, after)
        for before, after in zip(rounds[WARM_ROUNDS - 1 :], rounds[WARM_ROUNDS:], strict=False)
        if not after.short
    ]  # at the end the tables run out of rows
    loaded = [after.new for _, after in pairs]
    executed = [
        sum(count for at_ms, count, _ in calls if from_ms <= at_ms < after.began_ms) for from_ms, after in pairs
    ]
    return Run(
        loaded,
        executed,
        max((abs(new / max(1, ran) - 1) for new, ran in zip(loaded, executed, strict=True)), default=1.0),
        sum(count - changed for _, count, changed in calls),
        _left(address),
        [after.took_ms for _, after in pairs],
        sum(after.failed + after.silent for _, after in pairs),
        cpu_s,
        [each.new for each in rounds],
    )


async def _rounds(bench: Bench, address: str, rows: int) -> list[RoundReport]:
    """Return the rounds until all rows were executed, or nothing was for a while."""
    found: dict[int, RoundReport] = {}
    flows, moved_s, left = bench.bucket("FLOWS"), monotonic_s(), rows * TABLES
    while left and monotonic_s() < moved_s + 4 * EVERY_S:
        await anyio.sleep(1)
        entry = await flows.get("tables.round")
        if entry is not None:
            found |= {each.began_ms: each for each in msgspec.json.decode(entry.raw, type=FlowProgress).rounds}
        now = rows * TABLES - sum(changed for _, _, changed in _calls(bench.folder))
        if now < left:
            left, moved_s = now, monotonic_s()
    return [found[began_ms] for began_ms in sorted(found)]


def _calls(folder: Path) -> list[tuple[int, int, int]]:
    return [call for path in folder.glob("*.notes") for call in NOTE.iter_unpack(path.read_bytes())]


def _left(address: str) -> int:
    db = connect(address)
    left = sum(int(db.execute(f"SELECT count(*) FROM rows_{n} WHERE done = 0").fetchone()[0]) for n in range(TABLES))
    db.close()
    return left


def _cpu_s(pid: int) -> float:
    """Return the seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
