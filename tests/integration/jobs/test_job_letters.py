"""Dead letters of jobs on a real server: one letter an end, and round again as a new epoch, past crashes in between."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import anyio
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs import replay
from actors.jobs.adds import Stored
from actors.jobs.dead_letters import Burial, job_dead_letter, job_of, write_dead_letters
from actors.jobs.replay import JobReplay
from actors.jobs.store import JobStore
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM, now_ms
from streams.errors import Refused, StreamError
from streams.link.connection import Connection
from streams.messages.fetch import decode_dead_letter, encode
from streams.messages.jobs import JobRecord
from streams.publish.publisher import Publisher
from streams.reads.log import LogEntry, delete_entry, purge_subject, read_log
from streams.topology.specs import Sizes, wanted
from tests.support.server import copies, make_topology


class Ground(NamedTuple):
    """Streams, and what works on them."""

    connection: Connection
    publisher: Publisher
    store: JobStore
    replay: JobReplay

    async def bury(self, *jobs: JobRecord, seq: int = 7, reason: str = "no money") -> list[object]:
        burials = [Burial(job, seq + at, reason) for at, job in enumerate(jobs)]
        told = await write_dead_letters(self.connection, self.publisher, self.connection.namespace, burials)
        return [each if isinstance(each, StreamError) else None for each in told]

    async def letters(self) -> list[LogEntry]:
        stream, pattern = self.connection.namespace.stream("DEAD"), self.connection.namespace.pattern("dead", ">")
        return [entry async for entry in read_log(self.connection, stream, pattern)]

    async def job(self, job_id: str, topic: str = "mail") -> JobRecord:
        found = await self.store.find(topic, job_id)
        assert found is not None
        assert found.job is not None
        return found.job


@pytest.fixture
async def ground(connection: Connection, publisher: Publisher) -> Ground:
    sizes = Sizes(dead_messages=600)
    await make_topology(
        connection, wanted(connection.namespace, profile="fast", replicas=copies(connection), sizes=sizes)
    )
    store = JobStore(connection, publisher, connection.namespace, SYSTEM)
    leases = Bucket(connection, publisher, connection.namespace.bucket("LEASES"), bytes)
    return Ground(connection, publisher, store, JobReplay(connection, store, SYSTEM, leases))


def dead_job(job_id: str = "o1", **more: object) -> JobRecord:
    at_ms = now_ms()
    job = JobRecord(
        topic="mail",
        id=job_id,
        due_ms=at_ms - 60_000,
        body=Raw(b'{"to":"a@b"}'),
        added_ms=at_ms - 90_000,
        ttr_ms=60_000,
        attempts=3,
        most_attempts=3,
        history=("attempt 3 at 2026-11-21T09:30:00Z on n1: no money",),
    )
    return replace(job, **more)


async def test_burying_again_after_a_crash_leaves_one_letter(ground: Ground) -> None:
    job = dead_job()
    assert await ground.bury(job) == [None]
    assert await ground.bury(job) == [None], "the same message, given up on again"
    assert await ground.bury(job, seq=99) == [None], "the same end, of the message that came after the crash"
    [entry] = await ground.letters()
    letter = decode_dead_letter(entry.payload)
    assert (letter.engine, letter.name, letter.id, letter.reason) == ("jobs", "mail", "o1", "no money")
    assert letter.history[0].node == "n1"
    assert await ground.bury(replace(job, added_ms=job.added_ms + 1), seq=100) == [None]
    assert len(await ground.letters()) == 2, "another job of that id has ended"


async def test_a_letter_that_was_dropped_before_its_job_ended_is_written_again(ground: Ground) -> None:
    """As when the end of the job is not known, and its holder buries it once more."""
    jobs = [dead_job("a"), dead_job("b")]
    await ground.bury(*jobs)
    first = await ground.letters()
    for again in range(2):
        dropped = await ground.letters()
        assert await delete_entry(ground.connection, ground.connection.namespace.stream("DEAD"), dropped[0].seq)
        assert await ground.bury(*jobs) == [None, None]
        left = await ground.letters()
        assert sorted(entry.payload for entry in left) == sorted(entry.payload for entry in first), again


async def test_where_letters_are_refused_each_says_so(ground: Ground) -> None:
    jobs = [dead_job(f"o{at}") for at in range(602)]
    answers = await ground.bury(*jobs)
    assert answers[:600] == [None] * 600
    assert all(isinstance(answer, Refused) for answer in answers[600:]), "so they are not settled, and come again"


async def test_what_goes_round_again_is_the_whole_job_with_all_its_attempts(ground: Ground) -> None:
    before = dead_job("order 7 / ü", expires_ms=5, priority="high")
    await ground.bury(before)
    [entry] = await ground.letters()
    [again] = await ground.replay.send_again([entry])
    assert (again.seq, again.id, again.is_done) == (entry.seq, "order 7 / ü", True)
    assert await ground.letters() == []
    found = await ground.store.find("mail", "order 7 / ü")
    assert found is not None
    assert found.state == "ready"
    job = await ground.job("order 7 / ü")
    assert (job.attempts, job.most_attempts, job.expires_ms, job.priority) == (0, 3, 0, "high")
    assert job.history[0] == before.history[0]
    assert before.added_ms < job.added_ms <= now_ms()


async def test_the_record_of_its_own_burial_does_not_keep_a_job_from_going_round_again(ground: Ground) -> None:
    job = dead_job()
    await ground.bury(job)
    subject = ground.connection.namespace.job("done", "mail", "o1")
    done = b'{"topic":"mail","id":"o1","finished_ms":1,"outcome":"buried"}'
    await ground.publisher.publish(subject, done, ttl_s=600)
    [again] = await ground.replay.send_again(await ground.letters())
    assert again.is_done
    assert (await ground.job("o1")).attempts == 0


async def test_after_a_crash_before_the_letter_went_there_is_one_job(ground: Ground) -> None:
    await ground.bury(dead_job())
    [entry] = await ground.letters()
    await ground.replay.send_again([entry])
    await ground.publisher.publish(entry.subject, entry.payload)  # as if it had not been removed yet
    [left] = await ground.letters()
    [other] = await ground.replay.send_again([left])
    assert (other.is_done, "another one of that id is ready" in other.what) == (False, True), "another letter, though"
    [same] = await ground.replay.send_again([entry])
    assert same.is_done
    assert (await ground.store.count("mail")).ready == 1


async def test_a_letter_whose_job_was_sent_and_is_over_goes_without_a_second_job(ground: Ground) -> None:
    await ground.bury(dead_job())
    [entry] = await ground.letters()
    await ground.replay.send_again([entry])
    assert await ground.store.delete("mail", "o1") == "ready"
    [again] = await ground.replay.send_again([entry])  # as if it had not been removed yet
    assert again.is_done
    assert (await ground.store.count("mail")).ready == 0


async def test_a_letter_stays_while_its_topic_remembers_a_job_of_that_id(ground: Ground) -> None:
    await ground.bury(dead_job())
    subject = ground.connection.namespace.job("done", "mail", "o1")
    await ground.publisher.publish(subject, b'{"topic":"mail","id":"o1","finished_ms":1}', ttl_s=600)
    [left] = await ground.replay.send_again(await ground.letters())
    assert (left.is_done, "remembers" in left.what) == (False, True)
    assert len(await ground.letters()) == 1
    await purge_subject(ground.connection, ground.connection.namespace.stream("JOBS"), subject)
    assert (await ground.replay.send_again(await ground.letters()))[0].is_done


async def test_another_job_of_that_id_keeps_the_letter_where_it_is(ground: Ground) -> None:
    await ground.bury(dead_job())
    other = dead_job(attempts=0, history=(), due_ms=now_ms() + 600_000)
    [stored] = await ground.store.add_many([(other, "keep")])
    assert isinstance(stored, Stored)
    [again] = await ground.replay.send_again(await ground.letters())
    assert (again.is_done, "is delayed; finish or delete it first" in again.what) == (False, True)
    assert len(await ground.letters()) == 1
    assert not await ground.replay.kick_one("mail", "o1")
    assert await ground.store.delete("mail", "o1") == "delayed"
    [again] = await ground.replay.send_again(await ground.letters())
    assert (again.is_done, again.what, await ground.letters()) == (True, "job o1 of mail is ready again", [])


async def test_of_two_letters_of_one_id_the_later_one_goes_when_the_first_job_is_over(ground: Ground) -> None:
    await ground.bury(dead_job())
    await ground.bury(dead_job(added_ms=now_ms() - 1_000), seq=8)
    first, second = await ground.replay.send_again(await ground.letters())
    assert (first.is_done, second.is_done) == (True, False)
    assert "an earlier dead letter of that id goes first" in second.what
    assert await ground.store.delete("mail", "o1") == "ready"
    [second] = await ground.replay.send_again(await ground.letters())
    assert (second.is_done, await ground.letters()) == (True, [])


async def test_what_holds_no_job_stays_and_says_why(ground: Ground) -> None:
    await ground.bury(dead_job("a"), dead_job("b"))
    letter = replace(job_dead_letter(dead_job("c"), "x"), body=Raw(b"{}"))
    await ground.publisher.publish(ground.connection.namespace.dead("jobs", "mail", "c"), encode(letter))
    told = await ground.replay.send_again(await ground.letters())
    assert [(each.id, each.is_done) for each in told] == [("a", True), ("b", True), ("c", False)]
    assert "holds no job" in told[2].what
    assert [entry.subject.rpartition(".")[2] for entry in await ground.letters()] == ["c"]


async def test_a_topic_is_kicked_oldest_first_and_no_further_than_asked(ground: Ground) -> None:
    await ground.bury(*(dead_job(f"o{at}") for at in range(9)), dead_job("x", topic="other"))
    assert await ground.replay.kick("mail", 4) == 4
    assert sorted([entry.subject.rpartition(".")[2] for entry in await ground.letters()]) == [
        "o4",
        "o5",
        "o6",
        "o7",
        "o8",
        "x",
    ]
    assert await ground.replay.kick_one("mail", "o7")
    assert not await ground.replay.kick_one("mail", "o7")
    assert await ground.replay.kick("mail", 1000) == 4
    assert await ground.replay.kick("mail", 1000) == 0
    assert (await ground.store.count("mail")).ready == 9
    assert [job_of(decode_dead_letter(entry.payload)).topic for entry in await ground.letters()] == ["other"]


async def test_of_many_who_kick_a_topic_at_the_same_time_one_counts_each_job(ground: Ground) -> None:
    await ground.bury(*(dead_job(f"o{at}") for at in range(60)))
    counts = await asyncio.gather(*(ground.replay.kick("mail", 1000) for _ in range(3)))
    assert (sum(counts), (await ground.store.count("mail")).ready) == (60, 60)


async def test_a_letter_that_was_dropped_after_it_was_read_is_not_sent(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is read before its letters are sent, and the replica that showed it may be behind."""
    await ground.bury(dead_job("a"), dead_job("b"))
    dead, letters = ground.connection.namespace.stream("DEAD"), await ground.letters()
    assert await delete_entry(ground.connection, dead, letters[0].seq)

    async def behind(*_: object, **__: object) -> AsyncIterator[LogEntry]:
        for letter in letters:
            yield letter

    monkeypatch.setattr(replay, "read_log", behind)
    assert await ground.replay.kick("mail", 10) == 1
    assert await ground.store.find("mail", "a") is None


async def test_a_kick_does_not_chase_what_dies_again_meanwhile(ground: Ground) -> None:
    """Each job that was kicked is buried at once, so that a kick without an end would go round for ever."""
    await ground.bury(*(dead_job(f"o{at}") for at in range(300)))
    is_over = anyio.Event()

    async def bury_again() -> None:
        round_ = 0
        while not is_over.is_set():
            page = await ground.store.list_jobs("mail", "ready", most=100)
            for found in page.found:
                if found.job is not None:
                    round_ += 1
                    await ground.bury(replace(found.job, attempts=3), seq=10_000 + round_)
                    await purge_subject(ground.connection, ground.connection.namespace.stream("JOBS"), found.subject)
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bury_again)
            assert await ground.replay.kick("mail", 100_000) == 300
            is_over.set()
