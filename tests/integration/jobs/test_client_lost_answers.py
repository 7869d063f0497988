"""A client whose answers are lost or late, and a client that nobody answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import msgspec
import pytest

import penstock
from actors.jobs.rules.job_answers import Added
from penstock.sdk import calls
from penstock.sdk.client import Client
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.link.frames import Message
from tests.support.desks import TOPIC, Office, lost_after, open_office, open_service

pytestmark = pytest.mark.three_servers

HOUR, HOUR_MS = timedelta(hours=1), 3_600_000


@pytest.fixture
async def office(connection: Connection) -> AsyncIterator[Office]:
    async with open_office(connection) as opened, open_service(opened):
        yield opened


async def test_an_answer_that_is_lost_is_asked_for_again_and_adds_no_second_job(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = client.jobs._service.connection
    ask, lost = connection.send_request_now, 0

    def lose(subject: str, payload: bytes, **more: Any) -> asyncio.Future[Message]:
        nonlocal lost
        answer = ask(subject, payload, **more)
        if lost < 2:
            lost += 1
            return lost_after(answer, subject)
        return answer

    monkeypatch.setattr(connection, "send_request_now", lose)
    for on_same in ("keep", "error", "replace"):
        lost = 0
        added = await client.jobs.add(TOPIC, 1, delay=HOUR, on_same=on_same)
        assert isinstance(added, Added)
        assert added.is_new
        assert lost == 2
    assert (await office.desk.count(TOPIC)).delayed == 3


@pytest.fixture
def tries(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """What the client sends from now on, with its payload."""
    connection = client.jobs._service.connection
    ask, sent = connection.send_request_now, list[tuple[str, bytes]]()

    def note(subject: str, payload: bytes, **more: Any) -> asyncio.Future[Message]:
        sent.append((subject, payload))
        return ask(subject, payload, **more)

    monkeypatch.setattr(connection, "send_request_now", note)
    return sent


async def test_a_try_of_a_finish_by_id_that_comes_late_ends_no_later_job(
    client: Client, office: Office, tries: list[tuple[str, bytes]]
) -> None:
    await office.add("a")
    await office.reserve()
    await client.jobs.finish_by_id("a")
    [late] = tries
    await office.add("a")
    await office.reserve()
    assert json.loads((await office.connection.request(*late, timeout_s=20)).payload)["code"] == "ok"
    assert await office.state("a") == "reserved"


async def test_a_try_of_a_kick_by_id_that_comes_late_makes_no_later_job_ready(
    client: Client, office: Office, tries: list[tuple[str, bytes]]
) -> None:
    await office.add("a", delay_ms=HOUR_MS)
    assert await client.jobs.kick(TOPIC, "a") == 1
    [late] = tries
    await office.desk.delete(TOPIC, "a")
    await office.add("a", delay_ms=HOUR_MS)
    assert json.loads((await office.connection.request(*late, timeout_s=20)).payload) == {"kicked": 1}
    assert await office.state("a") == "delayed"


async def test_without_a_node_it_is_unavailable_within_the_time_given(server: EmbeddedServer) -> None:
    async with penstock.connect(server.url, namespace="nobody", timeout_s=0.2) as client:
        with pytest.raises(penstock.Unavailable, match="penstock up"):
            await client.jobs.add(TOPIC)


async def test_without_a_server_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(penstock.Unavailable):
        async with penstock.connect("nats://127.0.0.1:9", timeout_s=0.2, connect_timeout_s=0.3):
            pass


async def test_a_node_that_is_busy_is_asked_again(client: Client, office: Office) -> None:
    """Busy is certainly not done, so it is tried again until the time is over."""
    asked: list[bytes] = []
    done = asyncio.Event()

    def heard(message: Message) -> None:
        asked.append(message.payload)
        headers = b"NATS/1.0\r\nNats-Service-Error: busy\r\nNats-Service-Error-Code: 503\r\n\r\n"
        is_last = len(asked) == 3
        payload = json.dumps({"kicked": 4}).encode() if is_last else b""
        block = b"" if is_last else headers
        head = f"HPUB {message.reply}  {len(block)} {len(block) + len(payload)}\r\n"
        plain = f"PUB {message.reply}  {len(payload)}\r\n"
        office.connection.client.send((plain if is_last else head).encode() + block + payload + b"\r\n")
        done.set()

    subscription = await office.connection.subscribe(f"{office.namespace.name}x.api.jobs.kick", heard)
    await office.connection.flush()
    url = office.connection.client.connected_url
    assert url is not None
    async with penstock.connect(url.geturl(), namespace=f"{office.namespace.name}x") as other:
        assert await other.jobs.kick(TOPIC) == 4
    assert len(asked) == 3
    await subscription.unsubscribe()


async def test_an_unknown_outcome_is_told_as_such(
    server: EmbeddedServer, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "TRY_S", 0.1)
    subscription = await office.connection.subscribe(f"{office.namespace.name}y.api.jobs.>", lambda _message: None)
    await office.connection.flush()
    async with penstock.connect(server.url, namespace=f"{office.namespace.name}y", timeout_s=0.3) as client:
        with pytest.raises(penstock.Timeout, match="may have been done"):
            await client.jobs.delete(TOPIC, "1")
        with pytest.raises(penstock.Timeout) as told:
            await client.jobs.count(TOPIC)
        assert "may have been done" not in str(told.value)
    await subscription.unsubscribe()


async def test_a_kick_of_any_jobs_is_asked_for_once(
    server: EmbeddedServer, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one would kick others."""
    monkeypatch.setattr(calls, "TRY_S", 0.1)
    asked: list[str] = []
    name = f"{office.namespace.name}k"
    subscription = await office.connection.subscribe(f"{name}.api.jobs.kick", lambda one: asked.append(one.subject))
    await office.connection.flush()
    async with penstock.connect(server.url, namespace=name, timeout_s=3) as client:
        with pytest.raises(penstock.Timeout, match="may have been done"):
            await client.jobs.kick(TOPIC, most=2)
        assert len(asked) == 1
        with pytest.raises(penstock.Timeout, match="may have been done"):
            await client.jobs.kick(TOPIC, "one")
    await office.connection.flush()
    assert len(asked) > 2
    await subscription.unsubscribe()


async def test_jobs_handed_out_for_a_question_that_another_node_answered_are_given_back(
    server: EmbeddedServer, office: Office
) -> None:
    """The first node is silent until the second has answered, and hands out a job then."""
    await office.add("1")
    connection, given_back = office.connection, asyncio.Event()
    name = f"{office.namespace.name}z"
    api = f"{name}.api.jobs"
    late: list[str] = []

    def answer(reply: str, document: object) -> None:
        payload = msgspec.json.encode(document)
        connection.client.send(b"PUB %b  %d\r\n%b\r\n" % (reply.encode(), len(payload), payload))

    def heard(message: Message) -> None:
        match message.subject.removeprefix(f"{api}."):
            case "reserve":
                late.append(message.reply)
            case "who":
                answer(message.reply, {"id": "second", "is_at_it": False})
            case "reserve.second":
                answer(message.reply, {"jobs": []})
            case "release":
                asked = json.loads(message.payload)
                assert asked["receipts"] == [job.receipt]
                assert (asked["delay_ms"], asked["counts"]) == (0, False)
                given_back.set()

    job = await office.reserve()
    subscription = await connection.subscribe(f"{api}.>", heard)
    await connection.flush()
    async with penstock.connect(server.url, namespace=name) as client:
        assert await client.jobs.reserve_many(TOPIC) == []
        answer(late[0], {"jobs": [job]})
        with anyio.fail_after(20):
            await given_back.wait()
    await subscription.unsubscribe()


async def test_an_odd_namespace_is_refused() -> None:
    with pytest.raises(penstock.NotAccepted):
        async with penstock.connect(namespace="A B"):
            pass
