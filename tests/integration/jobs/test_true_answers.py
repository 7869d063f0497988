"""What a desk answers is so, though the wire holds its questions or answers back, cuts them off, or the server stops:
one add is one job, what is deleted stays so, and what is settled is not handed out again."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from aiohttp import ClientSession, ClientTimeout

import penstock
from actors.jobs.rules.job_answers import JobReply, Reserved
from actors.jobs.rules.job_rules import RESERVED_SLACK_MS
from actors.jobs.stream import JobStream
from actors.jobs.worker.job import Job
from penstock.errors import Timeout
from penstock.sdk import calls
from penstock.sdk.client_adds import new_job
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.errors import Disconnected, OutcomeUnknown
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.pull.once import PullOnce
from tests.support.desks import TOPIC, Office, open_office, open_second_office, open_service
from tests.support.gateway import running_gateway
from tests.support.job_workers import Log, handler, working
from tests.support.jobs import Jobs
from tests.support.moments import a_moment
from tests.support.proxy import Proxy, proxy
from tests.support.server import connected, freeze, thaw

AGAIN_S = 0.2
"""After this silence a publish, or a question, is repeated."""
REPEATED_S = 1.5
"""Long enough for several repeats. A desk that makes none is right, too, so nothing fails when it is over."""


@pytest.fixture(autouse=True)
def _asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TRY_S", AGAIN_S)


@asynccontextmanager
async def a_far_link(server: EmbeddedServer, near: Connection) -> AsyncIterator[tuple[Connection, Proxy]]:
    """Yield a second link to the server, through a wire that can be held, and the wire."""
    async with proxy(server.port) as wire, connect(wire.url, name="far", namespace=near.namespace) as far:
        yield far, wire


# ---- one add is one job


@pytest.mark.parametrize("end", ["stalled", "cut"])
async def test_one_add_over_http_whose_answer_is_late_is_run_once(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, end: str
) -> None:
    log = Log()

    async def handle(job: Job) -> None:
        log(job.id, job.attempt)

    async with (
        a_far_link(server, connection) as (far, wire),
        Publisher(far, attempt_timeout_s=AGAIN_S) as far_publisher,
        running_gateway(far, far_publisher) as gateway,
        PullOnce(connection) as pulls,
        working(Jobs(connection, publisher, pulls), handler(handle)),
        ClientSession(gateway.url, timeout=ClientTimeout(total=60)) as http,
        open_second_office(connection) as office,
    ):
        jobs = f"/v1/topics/{TOPIC}/jobs"
        async with http.post(jobs, json={"id": "before"}) as response:
            assert response.status == 201
        await log.has("before 1")
        sent = wire.count("server", b".one\r\n")
        wire.hold("client")
        asked = asyncio.ensure_future(http.post(jobs, json={"id": "one"}))
        await log.has("one 1")
        with anyio.move_on_after(REPEATED_S):
            await sent.reaches(4)
        (wire.heal if end == "stalled" else wire.cut)()
        async with await asked as response:
            assert response.status in (200, 201, 504)
        await office.add("after")
        await log.has("after 1")
        assert log.lines == ["before 1", "one 1", "after 1"]


@pytest.mark.parametrize("end", ["finish", "delete"])
async def test_one_add_whose_answer_is_late_is_not_there_again_after_its_end(
    server: EmbeddedServer, connection: Connection, end: str
) -> None:
    async with (
        open_office(connection) as near,
        a_far_link(server, connection) as (far, wire),
        open_second_office(far, again_after_s=AGAIN_S) as office,
    ):
        await office.add("before")
        wire.hold("client")
        asked = asyncio.ensure_future(office.try_add("one"))
        with anyio.fail_after(30):
            while await near.state("one") is None:
                await a_moment()
        if end == "finish":
            for _ in range(2):
                [answer] = await near.desk.finish([(await near.reserve()).receipt])
                assert answer.code == "ok"
        else:
            assert (await near.desk.delete(TOPIC, "one")).code == "ok"
        await connection.flush()
        sent = wire.count("server", b".one\r\n")
        with anyio.move_on_after(REPEATED_S):
            await sent.reaches(3)
        wire.heal()
        await asked
        assert await near.state("one") in (None, "done")
        assert [job.id for job in await near.desk.reserve(TOPIC, most=9)] == (["before"] if end == "delete" else [])


@pytest.mark.parametrize("end", ["finish", "delete"])
async def test_an_id_that_is_over_is_free_at_once(connection: Connection, end: str) -> None:
    async with open_office(connection) as office:
        for body in range(3):
            assert (await office.add("one", body=body)).is_new
            if end == "delete":
                assert (await office.desk.delete(TOPIC, "one")).code == "ok"
                continue
            job = await office.reserve()
            assert bytes(job.body) == str(body).encode()
            assert [answer.code for answer in await office.desk.finish([job.receipt])] == ["ok"]


# ---- a desk that wakes after its callers have gone elsewhere


class TwoDesks:
    """A desk that answers, another that takes questions and hears of nothing until `wake`, and a client of both."""

    def __init__(self, near: Office, client: penstock.Client, wire: Proxy, far_service: AsyncExitStack) -> None:
        self.near = near
        self.client = client
        self._wire = wire
        self._far_service = far_service

    async def wake(self) -> None:
        """Let the other desk hear what it was asked meanwhile, and wait until it has done all of it."""
        self._wire.heal()
        with anyio.fail_after(60):
            await self._far_service.aclose()


@asynccontextmanager
async def two_desks(server: EmbeddedServer, connection: Connection) -> AsyncIterator[TwoDesks]:
    async with (
        open_office(connection) as near,
        open_service(near),
        a_far_link(server, connection) as (far, wire),
        open_second_office(far, again_after_s=AGAIN_S) as office,
        AsyncExitStack() as far_service,
        penstock.connect(server.url, namespace=connection.namespace.name) as client,
    ):
        await far_service.enter_async_context(open_service(office))
        await near.add("before")
        assert (await near.desk.delete(TOPIC, "before")).code == "ok"
        await far.flush()
        wire.hold("client")
        yield TwoDesks(near, client, wire, far_service)


IDS = [f"job{number}" for number in range(16)]
"""So many that each desk gets some of the questions: the server draws who is asked."""


async def there(office: Office) -> dict[str, str | None]:
    """Return the states of those that are not over."""
    states = {job_id: await office.state(job_id) for job_id in IDS}
    return {job_id: state for job_id, state in states.items() if state not in (None, "done")}


async def test_what_was_deleted_or_finished_stays_so_when_a_desk_hears_late_of_its_add(
    server: EmbeddedServer, connection: Connection
) -> None:
    async with two_desks(server, connection) as desks:
        near, deleted, finished = desks.near, IDS[:8], IDS[8:]
        adds = [desks.client.jobs.add_many([new_job(TOPIC, id=job_id)]) for job_id in IDS]  # in requests of their own
        assert all(answer.code == "ok" for [answer] in await asyncio.gather(*adds))
        for job_id in deleted:
            assert (await near.desk.delete(TOPIC, job_id)).code == "ok"
        for _ in finished:
            job = await near.reserve()
            assert (job.id in finished, job.attempt) == (True, 1)
            assert [answer.code for answer in await near.desk.finish([job.receipt])] == ["ok"]
        assert await there(near) == {}
        await desks.wake()
        assert await there(near) == {}


async def test_a_delete_that_a_desk_hears_late_takes_nothing_that_was_added_since(
    server: EmbeddedServer, connection: Connection
) -> None:
    async with two_desks(server, connection) as desks:
        await desks.near.try_add(*IDS)
        await asyncio.gather(*(desks.client.jobs.delete(job_id, TOPIC) for job_id in IDS))
        await desks.near.try_add(*IDS, body="a new one")
        await desks.wake()
        assert await there(desks.near) == dict.fromkeys(IDS, "ready")


async def test_what_was_told_not_done_is_not_done_by_a_desk_that_hears_late(
    server: EmbeddedServer, connection: Connection
) -> None:
    """Where another desk may still do what it was asked, the answer is `unknown`."""
    async with two_desks(server, connection) as desks:
        await desks.near.try_add(*IDS, body="the first")
        asked = [desks.client.jobs.add_many([new_job(TOPIC, "another", id=job_id)]) for job_id in IDS]
        answers = {job_id: answer for job_id, [answer] in zip(IDS, await asyncio.gather(*asked), strict=True)}
        for job_id in IDS:
            await desks.near.desk.delete(TOPIC, job_id)
        await desks.wake()
        assert {
            job_id: answers[job_id] for job_id in await there(desks.near) if answers[job_id].code != "unknown"
        } == {}


async def test_a_delete_that_was_asked_twice_is_not_told_that_nothing_was_there(
    server: EmbeddedServer, connection: Connection
) -> None:
    """Its first try removed the job, and the answer was lost: then `False` would say that nothing was done."""
    async with (
        open_office(connection) as office,
        open_service(office),
        proxy(server.port) as wire,
        penstock.connect(wire.url, namespace=connection.namespace.name) as client,
    ):
        await office.add("one")
        wire.hold("client")
        asked = asyncio.ensure_future(client.jobs.delete("one", TOPIC))
        with anyio.fail_after(30):
            while await office.state("one") is not None:
                await a_moment()
        wire.cut()
        with suppress(Timeout):
            assert await asked


# ---- a server that is killed when a part is done


def then_killed(act: Callable[..., Awaitable[Any]], server: EmbeddedServer) -> Callable[..., Awaitable[Any]]:
    """Return `act` with the server killed after it, if it succeeds."""

    async def acted(*args: Any, **more: Any) -> Any:
        outcome = await act(*args, **more)
        await server.kill()
        return outcome

    return acted


async def test_a_kick_that_was_done_in_part_is_unknown(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(own_server) as connection, open_office(connection) as office:
        await office.try_add("a", "b", "c", delay_ms=3_600_000)
        monkeypatch.setattr(office.store, "kick_delayed", then_killed(office.store.kick_delayed, own_server))
        with pytest.raises(OutcomeUnknown, match="partly done"):
            await office.desk.kick(TOPIC, most=3)


async def test_a_delete_in_several_topics_that_was_done_in_part_is_unknown(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(own_server) as connection, open_office(connection) as office:
        for topic in ("one", "two"):
            await office.add("a", topic=topic, delay_ms=3_600_000)
        monkeypatch.setattr(office.store, "delete", then_killed(office.store.delete, own_server))
        with pytest.raises(OutcomeUnknown, match="partly done"):
            await office.desk.delete(None, "a")


async def test_a_kick_whose_dead_letter_could_not_be_removed_is_unknown(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job is ready by then."""
    async with open_office(connection) as office:
        await office.add("a")
        assert [answer.code for answer in await office.desk.bury([(await office.reserve()).receipt])] == ["ok"]
        own = office.store.add_many

        async def add_many(*args: Any, **more: Any) -> Any:
            outcomes = await own(*args, **more)
            await connection.api(f"STREAM.DELETE.{connection.namespace.stream('DEAD')}")
            return outcomes

        monkeypatch.setattr(office.store, "add_many", add_many)
        with pytest.raises(OutcomeUnknown, match="partly done"):
            await office.desk.kick(TOPIC, "a")
        assert await office.state("a") == "ready"


@pytest.mark.parametrize("job_id", ["a", None])
async def test_a_kick_of_a_buried_job_that_is_stored_is_not_told_that_there_is_none(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, job_id: str | None
) -> None:
    """The server is killed once it has stored the job, and before the record of its burial is removed."""
    async with connected(own_server) as connection, open_office(connection) as office:
        await office.add("a")
        assert [answer.code for answer in await office.desk.bury([(await office.reserve()).receipt])] == ["ok"]
        own = JobStream.move

        async def move(self: JobStream, *args: Any, **more: Any) -> Any:
            outcome = await own(self, *args, **more)
            if isinstance(outcome, int):
                await own_server.kill()
            return outcome

        monkeypatch.setattr(JobStream, "move", move)
        with pytest.raises(OutcomeUnknown, match="stored, but the one before is still there"):
            await office.desk.kick(TOPIC, job_id)
        monkeypatch.undo()
        await own_server.start()
        await connection.connected_by(math.inf)
        assert await office.state("a") == "ready"


async def test_a_kick_is_known_though_the_removal_of_the_burial_was_answered_late(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request removes it, and its answer does not come in time. The next one finds it gone."""
    async with open_office(connection) as office:
        await office.add("a")
        assert [answer.code for answer in await office.desk.bury([(await office.reserve()).receipt])] == ["ok"]
        request, own, late = f"STREAM.MSG.DELETE.{connection.namespace.stream('JOBS')}", connection.api, list[str]()

        async def api(subject: str, *args: Any, **more: Any) -> Any:
            answer = await own(subject, *args, **more)
            if subject == request and not late:
                late.append(subject)
                raise OutcomeUnknown("no answer in time", subject=subject)
            return answer

        monkeypatch.setattr(connection, "api", api)
        await office.desk.kick(TOPIC, "a")
        assert (await office.state("a"), late) == ("ready", [request])


# ---- settling at the end of the TTR

TTR_MS = 2_000
SETTLINGS: dict[str, dict[str, object]] = {
    "finish": {},
    "bury": {},
    "release": {"delay_ms": 60_000},
    "touch": {"ttr_ms": 60_000},
}
STOPPED_MS = RESERVED_SLACK_MS + 300
"""Until so long after the TTR's end the server stands still: it puts back at once when it goes on."""
MANY = [str(number) for number in range(300)]
"""So many that the server is at both for a while, putting back and taking what was settled: where they meet, some jobs
were handed out again that were answered `ok`. On half of the rounds at least."""


@pytest.mark.parametrize("round_", range(3))
async def test_what_was_finished_while_the_server_stood_still_is_not_handed_out_again(
    own_server: EmbeddedServer, round_: int
) -> None:
    """It is sent in time, and the server finds it together with its own putting back."""
    async with connected(own_server) as connection, open_office(connection) as office:
        held = await reserved(office)
        await until_ms(held[-1].until_ms - TTR_MS // 3)
        await freeze(own_server)
        asked = asyncio.gather(*(office.desk.finish([job.receipt]) for job in held))
        await until_ms(held[-1].until_ms + STOPPED_MS)
        thaw(own_server)
        answers = await asked
        await only_others_come_again(office, held, [answer for [answer] in answers])


@pytest.mark.parametrize("how", SETTLINGS)
async def test_what_was_settled_over_a_wire_that_stood_still_is_not_handed_out_again(
    own_server: EmbeddedServer, how: str
) -> None:
    """It was decided in time, and what is published of it comes to the server together with its own putting back."""
    async with (
        connected(own_server) as near,
        open_office(near) as office,
        a_far_link(own_server, near) as (far, wire),
        open_second_office(far) as desk,
    ):
        held = await reserved(desk)
        settle = getattr(desk.desk, how)
        wire.hold("server", at=b"Nats-Expected-Last")
        asked = asyncio.gather(*(settle([job.receipt], **SETTLINGS[how]) for job in held))
        await wire.holds("server")
        await freeze(own_server)
        wire.heal()
        await until_ms(held[-1].until_ms + STOPPED_MS)
        thaw(own_server)
        answers = await asked
        await only_others_come_again(office, held, [answer for [answer] in answers])


async def reserved(office: Office) -> list[Reserved]:
    """Add many jobs and reserve all of them."""
    await office.try_add(*MANY, ttr_ms=TTR_MS)
    held: list[Reserved] = []
    while len(held) < len(MANY):
        held += await office.desk.reserve(TOPIC, most=len(MANY), wait_ms=10_000)
    return held


async def until_ms(moment_ms: int) -> None:
    await anyio.sleep(max(0, moment_ms - now_ms()) / 1000)


async def only_others_come_again(office: Office, held: list[Reserved], answers: list[JobReply]) -> None:
    """Reserve what comes again: every one that was told `stale` by now, and none that was told `ok`."""
    told = {job.id: answer.code for job, answer in zip(held, answers, strict=True)}
    assert set(told.values()) <= {"ok", "stale", "unknown"}
    stale = {job_id for job_id, code in told.items() if code == "stale"}
    again: set[str] = set()
    with anyio.fail_after(30):
        while stale - again or (await office.desk.count(TOPIC)).ready:
            found = await office.desk.reserve(TOPIC, most=len(MANY), wait_ms=1_000, ttr_ms=60_000)
            again |= {job.id for job in found}
    assert [job_id for job_id in again if told[job_id] == "ok"] == []


async def test_an_add_that_has_replaced_another_is_told_though_its_copies_could_not_be_dropped(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_office(connection) as office:
        await office.add("a", delay_ms=3_600_000)

        async def drop(topic: str, key: str) -> None:
            raise Disconnected("the link broke just now")

        monkeypatch.setattr(office.desk._copies, "drop", drop)
        assert (await office.add("a", body="2", on_same="replace")).is_new
