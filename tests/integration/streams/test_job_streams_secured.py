"""Several streams of jobs with the project's accounts, changed as docs/operations.md says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from streams.embedded.server import EmbeddedServer
from streams.link.connection import connect
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.accounts import SHIPPED, Users, secured_server
from tests.support.command import node

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the server's permissions do not depend on the loop

NUMBER = 3
NS = Namespace("penstock", NUMBER)
TOPICS = [f"secured-{n}" for n in range(9)]


def _with_rights(accounts: str) -> str:
    """Return the file with each right to PENSTOCK_JOBS once more for each further stream, and the subjects of all."""
    parts = range(NUMBER)
    jobs = re.sub(
        r'"[^"]*\.PENSTOCK_JOBS(?=[".])[^"]*"',
        lambda found: ", ".join(found[0].replace("PENSTOCK_JOBS", name) for name in NS.jobs_streams()),
        accounts,
    )
    subjects = ", ".join(f'"penstock.jobs-{part}of{NUMBER}.>"' for part in parts)
    return jobs.replace('"penstock.jobs.>"', f'"penstock.jobs.>", {subjects}')


@pytest.fixture
def users() -> Users:
    return Users()


@pytest.fixture
def secured(tmp_path: Path, users: Users) -> Iterator[EmbeddedServer]:
    with secured_server(tmp_path, users, _with_rights(SHIPPED)) as running:
        yield running


async def test_nodes_and_direct_clients_may_use_all_streams(secured: EmbeddedServer, users: Users) -> None:
    async with connect(secured.url, name="admin", credentials=users.credentials("admin")) as admin:
        await apply(admin, wanted(NS, profile="fast"))
    direct = penstock.connect(secured.url, credentials=users.credentials("node"), direct=True, timeout_s=20)
    async with node("--nats", secured.url, environment=users.login("node")) as up, direct as client:
        await up.logged("node.ready")
        for topic in TOPICS:
            await client.jobs.add(topic, id="now")
            await client.jobs.add(topic, id="soon", delay=1)
            for job_id in ("now", "soon"):
                (held,) = await client.jobs.reserve_many(topic, wait=30)
                assert held.id == job_id
                await held.finish()
        assert not [line for line in up.lines if "ermission" in str(line)]
