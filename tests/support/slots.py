"""A governor of this process, and handlers that note how many calls of a key run at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from actors.flow import governor
from actors.flow.governor import Governor
from actors.flow.rules import slots
from actors.flow.rules.slots import Slotting
from actors.jobs.worker.job import Job
from actors.runtime.rules import slots_held
from streams.buckets.bucket import Bucket
from streams.topology.specs import Topology
from streams.topology.topology import apply
from tests.support.job_workers import Log
from tests.support.jobs import Jobs
from tests.support.server import topology_for

LONG_S = 60
LEASE_S = 10
"""A lease whose reply was lost is nobody's for so long."""


def make_slots_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots and the lease of their governor last long: a busy machine that is late to renew them ends no call."""
    for rules in (slots, slots_held):
        monkeypatch.setattr(rules, "LIFE_S", float(LONG_S))
    for lease in ("LEASE_TTL_S", "IDLE_TTL_S"):
        monkeypatch.setattr(governor, lease, LEASE_S)
    # a new governor gives nothing while slots of an earlier one may last
    monkeypatch.setattr(governor, "Slotting", lambda token, since_s: Slotting(token, since_s - 2 * LONG_S))


@asynccontextmanager
async def governed(jobs: Jobs) -> AsyncIterator[Governor]:
    """Have a governor that leads until the block ends."""
    connection, name = jobs.connection, jobs.connection.namespace.bucket("LEASES")
    buckets = tuple(spec for spec in topology_for(connection).buckets if spec.name == name)
    await apply(connection, Topology(buckets=buckets, profile="fast"))
    leases = Bucket(connection, jobs.publisher, name, bytes)
    governor = Governor(node="g", connection=connection, leases=leases, rate_of=lambda _key: None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(governor.run)
        tasks.start_soon(stand_again, governor)
        with anyio.fail_after(20):
            await governor.elected.wait()
        yield governor
        tasks.cancel_scope.cancel()


async def stand_again(governor: Governor) -> None:
    """Have it elected again when it has lost its lease, as a node does whose requests nobody answers."""
    while True:
        governor.missing()
        await anyio.sleep(0.5)


class KeyedCalls:
    """Handlers that take a while, unless they are released at once. `most`: how many calls of a key ran at once. The
    log has `begun`, `ended` and `cancelled` with the id, and the key's count in `most`."""

    def __init__(self, *, takes_s: float = 0.0) -> None:
        self.log = Log()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.release = anyio.Event()
        self._takes_s = takes_s

    async def handle(self, job: Job) -> None:
        body = job.json()
        key = str(body.get("m")) if isinstance(body, dict) else ""
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])
        self.log("begun", job.id, job.attempt)
        try:
            if self._takes_s:
                await anyio.sleep(self._takes_s)
            else:
                await self.release.wait()
            self.log("ended", job.id)
        except BaseException:
            self.log("cancelled", job.id, job.is_lost)
            raise
        finally:
            self.running[key] -= 1
