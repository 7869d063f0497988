"""Calls of one turn of a program's loop travel together, and each has the answer that it would have had alone."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import pytest
from msgspec import Raw

import penstock
from actors.jobs.rules.due_times import PARTITIONS
from actors.jobs.rules.job_answers import Added
from penstock.sdk.client import Client
from penstock.sdk.client_adds import MOST_IN_PART
from penstock.sdk.held_jobs import HeldJob
from streams.embedded.server import EmbeddedServer
from streams.errors import Disconnected, Refused
from streams.jobs.delayed import read_notice
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.jobs import LARGEST_BODY, NewJob
from streams.reads.log import read_log
from streams.topology.specs import wanted
from tests.support.command import Running, node, plain_environment
from tests.support.desks import TOPIC, Office, lost_after, open_office, open_service
from tests.support.moments import a_moment
from tests.support.server import make_topology


@pytest.fixture
async def office(connection: Connection) -> AsyncIterator[Office]:
    async with open_office(connection) as opened, open_service(opened):
        yield opened


@pytest.fixture
def asked(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The endpoints of the requests that leave from here on."""
    endpoints: list[str] = []
    ask = client.jobs._service.request

    async def count(endpoint: str, payload: bytes, **more: Any) -> Any:
        endpoints.append(endpoint)
        return await ask(endpoint, payload, **more)

    monkeypatch.setattr(client.jobs._service, "request", count)
    return endpoints


async def test_of_500_adds_each_has_its_own_answer(client: Client, office: Office, asked: list[str]) -> None:
    jobs = client.jobs
    await office.add("taken", body=1)
    large = Raw(b'"' + b"x" * (LARGEST_BODY - 2) + b'"')
    odd = {
        3: jobs.add("a b", id="3"),
        4: jobs.add(TOPIC, Raw(b'"' + b"x" * LARGEST_BODY + b'"'), id="4"),
        5: jobs.add(TOPIC, 2, id="taken", on_same="error"),
        6: jobs.add(TOPIC, 2, id="taken"),
        7: jobs.add(TOPIC, object()),
        8: jobs.add(TOPIC, id="8", delay=-1),
        9: jobs.add(TOPIC, large, id="9"),
        10: jobs.add(TOPIC, "first", id="twice"),
        11: jobs.add(TOPIC, "second", id="twice"),
    }
    calls = [odd.get(number) or jobs.add(TOPIC, number, id=f"{number}") for number in range(500)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert asked == ["add"] * -(-497 // MOST_IN_PART), "as few as they fit into, though one is large"
    errors = {at: answer for at, answer in enumerate(answers) if isinstance(answer, Exception)}
    assert {at: getattr(error, "code", type(error).__name__) for at, error in errors.items()} == {
        3: "bad",
        4: "bad",
        5: "exists",
        7: "UsageError",
        8: "bad",
    }
    added = {at: answer for at, answer in enumerate(answers) if isinstance(answer, Added)}
    assert [at for at, answer in added.items() if not answer.is_new] == [6, 11]
    assert (added[6].is_same_body, added[11].is_same_body) == (False, False)
    assert [answer.id for at, answer in added.items() if at not in odd] == [f"{n}" for n in range(500) if n not in odd]
    assert (await office.desk.count(TOPIC)).ready == 491 + 2 + 1, "the plain ones, the large one, `twice`, and `taken`"


async def test_large_jobs_are_cut_by_bytes(client: Client, office: Office, asked: list[str]) -> None:
    body = "x" * (LARGEST_BODY - 2)
    await asyncio.gather(*(client.jobs.add(TOPIC, body, id=f"{n}") for n in range(8)))
    assert asked == ["add"] * 3, "three of them fit into a message"
    assert (await office.desk.count(TOPIC)).ready == 8


async def test_a_topic_that_cannot_be_made_refuses_its_own_jobs(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    enlist = office.topics.enlist

    async def full(topic: str, priority: Any) -> None:
        if topic == "toomany":
            raise Refused("no room", subject=topic)
        await enlist(topic, priority)

    monkeypatch.setattr(office.topics, "enlist", full)
    answers = await asyncio.gather(
        *(client.jobs.add(topic, id="1") for topic in (TOPIC, "toomany", "other")), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Added, penstock.Unavailable, Added]


async def test_an_add_that_is_left_in_its_turn_is_not_sent(client: Client, office: Office) -> None:
    one, two = (asyncio.create_task(client.jobs.add(TOPIC, id=name)) for name in ("one", "two"))
    asyncio.get_running_loop().call_soon(one.cancel)
    assert (await two).is_new
    assert one.cancelled()
    assert await office.state("one") is None
    assert (await client.jobs.add(TOPIC, id="one")).is_new, "and its caller may repeat it"


async def test_settles_of_one_turn_answer_for_their_own_receipts(
    client: Client, office: Office, asked: list[str]
) -> None:
    await client.jobs.add_many([penstock.new_job(TOPIC, n, id=f"{n}") for n in range(8)])
    held = {job.id: job for job in await client.jobs.reserve_many(TOPIC, most=8, wait=10)}
    await held["1"].release(delay=60)
    asked.clear()
    finishes = [held[name].finish() for name in "01234"]
    answers = await asyncio.gather(
        *finishes,
        client.jobs.finish("no receipt"),
        client.jobs.finish(held["0"].receipt),
        held["5"].bury("bad"),
        held["6"].touch(120),
        held["7"].release(delay=60, counts=False),
        return_exceptions=True,
    )
    assert sorted(asked) == ["bury", "finish", "release", "touch"]
    kinds = [getattr(answer, "code", answer) for answer in answers]
    assert kinds == [None, "stale", None, None, None, "bad", None, None, None, None]
    assert [held[name].is_settled for name in "01234567"] == [True] * 6 + [False, True]
    counts = await office.desk.count(TOPIC)
    assert (counts.delayed, counts.reserved) == (2, 1)


async def test_reserves_of_one_turn_hold_a_job_each_while_there_is_one(
    client: Client, office: Office, asked: list[str]
) -> None:
    await client.jobs.add_many([penstock.new_job(TOPIC, id=f"{n}") for n in range(15)])
    asked.clear()
    answers = await asyncio.gather(*(client.jobs.reserve_many(TOPIC) for _ in range(20)))
    assert [len(held) for held in answers] == [1] * 15 + [0] * 5
    assert len({held[0].receipt for held in answers if held}) == 15
    assert asked == ["reserve"] * 2, "the others ask again, and hear that none is left"
    with pytest.raises(penstock.NotAccepted):
        await asyncio.gather(client.jobs.reserve_many(TOPIC, most=0), client.jobs.reserve_many(TOPIC))


async def test_who_waits_together_is_served_one_by_one(client: Client) -> None:
    found: list[HeldJob] = []
    has_one = asyncio.Event()

    async def wait() -> None:
        found.extend(await client.jobs.reserve_many(TOPIC, wait=30))
        has_one.set()

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(wait)
        for number in range(3):
            has_one.clear()
            await client.jobs.add(TOPIC, number)
            await has_one.wait()
    assert sorted(job.body for job in found) == [0, 1, 2]


async def test_the_job_of_a_caller_that_has_left_goes_back_at_once(client: Client, office: Office) -> None:
    waits = [asyncio.create_task(client.jobs.reserve_many(TOPIC, wait=30)) for _ in range(2)]
    await office.add("before")
    while not any(wait.done() for wait in waits):
        await a_moment()
    [left] = [wait for wait in waits if not wait.done()]
    left.cancel()
    with suppress(asyncio.CancelledError):
        await left
    await office.add("after")
    with anyio.fail_after(20):
        held = [job for job in await client.jobs.reserve_many(TOPIC, wait=15) if job.id == "after"]
    assert [job.attempt for job in held] == [1]


async def test_the_answer_to_a_turn_that_is_lost_is_asked_for_again(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each add of it is one job, and each caller hears that its own made it."""
    connection = client.jobs._service.connection
    ask, lost = connection.send_request_now, 0

    def lose(subject: str, payload: bytes, **more: Any) -> asyncio.Future[Message]:
        nonlocal lost
        answer = ask(subject, payload, **more)
        if lost < 1:
            lost += 1
            return lost_after(answer, subject)
        return answer

    await office.add("taken")
    monkeypatch.setattr(connection, "send_request_now", lose)
    names = [f"{number}" for number in range(20)]
    *added, kept = await asyncio.gather(
        *(client.jobs.add(TOPIC, id=name) for name in names),
        client.jobs.add(TOPIC, id="taken"),
        return_exceptions=True,
    )
    assert lost == 1
    assert [isinstance(answer, Added) and answer.is_new for answer in added] == [True] * 20
    assert isinstance(kept, penstock.Timeout), "of the first try nobody knows whether it made the one that is there"
    assert (await office.desk.count(TOPIC)).ready == 21


async def test_an_add_of_unknown_outcome_can_be_repeated_by_its_caller(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it gave no id of its own."""
    ask = client.jobs._service.request

    async def lose(*args: Any, **more: Any) -> Any:
        await ask(*args, **more)
        raise penstock.Timeout("no answer")

    for calls in (1, 3):
        monkeypatch.setattr(client.jobs._service, "request", lose)
        lost = await asyncio.gather(*(client.jobs.add(TOPIC, n) for n in range(calls)), return_exceptions=True)
        monkeypatch.setattr(client.jobs._service, "request", ask)
        again = await client.jobs.add_many([each.job for each in lost if isinstance(each, penstock.Timeout)])
        assert [isinstance(answer, Added) and answer.is_new for answer in again] == [True] * calls
    assert (await office.desk.count(TOPIC)).ready == 1 + 3


async def test_a_desk_that_stood_still_leaves_a_turn_to_the_next_try(
    client: Client, office: Office, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know how old the request is. Not done is certain, so no caller hears that it is unknown."""
    lasted_s = iter([22.0, 22.0])
    monkeypatch.setattr(office.desk.adding, "_stood_still_s", lambda: next(lasted_s, 0.0))
    added = await asyncio.gather(*(client.jobs.add(TOPIC, n, id=f"{n}") for n in range(20)))
    assert all(answer.is_new for answer in added)
    assert next(lasted_s, None) is None, "it was refused twice"
    assert asked == ["add"]
    assert (await office.desk.count(TOPIC)).ready == 20


async def test_callers_of_one_desk_that_come_in_one_turn_are_added_for_together(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the gateway calls it, for programs that know nothing of one another. What needs no look goes alone: here the
    first jobs of a priority have to make it known."""
    steps: list[int] = []
    add_many = office.store.add_many

    async def count(adds: Any, **more: Any) -> Any:
        steps.append(len(adds))
        return await add_many(adds, **more)

    monkeypatch.setattr(office.store, "add_many", count)
    await office.add("taken", body=1)
    topics = [TOPIC, "a b", *[TOPIC] * 8]
    jobs = [
        NewJob(topic=topic, id=f"{n}", body=Raw(b"2"), delay_ms=n - 1, priority="low") for n, topic in enumerate(topics)
    ]
    jobs[5] = NewJob(topic=TOPIC, id="taken", body=Raw(b"2"), delay_ms=4, priority="low", on_same="error")
    answers = await asyncio.gather(*(office.desk.add_one(job) for job in jobs))
    assert [answer.code for answer in answers] == ["bad", "bad", "ok", "ok", "ok", "exists", *["ok"] * 4]
    assert [answer.id for answer in answers] == [job.id for job in jobs]
    assert steps == [1, 8]
    await office.desk.adding.close()
    ended = await asyncio.gather(*(office.desk.add_one(job) for job in jobs), return_exceptions=True)
    assert {type(error) for error in ended} == {Disconnected}


async def test_delayed_jobs_go_alone_and_timers_hear_of_each(
    office: Office, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.add("known", body=1)
    monkeypatch.setattr(office.store, "add_many", None)
    heard: list[list[tuple[int, int, bytes]]] = []
    notices = connection.namespace.pattern("due", "*")
    await connection.subscribe(notices, lambda notice: heard.append(read_notice(notice.payload)))
    jobs = [NewJob(topic=TOPIC, id=f"{n}", body=Raw(b"2"), delay_ms=60_000 + n) for n in range(100)]
    answers = await asyncio.gather(*(office.desk.add_one(job) for job in jobs))
    assert {(answer.code, answer.state) for answer in answers} == {("ok", "delayed")}
    with anyio.fail_after(60):
        while sum(map(len, heard)) < 100:
            await a_moment()
    told = {name: (due_ms, seq) for notice in heard for due_ms, seq, name in notice}
    assert {name: due_ms for name, (due_ms, _) in told.items()} == {
        f"{TOPIC}.{job.id}".encode(): answer.due_ms for job, answer in zip(jobs, answers, strict=True)
    }
    stream, pattern = connection.namespace.jobs_stream(TOPIC), connection.namespace.jobs_in("delayed", TOPIC)
    stored = {entry.subject.rpartition(".")[2]: entry.seq async for entry in read_log(connection, stream, pattern)}
    assert {name.decode().rpartition(".")[2]: seq for name, (_, seq) in told.items()} == stored


async def test_timers_hear_of_delayed_jobs_of_one_turn_together(office: Office, connection: Connection) -> None:
    heard: list[int] = []
    notices = connection.namespace.pattern("due", "*")
    await connection.subscribe(notices, lambda notice: heard.append(len(read_notice(notice.payload))))
    for number in range(1_000):
        office.store._jobs.tell_due(TOPIC, f"{number}", 1, number)
    with anyio.fail_after(60):
        while sum(heard) < 1_000:
            await a_moment()
    assert len(heard) == PARTITIONS


# ---- kills

PROGRAM = """
import asyncio, sys, penstock
async def main(url, namespace):
    async with penstock.connect(url, namespace=namespace) as client:
        async def add(number):
            added = await client.jobs.add("mail", number, id=str(number), nonce=f"n{number}")
            print(added.id, flush=True)
        for first in range(0, 100_000, 200):
            await asyncio.gather(*(add(number) for number in range(first, first + 200)))
asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_a_killed_program_heard_is_stored_and_what_it_repeats_is_one_job(
    server: EmbeddedServer, office: Office
) -> None:
    command = [sys.executable, "-c", PROGRAM, server.url, office.namespace.name]
    process = await anyio.open_process(command, env=plain_environment(), stderr=None)
    heard = b""
    assert process.stdout is not None
    async for text in process.stdout:
        heard += text
        if heard.count(b"\n") > 500 and process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
    await process.aclose()
    told = {int(line) for line in heard.split(b"\n")[:-1]}
    stored = (await office.desk.count(TOPIC)).ready
    assert stored >= len(told) > 500
    async with penstock.connect(server.url, namespace=office.namespace.name) as client:
        count = -(-stored // 200) * 200
        adds = (client.jobs.add(TOPIC, number, id=f"{number}", nonce=f"n{number}") for number in range(count))
        answers = await asyncio.gather(*adds)
    assert all(answer.is_new for answer in answers)
    assert (await office.desk.count(TOPIC)).ready == count


@pytest.mark.parametrize("point", ["job.add", "job.finish"])
async def test_a_desk_that_dies_over_a_turn_costs_no_caller_its_answer(
    server: EmbeddedServer, connection: Connection, point: str
) -> None:
    """It is killed when it has done all of a request, and has answered none of it."""
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    names = [f"{number}" for number in range(100)]
    async with AsyncExitStack() as stack:
        nodes: list[Running] = []
        for crash in ({"PENSTOCK_CRASH_AT": f"{point}:2"}, {}):
            environment = {"PENSTOCK_NAMESPACE": connection.namespace.name, "PENSTOCK_LOG_FORM": "json", **crash}
            up = node("--nats", server.url, "--roles", "desk", environment=environment)
            nodes.append(await stack.enter_async_context(up))
            await nodes[-1].logged("node.ready")
        dying = nodes[0].process
        client = await stack.enter_async_context(penstock.connect(server.url, namespace=connection.namespace.name))
        rounds = 0
        while dying.returncode is None:
            ids = [f"{rounds}-{name}" for name in names]
            added = await asyncio.gather(*(client.jobs.add(TOPIC, name, id=name) for name in ids))
            assert all(answer.is_new for answer in added)
            held = await asyncio.gather(*(client.jobs.reserve_many(TOPIC, wait=10) for _ in ids))
            assert {job.id for [job] in held} == set(ids)
            await asyncio.gather(*(job.finish() for [job] in held))
            rounds += 1
        counts = await client.jobs.count(TOPIC)
        assert (counts.ready, counts.reserved, counts.delayed) == (0, 0, 0)
