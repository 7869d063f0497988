"""The protocol as it was published: four commands, one address."""

import asyncio
import io
import json
import secrets
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.support.gateway import SharedGateway


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


@pytest.mark.three_servers
async def test_each_pop_brings_a_job_while_there_is_one(client: ClientSession, topic: str) -> None:
    """On three servers one of eight did."""
    ids = {f"{topic}-{number}" for number in range(20)}
    for one in ids:
        assert (await ask(client, "add", topic=topic, id=one, ttr=60, body="1"))["success"] is True
    popped = [await ask(client, "pop", topic=topic) for _ in range(10)]
    popped += [await ask(client, "pop", topic=topic, timeout=10) for _ in range(10)]
    assert {one.get("id") for one in popped} == ids


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


# ---- one shape, whatever happens


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "text/plain", "text/html; charset=x"])
async def test_the_body_is_json_under_any_content_type(client: ClientSession, topic: str, kind: str) -> None:
    body = json.dumps({"command": "add", "topic": topic, "id": f"{topic}-1"})
    async with client.post("/queue", data=body, headers={"Content-Type": kind}) as response:
        assert (response.status, response.content_type) == (200, "application/json")
        assert await response.read() == b'{"success":true,"id":"%b-1"}' % topic.encode()


ADD = b'{"command": "add", "topic": "t", "id": "1"}'


@pytest.mark.parametrize(
    ("status", "said", "method", "path", "body", "headers"),
    [
        (400, "body: not JSON", "POST", "/queue", b"{", {}),
        (400, "body: not JSON", "POST", "/queue", b"", {}),
        (400, "malformed: a token does not belong in a URL", "POST", "/queue?token=x", ADD, {}),
        (401, "unauthorized: a valid token is needed", "POST", "/queue", ADD, {"Authorization": ""}),
        (403, "forbidden: this token may not do that", "POST", "/queue", ADD, {}),
        (403, "Origin: pages of other sites", "POST", "/queue", ADD, {"Origin": "https://elsewhere.example"}),
        (404, "not_found: there is nothing at this path", "POST", "/queue/x", ADD, {}),
        (405, "method: this path has other methods; use POST", "GET", "/queue", b"", {}),
        (405, "method: PUT is not used here", "PUT", "/queue", ADD, {}),
        (413, "body: ", "POST", "/queue", b" " * (1 << 20) + b" ", {}),
        (415, "Content-Encoding: compressed bodies", "POST", "/queue", ADD, {"Content-Encoding": "gzip"}),
    ],
)
async def test_every_answer_has_the_protocols_own_shape(
    guarded_gateway: SharedGateway, status: int, said: str, method: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    token = guarded_gateway.token(f"q{secrets.token_hex(4)}", verbs=("read",))
    headers = {"Authorization": f"Bearer {token}", **headers}
    async with ClientSession(guarded_gateway.url) as session:
        async with session.request(method, path, data=io.BytesIO(body), headers=headers) as response:
            assert response.status == status, await response.text()
            assert response.content_type == "application/json"
            reply = await response.json()
    assert reply.keys() == {"success", "error"}
    assert reply["success"] is False
    assert said in reply["error"]


async def test_too_many_requests_are_told_in_the_same_shape(guarded_gateway: SharedGateway) -> None:
    token = guarded_gateway.token(f"q{secrets.token_hex(4)}", rate=0.5)
    async with ClientSession(guarded_gateway.url, headers={"Authorization": f"Bearer {token}"}) as session:
        for _ in range(2):
            async with session.post("/queue", json={"command": "pop", "topic": "t"}) as response:
                status, reply, after = response.status, await response.json(), response.headers.get("Retry-After")
    assert (status, reply.keys(), reply["success"]) == (429, {"success", "error"}, False)
    assert reply["error"].startswith("too_many: more than this token's 0.5 a second")
    assert int(after or 0) > 0


@pytest.mark.parametrize(
    ("status", "head"),
    [
        (400, b"POST /queue HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: nonsense\r\n\r\n"),
        (431, b"POST /queue HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n"),
        (414, b"POST /queue?" + b"x" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ],
)
async def test_what_is_refused_before_it_is_read_has_the_shape_too(
    open_gateway: SharedGateway, status: int, head: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", open_gateway.port)
    writer.write(head)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    lines, _, body = answer.partition(b"\r\n\r\n")
    assert lines.startswith(b"HTTP/1.1 %d" % status), lines
    assert b"content-type: application/json\r\n" in lines
    reply = json.loads(body)
    assert (reply.keys(), reply["success"]) == ({"success", "error"}, False)
