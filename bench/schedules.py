"""How late the occurrences of 1,000 schedules of one second are, over three nodes, and whether ten kills lose or double
any. `SCHEDULES_BENCH_COUNT` asks for fewer schedules, `SCHEDULES_BENCH_KILLS` for fewer kills.

Each occurrence is a job whose id names its moment. Lateness is from that moment to the first line of the handler. What
was missed is made up for (`misfire="all"`), so none may be lost. A job whose process was killed before it had settled
the job runs again: `runs_again`. Each other second run is `doubled`.

The verdict counts all occurrences while nodes are killed. The kills are `EACH_S` apart or more, so that each one's
recovery can be told: `recovered_ms` has the time from each kill to the last occurrence that was later than the target.
`late_after_s` counts those by the seconds since the kill, `late_by` by who made the job ready: a timer, the server,
which fires what no timer does, or a node that was killed with the job in hand (`again`). `quiet_late_by` has those
without kills.

A node that starts again has a machine of its own in a deployment. Here it gets the time that the others leave until all
its actors run (`a_start_has`, `starts_s`), unless `SCHEDULES_BENCH_ASIDE=no`. `cores_idle` says how many of the cores
were idle without and with kills: near 0 the machine is the limit. `server_wait_ms` and `nodes_wait_ms` say how long a
thread that could run waited for a core in the mean, without kills (`quiet`) and by the seconds since a kill, and
`*_cores` how many cores they had. The nodes' code is compiled by the first ones, as that of an installed package is.
Otherwise each start would compile it anew where Python may write no files beside the code.

`SCHEDULES_BENCH_BURN=S` is the control: it kills nothing. In place of each kill it starts a process that does nothing
but use S seconds of a core, of the same policy and priority.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import anyio

import penstock
from actors.runtime.membership import NodeRecord, decode_node
from bench._fetch import Bench, fetch_bench
from bench.cores import Use, sum_of, use_of
from bench.harness import Result
from penstock.demo.processes import NodeProcess
from streams.clock import now_ms

NAME = "schedules"
LIMIT_S = 400
SCHEDULES, TOPICS = int(os.environ.get("SCHEDULES_BENCH_COUNT", "1000")), 10
QUIET_S = float(os.environ.get("SCHEDULES_BENCH_S", "30"))
KILLS, EACH_S = int(os.environ.get("SCHEDULES_BENCH_KILLS", "10")), 6.0
OVERLAP: Literal["allow", "skip"] = "skip" if os.environ.get("SCHEDULES_BENCH_OVERLAP") == "skip" else "allow"
"""With `skip` an occurrence is added when the one before has ended, so the leader works on each. Those that come due
before that are `lost`."""
ASIDE = os.environ.get("SCHEDULES_BENCH_ASIDE", "yes") == "yes" and hasattr(os, "sched_setscheduler")
"""Whether a node that starts gets only the time that the others leave. In a deployment it has a machine of its own."""
LOWER = 15
MISFIRE: Literal["all", "once"] = "all" if OVERLAP == "allow" else "once"
BURN_S = float(os.environ.get("SCHEDULES_BENCH_BURN", "0"))
SETTLE_S = 10.0
LOOK_S = 0.25
MOST_TOLD = 20
P99_MS = 50.0
PARTS = {"p50": 0.5, "p99": 0.99, "most": 1.0}
UNSETTLED_MS = 1_000
"""A process that is killed so long after a run began may not have settled it."""
IN_HAND_MS = 100
"""What is due so shortly before a kill may be in the hands of the process that is killed."""
ROLES = ("--roles", "worker,timer,desk", "--sink", "none", "--http", "off", "--app", "bench._schedules_app")


class Run(NamedTuple):
    """One call of the handler. Moments are milliseconds."""

    schedule: str
    due_ms: int
    at_ms: int
    pid: int
    by: str
    attempt: int

    @property
    def late_ms(self) -> int:
        return self.at_ms - self.due_ms


class Look(NamedTuple):
    """What the server and the nodes had of the cores up to a moment, and those processes that are gone."""

    at_ms: int
    server: Use
    nodes: Use


async def run() -> Result:
    """Measure without kills, then with them."""
    looks = list[Look]()
    async with fetch_bench() as bench, anyio.create_task_group() as tasks:
        notes = bench.folder / "notes"
        os.environ |= {"SCHEDULES_BENCH": str(notes), "PYTHONPYCACHEPREFIX": str(bench.folder / "compiled")}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for name in ("node1", "node2", "node3"):
            await bench.node(name, *ROLES)
        pids = {node.pid: node.name for node in bench.nodes}
        added_s = await _add(bench)
        await anyio.sleep(SETTLE_S)
        tasks.start_soon(_keep_looking, bench, looks)
        quiet_ms, idle = now_ms(), [_idle_s()]
        await anyio.sleep(QUIET_S)
        kills_ms = now_ms()
        idle.append(_idle_s())
        killed, born, starts_s = await _kill(bench, pids)
        end_ms = now_ms()
        idle.append(_idle_s())
        await anyio.sleep(SETTLE_S)
        tasks.cancel_scope.cancel()
        runs = _read(notes)
    quiet_end_ms = kills_ms - IN_HAND_MS
    quiet = [run for run in runs if quiet_ms <= run.due_ms < quiet_end_ms]
    amid = [run for run in runs if quiet_end_ms <= run.due_ms < end_ms]
    runs = quiet + amid
    times = len({(run.schedule, run.due_ms) for run in runs})
    lost, again = _lost(runs, quiet_ms, end_ms), _again(runs, killed)
    doubled = _doubled(runs, killed, pids)
    p99_ms = max(_percentile(part, 0.99) for part in (quiet, amid) if part or part is quiet)
    late = [run for run in amid if run.late_ms > P99_MS]
    return Result(
        what=f"{SCHEDULES:,} schedules of one second ({OVERLAP}) over three nodes, {KILLS} kills, lateness at p99",
        ours=float(p99_ms),
        unit="ms",
        target=f"p99 <= {P99_MS:g} ms; {KILLS} kills lose none, and double none",
        ok=p99_ms <= P99_MS and not lost and not again["doubled"],
        more={
            "added_s": round(added_s, 1),
            "occurrences": times,
            "a_second": round(len(quiet) / (QUIET_S - IN_HAND_MS / 1000)),
            **{f"quiet_{name}_ms": _percentile(quiet, part) for name, part in PARTS.items()},
            **{f"with_kills_{name}_ms": _percentile(amid, part) for name, part in PARTS.items()},
            "with_kills": len(amid),
            "quiet_late_by": dict(Counter(run.by for run in quiet if run.late_ms > P99_MS)),
            "late": len(late),
            "late_after_s": _after(late, sorted(killed.values())),
            "cores_idle": [
                round((later_s - sooner_s) * 1000 / span_ms, 2)
                for (sooner_s, later_s), span_ms in zip(
                    pairwise(idle), (kills_ms - quiet_ms, end_ms - kills_ms), strict=True
                )
            ],
            **_cores(looks, kills_ms, end_ms, sorted(killed.values())),
            "late_by": dict(Counter(run.by for run in late)),
            "late_on": dict(Counter(_place(run, born, list(killed.values())) for run in late)),
            "recovered_ms": _recovered(late, sorted(killed.values()), end_ms),
            "kills": len(killed),
            "a_start_has": "the time that others leave" if ASIDE else "its share of the cores",
            "starts_s": starts_s,
            "lost": lost,
            "doubled": again["doubled"],
            "runs_again": again["runs_again"],
            "each_doubled": doubled[:MOST_TOLD],
        },
    )


async def _kill(bench: Bench, pids: dict[int, str]) -> tuple[dict[int, int], dict[int, int], list[float]]:
    """Kill a node each `EACH_S`, and start it again. Return when each process was killed, and when each was born, by
    its number, and how long each start took. `pids` gets the names of those that are started."""
    killed, born, starts_s = dict[int, int](), dict[int, int](), list[float]()
    for number in range(KILLS):
        began_ms, node = now_ms(), bench.nodes[number % 3]
        if BURN_S:
            killed[-number - 1] = began_ms
            _burn()
        else:
            starts_s.append(await _replace(bench, node, killed))
            pids[node.pid] = f"{node.name} (start {number // 3 + 2})"
            born[node.pid] = now_ms()
        await anyio.sleep(max(0.0, EACH_S - (now_ms() - began_ms) / 1000))
    return killed, born, starts_s


def _burn() -> None:
    """Start a process that uses `BURN_S` seconds of a core, and does nothing else."""
    subprocess.Popen([sys.executable, "-c", f"import time\nwhile time.process_time() < {BURN_S}: pass"])


async def _keep_looking(bench: Bench, looks: list[Look]) -> None:
    """Note what the server and the nodes have of the cores, for ever."""
    uses = dict[int, Use]()
    while True:
        uses |= {node.pid: use for node in bench.nodes if (use := use_of(node.pid)).turns}
        looks.append(Look(now_ms(), use_of(bench.server_pid), sum_of(uses.values())))
        await anyio.sleep(LOOK_S)


def _cores(looks: list[Look], kills_from_ms: int, end_ms: int, kills_ms: list[int]) -> dict[str, dict[str, float]]:
    """Return how long the threads of the server and of the nodes waited for a core, and how many cores they had,
    without kills, and by the seconds since a kill."""
    spans = dict[str, list[tuple[Look, Look]]]()
    for before, after in pairwise(looks):
        if after.at_ms <= kills_from_ms:
            spans.setdefault("quiet", []).append((before, after))
        elif kills_from_ms <= before.at_ms and after.at_ms <= end_ms:
            kill_ms = max((ms for ms in kills_ms if ms <= before.at_ms), default=kills_from_ms)
            spans.setdefault(str((before.at_ms - kill_ms) // 1000), []).append((before, after))
    figures: dict[str, dict[str, float]] = {}
    for name, part in spans.items():
        span_ms = sum(after.at_ms - before.at_ms for before, after in part)
        server = sum_of(after.server.since(before.server) for before, after in part)
        nodes = sum_of(after.nodes.since(before.nodes) for before, after in part)
        for which, use in (("server", server), ("nodes", nodes)):
            figures.setdefault(f"{which}_wait_ms", {})[name] = use.wait_ms
            figures.setdefault(f"{which}_cores", {})[name] = round(use.ran_ns / span_ms / 1e6, 2)
    return figures


def _idle_s() -> float:
    """Return for how many seconds the cores were idle so far, all together. 0.0 where nobody says."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0.0
    return int(line.split()[4]) / os.sysconf("SC_CLK_TCK")


def _place(run: Run, born: dict[int, int], kills_ms: list[int]) -> str:
    """Return on which process a run was late: the one that was started last, or another one."""
    last_ms = max((ms for ms in kills_ms if ms <= run.at_ms), default=0)
    return "the one that starts" if born.get(run.pid, 0) >= last_ms > 0 else "others"


def _after(late: list[Run], kills_ms: list[int]) -> dict[str, int]:
    """Return how many were late, by the whole seconds since the kill before their time."""
    last_ms = [max((ms for ms in kills_ms if ms <= run.due_ms), default=run.due_ms) for run in late]
    seconds = Counter((run.due_ms - kill_ms) // 1000 for run, kill_ms in zip(late, last_ms, strict=True))
    return {str(second): seconds[second] for second in sorted(seconds)}


async def _replace(bench: Bench, node: NodeProcess, killed: dict[int, int]) -> float:
    """Kill a node and start it again. Return how many seconds that took. Until all its actors run, the new process gets
    only the time that the others leave, as a node has that starts on a machine of its own. `killed` gets the moment
    after which the process ran no more."""
    began_ms = now_ms()
    async with bench.bucket("NODES").watch(node.name) as changes:
        pid = node.pid
        node.end()
        killed[pid] = now_ms()
        node.start()
        if ASIDE:
            _yield_to_others(node.pid)
        async for change in changes:  # LIMIT_S ends it, if the node never runs
            entry = getattr(change, "entry", None)
            record = None if entry is None else decode_node(node.name, entry.value)
            if record is not None and record.started_ms >= began_ms and _all_run(record):
                break
    if ASIDE:
        _be_as_others(node.pid)
    return round((now_ms() - began_ms) / 1000, 1)


def _all_run(record: NodeRecord) -> bool:
    return record.steady != () and all(each.status == "running" for each in record.actors)


def _yield_to_others(pid: int) -> None:
    """Have a process that starts yield to this one and its like."""
    policy = os.sched_getscheduler(0)
    if policy == os.SCHED_OTHER:
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + LOWER)
    else:  # not a lower priority of real time: it would leave other programs no core
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, -LOWER)  # those come after it


def _be_as_others(pid: int) -> None:
    """Have all threads of a process run as this one does."""
    policy, param, nice = os.sched_getscheduler(0), os.sched_getparam(0), os.getpriority(os.PRIO_PROCESS, 0)
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        with suppress(ProcessLookupError):
            os.sched_setscheduler(thread, policy, param)
            os.setpriority(os.PRIO_PROCESS, thread, nice)


def _percentile(runs: list[Run], part: float) -> float:
    late_ms = sorted(run.late_ms for run in runs)
    return late_ms[min(int(len(late_ms) * part), len(late_ms) - 1)] if late_ms else float("inf")


def _recovered(late: list[Run], kills_ms: list[int], end_ms: int) -> list[int]:
    """Return how long after each kill the last occurrence was due that was late."""
    return [
        max((run.due_ms - kill_ms for run in late if kill_ms <= run.due_ms < next_ms), default=0)
        for kill_ms, next_ms in zip(kills_ms, [*kills_ms, end_ms][1:], strict=True)
    ]


async def _add(bench: Bench) -> float:
    """Add the schedules. Return how many seconds that took."""
    began_ms = now_ms()
    async with penstock.connect(bench.url) as client:
        for number in range(SCHEDULES):
            which = f"tick{number % TOPICS}/s{number}"
            await client.schedules.add(which, every="1s", misfire=MISFIRE, overlap=OVERLAP)
    return (now_ms() - began_ms) / 1000


def _read(notes: Path) -> list[Run]:
    """Return all calls."""
    runs = []
    for line in notes.read_text().splitlines():
        topic, job_id, at_ms, pid, by, attempt = line.split()
        name, _, due = job_id.partition(".")
        due_ms = round(datetime.fromisoformat(due).timestamp() * 1000)
        runs.append(Run(f"{topic}/{name}", due_ms, int(at_ms), int(pid), by, int(attempt)))
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
            again["runs_again" if _is_killed(first, killed) else "doubled"] += 1
        before[run.schedule, run.due_ms] = run
    return again


def _is_killed(run: Run, killed: dict[int, int]) -> bool:
    return run.at_ms <= killed.get(run.pid, 0) <= run.at_ms + UNSETTLED_MS


def _doubled(runs: list[Run], killed: dict[int, int], pids: dict[int, str]) -> list[dict[str, object]]:
    """Return all runs of each occurrence that ran twice without a kill over it, and what was killed meanwhile."""
    of: dict[tuple[str, int], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.at_ms):
        of.setdefault((run.schedule, run.due_ms), []).append(run)
    return [
        {
            "schedule": schedule,
            "due_ms": due_ms,
            "runs": [f"{each.late_ms} ms late on {pids[each.pid]}, {each.by}, {each.attempt}" for each in each_run],
            "kills": [
                f"{pids[pid]} at {ms - due_ms} ms"
                for pid, ms in killed.items()
                if each_run[0].due_ms - EACH_S * 1000 <= ms <= each_run[-1].at_ms
            ],
        }
        for (schedule, due_ms), each_run in of.items()
        if any(not _is_killed(each, killed) for each in each_run[:-1])
    ]
