"""The protocol as it was published: four commands, one address."""

from typing import Any

import pytest
from aiohttp import ClientSession


async def ask(client: ClientSession, command: str, **fields: object) -> dict[str, Any]:
    async with client.post("/queue", json={"command": command, **fields}) as response:
        assert response.status == 200, await response.text()
        reply: dict[str, Any] = await response.json()
        return reply


async def test_a_job_goes_through_its_life(client: ClientSession, topic: str) -> None:
    body = '{"order": "E1", "shop": 7}'
    assert await ask(client, "add", topic=topic, id=f"{topic}-1", delay=0, ttr=60, body=body) == {
        "success": True,
        "id": f"{topic}-1",
    }
    popped = await ask(client, "pop", topic=topic, timeout=10)
    assert popped == {"success": True, "id": f"{topic}-1", "value": body}
    assert await ask(client, "finish", id=f"{topic}-1") == {"success": True, "id": f"{topic}-1"}
    assert await ask(client, "pop", topic=topic) == {"success": True}
    assert await ask(client, "finish", id=f"{topic}-1") == {"success": True, "id": f"{topic}-1"}, "a repeat is harmless"


async def test_a_delayed_job_comes_when_it_is_due(client: ClientSession, topic: str) -> None:
    await ask(client, "add", topic=topic, id=f"{topic}-1", delay=3, TTR=60, body="[]")
    assert await ask(client, "pop", topic=topic) == {"success": True}
    assert (await ask(client, "pop", topic=topic, timeout=20))["id"] == f"{topic}-1"


async def test_a_job_that_is_not_finished_comes_again(client: ClientSession, topic: str) -> None:
    await ask(client, "add", topic=topic, id=f"{topic}-1", ttr=1, body="1")
    first = await ask(client, "pop", topic=topic, timeout=10)
    second = await ask(client, "pop", topic=topic, timeout=20)
    assert first == second == {"success": True, "id": f"{topic}-1", "value": "1"}


async def test_a_deleted_job_does_not_come(client: ClientSession, topic: str) -> None:
    await ask(client, "add", topic=topic, id=f"{topic}-1", body="1")
    assert (await ask(client, "delete", id=f"{topic}-1"))["success"] is True
    assert await ask(client, "pop", topic=topic) == {"success": True}
    gone = await ask(client, "delete", id=f"{topic}-1")
    assert (gone["success"], gone["error"]) == (False, "not_found: no such job")


async def test_the_same_id_again_is_harmless_with_the_same_body_only(client: ClientSession, topic: str) -> None:
    first = await ask(client, "add", topic=topic, id=f"{topic}-1", delay=60, body="[1]")
    assert await ask(client, "add", topic=topic, id=f"{topic}-1", delay=60, body="[1]") == first
    other = await ask(client, "add", topic=topic, id=f"{topic}-1", delay=60, body="[2]")
    assert (other["success"], other["id"]) == (False, f"{topic}-1")
    assert "another body" in other["error"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"command": "fly"}, "Invalid value 'fly'"),
        ({}, "missing required field `command`"),
        ({"command": "pop"}, "missing required field `topic`"),
        ({"command": "add", "topic": "a.b", "id": "1"}, "topic"),
        ({"command": "add", "topic": "a", "id": ""}, "id: "),
        ({"command": "add", "topic": "a", "id": "x" * 256}, "id: "),
        ({"command": "add", "topic": "a", "id": "a\nb"}, "id"),
        ({"command": "add", "topic": "a", "id": "1", "delay": -1}, "delay: "),
        ({"command": "add", "topic": "a", "id": "1", "delay": "30"}, "delay: Expected `float`, got `str`; use seconds"),
        ({"command": "bury", "id": "1"}, "command: Invalid value 'bury'; use add, pop, finish or delete"),
        ({"command": "add", "topic": "a", "id": "1", "delay": True}, "delay: Expected `float`, got `bool`"),
        ({"command": "add", "topic": "a", "id": "1", "delay": 1e18}, "delay: "),
        ({"command": "add", "topic": "a", "id": "1", "ttr": 0}, "; use seconds, from 1 to 604800"),
        ({"command": "add", "topic": "a", "id": "1", "ttr": 315360000}, "ttr: "),
        ({"command": "add", "topic": "a", "id": "1", "dealy": 3}, "unknown field `dealy`"),
        ({"command": "pop", "topic": "a", "timeout": 1e9}, "; use seconds, from 0 to 30"),
        ({"command": "pop", "topic": ""}, "topic: is not a topic"),
        ({"command": "delete", "topic": "a.b", "id": "1"}, "topic: is not a topic"),
        ({"command": "finish", "id": "never-was"}, "not_found"),
        ({"command": "delete", "id": "never-was"}, "not_found"),
    ],
)
async def test_what_is_refused_is_told_in_the_reply(client: ClientSession, command: dict[str, Any], said: str) -> None:
    async with client.post("/queue", json=command) as response:
        reply = await response.json()
        assert response.status == 200
    assert reply["success"] is False
    assert said in reply["error"]
