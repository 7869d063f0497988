"""What one token may cost the others: topics, and counts of them."""

import secrets
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from aiohttp import ClientSession

from actors.jobs.rules.job_answers import TopicCounted
from penstock.api.http import quotas
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.integration.api.test_tokens import call
from tests.support.gateway import SharedGateway, running_gateway
from tests.support.moments import a_moment


async def test_a_token_makes_no_more_topics_than_it_may(guarded_gateway: SharedGateway) -> None:
    tenant = f"t{secrets.token_hex(4)}"
    token = guarded_gateway.token(tenant, namespace=tenant, most_topics=3)
    for topic in ("a", "b", "c", "a"):
        code, told = await call(guarded_gateway, token, "POST", f"/v1/topics/{topic}/jobs", {})
        assert code == 201, told
    code, problem = await call(guarded_gateway, token, "POST", "/v1/topics/d/jobs", {})
    assert (code, problem["code"]) == (429, "quota")
    assert "3 topics are there already; 3 may" in problem["detail"]
    code, reply = await call(
        guarded_gateway, token, "POST", "/queue", {"command": "add", "topic": "d", "id": f"{tenant}-1"}
    )
    assert (code, reply["success"]) == (429, False)
    code, told = await call(guarded_gateway, token, "POST", "/v1/topics/b/jobs", [{}, {}])
    assert (code, told["added"]) == (200, 2), "those that are there stay in use"


async def test_a_token_with_as_many_jobs_as_it_may_have_repeats_its_adds(
    guarded_gateway: SharedGateway, topic: str
) -> None:
    token = guarded_gateway.token(topic, namespace=topic, most_waiting=3)
    late = {"delay_ms": 60_000}
    command = {"command": "add", "topic": "t", "id": topic, "delay": 60}
    async with ClientSession(guarded_gateway.url, headers={"Authorization": f"Bearer {token}"}) as client:

        async def post(path: str, body: object, key: str) -> tuple[int, Any]:
            async with client.post(path, json=body, headers={"Idempotency-Key": key}) as response:
                return response.status, await response.json()

        for _ in range(2):
            assert (await post("/v1/topics/t/jobs", late, "one"))[0] == 201
            assert (await post("/queue", command, "two"))[1] == {"success": True, "id": topic}
            assert (await post("/v1/topics/t/jobs", [late], "list"))[1]["added"] == 1
        assert (await post("/v1/topics/t/jobs", {"id": topic, "body": 2, "on_same": "replace"} | late, "new"))[0] == 201
        for told in (
            await post("/v1/topics/t/jobs", late, "another"),
            await post("/v1/topics/t/jobs", [late, late], "list"),
            await post("/v1/topics/t/jobs", late, ""),
        ):
            assert (told[0], told[1]["detail"]) == (429, "3 jobs wait already; 3 may"), told


async def test_no_add_waits_for_a_count_but_a_tenants_first(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "FRESH_S", 0.0)
    monkeypatch.setattr(quotas, "PART", 0)
    async with running_gateway(connection, publisher) as running:
        token = await running.token("app", most_waiting=5)
        count, begun, gate = running.desk.count_many, anyio.Event(), anyio.Event()

        async def stalled(topics: list[str]) -> list[TopicCounted]:
            begun.set()
            await gate.wait()
            return await count(topics)

        async with ClientSession(running.url, headers={"Authorization": f"Bearer {token}"}) as client:

            async def add() -> int:
                async with client.post("/v1/topics/mail/jobs", json={"delay_ms": 60_000}) as response:
                    return response.status

            assert await add() == 201
            monkeypatch.setattr(running.desk, "count_many", stalled)
            with anyio.fail_after(60):
                assert [await add() for _ in range(4)] == [201] * 4, "by the last count, and what was let in since"
                await begun.wait()
                assert await add() == 429
                gate.set()
            with anyio.fail_after(60):
                [job] = (await running.desk.list("mail", limit=1)).jobs
                await running.desk.delete("mail", job.id)
                while await add() != 201:  # the next count knows of it
                    await a_moment()
