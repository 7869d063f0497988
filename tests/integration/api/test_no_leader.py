"""Answers while two servers of three are gone: nothing is "not done" that is done when they are back."""

from pathlib import Path
from typing import Any, NamedTuple

import anyio
from aiohttp import ClientSession, ClientTimeout

from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from tests.integration.api.test_rest import add
from tests.support.gateway import running_gateway
from tests.support.processes import ServerProcess, cluster, urls_of
from tests.support.server import leading, make_topology, topology_for

HOUR = 3_600_000
COUNT = 5
UNKNOWN = 504


class Answer(NamedTuple):
    """What a client was told, and whether it is so afterwards."""

    job_id: str
    status: int
    told: Any


async def test_what_is_called_not_done_without_a_leader_is_not_done(tmp_path: Path) -> None:
    """The gateway's link is to the leader, who stays, and takes in what he cannot have written twice any more."""
    with anyio.fail_after(300):
        async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as first:
            await make_topology(first, topology_for(first))
            leader, others = await _leader_and_others(servers, first)
            async with connect(leader.url, name="test") as connection, Publisher(connection) as publisher:
                async with running_gateway(connection, publisher) as gateway:
                    async with ClientSession(gateway.url, timeout=ClientTimeout(total=120)) as client:
                        ids = [f"{what}{n}" for what in ("replace", "delete") for n in range(COUNT)]
                        await add(client, "t", [{"id": one, "body": "old", "delay_ms": HOUR} for one in ids], 200)
                        wrong = []
                        for asked in (ids[:COUNT], ids[COUNT:]):
                            for server in others:
                                server.kill()
                            answers = await _ask_all(client, asked)
                            for server in others:
                                server.start()
                            await _until_ready(client)
                            wrong += [answer for answer in answers if not await _is_so(client, answer)]
    assert wrong == []


async def _ask_all(client: ClientSession, ids: list[str]) -> list[Answer]:
    answers: list[Answer] = []

    async def ask(job_id: str) -> None:
        if job_id.startswith("replace"):
            how, path = "POST", "/v1/topics/t/jobs"
            body: object = {"id": job_id, "body": "new", "delay_ms": HOUR, "on_same": "replace"}
        else:
            how, path, body = "DELETE", f"/v1/topics/t/jobs/{job_id}", None
        async with client.request(how, path, json=body) as response:
            answers.append(Answer(job_id, response.status, await response.json(content_type=None)))

    async with anyio.create_task_group() as tasks:
        for job_id in ids:
            tasks.start_soon(ask, job_id)
    return answers


async def _is_so(client: ClientSession, answer: Answer) -> bool:
    """Say whether what was answered holds now. What was called unknown may be either way."""
    async with client.get(f"/v1/topics/t/jobs/{answer.job_id}") as response:
        shown = await response.json(content_type=None) if response.status == 200 else None
    is_done = shown is None or shown["body"] == "new"
    return answer.status == UNKNOWN or is_done == (answer.status < 300)


async def _leader_and_others(
    servers: list[ServerProcess], connection: Connection
) -> tuple[ServerProcess, list[ServerProcess]]:
    leader = await leading(servers, connection, f"STREAM.INFO.{connection.namespace.stream('JOBS')}")
    return leader, [server for server in servers if server is not leader]


async def _until_ready(client: ClientSession) -> None:
    """Wait until jobs are taken again."""
    while True:
        async with client.post("/v1/topics/t/jobs", json={"delay_ms": HOUR}) as response:
            if response.status == 201:
                return
