"""Adds that are repeated: one add is one job, whoever repeats it, also after the first copy was handled or deleted."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import fail_after
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.adds import Stored
from actors.jobs.rules.job_answers import NotAdded
from actors.jobs.stream import JobStream, TakenBack
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.errors import Disconnected, OutcomeUnknown, Repeated, StreamError
from streams.jobs.moves import Move, Mover
from streams.link.connection import connect
from streams.messages.jobs import FirstTry, NewJob, encode_job
from streams.publish.publisher import Publisher
from streams.pull.once import PullOnce
from tests.support.desks import Office
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.proxy import Proxy, proxy
from tests.support.server import connected


@asynccontextmanager
async def behind(wire: Proxy, jobs: Jobs) -> AsyncIterator[Jobs]:
    """Open another desk's store on the same streams, on a link that can be held."""
    async with connect(wire.url, name="behind", namespace=jobs.namespace) as connection:
        async with Publisher(connection, attempt_timeout_s=0.3) as publisher, PullOnce(connection) as pulls:
            yield Jobs(connection, publisher, pulls)


def port_of(jobs: Jobs) -> int:
    port = jobs.connection.client.servers[0].port
    assert port is not None
    return port


@pytest.fixture
async def own_jobs(own_server: EmbeddedServer) -> AsyncIterator[Jobs]:
    async with connected(own_server) as connection, open_jobs(connection) as opened:
        yield opened


async def ready_ids(jobs: Jobs) -> list[str]:
    return [delivery.subject.rpartition(".")[2] for delivery in await jobs.pull(10, wait_s=0)]


@pytest.mark.parametrize("end", ["handled", "deleted", "finished"])
async def test_an_add_whose_answer_is_held_back_makes_one_job_though_the_first_copy_is_over(
    jobs: Jobs, end: str
) -> None:
    """The server stores it, its answer is held, the job ends, and the publisher repeats the add on the same link."""
    with fail_after(60):
        async with proxy(port_of(jobs)) as wire, behind(wire, jobs) as desk:
            answers: list[Any] = []
            repeats = wire.count("server", b'"body":"held"')

            async def add() -> None:
                answers.append(await desk.add("1", body="held"))

            wire.hold("client")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(add)
                (delivery,) = await jobs.pull(1)
                match end:
                    case "handled":
                        await delivery.ack_sync()
                    case "deleted":
                        assert await jobs.store.delete(TOPIC, "1") == "ready"
                    case _:
                        (held,) = (await jobs.store.reserve_many([delivery])).reservations
                        await jobs.store.finish_many([held.receipt], remember_s=0)
                await repeats.reaches(3)
                wire.heal()
            (answer,) = answers
            assert isinstance(answer, Stored)
            assert answer.is_new
            assert await ready_ids(jobs) == []
            assert (await jobs.store.count(TOPIC)) == (0, 0, 0, 0)


async def test_an_add_that_was_repeated_elsewhere_makes_no_job_when_its_first_desk_goes_on(jobs: Jobs) -> None:
    """The first desk's publish is held on its way to the server; the caller repeats at another desk; the job is
    deleted. Then the first publish arrives."""
    with fail_after(60):
        async with proxy(port_of(jobs)) as wire, behind(wire, jobs) as stalled:
            job = jobs.make("1")
            first: list[Any] = []

            async def add() -> None:
                first.extend(await stalled.store.add_many([(job, "keep")]))

            wire.hold("server")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(add)
                await wire.holds("server")
                (second,) = await jobs.store.add_many([(job, "keep")], first=FirstTry(5.0, stalled.connection.memory))
                assert isinstance(second, Stored)
                assert await jobs.store.delete(TOPIC, "1") == "ready"
                wire.heal()
            assert isinstance(first[0], Stored), "it was added, by the repeat"
            assert await jobs.store.find(TOPIC, "1") is None
            assert await ready_ids(jobs) == []


async def test_a_repeated_add_is_told_when_the_job_of_its_first_try_is_due(jobs: Jobs) -> None:
    """A desk reckons a delay from its own try. The job comes when the first one's is over, so that is the answer."""
    first = jobs.make("1", due_ms=now_ms() + 60_000)
    (stored,) = await jobs.store.add_many([(first, "keep")])
    (again,) = await jobs.store.add_many([(replace(first, due_ms=first.due_ms + 700), "keep")], first=FirstTry(1.0, ""))
    assert isinstance(stored, Stored)
    assert isinstance(again, Stored)
    assert again == stored
    assert await jobs.store.delete(TOPIC, "1") == "delayed"
    (over,) = await jobs.store.add_many([(first, "keep")])
    assert isinstance(over, Stored)
    assert (over.state, over.due_ms) == ("done", 0)


async def test_a_replace_that_is_taken_back_is_made_again_and_its_repeats_are_not_told_that_it_is_over(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server fired the old job's schedule just before it stored the new job, which is removed again. It still
    knows the message id, and so the next try seemed to be over."""
    old = jobs.make("1", due_ms=now_ms() + 60_000)
    new = jobs.make("1", due_ms=now_ms() + 90_000, nonce="a-key-of-ours", body=Raw(b'"new"'))
    repeats: list[Any] = []
    move = JobStream.move

    async def overtaken(stream: JobStream, step: Move, **more: Any) -> int | StreamError:
        seq = await move(stream, step, **more)
        if step.expected and not repeats:
            assert isinstance(seq, int)
            assert await stream._take_back(step, seq)
            repeats.append(None)
            repeats[:] = await jobs.store.add_many([(new, "replace")], first=FirstTry(1.0, jobs.connection.memory))
            return TakenBack("its schedule was fired before it was made", subject=step.subject)
        return seq

    await jobs.store.add_many([(old, "keep")])
    monkeypatch.setattr(JobStream, "move", overtaken)
    (made,) = await jobs.store.add_many([(new, "replace")])
    assert isinstance(repeats[0], OutcomeUnknown)
    assert isinstance(made, Stored)
    assert (made.is_new, made.state) == (True, "delayed")
    found = await jobs.store.find(TOPIC, "1")
    assert found is not None
    assert found.job is not None
    assert bytes(found.job.body) == b'"new"'


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("is_answer_lost", [False, True])
@pytest.mark.parametrize("delay_ms", [0, 90_000])
async def test_a_replace_that_the_firing_of_the_old_job_followed_is_not_told_as_done(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, delay_ms: int, is_answer_lost: bool, is_taken: bool
) -> None:
    """The server had loaded the old job's schedule when it stored the new job, and fired it after that. If the new job
    was ready, the firing has taken its place. With a lost answer, the server only said that it knew the add. Somebody
    may hold the old job by then."""
    old = jobs.make("1", due_ms=now_ms() + 700)
    new = jobs.make("1", due_ms=now_ms() + delay_ms, nonce="a-key-of-ours", body=Raw(b'"new"'))
    move_many, fired = Mover.move_many, 0

    async def followed(mover: Mover, moves: Sequence[Move], **more: Any) -> list[int | StreamError]:
        nonlocal fired
        outcomes = await move_many(mover, moves, **more)
        if fired or not moves[0].expected:
            return outcomes
        while jobs.clock.now_ms() < moves[0].fires_ms:
            await anyio.lowlevel.checkpoint()
        (seq,) = outcomes
        assert isinstance(seq, int)
        fired = (await jobs.publisher.publish(jobs.namespace.job("ready", TOPIC, "1"), encode_job(old))).seq
        if is_taken:
            fired = (await jobs.reserve()).receipt.seq
        if not is_answer_lost:
            return outcomes
        repeated = Repeated("the server has had it", subject=moves[0].subject)
        repeated.seq = seq
        return [repeated]

    await jobs.store.add_many([(old, "keep")])
    monkeypatch.setattr(Mover, "move_many", followed)
    (answer,) = await jobs.store.add_many([(new, "replace")])
    found = await jobs.store.find(TOPIC, "1")
    assert found is not None
    assert found.job is not None
    if not delay_ms:
        (again,) = await jobs.store.add_many([(new, "replace")], first=FirstTry(1.0, jobs.connection.memory))
        assert isinstance(answer, OutcomeUnknown)
        assert isinstance(again, OutcomeUnknown)
        assert found.seq == fired
    else:
        assert isinstance(answer, Stored)
        assert answer.is_new
        assert bytes(found.job.body) == b'"new"'


class Died(Exception):
    """The process was killed."""


@contextmanager
def dying(at: str) -> Iterator[None]:
    """Have whoever comes to a failpoint of jobs in the block die there."""

    def reach(name: str) -> None:
        if name == at:
            raise Died

    with pytest.MonkeyPatch.context() as patch, suppress(Died):
        patch.setattr("actors.jobs.adds.reach", reach)
        patch.setattr("actors.jobs.removals.reach", reach)
        yield
        pytest.fail(f"nobody came to {at}")


async def test_a_repeated_replace_leaves_nothing_of_the_old_job(jobs: Jobs) -> None:
    """The first desk dies when the new job is stored, and the old one is still there to be handed out."""
    await jobs.add("1", body="old")
    new = jobs.make("1", body="new", delay_ms=3_600_000)
    with dying("job.replace"):
        await jobs.store.add_many([(new, "replace")])
    (again,) = await jobs.store.add_many([(new, "replace")])
    assert isinstance(again, Stored)
    assert (again.is_new, again.has_replaced) == (True, True)
    assert await ready_ids(jobs) == []
    assert await jobs.state() == "delayed"


async def test_a_repeated_replace_whose_job_is_over_leaves_nothing_of_the_old_job(jobs: Jobs) -> None:
    await jobs.add("1", body="old", priority="low")
    new = jobs.make("1", body="new")
    with dying("job.replace"):
        await jobs.store.add_many([(new, "replace")])
    (delivery,) = await jobs.pull(1)
    await delivery.ack_sync()
    (again,) = await jobs.store.add_many([(new, "replace")])
    assert isinstance(again, Stored)
    assert (again.is_new, again.state, again.has_replaced) == (True, "done", True)
    assert await jobs.pull(1, wait_s=0, priority="low") == []


async def test_a_repeated_delete_leaves_nothing_of_the_job(jobs: Jobs) -> None:
    """The first desk dies when the end is stored, and the job is still there to be handed out."""
    await jobs.add("1")
    with dying("job.delete"):
        await jobs.store.delete(TOPIC, "1", nonce="mine")
    assert await jobs.store.delete(TOPIC, "1", nonce="mine") == "done"
    assert await ready_ids(jobs) == []


@pytest.mark.parametrize("is_over", [False, True])
async def test_an_add_that_is_repeated_after_its_expiry_is_known(office: Office, is_over: bool) -> None:
    new = NewJob(topic=TOPIC, id="1", nonce="a-key-of-ours", expires_ms=now_ms() + 5_000)
    (first,) = await office.desk.add([new])
    assert first.code == "ok"
    if is_over:
        await office.desk.finish([(await office.reserve()).receipt])
    office.clock.ahead_ms = 6_000
    (again,) = await office.desk.add([new], first=FirstTry(6.0, office.connection.memory))
    assert (again.code, again.state) == ("ok", "done" if is_over else "ready")
    (late,) = await office.desk.add([replace(new, id="2")])
    assert isinstance(late, NotAdded)
    assert (late.code, late.field) == ("bad", "expires_ms")
    (never,) = await office.desk.add([replace(new, id="2", nonce="")], first=FirstTry(6.0, office.connection.memory))
    assert never.code == "unknown"


async def test_an_add_that_was_refused_elsewhere_makes_no_job_when_its_first_desk_goes_on(jobs: Jobs) -> None:
    """The caller repeats at another desk, and is told that there is another of this id. When that one is over, the
    first desk's publish arrives."""
    with fail_after(60):
        async with proxy(port_of(jobs)) as wire, behind(wire, jobs) as stalled:
            await jobs.add("1", body="another")
            job = replace(jobs.make("1"), nonce="a-key-of-ours", trace_s=60)
            first: list[Any] = []

            async def add() -> None:
                first.extend(await stalled.store.add_many([(job, "keep")]))

            wire.hold("server")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(add)
                await wire.holds("server")
                for _ in range(2):
                    (second,) = await jobs.store.add_many([(job, "keep")])
                    assert isinstance(second, Stored)
                    assert not second.is_new
                assert await jobs.store.delete(TOPIC, "1") == "ready"
                wire.heal()
            assert isinstance(first[0], OutcomeUnknown), "it was refused, by the repeat"
            assert await jobs.store.find(TOPIC, "1") is None
            assert await ready_ids(jobs) == []


async def test_nothing_is_sent_after_its_time_though_the_process_stood_still(jobs: Jobs) -> None:
    with fail_after(20):
        (late,) = await jobs.store.add_many([(jobs.make("1"), "keep")], until_s=1.0)
        assert isinstance(late, Disconnected), "certainly not stored"
        assert await jobs.store.find(TOPIC, "1") is None


async def test_a_server_that_was_started_anew_is_not_sent_an_add_again(
    own_jobs: Jobs, own_server: EmbeddedServer
) -> None:
    """It may have stored it, and somebody have handled it, before it was killed: nobody knows any more."""
    with fail_after(60):
        async with proxy(own_server.port) as wire, behind(wire, own_jobs) as desk:
            told: list[Any] = []

            async def add() -> None:
                told.append(await desk.add("1"))

            wire.hold("client")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(add)
                (delivery,) = await own_jobs.pull(1)
                await delivery.ack_sync()
                await own_server.kill()
                await own_server.start()
                wire.cut()
            assert isinstance(told[0], OutcomeUnknown)
            assert await ready_ids(own_jobs) == []


async def test_an_add_of_its_callers_own_is_told_exactly_after_a_restart_of_the_server(
    own_jobs: Jobs, own_server: EmbeddedServer
) -> None:
    with fail_after(60):
        job = own_jobs.make("1", nonce="order-1")
        (stored,) = await own_jobs.store.add_many([(job, "keep")])
        assert isinstance(stored, Stored)
        (delivery,) = await own_jobs.pull(1)
        ended = [(delivery, job)]
        assert await own_jobs.store.finish_deliveries(ended, remember_s=0) == [True]
        await own_server.kill()
        await own_server.start()
        await own_jobs.connection.connected_by(1e12)
        for age_s in (0.0, 5.0, 40.0):
            (again,) = await own_jobs.store.add_many([(job, "keep")], first=FirstTry(age_s, "of before"))
            assert isinstance(again, Stored)
            assert (again.is_new, again.state) == (True, "done")
        there = await own_jobs.pull(10, wait_s=0)
        assert {one.seq for one in there} <= {delivery.seq}, "a killed server may find that one again"
