"""How fast one node's HTTP gateway is: single adds, batches of 500, and a long poll's answer.

The node is one process. The load comes from this one, over keep-alive connections, with a client that does no more than
write requests and find the ends of answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing

import anyio
import msgspec

from bench._fetch import Bench, fetch_bench
from bench.harness import Result
from streams.clock import monotonic_s

NAME = "http"
SINGLE_REACH, BATCH_REACH, POLL_MS = 3_000, 30_000, 5.0
ROUNDS = 3
SINGLES, BATCHES, BATCH = 9_000, 120, 500
"""Calls a round, and the jobs of a batch."""
AT_ONCE, BATCHES_AT_ONCE = 64, 6
POLLS = 200
BODY = "x" * 198
HEAD = "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"


async def run() -> Result:
    """Measure all of it on one node with the roles that jobs need."""
    port = free_port()
    os.environ["PENSTOCK_HTTP"] = f"127.0.0.1:{port}"
    async with fetch_bench() as bench:
        await bench.node("node1", "--roles", "timer,desk,gateway")
        await until_open(port)
        singles = await rounds(port, AT_ONCE, SINGLES, single)
        batches = [BATCH * rate for rate in await rounds(port, BATCHES_AT_ONCE, BATCHES, _batch)]
        delayed = [BATCH * rate for rate in await rounds(port, BATCHES_AT_ONCE, BATCHES, _delayed_batch)]
        waits_ms = await _polls(port)
        stored = await _stored(bench)
    p50_ms, p99_ms = statistics.median(waits_ms), statistics.quantiles(waits_ms, n=100)[98]
    one_a_call, batch = statistics.median(singles), statistics.median(batches)
    is_sound = stored == (ROUNDS + 1) * (SINGLES + 2 * BATCHES * BATCH) + POLLS
    return Result(
        what="jobs of 200 B added over HTTP through one node, in batches of 500",
        ours=round(batch),
        target=f">= {BATCH_REACH:,}/s, one a call >= {SINGLE_REACH:,}/s, long poll p50 <= {POLL_MS:g} ms",
        ok=is_sound and one_a_call >= SINGLE_REACH and batch >= BATCH_REACH and p50_ms <= POLL_MS,
        more={
            "one_a_call": round(one_a_call),
            "with_a_delay": round(statistics.median(delayed)),
            "long_poll_p50_ms": round(p50_ms, 2),
            "long_poll_p99_ms": round(p99_ms, 2),
            "is_sound": is_sound,
        },
    )


class Connection:
    """A keep-alive connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, path: str, body: object) -> bytes:
        """Return the answer's body. Raises for an answer that is no success."""
        payload = msgspec.json.encode(body)
        self._writer.write(HEAD.format(path=path, length=len(payload)).encode() + payload)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head[head.index(b"content-length: ") + 16 :].split(b"\r\n", 1)[0])
        answer = await self._reader.readexactly(length)
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), head + answer
        return answer


@asynccontextmanager
async def _connections(port: int, count: int) -> AsyncIterator[list[Connection]]:
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            stack.callback(writer.close)
            opened.append(Connection(reader, writer))
        yield opened


Make = Callable[[int, int], tuple[str, object]]


def single(number: int, at: int) -> tuple[str, object]:
    return "/v1/topics/singles/jobs", {"id": f"{number}-{at}", "delay_ms": 3_600_000, "body": BODY}


def _batch(number: int, at: int) -> tuple[str, object]:
    first = at * BATCH
    return "/v1/topics/batches/jobs", [{"id": f"{number}-{first + n}", "body": BODY} for n in range(BATCH)]


def _delayed_batch(number: int, at: int) -> tuple[str, object]:
    first = at * BATCH
    jobs = [{"id": f"{number}-{first + n}", "delay_ms": 3_600_000, "body": BODY} for n in range(BATCH)]
    return "/v1/topics/delayed/jobs", jobs


async def rounds(port: int, at_once: int, calls: int, make: Make) -> list[float]:
    """Return the calls a second of each counted round."""
    rates = []
    async with _connections(port, at_once) as connections:
        for number in range(ROUNDS + 1):
            left = iter(range(calls))  # shared: each takes the next
            began_s = monotonic_s()
            async with anyio.create_task_group() as tasks:
                for connection in connections:
                    tasks.start_soon(_caller, connection, make, number, left)
            if number:
                rates.append(calls / (monotonic_s() - began_s))
    return rates


async def _caller(connection: Connection, make: Make, number: int, left: Iterator[int]) -> None:
    for at in left:
        await connection.post(*make(number, at))


async def _polls(port: int) -> list[float]:
    """Return how long after its add was sent each job was in the waiting client's hands, in milliseconds."""
    waits_ms = []
    async with _connections(port, 2) as (waiting, adding):
        for number in range(POLLS):
            took_s = list[float]()

            async def wait(took_s: list[float] = took_s) -> None:
                answer = await waiting.post("/v1/topics/polls/reserve", {"wait_ms": 20_000})
                took_s.append(monotonic_s())
                assert b'"receipt"' in answer

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.sleep(0.02)  # it stands at the server by then
                began_s = monotonic_s()
                await adding.post("/v1/topics/polls/jobs", {"id": f"{number}", "body": BODY})
            waits_ms.append(1000 * (took_s[0] - began_s))
    return waits_ms


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until_open(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await anyio.sleep(0.02)
        else:
            writer.close()
            return


async def _stored(bench: Bench) -> int:
    return await bench.count("JOBS")
