"""The job store on a real server: one job an id, one step a move, and stale hands refused."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from anyio import create_task_group, fail_after
from msgspec.structs import replace

from actors.jobs import reads
from actors.jobs.adds import Clash, Stored
from actors.jobs.reads import Found
from actors.jobs.reservations import JobSettled, JobStale
from actors.jobs.rules.cursors import BadCursor
from actors.jobs.rules.job_rules import BACKSTOP_MS, RESERVED_SLACK_MS, STALE_AFTER_MS
from actors.jobs.stream import JobStream, partition_of
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.errors import OutcomeUnknown, RevisionConflict, StreamError
from streams.jobs.moves import Move
from streams.link.connection import Connection, connect
from streams.link.frames import Message
from streams.messages.jobs import JobRecord, body_of, decode_job
from streams.publish.publisher import Publisher
from tests.support.jobs import TOPIC, Jobs, counts, nothing_is_ready, open_jobs
from tests.support.moments import a_moment
from tests.support.server import freeze, thaw

HOUR = 3_600_000


async def until(is_so: Callable[[], Any]) -> None:
    with fail_after(20):
        while not is_so():
            await a_moment()


# ---- adding


async def test_a_job_without_delay_is_ready_and_one_with_a_delay_waits(jobs: Jobs) -> None:
    with fail_after(20):
        now = await jobs.add("1", body={"order": 1})
        later = await jobs.add("2", delay_ms=HOUR)
        assert (now.state, now.is_new, later.state, later.is_new) == ("ready", True, "delayed", True)
        await counts(jobs, 1, 1, 0, 0)
        found = await jobs.store.find(TOPIC, "1")
        assert found is not None
        assert found.job is not None
        assert (found.seq, found.id, bytes(found.job.body)) == (now.seq, "1", b'{"order":1}')
        assert await jobs.store.find(TOPIC, "3") is None


async def test_a_delayed_job_becomes_ready_by_the_server_alone_and_not_before_it_is_due(jobs: Jobs) -> None:
    with fail_after(30):
        await jobs.added(20, delay_ms=300)
        seen: list[JobRecord] = []
        while len(seen) < 20:
            for delivery in await jobs.pull(20):
                job = decode_job(delivery.payload)
                assert delivery.stored_ms >= job.due_ms
                seen.append(job)
                await delivery.ack()
        assert sorted(int(job.id) for job in seen) == list(range(20))


async def test_any_text_is_an_id(jobs: Jobs) -> None:
    ids = ["order 7", "ünï/кот.*>", "a" * 255, "h_x", "."]
    with fail_after(20):
        for job_id in ids:
            assert (await jobs.add(job_id)).is_new
        seen: set[str] = set()
        while seen != set(ids):
            seen |= {decode_job(delivery.payload).id for delivery in await jobs.pull()}
        for job_id in ids:
            assert await jobs.state(job_id) == "ready"
            assert await jobs.store.delete(TOPIC, job_id) == "ready"


@pytest.mark.parametrize("state", ["delayed", "ready", "reserved", "done"])
async def test_the_same_id_again(jobs: Jobs, state: str) -> None:
    """keep: the first one stands; error: refused; replace: whatever is there is replaced. A remembered end is told."""
    with fail_after(20):
        await jobs.add(body=1, delay_ms=HOUR if state == "delayed" else 0)
        if state in ("reserved", "done"):
            receipt = (await jobs.reserve()).receipt
        if state == "done":
            await jobs.store.finish_many([receipt], remember_s=60)
        kept = await jobs.add(body=2)
        assert isinstance(kept, Clash if state == "done" else Stored)
        assert (kept.state, kept.is_same) == (state, None if state == "done" else False)
        assert isinstance(kept, Clash) or not kept.is_new
        assert (await jobs.add(body=1)).is_same is (None if state == "done" else True)
        refused = await jobs.add(body=2, policy="error")
        assert isinstance(refused, Clash)
        assert refused.state == state
        replaced = await jobs.add(body=2, delay_ms=2 * HOUR, policy="replace")
        assert (replaced.state, replaced.is_new, replaced.has_replaced) == ("delayed", True, state != "done")
        found = await jobs.store.find(TOPIC, "1")
        assert found is not None
        assert found.job is not None
        assert bytes(found.job.body) == b"2"
        await counts(jobs, 1, 0, 0, 0)  # and nothing of the first one is left
        if state == "reserved":
            assert isinstance((await jobs.store.finish_many([receipt], remember_s=60))[0], JobStale)
        assert (await jobs.add(body=3, policy="replace", priority="low")).state == "ready"
        await counts(jobs, 0, 1, 0, 0)
        assert [bytes(decode_job(one.payload).body) for one in await jobs.pull(priority="low")] == [b"3"]


async def test_an_id_that_is_over_is_free_and_each_add_is_known_by_its_nonce(jobs: Jobs) -> None:
    """Three adds of one id, each ended in its way; a late repeat of any makes no job, before and after the next one."""
    with fail_after(30):
        adds = [jobs.make("1", body=n) for n in range(3)]
        for n, job in enumerate(adds):
            (stored,) = await jobs.store.add_many([(job, "keep")])
            assert (stored.is_new, stored.state) == (True, "ready")  # type: ignore[union-attr]
            late = await jobs.store.add_many([(one, "keep") for one in adds[:n]])
            assert [(one.is_new, one.is_same, one.state) for one in late] == [(True, True, "done")] * n  # type: ignore[union-attr]
            if n == 1:
                assert await jobs.store.delete(TOPIC, "1") == "ready"
            else:
                receipt = (await jobs.reserve()).receipt
                (settled,) = await jobs.store.finish_many([receipt], remember_s=0)
                assert isinstance(settled, JobSettled)
            assert await jobs.store.find(TOPIC, "1") is None
            await counts(jobs, 0, 0, 0, 0)
            repeats = await jobs.store.add_many([(one, "replace") for one in adds[: n + 1]])
            assert [(one.is_new, one.state) for one in repeats] == [(True, "done")] * (n + 1)  # type: ignore[union-attr]
            assert await nothing_is_ready(jobs)


async def test_a_nonce_with_another_body_is_told(jobs: Jobs) -> None:
    with fail_after(20):
        job = jobs.make("1", body=1)
        await jobs.store.add_many([(job, "keep")])
        (again,) = await jobs.store.add_many([(replace(job, body=body_of(2)), "keep")])
        assert isinstance(again, Stored)
        assert (again.is_new, again.is_same) == (True, False)
        found = await jobs.store.find(TOPIC, "1")
        assert found is not None
        assert found.job is not None
        assert bytes(found.job.body) == b"1"


@pytest.mark.parametrize("end", ["finished", "deleted", "replaced"])
async def test_a_nonce_used_again_with_another_body_is_told_when_its_job_is_over(jobs: Jobs, end: str) -> None:
    with fail_after(20):
        await jobs.add("1", body=1, nonce="key")
        if end == "deleted":
            assert await jobs.store.delete(TOPIC, "1") == "ready"
        elif end == "replaced":
            assert (await jobs.add("1", body=3, policy="replace")).has_replaced
        else:
            await jobs.store.finish_many([(await jobs.reserve()).receipt], remember_s=0)
        other, same = await jobs.add("1", body=2, nonce="key"), await jobs.add("1", body=1, nonce="key")
        assert [(one.is_new, one.is_same, one.state) for one in (other, same)] == [
            (True, False, "done"),
            (True, True, "done"),
        ]


async def test_one_call_may_hold_an_id_twice(jobs: Jobs) -> None:
    with fail_after(20):
        adds = [(jobs.make("1", body=n), "keep") for n in range(3)] + [
            (jobs.make("2"), "error"),
            (jobs.make("2"), "error"),
        ]
        answers = await jobs.store.add_many(adds)  # type: ignore[arg-type] # literals in a list
        assert [isinstance(answer, Stored) and answer.is_new for answer in answers] == [True, False, False, True, False]
        assert isinstance(answers[-1], Clash)
        assert (await jobs.store.count(TOPIC)).ready == 2


async def test_many_who_add_one_id_at_once_make_one_job(
    jobs: Jobs, connection: Connection, server: EmbeddedServer
) -> None:
    answers: list[Any] = []
    with fail_after(30):
        async with connect(server.url, name="other", namespace=connection.namespace) as second:
            async with Publisher(second) as publisher:
                other = Jobs(second, publisher, jobs.pulls)

                async def add(adding: Jobs, start: int) -> None:
                    adds = [(adding.make(str(n), delay_ms=HOUR * (n % 2), body=start), "keep") for n in range(100)]
                    answers.extend(await adding.store.add_many(adds))  # type: ignore[arg-type]

                async with create_task_group() as tasks:
                    for start in range(3):
                        tasks.start_soon(add, jobs, start)
                        tasks.start_soon(add, other, start + 3)
    assert Counter(answer.id for answer in answers if answer.is_new) == Counter(map(str, range(100)))
    assert (await jobs.store.count(TOPIC))[:2] == (50, 50)


async def test_an_add_whose_answer_was_lost_is_ours(own_server: EmbeddedServer) -> None:
    """The server takes the first try while nobody hears of it; the repeat meets it, and is told as new all the same."""
    with fail_after(40):
        async with connect(own_server.url, name="test") as connection, open_jobs(connection) as jobs:
            answers: list[Any] = []
            jobs.publisher._attempt_timeout_s = 0.3

            async def add() -> None:
                answers.append(await jobs.add("1", delay_ms=HOUR, policy="error"))

            await freeze(own_server)
            async with create_task_group() as tasks:
                tasks.start_soon(add)
                await until(lambda: any(flight.is_unknown for flight in jobs.publisher._flights.values()))
                thaw(own_server)
            assert answers[0].is_new
            assert answers[0].state == "delayed"


async def test_timers_are_told_of_what_is_delayed(jobs: Jobs) -> None:
    told: list[tuple[int, list[Any]]] = []

    def take(message: Message) -> None:
        told.append((int(message.subject.rsplit(".", 1)[1]), msgspec.msgpack.decode(message.payload)))

    with fail_after(20):
        subscription = await jobs.connection.subscribe(jobs.namespace.pattern("due", "*"), take)
        await jobs.connection.flush()
        delayed = await jobs.added(50, delay_ms=HOUR)
        await jobs.store.add_many([(jobs.make("r"), "keep")])
        await jobs.connection.flush()
        await subscription.unsubscribe()
    found = {name: (due_ms, seq, partition) for partition, some in told for due_ms, seq, name in some}
    assert found == {f"{TOPIC}.{one.key}": (one.due_ms, one.seq, partition_of(TOPIC, one.key)) for one in delayed}
    assert len(told) <= 8


# ---- deleting


@pytest.mark.parametrize("state", ["delayed", "ready", "reserved"])
async def test_a_deleted_job_is_gone_from_every_state(jobs: Jobs, state: str) -> None:
    with fail_after(20):
        await jobs.add(delay_ms=HOUR if state == "delayed" else 0)
        receipt = (await jobs.reserve()).receipt if state == "reserved" else None
        assert await jobs.store.delete(TOPIC, "1") == state
        assert await jobs.store.delete(TOPIC, "1") is None
        await counts(jobs, 0, 0, 0, 0)
        if receipt:
            assert isinstance((await jobs.store.finish_many([receipt], remember_s=60))[0], JobStale)
        assert (await jobs.add()).is_new


async def test_what_is_deleted_as_it_becomes_due_is_never_offered_after_the_answer(jobs: Jobs) -> None:
    """Each delete comes at another moment around the server's own firing."""
    with fail_after(40):
        stored = await jobs.added(60, delay_ms=500)
        async with create_task_group() as tasks:
            for number, job in enumerate(stored):
                await until(lambda moment=job.due_ms + BACKSTOP_MS - 30 + number: now_ms() >= moment)  # type: ignore[misc]
                tasks.start_soon(jobs.store.delete, TOPIC, job.id)
        await counts(jobs, 0, 0, 0, 0)
        assert await nothing_is_ready(jobs)


async def test_a_delayed_job_can_be_made_ready_now(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.add(delay_ms=HOUR)
        assert await jobs.store.kick_delayed(TOPIC, "1")
        assert (await jobs.reserve()).job.id == "1"
        assert not await jobs.store.kick_delayed(TOPIC, "1")
        assert not await jobs.store.kick_delayed(TOPIC, "nobody")


async def test_a_kick_that_met_its_own_first_try_is_not_told_as_none(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first try was lost, and somebody has reserved the job since."""
    stream: JobStream = jobs.store.kick_delayed.__self__._jobs  # type: ignore[attr-defined]
    move_on = stream.move

    async def move(move: Move) -> int | StreamError:
        await move_on(move)
        await jobs.reserve()
        conflict = RevisionConflict("wrong last sequence", subject=move.subject)
        conflict.is_after_retry = True
        return conflict

    monkeypatch.setattr(stream, "move", move)
    await jobs.add(delay_ms=HOUR)
    with fail_after(20), pytest.raises(OutcomeUnknown, match="perhaps done"):
        await jobs.store.kick_delayed(TOPIC, "1")


# ---- looking


@pytest.mark.parametrize("few_in_all", [0, 50_000])
async def test_topics_are_counted_together_as_each_alone(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, few_in_all: int
) -> None:
    monkeypatch.setattr(reads, "FEW_IN_ALL", few_in_all)
    with fail_after(20):
        await jobs.added(5)
        await jobs.add("late", delay_ms=HOUR)
        for number, priority in enumerate(("high", "low", "low")):
            await jobs.add(f"p{number}", priority=priority, topic="other")
        handed = await jobs.reserve()
        await jobs.store.finish_many([handed.receipt], remember_s=60)
        await jobs.reserve()
        names = ["none", TOPIC, "other"]
        found = await jobs.store.count_many(names)
        while found != [await jobs.store.count(name) for name in names]:  # an ack takes a moment
            found = await jobs.store.count_many(names)
            await a_moment()
        assert [tuple(one) for one in found] == [(0, 0, 0, 0), (1, 3, 1, 1), (0, 3, 0, 0)]


async def test_a_list_goes_page_by_page_over_all_lanes(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.added(5)
        for number, priority in enumerate(("high", "low", "low", "high")):
            await jobs.add(f"p{number}", priority=priority)
        seen: list[str] = []
        cursor, pages = "", 0
        while pages == 0 or cursor:
            page = await jobs.store.list_jobs(TOPIC, "ready", cursor=cursor, most=2)
            seen += [found.id for found in page.found]
            cursor, pages = page.cursor, pages + 1
        assert seen == ["p0", "p3", "0", "1", "2", "3", "4", "p1", "p2"]
        assert pages <= 8


async def test_a_list_can_be_limited_to_what_is_due_in_a_time(jobs: Jobs) -> None:
    with fail_after(20):
        stored = [await jobs.add(str(n), delay_ms=HOUR * (n + 1)) for n in range(5)]
        page = await jobs.store.list_jobs(
            TOPIC, "delayed", due_from_ms=stored[1].due_ms, due_before_ms=stored[3].due_ms
        )
        assert [found.id for found in page.found] == ["1", "2"]
        assert page.cursor == ""


async def test_a_page_is_bounded_in_bytes_and_loses_nothing(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.added(7, body="x" * 10_000)
        seen: list[Found] = []
        cursor, pages = "", 0
        while pages == 0 or cursor:
            page = await jobs.store.list_jobs(TOPIC, "ready", cursor=cursor, most=100, most_bytes=25_000)
            assert sum(len(bytes(found.job.body)) for found in page.found if found.job) <= 40_000
            seen += page.found
            cursor, pages = page.cursor, pages + 1
        assert [found.id for found in seen] == [str(n) for n in range(7)]
        assert pages >= 3
        tiny = await jobs.store.list_jobs(TOPIC, "ready", most=100, most_bytes=10)
        assert ([found.id for found in tiny.found], tiny.cursor != "") == (["0"], True)


@pytest.mark.parametrize("cursor", ["x", "9.1", "0.-1", "0.99999999999999999999", "0.1 ", "2.5"])
async def test_a_cursor_of_ones_own_making_is_refused(jobs: Jobs, cursor: str) -> None:
    with fail_after(20), pytest.raises(BadCursor):
        await jobs.store.list_jobs(TOPIC, "delayed", cursor=cursor)


def test_the_margins_leave_room() -> None:
    assert STALE_AFTER_MS + 100 < RESERVED_SLACK_MS


async def test_whoever_does_what_at_once_each_id_is_one_job(jobs: Jobs) -> None:
    """Of each id: as many were made as were deleted or finished, and one more if there is one now."""
    made: Counter[str] = Counter()
    chance = random.Random(7)

    async def add(job_id: str) -> None:
        answer = await jobs.add(job_id, delay_ms=chance.choice((0, HOUR)))
        made[job_id] += isinstance(answer, Stored) and answer.is_new

    async def delete(job_id: str) -> None:
        was = await jobs.store.delete(TOPIC, job_id)
        made[job_id] -= was is not None

    async def hold(_: str) -> None:
        receipts = [one.receipt for one in (await jobs.hand_out(2, wait_s=0)).reservations]
        await chance.choice((jobs.store.release_many, jobs.store.touch_many))(receipts)
        if chance.random() < 0.5:
            answers = await jobs.store.finish_many(receipts, remember_s=0)
            made.subtract(
                receipt.key for receipt, answer in zip(receipts, answers, strict=True) if isinstance(answer, JobSettled)
            )

    async def kick(job_id: str) -> None:
        await jobs.store.kick_delayed(TOPIC, job_id)

    async def work() -> None:
        for _ in range(80):
            await chance.choice((add, add, delete, hold, kick))(chance.choice("abc"))

    with fail_after(40):
        async with create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(work)
        assert {job_id: made[job_id] for job_id in "abc"} == {
            job_id: int(await jobs.state(job_id) is not None) for job_id in "abc"
        }
        for job_id in "abc":
            await jobs.store.delete(TOPIC, job_id)
        await counts(jobs, 0, 0, 0, 0)
        assert await nothing_is_ready(jobs)
