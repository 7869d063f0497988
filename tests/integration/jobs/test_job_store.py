"""The job store on a real server: one job an id, one step a move, and stale hands refused."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from anyio import create_task_group, fail_after
from msgspec.structs import replace

from actors.jobs import reads
from actors.jobs.adds import Clash, Stored
from actors.jobs.dead_letters import write_dead_letters
from actors.jobs.deliveries import FailedAttempt
from actors.jobs.reads import Found
from actors.jobs.reservations import JobSettled, JobStale
from actors.jobs.rules import job_handling
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
from streams.reads.log import LogEntry
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.server import freeze, thaw

HOUR = 3_600_000


async def until(is_so: Callable[[], Any]) -> None:
    with fail_after(20):
        while not is_so():
            await a_moment()


async def becomes(jobs: Jobs, state: str | None, job_id: str = "1") -> None:
    with fail_after(20):
        while await jobs.state(job_id) != state:
            await a_moment()


async def counts(jobs: Jobs, *expected: int) -> None:
    """Return once so many are delayed, ready, reserved and done: the server takes an ack a moment after it came."""
    with fail_after(20):
        while await jobs.store.count(TOPIC) != expected:
            await a_moment()


async def nothing_is_ready(jobs: Jobs) -> bool:
    return await jobs.pull(wait_s=0) == []


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


# ---- reserving


async def test_a_reserved_job_is_held_and_finished_by_its_receipt(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.add(body=7)
        reservation = await jobs.reserve(holder="till-3")
        job = reservation.job
        assert (job.attempts, job.holder, bytes(job.body), job.first_ms > 0) == (1, "till-3", b"7", True)
        await counts(jobs, 0, 0, 1, 0)
        assert await nothing_is_ready(jobs)
        (settled,) = await jobs.store.finish_many([reservation.receipt], remember_s=60)
        assert settled == JobSettled(TOPIC, "1", "done")
        await counts(jobs, 0, 0, 0, 1)


async def test_finishing_again_answers_the_same_and_another_receipt_is_stale(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.add()
        receipt = (await jobs.reserve()).receipt
        forged = receipt._replace(mark="0" * 12)
        assert isinstance((await jobs.store.finish_many([forged._replace(seq=5)], remember_s=60))[0], JobStale)
        for _ in range(2):
            assert isinstance((await jobs.store.finish_many([receipt], remember_s=60))[0], JobSettled)
        (stale,) = await jobs.store.finish_many([forged], remember_s=60)
        assert isinstance(stale, JobStale)
        assert stale.reason == "the job is over"


async def test_a_finished_id_is_known_for_its_time_and_then_free(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.add()
        await jobs.store.finish_many([(await jobs.reserve()).receipt], remember_s=3)
        assert (await jobs.add()).state == "done"
        await becomes(jobs, None)
        assert (await jobs.add()).is_new


async def test_a_handled_id_is_free_in_time_though_its_add_is_known_for_longer(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.add(nonce="key")
        [ready] = await jobs.pull()
        await jobs.store.finish_deliveries([(ready, decode_job(ready.payload))], remember_s=10)
        assert await jobs.state() == "done"
        jobs.clock.ahead_ms = 10_000
        assert await jobs.state() is None
        assert (await jobs.add(nonce="key")).state == "done", "a repeat"
        assert (await jobs.add()).state == "ready"


async def test_of_all_who_reserve_each_job_goes_to_one(jobs: Jobs) -> None:
    receipts: list[Any] = []

    async def work() -> None:
        while len(receipts) < 100:
            handed = await jobs.hand_out(7, wait_s=0.1)
            receipts.extend(reservation.receipt for reservation in handed.reservations)

    with fail_after(30):
        await jobs.added(100)
        async with create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(work)
        assert sorted(int(receipt.key) for receipt in receipts) == list(range(100))
        answers = await jobs.store.finish_many(receipts, remember_s=60)
        assert all(isinstance(answer, JobSettled) for answer in answers)


async def test_what_was_deleted_before_it_was_reserved_is_not_handed_out(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.added(3)
        deliveries = await jobs.pull(3)
        await jobs.store.delete(TOPIC, "1")
        handed = await jobs.store.reserve_many(deliveries)
        assert [one.job.id for one in handed.reservations] == ["0", "2"]
        assert (handed.buried, handed.expired, handed.failures) == ([], [], [])
        assert all(delivery.is_settled for delivery in deliveries)


async def test_a_reservation_whose_ack_was_lost_is_not_handed_out_twice(connection: Connection) -> None:
    with fail_after(30):
        async with open_jobs(connection, ack_wait_s=0.2) as jobs:
            await jobs.add()
            deliveries = await jobs.pull(1)
            deliveries[0].is_settled = True  # its ack goes nowhere
            (reservation,) = (await jobs.store.reserve_many(deliveries)).reservations
            again = await jobs.pull(1)
            assert again[0].delivered == 2
            assert (await jobs.store.reserve_many(again)).reservations == []
            assert await nothing_is_ready(jobs)
            assert isinstance((await jobs.store.finish_many([reservation.receipt], remember_s=60))[0], JobSettled)


async def test_a_job_comes_back_when_its_ttr_runs_out_and_is_buried_after_its_last_attempt(jobs: Jobs) -> None:
    with fail_after(40):
        await jobs.add(attempts=2, body=5)
        first = await jobs.reserve(ttr_ms=100, holder="a")
        second = await jobs.reserve(ttr_ms=100, holder="b")
        assert (first.job.attempts, second.job.attempts) == (1, 2)
        assert second.job.history[0].endswith(" on a: its TTR ran out")
        assert second.job.first_ms == first.job.first_ms
        (stale,) = await jobs.store.finish_many([first.receipt], remember_s=60)
        assert isinstance(stale, JobStale)
        handed = await jobs.hand_out(1, wait_s=10)
        assert [job.id for job in handed.buried] == ["1"]
        assert handed.reservations == []
        (letter,) = await jobs.dead()
        assert (letter["engine"], letter["name"], letter["id"], letter["attempts"]) == ("jobs", TOPIC, "1", 2)
        assert letter["body"]["body"] == 5
        assert [line["node"] for line in letter["history"]] == ["a", "b"]
        assert await jobs.state() == "done"
        assert (await jobs.add()).is_new  # its id is free


async def test_a_receipt_is_stale_once_the_ttr_has_passed_though_the_server_has_not_looked_yet(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.added(4)
        receipts = [one.receipt for one in (await jobs.hand_out(4, ttr_ms=60_000)).reservations]
        jobs.clock.ahead_ms = 60_000 + STALE_AFTER_MS + 1
        answers = [
            *(await jobs.store.finish_many(receipts[:1], remember_s=60)),
            *(await jobs.store.touch_many(receipts[1:2])),
            *(await jobs.store.release_many(receipts[2:3])),
            *(await jobs.store.bury_many(receipts[3:], reason="x")),
        ]
        assert all(isinstance(answer, JobStale) for answer in answers)
        await counts(jobs, 0, 0, 4, 0)
        assert await jobs.dead() == []


async def test_a_touched_job_is_held_on_by_the_same_receipt(jobs: Jobs) -> None:
    with fail_after(30):
        await jobs.added(2)
        kept, left = sorted(one.receipt for one in (await jobs.hand_out(2, ttr_ms=3_000)).reservations)
        (touched,) = await jobs.store.touch_many([kept], ttr_ms=60_000)
        assert isinstance(touched, JobSettled)
        assert (touched.became, touched.until_ms > kept.until_ms + 50_000) == ("reserved", True)
        back = await jobs.reserve()  # the one that was not touched
        assert back.receipt.key == left.key
        jobs.clock.ahead_ms = 10_000  # the receipt's own end is long past by now
        assert isinstance((await jobs.store.finish_many([kept], remember_s=60))[0], JobSettled)
        assert isinstance((await jobs.store.touch_many([kept]))[0], JobStale)
        assert isinstance((await jobs.store.release_many([kept]))[0], JobStale)
        assert isinstance((await jobs.store.bury_many([kept], reason="x"))[0], JobStale)
        assert isinstance((await jobs.store.touch_many([left]))[0], JobStale)


async def test_a_released_job_is_handed_out_again_after_its_delay(jobs: Jobs) -> None:
    with fail_after(30):
        await jobs.added(3)
        receipts = sorted(one.receipt for one in (await jobs.hand_out(3, holder="h")).reservations)
        (free,) = await jobs.store.release_many(receipts[:1])
        (failed,) = await jobs.store.release_many(receipts[1:2], counts=True, reason="no luck")
        (later,) = await jobs.store.release_many(receipts[2:], delay_ms=lambda job: job.attempts * HOUR)
        assert [answer.became for answer in (free, failed, later)] == ["ready", "ready", "delayed"]  # type: ignore[union-attr]
        await counts(jobs, 1, 2, 0, 0)
        again = sorted((await jobs.hand_out(2)).reservations)
        assert [one.job.attempts for one in again] == [1, 2]
        assert [len(one.job.history) for one in again] == [0, 1]
        assert again[1].job.history[0].endswith(" on h: no luck")
        assert all(isinstance(answer, JobStale) for answer in await jobs.store.finish_many(receipts, remember_s=60))
        await counts(jobs, 1, 0, 2, 0)


async def test_a_last_attempt_that_is_given_back_is_buried(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.add(attempts=1)
        receipt = (await jobs.reserve()).receipt
        (answer,) = await jobs.store.release_many([receipt], counts=True, reason="no luck")
        assert answer == JobSettled(TOPIC, "1", "done")
        (letter,) = await jobs.dead()
        assert letter["history"][0]["reason"] == "no luck"
        assert await jobs.state() == "done"
        assert isinstance((await jobs.store.release_many([receipt], counts=True))[0], JobSettled)  # a repeat
        assert len(await jobs.dead()) == 1


async def test_a_buried_job_is_a_dead_letter_and_may_go_round_again(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.added(3)
        receipts = [one.receipt for one in (await jobs.hand_out(3)).reservations]
        answers = await jobs.store.bury_many(receipts, reason="poison")
        assert [answer.became for answer in answers] == ["done"] * 3  # type: ignore[union-attr]
        assert {letter["reason"] for letter in await jobs.dead()} == {"poison"}
        await counts(jobs, 0, 0, 0, 3)
        assert (await jobs.add("0")).is_new
        assert (await jobs.add("0")).is_new is False
        await counts(jobs, 0, 1, 0, 2)


async def test_what_has_expired_is_not_handed_out(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.add(expires_in_ms=5_000)
        deliveries = await jobs.pull(1)
        jobs.clock.ahead_ms = 10_000
        handed = await jobs.store.reserve_many(deliveries)
        assert ([job.id for job in handed.expired], handed.reservations, handed.buried) == (["1"], [], [])
        found = await jobs.store.find(TOPIC, "1")
        assert found is not None
        assert found.done is not None
        assert found.done.outcome == "expired"
        (letter,) = await jobs.dead()
        assert (letter["id"], letter["reason"]) == ("1", "expired: it was not started in time")
        assert (await jobs.add("1")).is_new


async def test_what_is_no_job_is_set_aside_and_blocks_nothing(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.publisher.publish(jobs.namespace.job("ready", TOPIC, "odd"), b"{not json", message_id="m")
        await jobs.add("fine")
        handed = await jobs.hand_out(2)
        assert [one.job.id for one in handed.reservations] == ["fine"]
        (letter,) = await jobs.dead()
        assert (letter["id"], letter["is_base64"]) == ("odd", True)
        await becomes(jobs, None, "odd")


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


# ---- in the hands of a node


async def test_a_failed_attempt_is_tried_again_later_with_its_history(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.added(2)
        retries = []
        for delivery in await jobs.pull(2):
            job = msgspec.structs.replace(decode_job(delivery.payload), attempts=1)
            retries.append((delivery, job, HOUR if job.id == "0" else 0, "boom"))
        answers = await jobs.store.retry_deliveries([FailedAttempt(*retry) for retry in retries], node="n1")
        assert answers == [True, True]
        await counts(jobs, 1, 1, 0, 0)
        (again,) = await jobs.pull(2)
        job = decode_job(again.payload)
        assert (job.id, job.attempts, len(job.history), job.first_ms > 0) == ("1", 1, 1, True)
        assert job.history[0].startswith("attempt 1 at ")
        assert job.history[0].endswith(" on n1: boom")


async def test_what_was_deleted_in_a_handlers_hands_stays_deleted(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.added(4)
        one, two, three, four = await jobs.pull(4)
        job = decode_job(one.payload)
        for n in range(4):
            await jobs.store.delete(TOPIC, str(n))
        assert await jobs.store.retry_deliveries([FailedAttempt(one, job, 0, "boom")]) == [False]
        assert await jobs.store.give_back([(two, decode_job(two.payload))]) == [False]
        assert await jobs.store.finish_deliveries([(three, decode_job(three.payload))], remember_s=60) == [False]
        assert await jobs.store.bury_deliveries([(four, decode_job(four.payload), "x")]) == [False]
        await counts(jobs, 0, 0, 0, 0)


@pytest.mark.three_servers
@pytest.mark.parametrize(
    "when",
    [
        "before the letter",
        "after the letter",
        "after a letter whose answer was lost",
        "after a try whose answer was lost",
        "after a try that nobody answers",
    ],
)
@pytest.mark.parametrize("end", ["deleted", "replaced"])
async def test_what_ends_while_a_node_buries_it_is_no_dead_letter(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, when: str, end: str
) -> None:
    """Whoever sends dead letters again would run it once more."""

    async def end_it() -> None:
        await (jobs.store.delete(TOPIC, "1") if end == "deleted" else jobs.add("1", policy="replace"))

    async def write_then_end(*given: Any) -> list[int | StreamError]:
        written = await write_dead_letters(*given)
        if when != "after a try that nobody answers":
            await end_it()
        monkeypatch.setattr("actors.jobs.deliveries.write_dead_letters", write_dead_letters)
        return [OutcomeUnknown("no answer", subject="1")] * len(written) if "letter whose" in when else written

    async def nothing_yet(*_: object, **__: object) -> dict[str, LogEntry]:
        return {}  # as a server of three that is a moment behind

    async def move_again(moves: Sequence[Move], **more: Any) -> list[int | StreamError]:
        outcomes = await move_many(moves, **more)
        for outcome in outcomes:
            if isinstance(outcome, RevisionConflict):
                outcome.is_after_retry = True
        return outcomes

    async def move_later(moves: Sequence[Move], **more: Any) -> list[int | StreamError]:
        if stream.move_many is not move_later:
            return await move_many(moves, **more)
        monkeypatch.setattr(stream, "move_many", move_many)
        await end_it()
        return [OutcomeUnknown("no answer", subject=move.subject) for move in moves]

    stream: JobStream = jobs.store.bury_deliveries.__self__._jobs  # type: ignore[attr-defined]
    move_many = stream.move_many
    with fail_after(60):
        await jobs.added(2)
        moves = [(one, decode_job(one.payload), "boom") for one in sorted(await jobs.pull(2), key=lambda one: one.seq)]
        if when == "before the letter":
            await end_it()
        else:
            monkeypatch.setattr("actors.jobs.deliveries.write_dead_letters", write_then_end)
            monkeypatch.setattr("actors.jobs.dead_letters.last_entries", nothing_yet)
        if "try" in when:
            monkeypatch.setattr(stream, "move_many", move_again if "lost" in when else move_later)
        assert await jobs.store.bury_deliveries(moves, until_known=True) == [True, False]
        assert [letter["id"] for letter in await jobs.dead()] == ["0"]


async def test_what_two_nodes_bury_stays_a_dead_letter(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.add()
        (delivery,) = await jobs.pull(1)
        move = (delivery, decode_job(delivery.payload), "boom")
        assert [await jobs.store.bury_deliveries([move]) for _ in range(2)] == [[True], [False]]
        assert [letter["id"] for letter in await jobs.dead()] == ["1"]


async def test_what_was_not_started_costs_no_attempt_but_a_vanished_holder_does(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_handling, "EARLY_MS", 60_000)  # the ack wait of this consumer is shorter
    with fail_after(30):
        async with open_jobs(connection, ack_wait_s=0.2) as jobs:
            await jobs.add()
            await jobs.pull(1)  # its holder vanishes
            (second,) = await jobs.pull(1)
            assert second.delivered == 2
            assert await jobs.store.give_back([(second, decode_job(second.payload))]) == [True]
            (third,) = await jobs.pull(1)
            assert (third.delivered, decode_job(third.payload).attempts) == (1, 1)
            await counts(jobs, 0, 1, 0, 0)


async def test_a_handlers_end_is_known_for_its_time(jobs: Jobs) -> None:
    with fail_after(20):
        await jobs.added(3)
        deliveries = await jobs.pull(3)
        last = deliveries.pop()
        ended = [(one, decode_job(one.payload)) for one in deliveries]
        assert await jobs.store.finish_deliveries(ended, remember_s=60) == [True, True]
        tried = msgspec.structs.replace(decode_job(last.payload), attempts=1)
        assert await jobs.store.bury_deliveries([(last, tried, "boom")], node="n1") == [True]
        await counts(jobs, 0, 0, 0, 3)
        (letter,) = await jobs.dead()
        assert (letter["reason"], [(line["node"], line["reason"]) for line in letter["history"]]) == (
            "boom",
            [("n1", "boom")],
        )
        assert await nothing_is_ready(jobs)


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
