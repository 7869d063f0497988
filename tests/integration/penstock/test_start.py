"""A command reaches the server soon: little CPU is used before it connects, and nothing heavy is imported for it."""

import os
import re
import select
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import pytest

from penstock.cli.root import COMMANDS, command_named
from tests.support.command import plain_environment

CONNECTING = """
doctor
init
nodes
sources add a/b --adapter mall --start -1d
flows list
flows show pay
flows set pay rate=1
flows pause pay
flows resume pay
flows run pay
rates list
rates show topic/mail
rates set topic/mail 5
rates watch
rates report topic/mail
zones list
zones show a
zones drain a --dry-run
zones restore a
routing show
routing plan --balance
routing apply --balance
routing history
routing report
sources list
sources show a/b
sources set a/b --account token=env:HOME
sources pause a/b
sources resume a/b
sources rewind a/b -1d
sources backfill a/b -2d -1d
sources look a/b --from -1h
sources import /dev/null --form csv
sources export
sources remove a/b --yes
settings set mall retries=3
settings get mall
settings list
slices
holes list
holes redrive a/b --all
holes accept a/b 1-2
holes forget a/b 1-2 --yes
verify a/b -1d now
jobs add t 1 --attempts 3
jobs reserve t
jobs finish r
jobs touch r
jobs release r
jobs bury r
jobs kick t
jobs delete t 1
jobs peek t 1
jobs list t --limit 5
jobs count
jobs topics
jobs topic t
schedules add t/n 1 --every 5m
schedules list
schedules show t/n
schedules pause t/n
schedules resume t/n
schedules trigger t/n
schedules backfill t/n -2h now
schedules remove t/n --yes
why 1
batch submit --task t --input 1
batch submit --task t --input 1 --check
batch submit --task t --input 1 --delay 1h --after 1
batch list
batch show 1
batch items 1
batch start 1
batch pause 1
batch resume 1
batch cancel 1
batch retry 1
batch delete 1 --yes
batch result 1
batch sheet 1
batch tasks
batch task t item_rate=2.5
dead list
dead show 1
dead replay 1
dead drop 1 --yes
tokens add n
tokens rotate n
tokens list
tokens revoke n --yes
tokens forget n --yes
""".strip().splitlines()
LONG_RUNNING = {"up", "work", "demo", "outbox relay"}
"""They go on for long after they have loaded what they run."""
ALONE = {"config", "adapter check", "adapter list", "adapter show", "adapter try"}
"""They ask no server."""
MOST_CPU_S = 0.35
YARDSTICK, YARDSTICK_S = "import asyncio, nats.aio.client, typer", 0.33
"""The CPU of this work on the machine on which the limit was set. A slow or busy machine takes more, so it is measured
beside each try."""
TRIES = 5
HEAVY = {
    "aiohttp.client",
    "markdown_it",
    "prometheus_client",
    "pydantic",
    "rich",
    "sqlalchemy",
    "uvicorn",
    "yarl",
}


class Start(NamedTuple):
    """What a command had used by the time it connected, or by its end if it does not."""

    cpu_s: float
    modules: set[str]


@pytest.fixture(scope="module")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for bytecode, which a command has from its second run on."""
    return str(tmp_path_factory.mktemp("bytecode"))


def start_of(arguments: str, bytecode: str) -> Start:
    """Run a command up to its first connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, TemporaryFile("w+") as stderr:
        environment = plain_environment(
            PENSTOCK_NATS=f"nats://127.0.0.1:{server.getsockname()[1]}",
            PYTHONDONTWRITEBYTECODE="",
            PYTHONPYCACHEPREFIX=bytecode,
        )
        command = [sys.executable, "-X", "importtime", "-m", "penstock", *shlex.split(arguments)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment) as child:
            descriptor = os.pidfd_open(child.pid)
            waited: list[Any] = [server, descriptor]
            ready, _, _ = select.select(waited, [], [], 60)
            cpu_s = _cpu_s(child.pid)
            os.close(descriptor)
            child.kill()
        stderr.seek(0)
        told = stderr.read()
        assert server in ready or arguments.endswith("--help"), told[-300:]
    return Start(cpu_s, set(re.findall(r"\|\s+([\w.]+)\n", told)))


def _cpu_s(process_id: int) -> float:
    """Return the CPU that a process has used, which may have ended: its parent has not asked for it yet."""
    with open(f"/proc/{process_id}/stat") as stat:
        user, system = stat.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def most_cpu_s() -> float:
    """Return the limit for this machine as it is now: never below `MOST_CPU_S`."""
    with subprocess.Popen([sys.executable, "-c", YARDSTICK], env=plain_environment()) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        return MOST_CPU_S * max(1.0, _cpu_s(child.pid) / YARDSTICK_S)


def leaves(path: str, command: Any) -> Iterator[str]:
    """Yield the whole name of each command of a group."""
    for name, found in getattr(command, "commands", {}).items():
        yield from leaves(f"{path} {name}", found)
    if not hasattr(command, "commands"):
        yield path


def test_every_command_is_measured_here() -> None:
    names = {
        name
        for entries in COMMANDS.values()
        for entry in entries
        for name in leaves(entry.name, command_named(entry.name))
    }
    measured = {name for name in names for line in CONNECTING if f"{line} ".startswith(f"{name} ")}
    assert names - measured == LONG_RUNNING | ALONE
    unknown = [line for line in CONNECTING if not any(f"{line} ".startswith(f"{name} ") for name in names)]
    assert unknown == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="reads /proc")
@pytest.mark.parametrize("arguments", [*CONNECTING, "--help", "jobs --help", "batch submit --help"])
def test_a_command_uses_little_before_it_connects(arguments: str, bytecode: str) -> None:
    start = start_of(arguments, bytecode)
    assert not start.modules & HEAVY
    tries = ((most_cpu_s(), start_of(arguments, bytecode).cpu_s) for _ in range(TRIES))
    assert start.cpu_s <= MOST_CPU_S or any(cpu_s <= most_s for most_s, cpu_s in tries)
