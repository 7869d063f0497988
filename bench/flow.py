"""How even a flow's rate is: 500 and 8,000 rows a second over four nodes, out of the tables of a SQLite file.

At 500 a second two nodes then join, two are killed, the governor is killed, and the next one is stopped for 20 s.
Beside it, at the same joins and deaths, machines that each pace themselves by a share from a configured number of
machines. `FLOW_BENCH_ON=slow,theirs python -m bench flow --svg FILE` measures that part, and draws its chart.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from bisect import bisect_left
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio.abc import Process

from actors.flow.governor import LEASE
from bench._fetch import Bench, fetch_bench
from bench._flow_app import NOTE, RATES, TABLES, make
from bench.harness import Result
from penstock.demo.processes import NodeProcess
from streams.buckets.lease import read_record
from streams.clock import monotonic_s

NAME = "flow"
LIMIT_S = 400
NODES = ("node1", "node2", "node3", "node4")
STEADY_S = float(os.environ.get("FLOW_BENCH_S", "60"))
PARTS = frozenset(os.environ.get("FLOW_BENCH_ON", "slow,fast,theirs").split(","))
WARM_S = 8.0
"""Seconds until the governor has dealt, and the first rows are there."""
CHANGE_S = 8.0
BACK_S = 3.0
GOVERNOR_BACK_S = 5.0
STOPPED_S = 20.0
ROLES = ("--roles", "worker,timer,desk", "--sink", "none", "--app", "bench._flow_app")


async def run() -> Result:
    """Measure both rates one after the other, then the changes, and the machines with a configured share."""
    seconds, tenths = dict[str, list[int]](), dict[str, list[int]]()
    changes, twice = _Changes({}, 0.0, 0.0), 0
    theirs: list[int] = []
    async with fetch_bench() as bench:
        os.environ["FLOW_BENCH"] = str(bench.folder)
        for name in PARTS & RATES.keys():
            rows = RATES[name] * (STEADY_S + WARM_S + 20 * CHANGE_S) / TABLES[name]
            await anyio.to_thread.run_sync(make, name, int(rows) + 1)
        for node in NODES if PARTS & RATES.keys() else ():
            await bench.node(node, *ROLES)
        if "slow" in PARTS:
            seconds["slow"], tenths["slow"] = await _steady(bench, "slow")
            changes = await _changes(bench, "slow")
            (bench.folder / "slow.go").unlink()
            await bench.node("node7", *ROLES)  # with the three that are left
        if "fast" in PARTS:
            seconds["fast"], tenths["fast"] = await _steady(bench, "fast")
        for name in seconds:
            twice += _twice(bench.folder, name)
        if "theirs" in PARTS:
            theirs = await _theirs(bench.folder)
    off = {name: _off(counts, RATES[name]) for name, counts in seconds.items()}
    tenth_off = {name: _off(counts, RATES[name] / 10) for name, counts in tenths.items()}
    over = max((max(counts) for counts in changes.seconds.values()), default=RATES["slow"]) - RATES["slow"]
    return Result(
        what=f"a flow's rate over four nodes, the widest second ({', '.join(sorted(PARTS))})",
        ours=round(100 * max(off.values(), default=0.0), 2),
        theirs=round(100 * _off(theirs, RATES["slow"]), 1) if theirs else None,
        unit="% off",
        target="each second within 1 %, each 100 ms within 10 %, joins and kills: at most one a live node above in any "
        f"second, back within 5 % in {BACK_S:g} s, {GOVERNOR_BACK_S:g} s after the governor's death, 0 rows twice",
        ok=max(off.values(), default=0.0) <= 0.01
        and max(tenth_off.values(), default=0.0) <= 0.1
        and over <= len(NODES) + 2
        and changes.back_s <= BACK_S
        and changes.governed_s <= GOVERNOR_BACK_S
        and not twice,
        more={
            **{f"{name}_seconds_least_most": [min(counts), max(counts)] for name, counts in seconds.items()},
            **{f"{name}_seconds_off_percent": round(100 * each, 2) for name, each in off.items()},
            **{f"{name}_100_ms_off_percent": round(100 * each, 1) for name, each in tenth_off.items()},
            **{f"{name}_100_ms_beyond": _beyond(counts, RATES[name] / 10) for name, counts in tenths.items()},
            **{f"{name}_seconds": counts for name, counts in seconds.items()},
            "changes_most_above": over,
            "changes_back_s": round(changes.back_s, 1),
            "governor_back_s": round(changes.governed_s, 1),
            "changes_seconds": changes.seconds,
            "theirs_seconds": theirs,
            "rows_twice": twice,
            "steady_s": STEADY_S,
        },
    )


def draw(result: Result, file: Path) -> None:
    """Draw the seconds before, while and after nodes join and die, and beside them those of the machines with a
    configured share (`penstock[charts]`)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    ours, theirs = figure.subplots(2, 1, sharey=True)
    parts = {"four nodes": result.more["slow_seconds"][-10:], **result.more["changes_seconds"]}
    machines = dict(zip(("four machines", "six", "two"), _threes(result.more["theirs_seconds"]), strict=False))
    for axes, title, some in (
        (ours, "a flow with a rate of 500 rows a second", parts),
        (theirs, "machines that each have a quarter of 500, from a configured number of four", machines),
    ):
        counts = [count for part in some.values() for count in part]
        axes.stairs(counts, fill=True, color="#9ecae1")
        axes.axhline(RATES["slow"], color="#d94801", linewidth=1.5)
        at = 0
        for what, part in some.items():
            axes.axvline(at, color="#636363", linewidth=0.8, linestyle=":")
            axes.text(
                at + 0.01 * len(counts),
                790,
                what,
                fontsize=8,
                va="top",
                rotation=0 if 8 * len(part) > len(counts) else 90,
            )
            at += len(part)
        axes.set(title=title, ylabel="rows a second", xlim=(0, len(counts)), ylim=(0, 800))
    theirs.set(xlabel="seconds")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": NAME}):
        figure.savefig(file, format="svg", metadata={"Date": None})


def _threes(counts: list[int]) -> list[list[int]]:
    return [counts[at : at + 3] for at in range(0, len(counts), 3)]


async def _steady(bench: Bench, name: str) -> tuple[list[int], list[int]]:
    """Return the rows of each second, and of each 100 ms, once the flow runs."""
    (bench.folder / f"{name}.go").touch()
    notes = bench.folder / f"{name}.notes"
    while not notes.exists():  # noqa: ASYNC110 # a file tells nobody that it is there
        await anyio.sleep(0.05)
    await anyio.sleep(WARM_S)
    began_s = monotonic_s()
    await anyio.sleep(STEADY_S)
    begun = _Begun(notes)
    return begun.each(began_s, STEADY_S, 1.0), begun.each(began_s, STEADY_S, 0.1)


class _Changes(NamedTuple):
    """The rows of each second, by what happened at its beginning, and after how long the rate was back, at the most: of
    joins and deaths, and of the governor."""

    seconds: dict[str, list[int]]
    back_s: float
    governed_s: float


async def _changes(bench: Bench, name: str) -> _Changes:
    """Let two nodes join, kill two, kill the governor, and stop the next one for a while."""
    notes, changes = bench.folder / f"{name}.notes", dict[str, float]()
    changes["two join"] = monotonic_s()
    for node in ("node5", "node6"):
        await bench.node(node, *ROLES)
    await anyio.sleep(CHANGE_S)
    governor = await _governor(bench)
    others = [node for node in bench.nodes if node is not governor]
    for number, killed in enumerate(others[-2:], 1):
        changes[f"kill {number}"] = monotonic_s()
        killed.end()
        await anyio.sleep(CHANGE_S)
    changes["governor killed"] = monotonic_s()
    governor.end()
    await anyio.sleep(CHANGE_S + GOVERNOR_BACK_S)
    governor = await _governor(bench)
    changes["governor stopped"] = monotonic_s()
    os.kill(governor.pid, signal.SIGSTOP)
    await anyio.sleep(STOPPED_S)
    changes["it goes on"] = monotonic_s()
    os.kill(governor.pid, signal.SIGCONT)
    await anyio.sleep(CHANGE_S)
    ends = [*changes.values(), monotonic_s()][1:]
    begun = _Begun(notes)
    seconds = {
        what: begun.each(at_s, int(end_s - at_s), 1.0)
        for (what, at_s), end_s in zip(changes.items(), ends, strict=True)
    }
    back_s = {
        what: _back_s(begun, at_s, end_s - at_s) for (what, at_s), end_s in zip(changes.items(), ends, strict=True)
    }
    governed_s = max(took_s for what, took_s in back_s.items() if "governor" in what)
    return _Changes(seconds, max(took_s for what, took_s in back_s.items() if "governor" not in what), governed_s)


async def _governor(bench: Bench) -> NodeProcess:
    """Return the node that holds the governor's lease."""
    while True:
        entry = await bench.bucket("LEASES").get(LEASE)
        record = read_record(entry.raw) if entry is not None else None
        for node in bench.nodes:
            if record is not None and node.name == record.holder and node.is_running:
                return node
        await anyio.sleep(0.1)


def _back_s(begun: _Begun, changed_s: float, upto_s: float) -> float:
    """Return how long after a change the last second begins that has more than 5 % less than the rate."""
    starts = [at / 10 for at in range(int(upto_s * 10) - 10)]
    low = [at_s for at_s in starts if begun.between(changed_s + at_s, changed_s + at_s + 1) < 0.95 * RATES["slow"]]
    return max(low) + 0.1 if low else 0.0


def _off(counts: list[int], rate: float) -> float:
    return max(abs(count / rate - 1) for count in counts)


class _Begun:
    """The rows that began, by their moment: a file of notes is read once."""

    def __init__(self, notes: Path) -> None:
        found = sorted(NOTE.iter_unpack(notes.read_bytes()))
        self._at_s = [at_s for at_s, _ in found]
        self._before: list[int] = [0, *accumulate(count for _, count in found)]

    def between(self, from_s: float, to_s: float) -> int:
        """Return how many rows began from one moment on, and before another."""
        first, last = bisect_left(self._at_s, from_s), bisect_left(self._at_s, to_s)
        return self._before[last] - self._before[first]

    def each(self, from_s: float, lasts_s: float, each_s: float) -> list[int]:
        """Return how many rows began in each span."""
        starts = [from_s + number * each_s for number in range(round(lasts_s / each_s))]
        return [self.between(at_s, at_s + each_s) for at_s in starts]


def _beyond(counts: list[int], rate: float) -> str:
    """Return how many of the counts are more than 10 % off."""
    return f"{sum(abs(count / rate - 1) > 0.1 for count in counts)} of {len(counts)}"


def _twice(folder: Path, name: str) -> int:
    """Return how many rows were executed twice."""
    with sqlite3.connect(folder / f"{name}.db") as db:
        found = [
            db.execute(f"SELECT coalesce(sum(done > 1), 0) FROM rows_{table}").fetchone()[0]
            for table in range(TABLES[name])
        ]
    return sum(found)


async def _theirs(folder: Path) -> list[int]:
    """Return the rows of each second of machines that are configured for four, while there are four, six and two."""
    processes: list[Process] = []
    notes, share = folder / "theirs.notes", RATES["slow"] / len(NODES)

    async def begin(count: int) -> None:
        for _ in range(count):
            command = [sys.executable, "-m", "bench._flow_theirs", str(folder), "theirs", str(share)]
            process = await anyio.open_process(command, stderr=None)
            processes.append(process)
            assert process.stdout is not None
            await process.stdout.receive()

    try:
        await begin(len(NODES))
        began_s = monotonic_s()
        await anyio.sleep(3)
        await begin(2)
        await anyio.sleep(3)
        for process in processes[:4]:
            process.kill()
        await anyio.sleep(3)
        return _Begun(notes).each(began_s, int(monotonic_s() - began_s), 1.0)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.aclose()
