"""A client that takes jobs by itself keeps the rules that a desk keeps. What it holds for long, or what needs a fence,
is written down as an ordinary reservation."""

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

import penstock
from actors.jobs import unwritten
from penstock.sdk.client import Client
from penstock.sdk.direct_takes import DirectTakes
from streams.embedded.server import EmbeddedServer
from tests.support.desks import TOPIC, Office, open_service
from tests.support.moments import a_moment

pytestmark = pytest.mark.three_servers


@pytest.fixture
async def client(server: EmbeddedServer, office: Office, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(unwritten, "LASTS_S", -1.0)  # this server was not started anew
    monkeypatch.setattr(unwritten, "WRITE_S", 1.9)
    async with penstock.connect(server.url, namespace=office.namespace.name, direct=True) as opened:
        yield opened


def taking_of(client: Client) -> DirectTakes:
    assert client.jobs.direct is not None
    assert client.jobs.direct.taking is not None
    return client.jobs.direct.taking


async def _taken(client: Client, ttr: float | None = None) -> penstock.HeldJob:
    with anyio.fail_after(20):
        while TOPIC not in taking_of(client)._topics:  # until then it asks a desk, and there is none
            await a_moment()
    [job] = await client.jobs.reserve_many(TOPIC, wait=10, ttr=ttr)
    return job


async def _until(office: Office, state: str | None, job_id: str = "1") -> None:
    with anyio.fail_after(20):
        while await office.state(job_id) != state:
            await a_moment()


async def _until_served(taking: DirectTakes, is_served: bool) -> None:
    with anyio.fail_after(20):
        while taking.serves(TOPIC, None, "") != is_served:
            await a_moment()


def _is_by_delivery(office: Office) -> bool:
    return not office.connection.is_clustered


async def test_it_takes_and_finishes_without_a_desk(client: Client, office: Office) -> None:
    for number in range(40):
        await office.add(str(number), body=number)
    jobs = await asyncio.gather(*(client.jobs.reserve_many(TOPIC, wait=10) for _ in range(40)))
    held = [job for some in jobs for job in some]
    assert sorted(job.body for job in held) == list(range(40))
    assert {job.attempt for job in held} == {1}
    if not _is_by_delivery(office):
        return
    assert all(taking_of(client).holds(job.receipt) for job in held)
    await asyncio.gather(*(job.finish() for job in held[:20]))
    answers = await client.jobs.finish_many(held[20:])
    assert {answer.code for answer in answers} == {"ok"}
    assert not await client.jobs.reserve_many(TOPIC)
    counts = await office.desk.count(TOPIC)
    assert (counts.ready, counts.reserved, counts.delayed) == (0, 0, 0)
    again = await office.desk.finish([job.receipt for job in held])
    assert {answer.code for answer in again} == {"ok"}, "a repeat is answered as the first was, at any desk"


async def test_what_is_held_for_long_is_an_ordinary_reservation(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwritten, "WRITE_S", 0.0)
    for job_id in ("1", "2"):
        await office.add(job_id, body=job_id)
    job = await _taken(client, ttr=30)
    await _until(office, "reserved", job.id)
    [answer] = await office.desk.finish([job.receipt])
    assert answer.code == "ok", "any desk knows it by the receipt that its holder has"
    other = await _taken(client)
    await _until(office, "reserved", other.id)
    async with open_service(office):
        await other.finish()
        with pytest.raises(penstock.Stale):
            await job.touch()


@pytest.mark.parametrize("verb", ["touch", "release", "bury"])
async def test_what_a_desk_settles_is_written_down_before(client: Client, office: Office, verb: str) -> None:
    await office.add(attempts=5)
    async with open_service(office):
        job = await _taken(client)
        match verb:
            case "touch":
                await job.touch("2m")
                assert await office.state() == "reserved"
                await job.finish()
                assert await office.state() is None
            case "release":
                await job.release(delay="1h", reason="later")
                assert await office.state() == "delayed"
            case _:
                await job.bury("no use")
                assert [letter["id"] for letter in await office.dead()] == ["1"]


async def test_what_is_deleted_or_replaced_under_its_holder_is_not_finished(client: Client, office: Office) -> None:
    await office.add("gone")
    await office.add("other", body=1)
    held = {job.id: job for job in [await _taken(client), await _taken(client)]}
    assert (await office.desk.delete(TOPIC, "gone")).code == "ok"
    await office.add("other", body=2, on_same="replace")
    async with open_service(office):
        for job in held.values():
            with pytest.raises(penstock.Stale):
                await job.finish()
        new = await _taken(client)
        assert (new.id, new.body) == ("other", 2)
        await new.finish()
    assert not await client.jobs.reserve_many(TOPIC)


async def test_a_process_that_dies_gives_back_and_the_attempt_counts(
    server: EmbeddedServer, client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_some: object) -> None: ...

    await office.add()
    async with penstock.connect(server.url, namespace=office.namespace.name, direct=True) as dead:
        [job] = await dead.jobs.reserve_many(TOPIC, wait=10, ttr=1)
        assert job.attempt == 1
        monkeypatch.setattr(taking_of(dead)._unwritten, "_write", nothing)  # as kill -9 leaves it
    again = await client.jobs.reserve_many(TOPIC, wait=30)
    assert [each.attempt for each in again] == [2]


async def test_whoever_stood_still_settles_nothing(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.add()
    job = await _taken(client)
    if not _is_by_delivery(office):
        return
    monkeypatch.setattr(unwritten, "SURE_S", -1.0)
    with pytest.raises(penstock.Stale, match="stood still"):
        await job.finish()
    [again] = await client.jobs.reserve_many(TOPIC, wait=30)
    assert again.attempt == 2


async def test_what_needs_a_fence_is_written_down_at_once(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.add("once", attempts=1)
    await _taken(client)
    assert await office.state("once") == "reserved", "it may not run twice"
    await office.add("late", delay_ms=60_000)
    await office.desk.kick(TOPIC, "late")
    await _taken(client)
    assert await office.state("late") == "reserved", "it was a schedule"
    await office.add("named", nonce="its-own")
    await _taken(client)
    assert await office.state("named") == "reserved", "its add may be repeated for a day"
    monkeypatch.setattr(unwritten, "LASTS_S", 1e9)
    await office.add("before")
    monkeypatch.setattr(unwritten, "CLOCK_MS", 10**9)
    await _taken(client)
    assert await office.state("before") == "reserved", "the server may have forgotten its end"
    monkeypatch.setattr(taking_of(client)._unwritten, "_stood_still_s", lambda: 1.0)
    monkeypatch.setattr(unwritten, "LASTS_S", -1.0)
    await office.add("still")
    await _taken(client)
    assert await office.state("still") == "reserved", "it may have been deleted while it lay in the socket"


async def test_a_caller_that_left_costs_no_attempt(client: Client, office: Office) -> None:
    taking = taking_of(client)
    await office.add()
    job = await _taken(client)
    if not _is_by_delivery(office):
        return
    assert await taking.give_back([job._reserved]) == []
    assert (await _taken(client)).attempt == 1


async def test_what_is_held_at_the_close_can_be_settled_elsewhere(server: EmbeddedServer, office: Office) -> None:
    await office.add(ttr_ms=60_000)
    async with penstock.connect(server.url, namespace=office.namespace.name, direct=True) as client:
        job = await _taken(client)
    assert await office.state() == "reserved"
    [answer] = await office.desk.finish([job.receipt])
    assert answer.code == "ok"


async def test_topics_with_a_rate_slots_or_a_zone_are_served_by_a_desk(client: Client, office: Office) -> None:
    await office.add()
    taking = taking_of(client)
    await office.set(rate=1)
    await _until_served(taking, False)
    await office.set(rate=0, slots=1)
    await _until_served(taking, False)
    await office.set(slots=0)
    await _until_served(taking, True)
    assert not taking.serves(TOPIC, 1, "")
    assert not taking.serves(TOPIC, None, "x" * 200)


async def test_a_node_tells_for_how_long_the_server_runs(server: EmbeddedServer, office: Office) -> None:
    async with (
        open_service(office),
        penstock.connect(server.url, namespace=office.namespace.name, direct=True) as client,
    ):
        await taking_of(client).learn()
        assert taking_of(client)._unwritten._known == office.connection.memory


async def test_a_remembered_id_stays_taken(client: Client, office: Office) -> None:
    await office.set(remember="1h")
    await office.add()
    await office.add("with a blank")
    async with open_service(office):
        for job in [await _taken(client), await _taken(client)]:
            await job.finish()
    answers = await office.try_add("1", "with a blank")
    assert [answer.code for answer in answers] == ["over", "over"]
