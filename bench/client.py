"""The path of a user's program: jobs of 200 B added and taken through `penstock.connect`, beside its peers.

The shape: this process adds, two processes work, and one node with a desk is beside. faststream (in a virtual
environment that the bench makes once), bare nats-py, and beanstalkd where it is installed do the same in the same
minutes, in turns. Measured are single adds that a program gathers, lists, reserves and finishes one by one, the time
from an add to its handler, and adds over HTTP. `direct`: the client stores jobs by itself (docs/operations.md).
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path

import anyio
import msgspec
import nats
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.to_thread import run_sync
from nats.js.client import JetStreamContext

import penstock
from bench import http
from bench._beanstalk import Beanstalk, Worker, beanstalkd, find_beanstalkd
from bench._drain_app import Note
from bench._fetch import Bench, fetch_bench
from bench.harness import Result, rate_of, two_of
from streams.clock import monotonic_s

NAME = "client"
LIMIT_S = 240
FASTSTREAM = "faststream[nats]==0.7.8"
STREAM, SUBJECT = "FASTSTREAM", "faststream.one"
INSTALL_S, DRAIN_S = 120, 20
"""Seconds after which it counts as failed."""
ADD_RATIO, LIST_RATIO, TAKE_RATIO, P50_RATIO, P99_RATIO, HTTP_REACH = 1.5, 2.5, 1.0, 0.7, 1.0, 5_000
ROUNDS = 3
ADDED, AT_ONCE, LISTED, TAKEN = 5_000, 500, 10_000, 10_000
"""Jobs a round, and how many calls at once, or jobs in a list."""
WORKERS, CALLERS = 2, 32
"""Worker processes, and the callers of all of them together."""
TIMED, A_SECOND = 1_500, 200
LOOK_S = 0.01
BODY = "x" * 198


async def run() -> Result:
    """Measure all of it on one server."""
    port = http.free_port()
    os.environ["PENSTOCK_HTTP"] = f"127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(fetch_bench())
        await bench.node("desk1", "--roles", "desk,gateway")
        await http.until_open(port)
        theirs = await stack.enter_async_context(_nats_py(bench))
        client = await stack.enter_async_context(penstock.connect(bench.url))
        direct = await stack.enter_async_context(penstock.connect(bench.url, direct=True))
        peers = await _peers(stack, bench)
        rates = await _in_turns(
            {
                "adds": lambda number: _gathered(client, f"adds{number}"),
                "direct_adds": lambda number: _gathered(direct, f"direct{number}"),
                "nats_py": lambda _: _published(theirs),
                **peers.adds,
            }
        )
        rates |= await _in_turns(
            {
                "lists": lambda number: _listed(client, f"lists{number}"),
                "direct_lists": lambda number: _listed(direct, f"directs{number}"),
                "nats_py_beside_lists": lambda _: _published(theirs),
            }
        )
        rates["http"] = await http.rounds(port, http.AT_ONCE, http.SINGLES, http.single)
        for name in ("worker1", "worker2"):
            await bench.node(name, "--roles", "worker", "--app", "bench._drain_app")
        takes: dict[str, Side] = {
            "taken_one_by_one": lambda number: _take(bench, client, f"taken{number}"),
            "direct_taken_one_by_one": lambda number: _take(bench, client, f"dtaken{number}", "direct"),
            "drained_by_handlers": lambda _: _drain(client, "one"),
            "drained_in_lists": lambda _: _drain(client, "lists"),
        }
        rates |= await _in_turns(takes | peers.drains)
        is_sound = await _is_sound(client)
        waits = await _waits(bench, theirs, {"": client, "direct_": direct})
    return _judged(rates, waits, peers.skipped, is_sound)


def _judged(
    rates: dict[str, list[float]], waits: dict[str, list[float]], skipped: dict[str, str], is_sound: bool
) -> Result:
    adds, lists = _ratio(rates, "adds", "nats_py"), _ratio(rates, "lists", "nats_py_beside_lists")
    drained = "faststream_drained" if "faststream_drained" in rates else None
    takes = _ratio(rates, "taken_one_by_one", drained) if drained else None
    direct_takes = _ratio(rates, "direct_taken_one_by_one", drained) if drained else None
    tails = {name: _middle_and_tail(each) for name, each in waits.items()}
    (p50_ms, p99_ms), (their_p50_ms, their_p99_ms) = tails["add_to_handler"], tails["nats_py_to_callback"]
    one_a_call = statistics.median(rates["http"])
    verdicts = {
        f"adds >= {ADD_RATIO} x nats-py": adds >= ADD_RATIO,
        f"lists >= {LIST_RATIO} x nats-py": lists >= LIST_RATIO,
        f"taken >= {TAKE_RATIO:g} x faststream": takes is None or takes >= TAKE_RATIO,
        f"direct taken >= {TAKE_RATIO:g} x faststream": direct_takes is None or direct_takes >= TAKE_RATIO,
        f"p50 <= {P50_RATIO} x nats-py": p50_ms <= P50_RATIO * their_p50_ms,
        f"p99 <= {P99_RATIO:g} x nats-py": p99_ms <= P99_RATIO * their_p99_ms,
        f"HTTP >= {HTTP_REACH:,}/s": one_a_call >= HTTP_REACH,
    }
    return Result(
        what=f"jobs of 200 B added by penstock.connect, {AT_ONCE} calls at once",
        ours=round(statistics.median(rates["adds"])),
        theirs=round(statistics.median(rates["nats_py"])),
        ratio=round(adds, 2),
        target=", ".join(verdicts),
        ok=is_sound and all(verdicts.values()),
        more={
            **{name: round(statistics.median(each)) for name, each in rates.items()},
            "lists_ratio": round(lists, 2),
            "taken_ratio": takes and round(takes, 2),
            "direct_taken_ratio": direct_takes and round(direct_takes, 2),
            **{f"{name}_p50_ms": round(middle, 2) for name, (middle, _) in tails.items()},
            **{f"{name}_p99_ms": round(tail, 2) for name, (_, tail) in tails.items()},
            "missed": [name for name, is_met in verdicts.items() if not is_met],
            "skipped": skipped,
            "is_sound": is_sound,
        },
    )


Side = Callable[[int], Awaitable[float]]
"""One round: takes its number, and returns how many it did in a second."""


async def _in_turns(sides: dict[str, Side]) -> dict[str, list[float]]:
    """Return the rates of the counted rounds of each side."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS + 1):
        for name, side in sides.items():
            rate = await side(number)
            if number:
                rates[name].append(rate)
    return rates


def _ratio(rates: dict[str, list[float]], ours: str, theirs: str) -> float:
    return statistics.median(one / other for one, other in zip(rates[ours], rates[theirs], strict=True))


def _middle_and_tail(waited_ms: Sequence[float]) -> tuple[float, float]:
    return statistics.median(waited_ms), statistics.quantiles(waited_ms, n=100)[98]


# ---- adding


async def _gathered(client: penstock.Client, topic: str) -> float:
    async def add(_: int) -> int:
        for _ in range(0, ADDED, AT_ONCE):
            await asyncio.gather(*(client.jobs.add(topic, BODY) for _ in range(AT_ONCE)))
        return ADDED

    return await rate_of(add, 0)


async def _listed(client: penstock.Client, topic: str) -> float:
    async def add(_: int) -> int:
        for _ in range(0, LISTED, AT_ONCE):
            answers = await client.jobs.add_many([penstock.new_job(topic, BODY) for _ in range(AT_ONCE)])
            assert all(answer.code == "ok" for answer in answers)
        return LISTED

    return await rate_of(add, 0)


@asynccontextmanager
async def _nats_py(bench: Bench) -> AsyncIterator[JetStreamContext]:
    await bench.connection.api("STREAM.CREATE.THEIRS", {"name": "THEIRS", "subjects": ["theirs.>"]})
    connection = await nats.connect(bench.url)
    try:
        yield connection.jetstream()
    finally:
        await connection.close()


async def _published(theirs: JetStreamContext) -> float:
    async def publish(_: int) -> int:
        payload = BODY.encode()
        for _ in range(0, ADDED, AT_ONCE):
            await asyncio.gather(*(theirs.publish("theirs.one", payload) for _ in range(AT_ONCE)))
        return ADDED

    return await rate_of(publish, 0)


# ---- peers


class _Peers:
    """The peers that are there. `adds` and `drains`: a round of each. `skipped`: why the others are not."""

    def __init__(self) -> None:
        self.adds: dict[str, Side] = {}
        self.skipped: dict[str, str] = {}
        self.drains: dict[str, Side] = {}


async def _peers(stack: AsyncExitStack, bench: Bench) -> _Peers:
    peers = _Peers()
    await _open_faststream(stack, bench, peers)
    if find_beanstalkd() is None:
        peers.skipped["beanstalkd"] = "it is not installed"
    else:
        port = stack.enter_context(beanstalkd())
        client = stack.enter_context(closing(Beanstalk(port)))
        peers.adds["beanstalkd"] = lambda _: run_sync(_put_by_beanstalk, client)
        peers.drains["beanstalkd_drained"] = lambda _: run_sync(_drain_by_beanstalk, client, port)
    return peers


async def _open_faststream(stack: AsyncExitStack, bench: Bench, peers: _Peers) -> None:
    config = {"name": STREAM, "subjects": [SUBJECT], "retention": "workqueue"}
    await bench.connection.api(f"STREAM.CREATE.{STREAM}", config)
    try:
        python = await run_sync(_faststream_python)
    except subprocess.SubprocessError as error:
        peers.skipped["faststream"] = f"it could not be installed: {error}"
        return
    adder = await stack.enter_async_context(_faststream(python, bench.url, "add", str(ADDED), str(AT_ONCE)))

    async def add(_: int) -> float:
        rate = float(await adder.tell())
        await bench.connection.api(f"STREAM.PURGE.{STREAM}")
        return rate

    async def drain(_: int) -> float:
        await bench.connection.api(f"STREAM.PURGE.{STREAM}")
        for _ in range(0, TAKEN, ADDED):
            await adder.tell()
        async with AsyncExitStack() as workers, asyncio.timeout(DRAIN_S):
            programs = [
                await workers.enter_async_context(_faststream(python, bench.url, "work")) for _ in range(WORKERS)
            ]
            for program in programs:
                await program.go()
            return await _emptied(bench)

    peers.adds["faststream"], peers.drains["faststream_drained"] = add, drain


async def _emptied(bench: Bench) -> float:
    """Return how many messages a second are taken, from the first one on."""
    began_s, first = 0.0, 0
    while True:
        left = (await bench.connection.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"]
        if not began_s and left < TAKEN:
            began_s, first = monotonic_s(), left
        if not left:
            return first / (monotonic_s() - began_s)
        await anyio.sleep(LOOK_S)


def _faststream_python() -> Path:
    """Return the Python of an environment with faststream, made at the first run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "penstock-bench" / FASTSTREAM.replace("[nats]==", "-")
    done = folder / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True)
        install: list[str | Path] = [folder / "bin" / "pip", "install", "--quiet", FASTSTREAM, "uvloop"]
        subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_S)
        done.touch()
    return folder / "bin" / "python"


def _faststream(python: Path, *arguments: str) -> AbstractAsyncContextManager[_Program]:
    return _program(python, "-P", Path(__file__).with_name("_client_faststream.py"), *arguments)


def _put_by_beanstalk(client: Beanstalk) -> float:
    """Put one after the other, and delete them again."""
    began_s = monotonic_s()
    for _ in range(ADDED):
        client.put(BODY.encode())
    rate = ADDED / (monotonic_s() - began_s)
    while jobs := client.reserve_many(AT_ONCE):
        client.delete_many(job_id for job_id, _ in jobs)
    return rate


def _drain_by_beanstalk(client: Beanstalk, port: int) -> float:
    client.put_many([BODY.encode()] * TAKEN)
    workers = [Worker("drain", port) for _ in range(WORKERS)]
    began_s = monotonic_s()
    for worker in workers:
        worker.go()
    done = [worker.told()[0] for worker in workers]
    assert sum(done) == TAKEN, f"{done} of {TAKEN}"
    return TAKEN / (monotonic_s() - began_s)


# ---- programs


class _Program:
    """A process that says `ready`, begins at a line of input, and prints a line at the end of its work."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._lines = process.stdin, BufferedByteReceiveStream(process.stdout)

    async def go(self) -> None:
        await self._input.send(b"go\n")

    async def line(self) -> str:
        return (await self._lines.receive_until(b"\n", 1_000)).decode()

    async def tell(self) -> str:
        await self.go()
        return await self.line()


@asynccontextmanager
async def _program(*command: str | Path) -> AsyncIterator[_Program]:
    process = await anyio.open_process([str(word) for word in command], stderr=None)
    try:
        program = _Program(process)
        assert await program.line() == "ready"
        yield program
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


# ---- taking


async def _take(bench: Bench, client: penstock.Client, topic: str, *how: str) -> float:
    """Return how many jobs a second two programs reserve and finish one by one."""
    for _ in range(0, TAKEN, AT_ONCE):
        await client.jobs.add_many([penstock.new_job(topic, BODY) for _ in range(AT_ONCE)])
    async with AsyncExitStack() as stack:
        command = (sys.executable, "-m", "bench._client_worker", bench.url, topic, str(CALLERS // WORKERS), *how)
        workers = [await stack.enter_async_context(_program(*command)) for _ in range(WORKERS)]
        began_s = monotonic_s()
        for worker in workers:
            await worker.go()
        done = [int(await worker.line()) for worker in workers]
        took_s = monotonic_s() - began_s
    assert sum(done) == TAKEN, f"{done} of {TAKEN}"
    return TAKEN / took_s


async def _drain(client: penstock.Client, topic: str) -> float:
    """Return how many jobs a second the handlers of two nodes end."""
    await client.jobs.change_topic(topic, is_paused=True)
    for _ in range(0, TAKEN, AT_ONCE):
        await client.jobs.add_many([penstock.new_job(topic, BODY) for _ in range(AT_ONCE)])
    count = (await client.jobs.count(topic)).ready
    began_s = monotonic_s()
    await client.jobs.change_topic(topic, is_paused=False)
    while True:
        counted = await client.jobs.count(topic)
        if not counted.ready + counted.reserved:
            return count / (monotonic_s() - began_s)
        await anyio.sleep(LOOK_S)


async def _is_sound(client: penstock.Client) -> bool:
    """What was measured has also happened: what was added is there, and what was taken is not."""
    added = {"adds": ADDED, "direct": ADDED, "lists": LISTED, "directs": LISTED, "taken": 0, "dtaken": 0}
    counts = [(await client.jobs.count(f"{name}{ROUNDS}"), count) for name, count in added.items()]
    return all(found.ready == count and not found.reserved for found, count in counts)


# ---- from add to handler


async def _waits(bench: Bench, theirs: JetStreamContext, clients: dict[str, penstock.Client]) -> dict[str, list[float]]:
    """Add by each client and publish by bare nats-py in turn, each at an even pace. Return how many milliseconds each
    took to its handler, or callback."""
    await bench.connection.api("STREAM.CREATE.TIMED", {"name": "TIMED", "subjects": ["timed"]})
    sides: dict[str, Callable[[Note], Awaitable[object]]] = {}
    for name, client in clients.items():
        sides[f"{name}add_to_handler"] = partial(client.jobs.add, "noted")
    sides["nats_py_to_callback"] = lambda note: theirs.publish("timed", msgspec.json.encode(note))
    waited: dict[str, list[float]] = {}
    async with two_of("bench._client_theirs", bench.url, "timed", "TIMED"):
        began_s = monotonic_s()
        for number in range(TIMED):
            for at, (name, send) in enumerate(sides.items()):
                due_s = began_s + (number + at / len(sides)) / A_SECOND
                await anyio.sleep(max(0.0, due_s - monotonic_s()))
                await send(Note(str(bench.folder / name), number, int(monotonic_s() * 1e9)))
        for name in sides:
            waited[name] = await _noted_ms(bench.folder / name)
    return waited


async def _noted_ms(path: Path) -> list[float]:
    while True:
        waited = _read(path)
        if len(waited) == TIMED:
            return waited
        await anyio.sleep(LOOK_S)


def _read(path: Path) -> list[float]:
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [int(line.split()[1]) / 1e6 for line in lines]
