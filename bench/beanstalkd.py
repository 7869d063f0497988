"""beanstalkd beside us: jobs of 200 B added, taken and finished by one client, drained by two workers, and how late.

The doors are alike: their client on its socket and ours on the service of a node, workers that hold a job at a time.
What one caller does, one call after the other, is a figure of the way there and back: theirs is one hop to a server
that does it all, ours goes by the NATS server to a node, from there to the store, and back. So there are figures of
many callers at once, too: theirs with a connection and a thread each, as its client is made, ours on one connection.
Both keep what they acknowledge in files, and neither waits for the disk. Where beanstalkd is not installed there is
nothing to compare, and that is said. It is a table, not a race: to be sound is all that is asked.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.to_thread import run_sync

from bench._beanstalk import Beanstalk, Worker, beanstalkd, find_beanstalkd
from bench._drain_app import Note
from bench._fetch import Bench, fetch_bench
from bench.harness import Result, Rounds, in_turns
from penstock.sdk.client import Client
from penstock.sdk.client import connect as connect_client
from penstock.sdk.client_adds import new_job
from streams.clock import monotonic_s
from streams.topology.specs import job_consumer

NAME = "beanstalkd"
WHAT = "no-op jobs of 200 B drained by two workers, one a call"
ROUNDS = 2
SINGLES, PAGES, PAGE = 400, 5_000, 500
"""Jobs a round: one by one, and by lists of `PAGE`."""
CALLERS, EACH = 32, 40
"""At once, and what each does a round."""
DRAINED = 10_000
TIMED, A_SECOND = 500, 200
LATE_S = (1, 2)
"""Delays: whole seconds, for theirs know no others."""
BODY = "x" * 198
LOOK_S = 0.005
WAIT_S = 10.0
"""For a job that is there, and that another caller was nearly given."""


async def run() -> Result:
    """Measure each figure of both sides, one after the other."""
    if find_beanstalkd() is None:
        return Result(
            what=WHAT,
            ours=0,
            target="skipped: no beanstalkd in PATH",
            ok=True,
            more={"do": "apt-get install beanstalkd, and run it again"},
        )
    async with fetch_bench() as bench, connect_client(bench.url) as client, _their_side() as theirs:
        await bench.node("desk1", "--roles", "desk,timer")
        for name in ("worker1", "worker2"):
            await bench.node(name, "--roles", "worker", "--app", "bench._drain_app")
        ours = Ours(bench, client)
        rates = await _rates(ours, theirs)
        drained = await _drained(ours, theirs)
        waits = {
            name: [await side.waited_ms(delays_s) for side in (ours, theirs)]
            for name, delays_s in (("to_handler", (0,)), ("late", LATE_S))
        }
        left = [await ours.left(), await theirs.left()]
    return Result(
        what=WHAT,
        ours=round(statistics.median(drained.ours)),
        theirs=round(statistics.median(drained.theirs)),
        ratio=round(drained.ratio, 2),
        target="none: a table, ours and theirs; both lose nothing",
        ok=left == [0, 0],
        more={**rates, **_cuts(waits), "left": left},
    )


async def _rates(ours: Ours, theirs: Theirs) -> dict[str, list[int]]:
    """Return jobs a second by name, ours and theirs."""
    sides = {
        "added_one_by_one": (ours.added_one_by_one, theirs.added_one_by_one),
        "added_in_lists": (ours.added_in_lists, theirs.added_in_lists),
        "taken_one_by_one": (ours.taken_one_by_one, theirs.taken_one_by_one),
        "taken_in_lists": (ours.taken_in_lists, theirs.taken_in_lists),
        f"added_by_{CALLERS}_callers": (ours.added_by_callers, theirs.added_by_callers),
        f"taken_by_{CALLERS}_callers": (ours.taken_by_callers, theirs.taken_by_callers),
    }
    found = {}
    for name, (our_side, their_side) in sides.items():
        rounds = await in_turns(our_side, their_side, rounds=ROUNDS)
        found[name] = [round(statistics.median(rates)) for rates in rounds]
    return found


async def _drained(ours: Ours, theirs: Theirs) -> Rounds:
    """Fill one side, let its workers go, and take their time, then the other. The first round warms."""
    rates = Rounds([], [])
    for number in range(ROUNDS + 1):
        our_rate, their_rate = await _rate(ours), await _rate(theirs)
        if number:
            rates.ours.append(our_rate)
            rates.theirs.append(their_rate)
    return rates


async def _rate(side: Ours | Theirs) -> float:
    await side.fill()
    began_s = monotonic_s()
    await side.drain()
    return DRAINED / (monotonic_s() - began_s)


def _cuts(waits: dict[str, list[list[float]]]) -> dict[str, list[float]]:
    """Return the medians and the slowest of a hundred, ours and theirs."""
    found = {}
    for name, sides in waits.items():
        found[f"{name}_p50_ms"] = [round(statistics.median(side), 2) for side in sides]
        found[f"{name}_p99_ms"] = [round(statistics.quantiles(side, n=100)[98], 2) for side in sides]
    return found


async def _at_once(act: Callable[[int], Coroutine[Any, Any, None]]) -> int:
    """Have every caller do its part. `act` gets its number. Return how much was done in all."""
    async with anyio.create_task_group() as tasks:
        for caller in range(CALLERS):
            tasks.start_soon(act, caller)
    return CALLERS * EACH


async def _evenly(count: int, add: Callable[[int], Awaitable[None]]) -> None:
    began_s = monotonic_s()
    for number in range(count):
        await anyio.sleep(max(0.0, began_s + number / A_SECOND - monotonic_s()))
        await add(number)


class Ours:
    """A node's service for the client, and two nodes with handlers."""

    def __init__(self, bench: Bench, client: Client) -> None:
        self._bench = bench
        self._jobs = client.jobs

    async def added_one_by_one(self, number: int) -> int:
        for _ in range(SINGLES):
            await self._jobs.add("held", BODY)
        return SINGLES

    async def added_in_lists(self, number: int) -> int:
        await self._add("held", PAGES)
        return PAGES

    async def taken_one_by_one(self, number: int) -> int:
        for _ in range(SINGLES):
            [job] = await self._jobs.reserve_many("held")
            await self._jobs.finish(job)
        return SINGLES

    async def taken_in_lists(self, number: int) -> int:
        done = 0
        while done < PAGES:
            answers = await self._jobs.finish_many(await self._jobs.reserve_many("held", most=PAGE))
            done += sum(answer.code == "ok" for answer in answers)
        return done

    async def added_by_callers(self, number: int) -> int:
        async def add(_caller: int) -> None:
            for _ in range(EACH):
                await self._jobs.add("held", BODY)

        return await _at_once(add)

    async def taken_by_callers(self, number: int) -> int:
        async def take(_caller: int) -> None:
            for _ in range(EACH):
                [job] = await self._jobs.reserve_many("held", wait=WAIT_S)
                await self._jobs.finish(job)

        return await _at_once(take)

    async def fill(self) -> None:
        await self._pause(True)
        await self._add("one", DRAINED)

    async def drain(self) -> None:
        """Let the workers go, and wait until they have acknowledged everything."""
        await self._pause(False)
        spec = job_consumer(self._bench.connection.namespace, "one")
        while True:
            info = await self._bench.connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}")
            if not info["num_pending"] + info["num_ack_pending"]:
                return
            await anyio.sleep(LOOK_S)

    async def waited_ms(self, delays_s: Sequence[int]) -> list[float]:
        """Return how long after its time each job was in its handler."""
        path = self._bench.folder / f"waited{delays_s}"

        async def add(number: int) -> None:
            delay_s = delays_s[number % len(delays_s)]
            note = Note(str(path), number, int((monotonic_s() + delay_s) * 1e9))
            await self._jobs.add("noted", msgspec.to_builtins(note), delay=delay_s)

        await _evenly(TIMED, add)
        while True:
            waited = _read(path)
            if len(waited) == TIMED:
                return waited
            await anyio.sleep(LOOK_S)

    async def left(self) -> int:
        counts = [await self._jobs.count(topic) for topic in ("held", "one", "noted")]
        return sum(count.delayed + count.ready + count.reserved for count in counts)

    async def _add(self, topic: str, count: int) -> None:
        for _ in range(0, count, PAGE):
            await self._jobs.add_many([new_job(topic, BODY) for _ in range(PAGE)])

    async def _pause(self, is_paused: bool) -> None:
        await self._bench.bucket("TOPICS").put(
            "one", msgspec.json.encode({"lanes": ["normal"], "is_paused": is_paused})
        )
        await anyio.sleep(0.2 if is_paused else 0)  # until both workers have heard it


class Theirs:
    """Their server, a client in this process, in a thread of its own, and worker processes."""

    def __init__(self, port: int, client: Beanstalk, callers: Sequence[Beanstalk]) -> None:
        self._port = port
        self._client = client
        self._callers = callers
        self._workers: list[Worker] = []

    async def added_one_by_one(self, number: int) -> int:
        def add() -> None:
            for _ in range(SINGLES):
                self._client.put(BODY.encode())

        await run_sync(add)
        return SINGLES

    async def added_in_lists(self, number: int) -> int:
        await run_sync(self._add, PAGES)
        return PAGES

    async def taken_one_by_one(self, number: int) -> int:
        def take() -> None:
            for _ in range(SINGLES):
                self._client.delete(self._client.reserve()[0])

        await run_sync(take)
        return SINGLES

    async def taken_in_lists(self, number: int) -> int:
        def take() -> None:
            for _ in range(0, PAGES, PAGE):
                self._client.delete_many(job_id for job_id, _ in self._client.reserve_many(PAGE))

        await run_sync(take)
        return PAGES

    async def added_by_callers(self, number: int) -> int:
        def put(caller: int) -> None:
            for _ in range(EACH):
                self._callers[caller].put(BODY.encode())

        async def add(caller: int) -> None:
            await run_sync(put, caller)

        return await _at_once(add)

    async def taken_by_callers(self, number: int) -> int:
        def reserve(caller: int) -> None:
            client = self._callers[caller]
            for _ in range(EACH):
                client.delete(client.reserve()[0])

        async def take(caller: int) -> None:
            await run_sync(reserve, caller)

        return await _at_once(take)

    async def fill(self) -> None:
        await run_sync(self._add, DRAINED)
        self._workers = [await run_sync(Worker, "drain", self._port) for _ in range(2)]

    async def drain(self) -> None:
        for worker in self._workers:
            worker.go()
        done = [(await run_sync(worker.told))[0] for worker in self._workers]
        assert sum(done) == DRAINED, f"their workers drained {done} of {DRAINED}"

    async def waited_ms(self, delays_s: Sequence[int]) -> list[float]:
        """Return how long after its time each job was in a worker's hands."""
        worker = await run_sync(Worker, "listen", self._port, TIMED)
        worker.go()

        async def add(number: int) -> None:
            delay_s = delays_s[number % len(delays_s)]
            self._client.put(f"{monotonic_s() + delay_s:.7f} {BODY}"[: len(BODY)].encode(), delay_s)

        await _evenly(TIMED, add)
        return await run_sync(worker.told)

    async def left(self) -> int:
        return await run_sync(self._client.count)

    def _add(self, count: int) -> None:
        for _ in range(0, count, PAGE):
            self._client.put_many([BODY.encode()] * PAGE)


@asynccontextmanager
async def _their_side() -> AsyncIterator[Theirs]:
    with beanstalkd() as port, ExitStack() as opened:
        client, *callers = (opened.enter_context(closing(Beanstalk(port))) for _ in range(1 + CALLERS))
        yield Theirs(port, client, callers)


def _read(path: Path) -> list[float]:
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [int(line.split()[1]) / 1e6 for line in lines]
