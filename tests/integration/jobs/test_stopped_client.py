"""A client that is stopped for longer than its TTR settles nothing when it wakes, whatever became of its job meanwhile,
and hears so: by a desk, and where it took the job by itself."""

import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from tests.support.desks import Office, open_service
from tests.support.jobs_chaos import HELD
from tests.support.moments import a_moment

TTR_S = 1
SILENT_S = 4.0
"""Longer than the TTR, and than the ack wait of a job that was taken without a desk."""


class Sleeper:
    """A client in a process of its own that holds one job."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self._process = process
        self._out = BufferedByteReceiveStream(process.stdout)

    async def stop_with_a_job(self) -> str:
        """Wait until it holds the job, and stop it. Return its receipt."""
        with anyio.fail_after(60):
            receipt = (await self._out.receive_until(b"\n", 1_000)).decode().split()[1]
        self._process.send_signal(signal.SIGSTOP)
        return receipt

    async def wake(self, first: str) -> dict[str, str]:
        """Let it go on, and return what it was told as it settled the job, in this way first."""
        assert self._process.stdin is not None
        await self._process.stdin.send(f"{first}\n".encode())
        self._process.send_signal(signal.SIGCONT)
        with anyio.fail_after(60):
            told: dict[str, str] = json.loads(await self._out.receive_until(b"\n", 1_000))
        return told


@asynccontextmanager
async def a_holder(server: EmbeddedServer, office: Office, door: str) -> AsyncIterator[Sleeper]:
    command = [sys.executable, "-m", "tests.support.jobs_holder", server.url, str(TTR_S), office.namespace.name, door]
    async with await anyio.open_process(command, stderr=None) as process:
        try:
            yield Sleeper(process)
        finally:
            process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(("door", "first"), [("desk", "touch"), ("direct", "touch"), ("direct", "finish")])
@pytest.mark.parametrize("meanwhile", ["held", "finished", "added again", "added and held"])
async def test_a_client_that_was_stopped_over_its_ttr_settles_nothing(
    server: EmbeddedServer, office: Office, door: str, first: str, meanwhile: str
) -> None:
    await office.topics.use(HELD, "normal")
    async with open_service(office), a_holder(server, office, door) as sleeper:
        await office.add("one", topic=HELD, body=1)
        receipt = await sleeper.stop_with_a_job()
        stopped_s = monotonic_s()
        job = await office.reserve(HELD, ttr_ms=60_000)
        assert job.receipt != receipt
        if meanwhile != "held":
            assert [answer.code for answer in await office.desk.finish([job.receipt])] == ["ok"]
        if meanwhile.startswith("added"):
            await office.add("one", topic=HELD, body=2)
        if meanwhile == "added and held":
            job = await office.reserve(HELD, ttr_ms=60_000)
        while monotonic_s() < stopped_s + SILENT_S:
            await a_moment()
        before = await office.desk.peek(HELD, "one")
        assert await sleeper.wake(first) == dict.fromkeys(("touch", "release", "bury", "finish"), "stale")
        after = await office.desk.peek(HELD, "one")
        assert (after and after.state, await office.dead()) == (before and before.state, [])
        if meanwhile in ("held", "added and held"):
            assert [answer.code for answer in await office.desk.finish([job.receipt])] == ["ok"]
