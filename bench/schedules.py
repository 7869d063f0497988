"""How late the occurrences of 1,000 schedules of one second are, over three nodes, and whether ten kills lose or double
any.

Each occurrence is a job whose id names its moment. Lateness is from that moment to the first line of the handler. What
was missed is made up for (`misfire="all"`), so none may be lost. A job whose process was killed before it had settled
the job runs again: `runs_again`. Each other second run is `doubled`.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import anyio

import penstock
from bench._fetch import Bench, fetch_bench
from bench.harness import Result
from streams.clock import now_ms

NAME = "schedules"
LIMIT_S = 400
SCHEDULES, TOPICS = 1_000, 10
QUIET_S = float(os.environ.get("SCHEDULES_BENCH_S", "30"))
KILLS, EACH_S = 10, 6.0
SETTLE_S = 10.0
P99_MS = 50.0
UNSETTLED_MS = 1_000
"""A process that is killed so long after a run began may not have settled it."""
ROLES = ("--roles", "worker,timer,desk", "--sink", "none", "--http", "off", "--app", "bench._schedules_app")


class Run(NamedTuple):
    """One call of the handler. Moments are milliseconds."""

    schedule: str
    due_ms: int
    at_ms: int
    pid: int


async def run() -> Result:
    """Measure without kills, then with them."""
    async with fetch_bench() as bench:
        notes = bench.folder / "notes"
        os.environ["SCHEDULES_BENCH"] = str(notes)
        for name in ("node1", "node2", "node3"):
            await bench.node(name, *ROLES)
        added_s = await _add(bench)
        await anyio.sleep(SETTLE_S)
        quiet_ms = now_ms()
        await anyio.sleep(QUIET_S)
        kills_ms = now_ms()
        killed: dict[int, int] = {}
        for number in range(KILLS):
            pid = bench.nodes[number % 3].pid
            bench.nodes[number % 3].kill()
            killed[pid] = now_ms()
            await anyio.sleep(EACH_S)
        end_ms = now_ms()
        await anyio.sleep(SETTLE_S)
        runs = _read(notes)
    late_ms = sorted(run.at_ms - run.due_ms for run in runs if quiet_ms <= run.due_ms < kills_ms)
    killed_ms = sorted(run.at_ms - run.due_ms for run in runs if kills_ms <= run.due_ms < end_ms)
    runs = [run for run in runs if quiet_ms <= run.due_ms < end_ms]
    times = len({(run.schedule, run.due_ms) for run in runs})
    lost, again = _lost(runs, quiet_ms, end_ms), _again(runs, killed)
    p99_ms = late_ms[int(len(late_ms) * 0.99)] if late_ms else float("inf")
    return Result(
        what="1,000 schedules of one second over three nodes, lateness at p99",
        ours=float(p99_ms),
        unit="ms",
        target=f"p99 <= {P99_MS:g} ms; {KILLS} kills lose none, and double none",
        ok=p99_ms <= P99_MS and not lost and not again["doubled"],
        more={
            "added_s": round(added_s, 1),
            "occurrences": times,
            "a_second": round(len(late_ms) / QUIET_S),
            "p50_ms": late_ms[len(late_ms) // 2] if late_ms else None,
            "most_ms": late_ms[-1] if late_ms else None,
            "with_kills_p50_ms": killed_ms[len(killed_ms) // 2] if killed_ms else None,
            "with_kills_p99_ms": killed_ms[int(len(killed_ms) * 0.99)] if killed_ms else None,
            "with_kills_most_ms": killed_ms[-1] if killed_ms else None,
            "kills": len(killed),
            "lost": lost,
            "doubled": again["doubled"],
            "runs_again": again["runs_again"],
        },
    )


async def _add(bench: Bench) -> float:
    """Add the schedules. Return how many seconds that took."""
    began_ms = now_ms()
    async with penstock.connect(bench.url) as client:
        for number in range(SCHEDULES):
            which = f"tick{number % TOPICS}/s{number}"
            await client.schedules.add(which, every="1s", misfire="all", overlap="allow")
    return (now_ms() - began_ms) / 1000


def _read(notes: Path) -> list[Run]:
    """Return all calls."""
    runs = []
    for line in notes.read_text().splitlines():
        topic, job_id, at_ms, pid = line.split()
        name, _, due = job_id.partition(".")
        due_ms = round(datetime.fromisoformat(due).timestamp() * 1000)
        runs.append(Run(f"{topic}/{name}", due_ms, int(at_ms), int(pid)))
    return runs


def _lost(runs: list[Run], from_ms: int, to_ms: int) -> int:
    """Return how many occurrences between the two moments have no call."""
    dues: dict[str, set[int]] = {}
    for each in runs:
        dues.setdefault(each.schedule, set()).add(each.due_ms)
    lost = (SCHEDULES - len(dues)) * int((to_ms - from_ms) / 1000)
    for found in dues.values():
        first_ms = min(found)
        wanted = range(first_ms + -(-(from_ms - first_ms) // 1000) * 1000, to_ms, 1000)
        lost += sum(due_ms not in found for due_ms in wanted)
    return lost


def _again(runs: list[Run], killed: dict[int, int]) -> Counter[str]:
    """Return how many second runs there were, by their reason. `killed`: when each process was killed."""
    again: Counter[str] = Counter()
    before: dict[tuple[str, int], Run] = {}
    for run in sorted(runs, key=lambda run: run.at_ms):
        first = before.get((run.schedule, run.due_ms))
        if first is not None:
            is_killed = first.at_ms <= killed.get(first.pid, 0) <= first.at_ms + UNSETTLED_MS
            again["runs_again" if is_killed else "doubled"] += 1
        before[run.schedule, run.due_ms] = run
    return again
