"""Many sources and many topics at once, while nodes and the server are killed: every order is stored, and every job
that was accepted runs. The long form has 1,000 of each."""

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from actors.jobs.rules.job_answers import Added
from penstock.errors import PenstockError
from penstock.sdk.client import Client, connect
from penstock.sdk.client_adds import new_job
from streams.messages.jobs import NewJob
from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, World, eventually, open_world

APP = "tests.support.many_topics_app"
PAGE, JOBS_EACH, ORDERS_EACH = 50, 10, 20
LATEST_S = 20.0
SETTINGS = b'{"attempts":1000}'
"""A job that a killed node has taken has had an attempt. So many attempts that no kill makes a dead letter."""


async def add(client: Client, jobs: Sequence[NewJob], accepted: set[str]) -> None:
    """Add jobs through a desk, again until each is accepted."""
    for start in range(0, len(jobs), PAGE):
        left = {job.id: job for job in jobs[start : start + PAGE]}
        while left:
            with suppress(PenstockError):
                for answer in await client.jobs.add_many(list(left.values())):
                    if isinstance(answer, Added):
                        accepted.add(answer.id)
                        left.pop(answer.id, None)


def ended(notes: Path) -> set[str]:
    """Return the ids of the jobs that have run to their end."""
    return {line.split()[1] for line in notes.read_text().splitlines()} if notes.exists() else set()


async def revive(world: World) -> None:
    """Start the nodes that have ended, as whatever supervises them would: one that starts while the server is away for
    long ends by itself."""
    for node in world.nodes.values():
        if not node.is_running:
            await node.start()


async def attack(world: World, form: Form, chance: random.Random) -> int:
    """Kill nodes, and now and then the server, and start them again. Return how often it was the server."""
    server_kills = 0
    for number in range(form.pick(3, 20)):
        await anyio.sleep(chance.uniform(1.0, form.pick(2, 12)))
        await revive(world)
        if number % 3 == 2:
            await world.server.kill()
            server_kills += 1
            await anyio.sleep(chance.uniform(0.0, 2.0))
            await world.server.start()
        else:
            node = chance.choice(list(world.nodes.values()))
            await node.kill()
            await node.start()
    world.kills += server_kills
    return server_kills


@pytest.mark.timeout(3600)
async def test_of_many_sources_and_topics_nothing_is_lost(
    tmp_path: Path, form: Form, assert_whole: AssertWhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, chance = form.pick(20, 1_000), form.chance("many")
    monkeypatch.setenv("MANY_TOPICS", str(size))
    notes, accepted = tmp_path / "notes", set[str]()
    jobs = [
        new_job(f"many{number}", {"notes": str(notes)}, id=f"{number}-{each}", delay=chance.uniform(0.0, LATEST_S))
        for each in range(JOBS_EACH)
        for number in range(size)
    ]
    async with open_world(tmp_path) as world:
        await world.bucket("TOPICS").put("default", SETTINGS)
        for name in ("n1", "n2", "n3"):
            await world.node(name, "--app", APP)
        live_ms = form.pick(4_000, 120_000)
        await world.add_mall(
            shops=size, orders=size * ORDERS_EACH, live_ms=live_ms, live_share=0.5, settings={"slice": "10s"}
        )
        async with connect(world.server.url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(add, client, jobs, accepted)
            server_kills = await attack(world, form, chance)
        within_s = form.pick(120, 1_200)

        async def all_ran() -> bool:
            await revive(world)
            return accepted <= ended(notes)

        with suppress(TimeoutError):
            await eventually(all_ran, within_s, "not every job has run")
        lost = accepted - ended(notes)
        world.facts |= {
            "sources": size, "topics": size, "jobs": len(accepted), "lost_jobs": len(lost), "server_kills": server_kills
        }  # fmt: skip
        assert_whole(await world.verdict("many", form, within_s=within_s))
        assert len(accepted) == len(jobs)
        assert not lost
