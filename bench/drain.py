"""How fast two worker processes drain no-op jobs: ours, one job a call and in lists, and bare nats-py's.

Also: how long a job is from its adding to its handler at 200 a second, beside a message of bare nats-py's in the same
seconds, and what a kill -9 of one worker costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import nats

from actors.jobs.adds import Stored
from actors.jobs.store import JobStore
from bench._drain_app import Note
from bench._fetch import Bench, fetch_bench
from bench.harness import Result, Rounds, two_of
from streams.clock import SYSTEM, monotonic_s, now_ms
from streams.messages.jobs import JobRecord, body_of, encode_job
from streams.publish.publisher import Outgoing
from streams.topology.specs import job_consumer
from streams.topology.topology import ensure_consumer

NAME = "drain"
ONE_REACH, LISTS_REACH = 26_000, 66_000
P50_MS, P99_MS = 0.7, 1.2
BACK_S = 5.0
ROUNDS = 3
ONE, LISTS, THEIRS = 20_000, 40_000, 20_000
"""Jobs a round."""
TIMED, A_SECOND = 3_000, 200
KILLED = 20_000
LIMIT_S = 120
"""Of a busy machine. A quiet one needs a third of it."""
BODY = "x" * 198
WORKERS = ("worker1", "worker2")
LOOK_S = 0.01


async def run() -> Result:
    """Measure all of it on one server, with two workers of each kind."""
    async with fetch_bench() as bench:
        spec = job_consumer(bench.connection.namespace, "theirs")
        await ensure_consumer(bench.connection, spec)
        async with two_of("bench._drain_theirs", bench.url, spec.stream, spec.name, "drain"):
            for name in WORKERS:
                await bench.node(name, "--roles", "worker", "--app", "bench._drain_app")
            ours = await _rounds(bench)
        spec = job_consumer(bench.connection.namespace, "timed")
        await ensure_consumer(bench.connection, spec)
        async with two_of("bench._drain_theirs", bench.url, spec.stream, spec.name, "note"):
            waited, theirs_waited = await _waits(bench)
        back_s, lost = await _kill(bench)
    one, lists, theirs = (statistics.median(ours[side]) for side in ("one", "lists", "theirs"))
    (p50_ms, p99_ms), (their_p50_ms, their_p99_ms) = _middle_and_tail(waited), _middle_and_tail(theirs_waited)
    is_fast = one >= ONE_REACH and lists >= LISTS_REACH
    return Result(
        what="no-op jobs of 200 B drained by two workers, in lists",
        ours=round(lists),
        theirs=round(theirs),
        ratio=round(Rounds(ours["lists"], ours["theirs"]).ratio, 2),
        target=f">= {LISTS_REACH:,}/s, one a call >= {ONE_REACH:,}/s, p50 <= {P50_MS} ms, p99 <= {P99_MS} ms, "
        f"0 lost, back <= {BACK_S:g} s",
        ok=is_fast and p50_ms <= P50_MS and p99_ms <= P99_MS and not lost and back_s <= BACK_S,
        more={
            "one_a_call": round(one),
            "one_a_call_ratio": round(Rounds(ours["one"], ours["theirs"]).ratio, 2),
            "add_to_handler_p50_ms": round(p50_ms, 2),
            "add_to_handler_p99_ms": round(p99_ms, 2),
            "nats_py_publish_to_handler_p50_ms": round(their_p50_ms, 2),
            "nats_py_publish_to_handler_p99_ms": round(their_p99_ms, 2),
            "killed_back_s": round(back_s, 2),
            "killed_lost": lost,
        },
    )


# ---- how fast


async def _rounds(bench: Bench) -> dict[str, list[float]]:
    """Return each side's rates, of the counted rounds."""
    rates: dict[str, list[float]] = {"one": [], "lists": [], "theirs": []}
    for topic in ("one", "lists"):
        await _until(bench, topic, lambda info: info["num_waiting"] >= len(WORKERS))
    for number in range(ROUNDS + 1):
        for topic, count in (("one", ONE), ("lists", LISTS), ("theirs", THEIRS)):
            rate = await _round(bench, topic, count)
            if number:
                rates[topic].append(rate)
    return rates


async def _round(bench: Bench, topic: str, count: int) -> float:
    """Fill a topic while it is paused, let go, and return how many were drained a second."""
    if topic != "theirs":
        await _pause(bench, topic, True)
    await _fill(bench, topic, count)
    info = await _info(bench, topic)
    assert info["num_pending"] == count, f"{topic} was not paused: {info['num_pending']} of {count} wait"
    if topic == "theirs":
        await bench.connection.publish_core("bench.go")
    else:
        await _pause(bench, topic, False)
    began_s = monotonic_s()
    await _until(bench, topic, lambda info: not info["num_pending"] + info["num_ack_pending"])
    return count / (monotonic_s() - began_s)


async def _pause(bench: Bench, topic: str, is_paused: bool) -> None:
    await bench.bucket("TOPICS").put(topic, msgspec.json.encode({"lanes": ["normal"], "is_paused": is_paused}))
    await anyio.sleep(0.2 if is_paused else 0)  # until both workers have heard it


async def _fill(bench: Bench, topic: str, count: int) -> None:
    """Put ready jobs there as the store would, without its conditions: filling is not what is measured."""
    namespace, now = bench.connection.namespace, now_ms()
    body = body_of(BODY)
    jobs = [
        JobRecord(topic=topic, id=f"{n}", due_ms=now, body=body, added_ms=now, ttr_ms=60_000, most_attempts=10)
        for n in range(count)
    ]
    await bench.publisher.publish_many(
        [Outgoing(namespace.job("ready", topic, job.id), encode_job(job)) for job in jobs]
    )


async def _info(bench: Bench, topic: str) -> dict[str, Any]:
    spec = job_consumer(bench.connection.namespace, topic)
    return await bench.connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}")


async def _until(bench: Bench, topic: str, is_so: Callable[[dict[str, Any]], bool]) -> None:
    while True:
        if is_so(await _info(bench, topic)):
            return
        await anyio.sleep(LOOK_S)


# ---- how soon, and what a kill costs


async def _waits(bench: Bench) -> tuple[list[float], list[float]]:
    """Add jobs at an even pace, and publish as many messages by bare nats-py, in turn. Return how many milliseconds
    each of ours and each of theirs took to its handler."""
    paths = bench.folder / "waits", bench.folder / "waits_theirs"
    namespace = bench.connection.namespace
    store = JobStore(bench.connection, bench.publisher, namespace, SYSTEM)
    client = await nats.connect(bench.url)
    publish, began_s = client.jetstream().publish, monotonic_s()
    for number in range(2 * TIMED):
        await anyio.sleep(max(0.0, began_s + number / 2 / A_SECOND - monotonic_s()))
        note = Note(str(paths[number % 2]), number, int(monotonic_s() * 1e9))
        if number % 2:
            await publish(namespace.job("ready", "timed", f"theirs{number}"), msgspec.json.encode(note))
        else:
            (answer,) = await store.add_many([(_noted(f"timed{number}", note), "keep")])
            assert isinstance(answer, Stored)
    waited = [await _notes(path, TIMED) for path in paths]
    await client.close()
    ours, theirs = ([waited_ns / 1e6 for waited_ns in each.values()] for each in waited)
    return ours, theirs


def _middle_and_tail(waited_ms: list[float]) -> tuple[float, float]:
    return statistics.median(waited_ms), statistics.quantiles(waited_ms, n=100)[98]


async def _kill(bench: Bench) -> tuple[float, int]:
    """Kill one of the workers in the middle of a backlog. Return how long after that all is done, and how many jobs
    were never run."""
    path = bench.folder / "killed"
    await _pause(bench, "noted", True)
    jobs = [_noted(f"killed{number}", Note(str(path), number)) for number in range(KILLED)]
    namespace = bench.connection.namespace
    await bench.publisher.publish_many(
        [Outgoing(namespace.job("ready", job.topic, job.id), encode_job(job)) for job in jobs]
    )
    await _pause(bench, "noted", False)
    await _until(bench, "noted", lambda info: info["num_pending"] < KILLED // 2)
    bench.nodes[0].end()
    killed_s = monotonic_s()
    await _until(bench, "noted", lambda info: not info["num_pending"] + info["num_ack_pending"])
    back_s = monotonic_s() - killed_s
    return back_s, KILLED - len(_read(path))


def _noted(job_id: str, note: Note) -> JobRecord:
    now = now_ms()
    return JobRecord(
        topic="noted", id=job_id, due_ms=now, body=body_of(note), added_ms=now, ttr_ms=60_000, most_attempts=10
    )


async def _notes(path: Path, count: int) -> dict[int, int]:
    """Wait until so many jobs were noted."""
    while True:
        found = _read(path)
        if len(found) == count:
            return found
        await anyio.sleep(LOOK_S)


def _read(path: Path) -> dict[int, int]:
    if not path.exists():
        return {}
    lines = path.read_text().rpartition("\n")[0].splitlines()
    return {int(number): int(waited_ns) for number, waited_ns in map(str.split, lines)}
