"""Rates from a cold start, and rates that change while rows are in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import pytest

from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_adds import new_job
from penstock.sdk.client_flows import FlowCalls
from penstock.sdk.client_jobs import Jobs
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from tests.support.command import node
from tests.support.flow_bank import Bank, between, fullest
from tests.support.moments import a_moment
from tests.support.server import make_topology, topology_for

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the nodes are processes of their own


async def test_a_topics_rate_of_500_that_let_570_into_its_first_second_no_longer_does(
    server: EmbeddedServer, connection: Connection, tmp_path: Path
) -> None:
    """Two workers start cold, at the same time, over a backlog."""
    await make_topology(connection, topology_for(connection))
    notes = tmp_path / "notes"
    where = ("--nats", server.url, "--sink", "none")
    named = {"PENSTOCK_NAMESPACE": connection.namespace.name, "PENSTOCK_LOG_FORM": "json", "PENSTOCK_HTTP": "off"}
    async with node(*where, "--name", "desk", "--roles", "desk", environment=named) as desk:
        await desk.logged("node.ready")
        jobs = Jobs(ServiceClient(connection, "jobs", 30.0))
        await jobs.change_topic("mail", rate=500.0)
        with anyio.fail_after(200):
            while not await cold_start(jobs, notes, where, named):
                await a_moment()


def clear(notes: Path) -> None:
    notes.write_bytes(b"")


def noted(notes: Path) -> list[float]:
    """Return when handlers began, in order."""
    return sorted(int(line.split()[1]) / 1000 for line in notes.read_text().splitlines())


async def cold_start(jobs: Jobs, notes: Path, where: Sequence[str], named: Mapping[str, str]) -> bool:
    """Return whether no second had more than its rate, and the later ones came near to it. On a busy machine handlers
    note late when they began."""
    clear(notes)
    assert len(await jobs.add_many(new_job("mail", None) for _ in range(3_000))) == 3_000
    workers = [
        node(
            *(*where, "--name", name, "--roles", "worker", "--app", "tests.support.rates_app"),
            environment={**named, "RATES_NOTES": str(notes)},
        )
        for name in ("w1", "w2")
    ]
    async with workers[0], workers[1]:
        while len(began := noted(notes)) < 2_600:  # noqa: ASYNC110 # a file tells nobody that it grew
            await anyio.sleep(0.05)
    most, _ = fullest(began)
    is_within = most <= 500 + 2 + 25  # 50 ms from a permission to its note
    return is_within and between(began, began[0] + 2, began[0] + 5) >= 0.9 * 3 * 500


async def test_a_flows_rate_changes_live_from_500_to_none_to_one_a_minute_and_back(
    server: EmbeddedServer, connection: Connection, tmp_path: Path
) -> None:
    await make_topology(connection, topology_for(connection))
    bank = Bank(server, connection, tmp_path)
    bank.make(tables=4, rows=25_000)
    flows = FlowCalls(ServiceClient(connection, "flow", 30.0))

    async def begins(at_least: float, within_s: float = 90.0) -> None:
        """Wait until the last second had so many."""
        with anyio.fail_after(within_s):
            while between(bank.began(), monotonic_s() - 1, monotonic_s()) < at_least:  # noqa: ASYNC110 # a file
                await anyio.sleep(0.1)

    async def calms(at_most: int, *, of_s: float, within_s: float) -> None:
        """Wait until no more began in so many seconds from now on."""
        since_s = monotonic_s()
        with anyio.fail_after(of_s + within_s):
            while (from_s := monotonic_s() - of_s) < since_s or between(bank.began(), from_s, from_s + of_s) > at_most:  # noqa: ASYNC110 # a file
                await anyio.sleep(0.1)

    async with bank.node("n1", FLOW_RATE="500", FLOW_LEAD="2s"), bank.node("n2", FLOW_RATE="500", FLOW_LEAD="2s"):
        await begins(400)
        await flows.set("prizes", rate=0)
        await begins(600)
        await flows.set("prizes", rate=0.5)
        await calms(3, of_s=5, within_s=60)  # the shares of before end, and the second after them
        await flows.set("prizes", rate=1 / 60)
        await calms(1, of_s=3, within_s=60)
        await flows.set("prizes", rate=300)
        await begins(270)
        await flows.pause("prizes")
        await calms(0, of_s=2, within_s=60)  # what began may end
        await flows.resume("prizes")
        await begins(270)
        most = 0.0
        with anyio.fail_after(60):
            while not 0 < most <= 300 * 1.1:  # a busy machine begins late what was permitted before
                raised_s, _ = await bank.runs_for(2)
                began = bank.began()
                most = fullest(began[-between(began, raised_s - 1, monotonic_s()) :])[0]
    assert bank.has_run_each_once()
