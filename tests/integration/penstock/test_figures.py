"""The figures of the whole installation, as Prometheus gets them from a node."""

from __future__ import annotations

import re

import anyio
from aiohttp import ClientSession

from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.subjects import Namespace
from streams.topology.specs import wanted
from tests.support.command import node
from tests.support.moments import a_moment
from tests.support.processes import free_ports
from tests.support.server import make_topology

WANTED = (
    'penstock_jobs{state="delayed",topic="figured"} 2.0',
    'penstock_jobs{state="ready",topic="figured"} 1.0',
    'penstock_jobs{state="reserved",topic="figured"} 0.0',
    'penstock_dead_letters{engine="jobs",name="figured"} 1.0',
    'penstock_batches{state="running",task="figured"} 1.0',
    'penstock_batch_items_left{task="figured"} 7.0',
    'penstock_nodes{role="desk"} 1.0',
    'penstock_gateway_requests_total{operation="addJobs",status="200"} 1.0',
    'penstock_gateway_requests_total{operation="unknown",status="404"} 1.0',
    'penstock_gateway_requests_total{operation="refused",status="415"} 1.0',
)


async def test_what_waits_is_told_by_one_node(
    server: EmbeddedServer, connection: Connection, namespace: Namespace
) -> None:
    await make_topology(connection, wanted(namespace, profile="fast"))
    figures, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    on = ("--nats", server.url, "--namespace", namespace.name, "--sink", "none", "--app", "tests.support.figures_app")
    fast = ("-m", "tests.support.odd_node", "600000", "up")  # its own clock is ten minutes ahead of the server's
    async with (
        node(*on, "--metrics", figures, "--http", http, command=fast) as up,
        ClientSession(f"http://{http}") as client,
    ):
        await up.logged("node.ready")
        jobs = "/v1/topics/figured/jobs"
        async with client.post(jobs, json=[{"id": "1"}, {"id": "2"}, *[{"delay_ms": 9_000_000}] * 2]) as answer:
            assert answer.status == 200, await answer.text()
        async with client.post("/v1/topics/figured/reserve", json={}) as answer:
            [held] = (await answer.json())["jobs"]
        async with client.post("/v1/receipts/bury", json={"receipts": [held["receipt"]], "reason": "odd"}) as answer:
            assert answer.status == 200, await answer.text()
        async with client.post("/v1/batches/figured", json={"n": 7}) as answer:
            assert answer.status in (200, 201), await answer.text()
        for path, kind, status in (("/v1/nothing", "application/json", 404), (jobs, "text/html", 415)):
            async with client.post(path, data="{}", headers={"Content-Type": kind}) as answer:
                assert answer.status == status
        missing, told = set(WANTED), ""
        with anyio.move_on_after(60):
            while missing:
                async with client.get(f"http://{figures}/metrics") as answer:
                    told = await answer.text()
                missing = set(WANTED) - set(told.splitlines())
                await a_moment()
        assert not missing, told
        since = re.search(r'penstock_jobs_ready_seconds\{topic="figured"\} (\S+)', told)
        assert since is not None
        assert 0 < float(since[1]) < 120
