"""Jobs of the store that somebody has: reserved by receipt, or in the hands of a node."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from anyio import create_task_group, fail_after

from actors.jobs.dead_letters import write_dead_letters
from actors.jobs.deliveries import FailedAttempt
from actors.jobs.reservations import JobSettled, JobStale
from actors.jobs.rules import job_handling
from actors.jobs.rules.job_rules import STALE_AFTER_MS
from actors.jobs.stream import JobStream
from streams.errors import OutcomeUnknown, RevisionConflict, StreamError
from streams.jobs.moves import Move
from streams.link.connection import Connection
from streams.messages.jobs import decode_job
from streams.reads.log import LogEntry
from tests.support.jobs import TOPIC, Jobs, counts, nothing_is_ready, open_jobs
from tests.support.moments import a_moment

HOUR = 3_600_000


async def becomes(jobs: Jobs, state: str | None, job_id: str = "1") -> None:
    with fail_after(20):
        while await jobs.state(job_id) != state:
            await a_moment()


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
        assert settled == JobSettled(TOPIC, "1")
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
        assert touched.until_ms > kept.until_ms + 50_000
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
        assert all(isinstance(answer, JobSettled) for answer in (free, failed, later))
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
        assert answer == JobSettled(TOPIC, "1")
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
        assert all(isinstance(answer, JobSettled) for answer in answers)
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
