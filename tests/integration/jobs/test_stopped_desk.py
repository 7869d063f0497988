"""One desk of two is stopped, and the server goes on giving it questions: every caller has its true answer all the same
within a moment, and when the desk wakes it does nothing of what was asked meanwhile."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import pytest
from aiohttp import ClientSession, ClientTimeout

import penstock
from penstock.sdk import calls
from penstock.sdk.client import Client
from penstock.sdk.client_jobs import HeldJob, Jobs
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.topology.specs import wanted
from tests.support.chaos import eventually
from tests.support.command import Running, node
from tests.support.processes import free_ports
from tests.support.proxy import Proxy, proxy
from tests.support.server import make_topology

TOPIC = "mail"
MANY, AT_ONCE = 200, 50
WAITING = 10
SOON_S = 20.0
"""Generous: two cores run four tests at a time. Who waits for the desk that stands still waits `TRY_S` each time that
it is asked, which is a minute here. Over HTTP it is five seconds, and one of sixteen calls asks it four times."""
WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def tries_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TRY_S", 60.0)


T = TypeVar("T")


class Desks:
    """Two nodes with desks, of which `sleeper` can be stopped, and a client."""

    def __init__(self, sleeper: Running, sleeper_id: str, http: str, client: Client, connection: Connection) -> None:
        self.sleeper = sleeper
        self.sleeper_id = sleeper_id
        self.http = http
        self.client = client
        self.connection = connection
        self.took_s: dict[str, list[float]] = {}

    async def many(self, kind: str, call: Callable[[str], Awaitable[T]], ids: Iterable[str]) -> list[T]:
        """Call once for each id, some at a time; return the answers and note how long each took."""
        answers: list[T] = []
        limiter = anyio.Semaphore(AT_ONCE)

        async def one(job_id: str) -> None:
            async with limiter:
                began_s = monotonic_s()
                answers.append(await call(job_id))
                self.took_s.setdefault(kind, []).append(monotonic_s() - began_s)

        async with anyio.create_task_group() as tasks:
            for job_id in ids:
                tasks.start_soon(one, job_id)
        return answers

    def stop(self) -> None:
        self.sleeper.process.send_signal(signal.SIGSTOP)

    async def wake(self) -> None:
        """Let the stopped one go on, and return when it has done all that it was sent."""
        self.sleeper.process.send_signal(signal.SIGCONT)
        await eventually(self._is_idle, WITHIN_S, "the desk that was stopped is still at work")

    async def _is_idle(self) -> bool:
        return await self.in_hand() == 0

    async def in_hand(self) -> int:
        """Return how many questions the one that can be stopped is at."""
        return await in_hand(self.connection, self.sleeper_id)


async def in_hand(connection: Connection, desk_id: str) -> int:
    """Return how many questions a desk is at."""
    told = await connection.request(f"$SRV.STATS.penstock-jobs.{desk_id}", timeout_s=WITHIN_S)
    return sum(int(one["data"]["in_hand"]) for one in json.loads(told.payload)["endpoints"])


@asynccontextmanager
async def desk(
    server: EmbeddedServer | Proxy, connection: Connection, *more: str, but: str = ""
) -> AsyncIterator[tuple[Running, str]]:
    """Run a node with a desk; yield it with the id of its service. `but`: the id of the other one."""
    roles = "timer,desk,gateway" if more else "desk"
    environment = {"PENSTOCK_NAMESPACE": connection.namespace.name, "PENSTOCK_LOG_FORM": "json"}
    async with node("--nats", server.url, "--roles", roles, *more, environment=environment) as up:
        await up.logged("node.ready")
        yield up, await service(connection, but)


async def service(connection: Connection, but: str) -> str:
    """Return the id of a job service of this namespace, once one answers."""
    found: set[str] = set()

    def heard(message: Message) -> None:
        told = json.loads(message.payload) if message.status != 503 else None
        if told and told["metadata"]["namespace"] == connection.namespace.name and told["id"] != but:
            found.add(told["id"])

    async def has_answered() -> bool:
        await connection.publish_core("$SRV.PING.penstock-jobs", reply=inbox)
        await connection.flush()
        return bool(found)

    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, heard)
    await eventually(has_answered, WITHIN_S, "no desk answers")
    await subscription.unsubscribe()
    [fresh] = found
    return fresh


@asynccontextmanager
async def two_desks(server: EmbeddedServer, connection: Connection) -> AsyncIterator[Desks]:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    async with (
        desk(server, connection, "--http", address) as (awake, awake_id),
        desk(server, connection, but=awake_id) as (sleeper, sleeper_id),
        penstock.connect(server.url, namespace=connection.namespace.name) as client,
    ):
        await awake.logged("gateway.listens")
        yield Desks(sleeper, sleeper_id, f"http://{address}", client, connection)


async def test_no_caller_waits_for_a_desk_that_stands_still(
    server: EmbeddedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PREFERRED_S", 0.0)  # each call finds out for itself
    async with two_desks(server, connection) as desks:
        jobs = desks.client.jobs
        ended, deleted = [f"e{n}" for n in range(MANY)], [f"d{n}" for n in range(MANY)]
        desks.stop()

        added = await desks.many("add", lambda job_id: jobs.add(TOPIC, job_id, id=job_id), [*ended, *deleted])
        assert all(one.is_new for one in added)
        seen = await desks.many("peek", lambda job_id: jobs.peek(TOPIC, job_id), ended)
        assert [one.state if one else None for one in seen] == ["ready"] * MANY
        assert await desks.many("delete", lambda job_id: jobs.delete(job_id, TOPIC), deleted) == [True] * MANY
        held: list[HeldJob] = []
        for some in await desks.many("reserve", lambda _: jobs.reserve_many(TOPIC), ended):
            held += some
        assert sorted(job.id for job in held) == sorted(ended), "each once"
        assert {job.attempt for job in held} == {1}
        receipts = [job.receipt for job in held]
        await desks.many("touch", jobs.touch, receipts)
        await desks.many("finish", jobs.finish, receipts)

        assert {kind: max(took) for kind, took in desks.took_s.items() if max(took) > SOON_S} == {}
        await desks.wake()
        counts = await jobs.count(TOPIC)
        assert (counts.delayed, counts.ready, counts.reserved) == (0, 0, 0), "nothing came back"
        assert await jobs.reserve_many(TOPIC, most=10, wait=1) == []


async def test_no_caller_over_http_waits_for_a_desk_that_stands_still(
    server: EmbeddedServer, connection: Connection
) -> None:
    async with two_desks(server, connection) as desks:
        ids = [f"{n}" for n in range(MANY)]
        topic = f"topics/{TOPIC}"
        desks.stop()
        async with ClientSession(timeout=ClientTimeout(total=WITHIN_S)) as session:

            async def call(method: str, path: str, status: int, document: object = None) -> Any:
                async with session.request(method, f"{desks.http}/v1/{path}", json=document) as answer:
                    assert answer.status == status, await answer.text()
                    return await answer.json()

            await desks.many("add", lambda n: call("POST", f"{topic}/jobs", 201, {"id": n}), ids)
            await desks.many("add", lambda n: call("POST", f"{topic}/jobs", 201, {"id": f"d{n}"}), ids)
            await desks.many("peek", lambda n: call("GET", f"{topic}/jobs/{n}", 200), ids)
            await desks.many("delete", lambda n: call("DELETE", f"{topic}/jobs/d{n}", 200), ids)
            handed = await desks.many("reserve", lambda _: call("POST", f"{topic}/reserve", 200, {}), ids)
            held = [job for one in handed for job in one["jobs"]]
            assert sorted(job["id"] for job in held) == sorted(ids), "each once"
            await desks.many(
                "finish",
                lambda one: call("POST", "receipts/finish", 200, {"receipts": [one]}),
                [job["receipt"] for job in held],
            )
        assert {kind: max(took) for kind, took in desks.took_s.items() if max(took) > SOON_S} == {}
        await desks.wake()
        counts = await desks.client.jobs.count(TOPIC)
        assert (counts.delayed, counts.ready, counts.reserved) == (0, 0, 0), "nothing came back"


async def test_who_asks_for_batches_does_not_wait_for_it_either(
    server: EmbeddedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PREFERRED_S", 0.0)
    async with two_desks(server, connection) as desks:
        batches = desks.client.batches
        desks.stop()
        found = await desks.many("list", lambda task: batches.list(task=task), [f"t{n}" for n in range(AT_ONCE)])
        assert found == [[]] * AT_ONCE
        assert max(desks.took_s["list"]) < SOON_S


async def test_a_long_poll_does_not_wait_at_a_desk_that_stands_still(
    server: EmbeddedServer, connection: Connection
) -> None:
    """What was asked of the stopped one is not handed out when it wakes."""
    async with two_desks(server, connection) as desks:
        jobs = desks.client.jobs
        await jobs.add(TOPIC, id="first")
        async with jobs.reserve(TOPIC):
            pass
        desks.stop()
        held: list[HeldJob] = []

        async def wait(_: str) -> None:
            held.extend(await jobs.reserve_many(TOPIC, wait=30, ttr=300))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desks.many, "reserve", wait, [str(n) for n in range(WAITING)])
            for n in range(WAITING):
                await anyio.sleep(0.05)  # some come before those who wait have found out
                await jobs.add(TOPIC, id=str(n))
        assert sorted(job.id for job in held) == sorted(str(n) for n in range(WAITING))
        assert max(desks.took_s["reserve"]) < SOON_S
        await jobs.add(TOPIC, id="last")
        await desks.wake()
        [last] = await jobs.reserve_many(TOPIC, wait=30)
        assert (last.id, last.attempt) == ("last", 1)


async def test_whoever_waits_at_a_desk_that_is_stopped_then_is_answered_by_the_other(
    server: EmbeddedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what waited there is over when it wakes, also for a caller who has gone by then."""
    monkeypatch.setattr(Jobs, "_give_back", lambda *_: None)
    # Nobody asks who has his request before one is stopped: a late desk would have him wait at both.
    monkeypatch.setattr(calls, "SILENT_S", 3.0)
    async with two_desks(server, connection) as desks:
        jobs = desks.client.jobs
        await jobs.add(TOPIC, id="first")
        async with jobs.reserve(TOPIC):
            pass
        held: list[HeldJob] = []

        async def wait(caller: str) -> None:  # each has a name of its own: the same ones would go to one desk together
            held.extend(await jobs.reserve_many(TOPIC, wait=30, ttr=600, holder=caller))

        async def do_wait() -> bool:
            return await desks.in_hand() > 0

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desks.many, "reserve", wait, [str(n) for n in range(WAITING)])
            await eventually(do_wait, WITHIN_S, "nobody waits at the desk that is to be stopped")
            desks.stop()
            for n in range(WAITING):
                await jobs.add(TOPIC, id=str(n))
        assert sorted(job.id for job in held) == sorted(str(n) for n in range(WAITING))
        assert {job.attempt for job in held} == {1}
        await jobs.add(TOPIC, id="last")
        await desks.wake()
        [last] = await jobs.reserve_many(TOPIC, wait=30)
        assert (last.id, last.attempt) == ("last", 1)


async def test_a_desk_that_wakes_does_not_do_what_another_was_asked_for(
    server: EmbeddedServer, connection: Connection
) -> None:
    """However much was sent to it between the question and what says that it is over."""
    async with two_desks(server, connection) as desks:
        jobs, namespace = desks.client.jobs, desks.connection.namespace
        await jobs.add(TOPIC, id="delayed", delay=3600)
        await jobs.add(TOPIC, id="ready")
        desks.stop()

        def send(endpoint: str, name: str = "", **asked: object) -> None:
            headers = {"Penstock-Question": name} if name else None
            subject = f"{namespace.api('jobs', endpoint)}.{desks.sleeper_id}"
            payload = json.dumps({"topic": TOPIC, **asked}).encode()
            desks.connection.send_request_now(subject, payload, headers=headers)

        send("kick", "first", id="delayed")
        send("reserve", "second", wait_ms=30_000, ttr_ms=600_000)
        for _ in range(20):
            send("peek", id="x" * 200_000)
        for name in ("first", "second"):
            who = await desks.connection.request(namespace.api("jobs", "who"), name.encode(), timeout_s=WITHIN_S)
            assert json.loads(who.payload)["is_at_it"] is False
        await anyio.sleep(1.5)  # what is no longer than a moment is no standstill
        await desks.wake()
        assert [one.id async for one in jobs.list(TOPIC, "delayed")] == ["delayed"]
        [held] = await jobs.reserve_many(TOPIC, wait=30)
        assert (held.id, held.attempt) == ("ready", 1)


async def test_a_change_that_a_stalled_link_held_undoes_no_later_one(
    server: EmbeddedServer, connection: Connection
) -> None:
    """The link stalls when the desk reads the record, so that it would write when the caller has changed it again."""
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    async with (
        proxy(server.port) as road,
        desk(road, connection) as (_, stalled),
        penstock.connect(server.url, namespace=connection.namespace.name) as client,
    ):

        async def is_idle() -> bool:
            return await in_hand(connection, stalled) == 0

        change = client.jobs.change_topic
        await change(TOPIC, rate=1)
        road.hold("server", at=connection.namespace.bucket("TOPICS").encode())
        first = asyncio.ensure_future(change(TOPIC, rate=500))
        await road.holds("server", WITHIN_S)
        async with desk(server, connection, but=stalled):
            assert (await first).settings["rate"] == 500, "the other desk has made it"
            assert (await change(TOPIC, rate=100)).settings["rate"] == 100
            road.heal()
            await eventually(is_idle, WITHIN_S, "the stalled desk is still at work")
            assert (await change(TOPIC, attempts=3)).settings["rate"] == 100
