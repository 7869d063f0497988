"""Reservations by server push."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from aiohttp import ClientResponse, ClientSession

from tests.integration.api.test_rest import add, call, settle, until_counted

pytestmark = pytest.mark.three_servers


class Events:
    """What is pushed, event by event."""

    def __init__(self, response: ClientResponse) -> None:
        self._response = response

    async def next(self) -> dict[str, Any]:
        """Return the next reservation."""
        with anyio.fail_after(30):
            while True:
                name, data = "", list[str]()
                while (line := (await self._response.content.readline()).decode().rstrip("\n")) != "":
                    field, _, value = line.partition(": ")
                    name = value if field == "event" else name
                    data += [value] if field == "data" else []
                if self._response.content.at_eof():
                    raise EOFError
                if name == "reservation":
                    job: dict[str, Any] = json.loads("\n".join(data))
                    return job


@asynccontextmanager
async def pushed(client: ClientSession, topic: str, query: str = "") -> AsyncIterator[Events]:
    async with client.post(f"/v1/topics/{topic}/reservations{query}") as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield Events(response)
        response.close()


async def test_jobs_come_as_events_and_are_settled_by_their_receipts(client: ClientSession, topic: str) -> None:
    async with pushed(client, topic) as events:
        await add(client, topic, {"id": "1", "body": {"text": "line\nline"}})
        job = await events.next()
        assert (job["id"], job["topic"], job["body"]) == ("1", topic, {"text": "line\nline"})
        assert (await settle(client, "finish", job["receipt"]))[0]["code"] == "ok"
        await add(client, topic, {"id": "2"})
        assert (await events.next())["id"] == "2"


async def test_a_body_with_line_ends_between_its_parts_stays_one_event(client: ClientSession, topic: str) -> None:
    async with pushed(client, topic) as events:
        body = b'{"id": "1", "body": {"a":\r\n 1,\n\n "b": 2\r}}'
        async with client.post(
            f"/v1/topics/{topic}/jobs", data=body, headers={"Content-Type": "application/json"}
        ) as response:
            assert response.status == 201
        assert (await events.next())["body"] == {"a": 1, "b": 2}


async def test_no_more_than_the_clients_credit_is_handed_out(client: ClientSession, topic: str) -> None:
    async with pushed(client, topic, "?most=2&ttr_ms=60000") as events:
        await add(client, topic, [{"id": str(number)} for number in range(5)], 200)
        first, second = await events.next(), await events.next()
        await until_counted(client, topic, "ready", 3)
        await until_counted(client, topic, "reserved", 2)
        await settle(client, "finish", first["receipt"])
        third = await events.next()
        assert len({job["id"] for job in (first, second, third)}) == 3


async def test_credit_comes_back_when_the_job_is_settled_elsewhere(client: ClientSession, topic: str) -> None:
    async with pushed(client, topic, "?most=1") as events:
        await add(client, topic, [{"id": f"{topic}-1"}, {"id": f"{topic}-2"}], 200)
        first = await events.next()
        async with client.post("/queue", json={"command": "finish", "id": first["id"]}) as response:
            assert (await response.json())["success"] is True
        assert (await events.next())["id"] != first["id"]


async def test_when_the_client_goes_nothing_more_is_handed_out(client: ClientSession, topic: str) -> None:
    async with pushed(client, topic) as events:
        await add(client, topic, {"id": "1"})
        await events.next()
    async with pushed(client, topic):
        pass
    await add(client, topic, {"id": "2", "delay_ms": 2_000})
    (job,) = (await call(client, "POST", f"/v1/topics/{topic}/reserve", {"wait_ms": 20_000}))["jobs"]
    assert (job["id"], job["attempt"]) == ("2", 1)


async def test_a_poll_whose_client_went_leaves_the_job_to_others(client: ClientSession, topic: str) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await call(client, "POST", f"/v1/topics/{topic}/reserve", {"wait_ms": 30_000})
    await add(client, topic, {"id": "1"})
    (job,) = (await call(client, "POST", f"/v1/topics/{topic}/reserve", {"wait_ms": 20_000}))["jobs"]
    assert job["attempt"] == 1
