"""A service on a real server: found, asked, busy, failing, stopping; and the `nats` command's view of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from streams import micro
from streams.embedded.server import EmbeddedServer
from streams.errors import NoStream, OutcomeUnknown
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.micro import QUESTION_HEADER, WHO, Endpoint, RequestRefused, Service
from tests.support.moments import a_moment
from tests.support.natscli import NatsCli
from tests.support.server import connected


async def echo(request: Message) -> bytes:
    return request.payload


async def refuse(request: Message) -> bytes:
    raise RequestRefused(404, "no such thing: größe\r\nX: y")


async def crash(request: Message) -> bytes:
    raise KeyError("a secret")


async def large(request: Message) -> bytes:
    return bytes(2_000_000)


def service(connection: Connection, *more: Endpoint, name: str = "", who: str = "") -> Service:
    prefix = connection.namespace.name
    endpoints = [
        Endpoint("echo", f"{prefix}.api.echo", echo, metadata={"about": "gives back"}),
        Endpoint("refuse", f"{prefix}.api.refuse", refuse),
        Endpoint("crash", f"{prefix}.api.crash", crash),
        Endpoint("large", f"{prefix}.api.large", large),
        *more,
    ]
    name = name or f"svc-{prefix}"
    return Service(connection, name=name, version="1.2.3", about="for tests", endpoints=endpoints, who=who)


@asynccontextmanager
async def running(one: Service) -> AsyncIterator[anyio.Event]:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(one.serve, stop)
        try:
            with anyio.fail_after(30):
                yield stop
        finally:
            stop.set()


def subject(connection: Connection, name: str) -> str:
    return f"{connection.namespace.name}.api.{name}"


async def asked(connection: Connection, about: str) -> Any:
    return json.loads((await connection.request(about, timeout_s=20)).payload)


async def stats_of(connection: Connection, one: Service) -> dict[str, Any]:
    told = await asked(connection, f"$SRV.STATS.svc-{connection.namespace.name}.{one.id}")
    return {each["name"]: each for each in told["endpoints"]}


async def test_it_answers_and_counts(connection: Connection) -> None:
    one = service(connection)
    async with running(one):
        answer = await connection.request(subject(connection, "echo"), b"hello")
        assert (answer.payload, dict(answer.headers)) == (b"hello", {})
        stats = (await stats_of(connection, one))["echo"]
        assert (stats["num_requests"], stats["num_errors"], stats["queue_group"]) == (1, 0, "q")
        assert stats["processing_time"] >= stats["average_processing_time"] > 0


class OnlyInTasks:
    """What the package sniffio tells anyio, once another package has brought it along."""

    AsyncLibraryNotFoundError = LookupError

    @staticmethod
    def current_async_library() -> str:
        if asyncio.current_task() is None:
            raise LookupError
        return "asyncio"


async def test_it_answers_where_sniffio_is_installed(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyio._core._eventloop.sniffio", OnlyInTasks)
    async with running(service(connection)):
        assert (await connection.request(subject(connection, "echo"), b"hello")).payload == b"hello"


@pytest.mark.parametrize("verb", ["PING", "INFO", "STATS"])
async def test_it_is_found_by_name_and_by_id(connection: Connection, verb: str) -> None:
    one = service(connection)
    name = f"svc-{connection.namespace.name}"
    async with running(one):
        for about in (f"$SRV.{verb}.{name}", f"$SRV.{verb}.{name}.{one.id}"):
            told = await asked(connection, about)
            assert told["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
            assert (told["name"], told["id"], told["version"], told["metadata"]) == (name, one.id, "1.2.3", {})


async def test_all_are_asked_at_once(connection: Connection) -> None:
    one, two = service(connection), service(connection)
    found: set[str] = set()
    both = anyio.Event()

    def heard(message: Message) -> None:
        found.add(json.loads(message.payload)["id"])
        if {one.id, two.id} <= found:
            both.set()

    async with running(one), running(two):
        inbox = connection.new_inbox()
        subscription = await connection.subscribe(inbox, heard)
        await connection.publish_core("$SRV.PING", reply=inbox)
        await both.wait()
        await subscription.unsubscribe()


async def test_two_instances_share_the_requests(connection: Connection) -> None:
    one, two = service(connection), service(connection)
    async with running(one), running(two):
        for _ in range(64):
            await connection.request(subject(connection, "echo"))
        counts = [(await stats_of(connection, each))["echo"]["num_requests"] for each in (one, two)]
    assert sum(counts) == 64
    assert min(counts) > 0


async def test_an_error_is_told_in_headers_and_in_the_payload(connection: Connection) -> None:
    one = service(connection)
    async with running(one):
        answer = await connection.request(subject(connection, "refuse"))
        assert answer.headers["Nats-Service-Error-Code"] == "404"
        assert answer.headers["Nats-Service-Error"] == "no such thing: gr??e??X: y"
        assert json.loads(answer.payload)["error"]["code"] == 404
        stats = (await stats_of(connection, one))["refuse"]
        assert (stats["num_errors"], stats["last_error"]) == (1, answer.headers["Nats-Service-Error"])


async def test_a_crash_is_an_error_without_its_text_and_ends_nothing(connection: Connection) -> None:
    async with running(service(connection)):
        answer = await connection.request(subject(connection, "crash"))
        assert answer.headers["Nats-Service-Error-Code"] == "500"
        assert b"secret" not in answer.payload
        assert (await connection.request(subject(connection, "echo"), b"x")).payload == b"x"


async def test_an_answer_that_is_too_large_is_an_error(connection: Connection) -> None:
    async with running(service(connection)):
        answer = await connection.request(subject(connection, "large"))
        assert answer.headers["Nats-Service-Error-Code"] == "413"
        assert connection.is_connected


class Gate:
    """An endpoint that answers when told to."""

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.waiting = 0

    async def answer(self, request: Message) -> bytes:
        self.waiting += 1
        await self.open.wait()
        return b"at last"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await a_moment()


async def collected(ask: Callable[[], Awaitable[Message]], answers: list[Message]) -> None:
    answers.append(await ask())


async def test_one_that_waits_holds_up_no_other_and_beyond_the_bound_it_is_busy(connection: Connection) -> None:
    gate = Gate()
    slow = Endpoint("slow", subject(connection, "slow"), gate.answer, most=3)
    answers: list[Message] = []
    async with running(service(connection, slow)), anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(collected, lambda: connection.request(slow.subject, timeout_s=20), answers)
        await until(lambda: gate.waiting == 3)
        busy = await connection.request(slow.subject)
        assert busy.headers["Nats-Service-Error-Code"] == str(micro.BUSY)
        assert gate.waiting == 3
        assert (await connection.request(subject(connection, "echo"), b"x")).payload == b"x"
        gate.open.set()
        await until(lambda: len(answers) == 3)
        assert (await connection.request(slow.subject)).payload == b"at last"
    assert [answer.payload for answer in answers] == [b"at last"] * 3


async def test_a_task_handles_the_next_request_too_and_one_beside_it_has_its_own(connection: Connection) -> None:
    """To begin a task is a fifth of what a desk does for an add."""
    tasks: list[object] = []
    gate = Gate()

    async def note(_request: Message) -> bytes:
        tasks.append(asyncio.current_task())
        return b"noted"

    noted = Endpoint("note", subject(connection, "note"), note)
    slow = Endpoint("slow", subject(connection, "slow"), gate.answer)
    answers: list[Message] = []
    async with running(service(connection, noted, slow)) as stop, anyio.create_task_group() as asking:
        for _ in range(3):
            await connection.request(noted.subject)
        assert len(set(tasks)) == 1
        asking.start_soon(collected, lambda: connection.request(slow.subject, timeout_s=20), answers)
        await until(lambda: gate.waiting == 1)
        await connection.request(noted.subject)
        assert len(set(tasks)) == 2
        stop.set()  # what rests ends, what works is waited for
        gate.open.set()
    assert [answer.payload for answer in answers] == [b"at last"]


async def test_the_bytes_in_hand_are_bounded(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "MOST_BYTES", 1000)
    gate = Gate()
    slow = Endpoint("slow", subject(connection, "slow"), gate.answer)
    answers: list[Message] = []
    async with running(service(connection, slow)), anyio.create_task_group() as tasks:
        tasks.start_soon(collected, lambda: connection.request(slow.subject, bytes(2000), timeout_s=20), answers)
        await until(lambda: gate.waiting == 1)
        assert (await connection.request(subject(connection, "echo"))).headers["Nats-Service-Error-Code"] == "503"
        gate.open.set()
        await until(lambda: len(answers) == 1)
        assert (await connection.request(subject(connection, "echo"), b"x")).payload == b"x"


async def gone(connection: Connection, about: str) -> None:
    """Wait until nobody answers any more."""
    with suppress(NoStream):
        while True:
            await connection.request(about)


async def test_after_the_stop_what_is_in_hand_is_answered_and_others_take_the_rest(connection: Connection) -> None:
    gate = Gate()
    slow = Endpoint("slow", subject(connection, "slow"), gate.answer)
    answers: list[Message] = []
    one, two = service(connection, slow), service(connection)
    async with running(two), anyio.create_task_group() as tasks:
        async with running(one) as stop:
            tasks.start_soon(collected, lambda: connection.request(slow.subject, timeout_s=20), answers)
            await until(lambda: gate.waiting == 1)
            stop.set()
            await gone(connection, f"$SRV.PING.svc-{connection.namespace.name}.{one.id}")
            for _ in range(8):
                assert (await connection.request(subject(connection, "echo"), b"x")).payload == b"x"
            assert not answers
            gate.open.set()
    assert [answer.payload for answer in answers] == [b"at last"]


@pytest.mark.parametrize("reply", [b"", b"{n}.jobs.ready.t.k", b"$KV.BUCKET.key", b"_\xff", b"_" + b"a" * 600])
async def test_only_inboxes_are_answered(connection: Connection, reply: bytes) -> None:
    """35: a reply subject of somebody else's choice would be written to with our rights."""
    heard: list[str] = []
    one = service(connection)
    subscription = await connection.subscribe(f"{connection.namespace.name}.jobs.>", lambda m: heard.append(m.subject))
    async with running(one):
        link = connection.client.client_id
        to = reply.replace(b"{n}", connection.namespace.name.encode())
        connection.client.send(b"PUB %b %b 1\r\nx\r\n" % (subject(connection, "echo").encode(), to))
        await connection.flush()
        assert (await connection.request(subject(connection, "echo"), b"x")).payload == b"x"
        stats = (await stats_of(connection, one))["echo"]
        assert stats["num_requests"] == 2
        assert stats["num_errors"] == (0 if to.startswith(b"_a") else 1)
        assert (heard, connection.client.client_id) == ([], link)
    await subscription.unsubscribe()


async def test_it_answers_again_after_a_reconnect(own_server: EmbeddedServer) -> None:
    async with connected(own_server) as connection, running(service(connection)):
        async with connected(own_server) as client:
            about = subject(connection, "echo")
            assert (await client.request(about, b"1")).payload == b"1"
            await own_server.restart()
            with anyio.fail_after(90):
                while True:
                    try:
                        assert (await client.request(about, b"2", timeout_s=5)).payload == b"2"
                        break
                    except (NoStream, OutcomeUnknown):
                        continue


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_the_nats_command_finds_and_asks_it(
    server: EmbeddedServer, connection: Connection, tmp_path: Path
) -> None:
    nats = NatsCli.or_skip(server.url, tmp_path)
    one = service(connection)
    name = f"svc-{connection.namespace.name}"
    async with running(one):
        assert name in await nats.run("micro", "ls")
        told = await nats.run("micro", "info", name)
        assert "for tests" in told
        assert subject(connection, "echo") in told
        assert (await nats.run("req", subject(connection, "echo"), "hello", "--raw")).strip() == "hello"
        failed = await nats.run("req", subject(connection, "refuse"), "x", check=False)
        assert "Nats-Service-Error-Code" in failed
        stats = await nats.json("micro", "stats", name, one.id)
        counts = {each["name"]: (each["num_requests"], each["num_errors"]) for each in stats[0]["endpoints"]}
        assert (counts["echo"], counts["refuse"]) == ((1, 0), (1, 1))


# ---- who has a question


async def test_who_has_a_question_says_so_and_the_others_are_asked_by_themselves(connection: Connection) -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    async def slow(request: Message) -> bytes:
        begun.set()
        await go_on.wait()
        return request.payload

    who = subject(connection, WHO)
    endpoint = Endpoint("slow", subject(connection, "slow"), slow)
    async with running(service(connection, endpoint, who=who)) as _, anyio.create_task_group() as tasks:
        one = json.loads((await connection.request(who, b"nothing", timeout_s=20)).payload)
        named = {QUESTION_HEADER: "mine"}
        ask = partial(connection.request, f"{endpoint.subject}.{one['id']}", headers=named, timeout_s=20)
        tasks.start_soon(ask)
        await begun.wait()
        async with running(service(connection, endpoint, who=who)):
            told = json.loads((await connection.request(who, b"mine", timeout_s=20)).payload)
            assert (told["id"], told["is_at_it"]) == (one["id"], True)
            other = json.loads((await connection.request(who, b"another", timeout_s=20)).payload)
            assert other["is_at_it"] is False
        go_on.set()


async def test_a_question_that_nobody_had_when_it_was_asked_for_is_not_begun(connection: Connection) -> None:
    begun: list[bytes] = []

    async def note(request: Message) -> bytes:
        begun.append(request.payload)
        return b""

    who = subject(connection, WHO)
    endpoint = Endpoint("note", subject(connection, "note"), note)
    async with running(service(connection, endpoint, who=who)):
        await connection.request(who, b"mine", timeout_s=20)
        over = connection.send_request_now(endpoint.subject, b"over", headers={QUESTION_HEADER: "mine"})
        await connection.request(endpoint.subject, b"next", headers={QUESTION_HEADER: "next"}, timeout_s=20)
        assert begun == [b"next"]
        over.cancel()
