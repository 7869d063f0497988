"""The desk: adding, handing out, settling, and what a person does; on the real server."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from msgspec import Raw, json
from msgspec.structs import replace

from actors.jobs import topics
from actors.jobs.copies import GoneAnswer, GoneAsk
from actors.jobs.dead_letters import write_dead_letters
from actors.jobs.rules.job_answers import Added, NotAdded, Reserved, TopicCounted
from actors.jobs.rules.job_rules import KEPT_MS, MOST_PAST, BadJob
from actors.jobs.rules.topic_settings import LANES
from actors.jobs.stream import JobStream
from streams.errors import NoStream, OutcomeUnknown, Refused, StreamError
from streams.jobs.moves import Move
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.jobs import NewJob, body_of, decode_job
from streams.pull.once import PullOnce
from streams.subjects import token_of
from streams.topology.specs import job_consumer
from tests.support.desks import TOPIC, Office, open_second_office
from tests.support.moments import a_moment


def codes(answers: list[Added | NotAdded]) -> list[str]:
    return [answer.code for answer in answers]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await a_moment()


async def until_waiting(office: Office, count: int = 1) -> None:
    """Return once so many pull requests of the topic stand at the server."""
    spec = job_consumer(office.namespace, TOPIC)
    while True:
        with suppress(Refused, OutcomeUnknown):  # it is made by the first who waits; three servers may elect its leader
            info = await office.connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}", timeout_s=1.0)
            if info["num_waiting"] >= count:
                return
        await a_moment()


# ---- adding


async def test_what_is_due_is_handed_out_and_finished_once(office: Office) -> None:
    added = await office.add("order-7", body={"to": 7})
    assert (added.state, added.is_new, added.id) == ("ready", True, "order-7")
    job = await office.reserve(holder="me")
    assert (job.id, json.decode(job.body), job.attempt, job.ttr_ms) == ("order-7", {"to": 7}, 1, 60_000)
    [finished] = await office.desk.finish([job.receipt])
    assert finished.code == "ok"
    assert await office.state("order-7") is None
    assert await office.desk.reserve(TOPIC) == []


async def test_ids_are_made_where_there_are_none(office: Office) -> None:
    answers = await office.try_add("", "", "mine")
    ids = [answer.id for answer in answers]
    assert len(set(ids)) == 3
    assert all(ids)
    assert ids[2] == "mine"


async def test_of_many_each_has_its_own_answer(office: Office) -> None:
    """69: one bad of a thousand."""
    jobs = [NewJob(topic=TOPIC, id=f"n{n}", body=body_of(n)) for n in range(1000)]
    jobs[500] = NewJob(topic=TOPIC, id="n500", delay_ms=-1)
    answers = await office.desk.add(jobs)
    bad = answers[500]
    assert isinstance(bad, NotAdded)
    assert (bad.code, bad.field, bad.id) == ("bad", "delay_ms", "n500")
    assert codes(answers).count("ok") == 999
    assert [answer.id for answer in answers] == [job.id for job in jobs]
    counts = await office.desk.count(TOPIC)
    assert (counts.ready, counts.delayed) == (999, 0)


@pytest.mark.parametrize(
    ("on_same", "code", "is_new", "body"),
    [("keep", "ok", False, b"1"), ("error", "exists", None, b"1"), ("replace", "ok", True, b"2")],
)
async def test_the_same_id_again(office: Office, on_same: str, code: str, is_new: bool | None, body: bytes) -> None:
    await office.add("a", body=1, delay_ms=3_600_000)
    (answer,) = await office.try_add("a", body=2, delay_ms=7_200_000, on_same=on_same)
    assert answer.code == code
    assert answer.is_same_body is (on_same == "replace")
    if isinstance(answer, Added):
        assert answer.is_new is is_new
    else:
        assert answer.state == "delayed"
    peeked = await office.desk.peek(TOPIC, "a")
    assert peeked is not None
    assert bytes(peeked.body) == body


async def test_a_repeat_of_the_same_is_the_first(office: Office) -> None:
    """52: the same id with the same body."""
    first = await office.add("a", body=1, delay_ms=3_600_000)
    again = await office.add("a", body=1, delay_ms=3_600_000)
    assert (again.is_new, again.is_same_body, again.due_ms) == (False, True, first.due_ms)


async def test_a_finished_id_is_free_at_once(office: Office) -> None:
    for body in (1, 2):
        added = await office.add("a", body=body)
        assert (added.is_new, added.state) == (True, "ready")
        job = await office.reserve()
        assert bytes(job.body) == b"%d" % body
        await office.desk.finish([job.receipt])
        assert await office.desk.peek(TOPIC, "a") is None


async def test_a_finished_id_stays_taken_where_its_topic_remembers_it(office: Office) -> None:
    await office.set(remember="1h")
    await office.add("a")
    await office.desk.finish([(await office.reserve()).receipt])
    for on_same in ("keep", "error"):
        [again] = await office.desk.add([NewJob(topic=TOPIC, id="a", on_same=on_same)])
        assert isinstance(again, NotAdded)
        assert (again.code, again.state) == ("over", "done")
        assert "nothing was added" in again.reason
    peeked = await office.desk.peek(TOPIC, "a")
    assert peeked is not None
    assert (peeked.state, peeked.outcome) == ("done", "finished")


@pytest.mark.parametrize("nonce", ["", "key"])
async def test_what_a_topic_remembers_is_shown_by_its_id(office: Office, nonce: str) -> None:
    await office.set(remember="1h")
    await office.add("order 7", nonce=nonce)
    await office.desk.finish([(await office.reserve()).receipt])
    peeked = await office.desk.peek(TOPIC, "order 7")
    assert peeked is not None
    (listed,) = (await office.desk.list(TOPIC, state="done")).jobs
    assert (peeked.id, listed.id) == ("order 7", "order 7")


async def test_a_remembered_id_is_free_in_time_though_its_add_is_known_for_longer(office: Office) -> None:
    await office.set(remember="10s")
    await office.add("a", nonce="key")
    await office.desk.finish([(await office.reserve()).receipt])
    assert codes(await office.try_add("a")) == ["over"]
    office.clock.ahead_ms = 10_000
    assert await office.desk.peek(TOPIC, "a") is None
    assert (await office.desk.delete(TOPIC, "a")).reason == "no such job"
    assert (await office.add("a", nonce="key")).state == "done", "a repeat"
    assert (await office.add("a", on_same="error")).state == "ready"
    assert (await office.add("a", nonce="key")).state == "done", "still a repeat"
    assert (await office.desk.count(TOPIC)) == TopicCounted(topic=TOPIC, delayed=0, ready=1, reserved=0, done=0)


async def test_a_topic_takes_as_many_as_it_may_and_a_repeat_all_the_same(office: Office) -> None:
    await office.set(most_waiting=3)
    answers = await office.try_add("a", "b", "c", "d")
    assert codes(answers) == ["ok", "ok", "ok", "quota"]
    again = await office.try_add("a", "e")
    assert codes(again) == ["ok", "quota"]
    assert isinstance(again[0], Added)
    assert not again[0].is_new
    await office.desk.finish([(await office.reserve()).receipt])
    while codes(await office.try_add("e")) != ["ok"]:  # as soon as the count is taken anew
        await a_moment()


async def test_a_full_topic_knows_repeats_and_takes_what_replaces(office: Office) -> None:
    await office.set(most_waiting=1)
    over = NewJob(topic=TOPIC, id="over", nonce="n", body=Raw(b"1"))
    await office.desk.add([over])
    await office.desk.finish([(await office.reserve()).receipt])
    other = NewJob(topic=TOPIC, id="other", body=Raw(b"1"), delay_ms=600_000)
    while codes(await office.desk.add([other])) != ["ok"]:  # as soon as the count is taken anew
        await a_moment()
    for on_same in ("keep", "replace", "error"):
        (again,) = await office.desk.add([replace(over, on_same=on_same)])
        assert isinstance(again, Added)
        assert (again.is_new, again.state) == (True, "done")
    assert codes(await office.desk.add([replace(other, on_same="replace", body=Raw(b"2"))])) == ["ok"]
    assert codes(await office.try_add("new")) == ["quota"]


async def test_bodies_that_no_reader_could_follow_are_refused(office: Office) -> None:
    """28: nested 500 deep."""
    (deep, flat) = await office.desk.add(
        [
            NewJob(topic=TOPIC, body=Raw(b"[" * 500 + b"]" * 500)),
            NewJob(topic=TOPIC, body=Raw(b"[" + b"[]," * 5000 + b"[]]")),
        ]
    )
    assert isinstance(deep, NotAdded)
    assert (deep.code, deep.field) == ("bad", "body")
    assert flat.code == "ok"


async def test_two_desks_are_one(office: Office, connection: Connection) -> None:
    async with open_second_office(connection) as other:
        await office.add("a")
        job = await other.reserve()
        assert codes_of(await office.desk.finish([job.receipt])) == ["ok"]


def codes_of(answers: object) -> list[str]:
    assert isinstance(answers, list)
    return [answer.code for answer in answers]


# ---- waiting


async def waited(office: Office, found: list[Reserved]) -> None:
    found += await office.desk.reserve(TOPIC, wait_ms=30_000)


async def test_who_waits_has_a_job_as_soon_as_it_is_ready(office: Office) -> None:
    await office.topics.use(TOPIC, "normal")
    found: list[Reserved] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waited, office, found)
        await until_waiting(office)
        await office.add("a")
    assert [job.id for job in found] == ["a"]


async def test_who_waits_for_a_topic_that_nobody_knows_has_its_first_job(office: Office) -> None:
    found: list[Reserved] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waited, office, found)
        await until(lambda: office.desk._handout.waiting == 1)
        assert TOPIC not in office.topics
        await office.add("a")
    assert [job.id for job in found] == ["a"]


async def test_nothing_ready_is_an_empty_list_at_once_and_after_the_wait(office: Office) -> None:
    assert await office.desk.reserve("nobody-knows-it") == []
    await office.add("later", delay_ms=3_600_000)
    assert await office.desk.reserve(TOPIC) == []
    assert await office.desk.reserve(TOPIC, wait_ms=50) == []


async def test_a_batch_is_what_is_there_up_to_what_is_asked(office: Office) -> None:
    await office.try_add(*[f"{n}" for n in range(25)])
    sizes = [len(await office.desk.reserve(TOPIC, most=10, wait_ms=10_000)) for _ in range(3)]
    assert sizes == [10, 10, 5]


async def test_a_batch_is_bounded_in_bytes(office: Office) -> None:
    await office.try_add(*[f"{n}" for n in range(20)], body="x" * 100_000)
    first = await office.desk.reserve(TOPIC, most=20, most_bytes=350_000, wait_ms=10_000)
    assert [len(first), len(await office.desk.reserve(TOPIC, most=20))] == [3, 17]


async def test_a_cancelled_wait_leaves_nothing_behind(office: Office) -> None:
    await office.topics.use(TOPIC, "normal")
    found: list[Reserved] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waited, office, found)
        await until_waiting(office)
        tasks.cancel_scope.cancel()
    await office.add("a")
    assert (await office.reserve()).attempt == 1
    assert (found, office.desk._handout.waiting) == ([], 0)


async def test_every_wait_ends_with_the_node(office: Office) -> None:
    await office.topics.use(TOPIC, "normal")
    found: list[Reserved] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(waited, office, found)
        await until_waiting(office, 3)
        office.desk.end_waits()
    assert found == []
    assert await office.desk.reserve(TOPIC, wait_ms=60_000) == []


async def test_a_consumer_that_somebody_deleted_is_made_again(office: Office) -> None:
    await office.try_add("a", "b")
    held = await office.reserve()
    spec = job_consumer(office.namespace, TOPIC)
    await office.connection.api(f"CONSUMER.DELETE.{spec.stream}.{spec.name}")
    assert {held.id, (await office.reserve(wait_ms=0)).id} == {"a", "b"}


async def test_adds_make_no_consumers_and_whoever_takes_does(office: Office) -> None:
    async def consumers() -> set[str]:
        names = await office.connection.api(f"CONSUMER.NAMES.{office.namespace.stream('JOBS')}")
        return set(names.get("consumers") or ())

    await office.try_add(*[f"{n}" for n in range(6)])
    await office.try_add("first", "second", priority="high")
    assert (await office.desk.count(TOPIC)).ready == 8
    assert await consumers() == set()
    found: list[Reserved] = []

    async def take() -> None:
        found.append(await office.reserve(wait_ms=0))

    async with anyio.create_task_group() as tasks:  # all of them meet while the consumers are made
        for _ in range(8):
            tasks.start_soon(take)
    assert sorted(job.id for job in found) == ["0", "1", "2", "3", "4", "5", "first", "second"]
    assert {job.attempt for job in found} == {1}
    names = {job_consumer(office.namespace, TOPIC, lane).name for lane in ("normal", "high")}
    assert await consumers() == names


async def test_a_topic_above_the_limit_is_refused_by_its_number(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MOST_IN_ALL", 2)
    assert [type(one) for one in [*await office.try_add("a"), *await office.try_add("a", topic="b")]] == [Added, Added]
    (refused,) = await office.try_add("a", topic="c")
    assert (refused.code, isinstance(refused, NotAdded) and refused.field) == ("quota", "topic")
    assert isinstance(refused, NotAdded)
    assert "an installation has at most 10,000" in refused.reason
    assert (await office.add("z")).is_new


# ---- pause, rate, priorities


async def test_a_paused_topic_hands_out_nothing_and_then_what_waited(office: Office) -> None:
    await office.set(is_paused=True)
    await office.add("a")
    assert await office.desk.reserve(TOPIC) == []
    found: list[Reserved] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waited, office, found)
        await until(lambda: office.desk._handout.waiting == 1)
        await office.set(is_paused=False)
    assert [job.id for job in found] == ["a"]


async def test_a_pause_reaches_those_who_wait_already(office: Office) -> None:
    await office.topics.use(TOPIC, "normal")
    found: list[Reserved] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waited, office, found)
        await until_waiting(office)
        await office.set(is_paused=True)
        await office.add("a")
        assert await office.desk.reserve(TOPIC, wait_ms=20) == []
        assert await office.state("a") == "ready"
        await office.set(is_paused=False)
    assert [(job.id, job.attempt) for job in found] == [("a", 1)]


async def test_a_rate_holds_and_loses_nothing(office: Office) -> None:
    await office.set(rate=50)
    await office.try_add(*[f"{n}" for n in range(40)])
    began = anyio.current_time()
    found: list[Reserved] = []
    while len(found) < 40:
        found += await office.desk.reserve(TOPIC, most=40, wait_ms=10_000)
    took_s = anyio.current_time() - began
    assert len({job.id for job in found}) == 40
    assert took_s >= (40 - 5 - 1) / 50  # one burst of five comes at once
    assert {job.attempt for job in found} == {1}


async def test_who_waits_under_a_rate_is_served_in_time_and_holds_no_share(office: Office) -> None:
    await office.set(rate=100)
    found: list[Reserved] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(waited, office, found)
        await until_waiting(office, 3)
        await office.try_add(*[f"{n}" for n in range(3)])
    assert sorted(job.id for job in found) == ["0", "1", "2"]


async def test_the_higher_goes_first_and_the_lowest_is_not_starved(office: Office) -> None:
    for lane in ("low", "normal", "high"):
        await office.try_add(*[f"{lane}{n}" for n in range(20)], priority=lane)
    while set(office.topics.current(TOPIC).lanes) != {"low", "normal", "high"}:
        await a_moment()
    order = [(await office.reserve()).priority for _ in range(60)]
    assert order[:7] == ["high"] * 7
    assert order[7] == "low"
    assert order.index("normal") < 25
    assert order[:40].count("low") == 5
    assert sorted(order) == sorted(["low", "normal", "high"] * 20)


async def test_who_waits_waits_at_every_lane(office: Office) -> None:
    await office.topics.use(TOPIC, "high", "low")
    while len(office.topics.current(TOPIC).lanes) < 3:
        await a_moment()
    found: list[Reserved] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waited, office, found)
        await until_waiting(office)
        await office.try_add("a", "b", priority="low")
    assert [(job.id, job.priority) for job in found] == [("a", "low")]
    assert (await office.reserve()).id == "b"


async def test_what_several_lanes_bring_at_once_is_given_back_without_an_attempt(office: Office) -> None:
    """Where handlers share the topic, a second delivery is a second attempt."""
    await office.topics.use(TOPIC, *LANES)
    while len(office.topics.current(TOPIC).lanes) < len(LANES):
        await a_moment()
    deliveries: list[int] = []
    with anyio.fail_after(60):
        async with PullOnce(office.connection) as pulls:
            for number in range(5):
                found: list[Reserved] = []
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(waited, office, found)
                    await until_waiting(office)
                    await office.connection.flush(5)
                    await office.desk.add(
                        [NewJob(topic=TOPIC, id=f"{lane}{number}", body=body_of(1), priority=lane) for lane in LANES]
                    )
                [job] = found
                await office.desk.finish([job.receipt])
                for lane in set(LANES) - {job.priority}:
                    spec = job_consumer(office.namespace, TOPIC, lane)
                    [delivery] = await pulls.pull(spec.stream, spec.name, most=1, wait_s=20)
                    deliveries.append(delivery.delivered)
                    ended = [(delivery, decode_job(delivery.payload))]
                    assert await office.store.finish_deliveries(ended, remember_s=0) == [True]
    assert deliveries == [1] * 10


async def test_a_batch_of_several_lanes_is_bounded_in_number_and_bytes(office: Office) -> None:
    for lane in ("high", "low"):
        await office.try_add(*[f"{lane}{n}" for n in range(6)], priority=lane, body="x" * 100_000)
    while len(office.topics.current(TOPIC).lanes) < 3:
        await a_moment()
    sizes = [len(await office.desk.reserve(TOPIC, most=8, most_bytes=450_000, wait_ms=10_000)) for _ in range(3)]
    assert sizes == [4, 4, 4]
    await office.try_add(*[f"{n}" for n in range(6)], priority="low")
    assert len(await office.desk.reserve(TOPIC, most=5, wait_ms=10_000)) == 5


# ---- settling


async def test_a_receipt_counts_until_the_ttr_is_over_and_no_longer(office: Office) -> None:
    """56: finish, touch, release and bury with what is held no more."""
    await office.add("a", ttr_ms=60_000)
    job = await office.reserve()
    office.clock.ahead_ms = 61_000
    for settle in (office.desk.finish, office.desk.touch, office.desk.release, office.desk.bury):
        [answer] = await settle([job.receipt])
        assert answer.code == "stale", settle
        assert answer.reason


async def test_who_does_not_finish_within_the_ttr_gives_the_job_up(office: Office) -> None:
    await office.add("a", ttr_ms=1_000)
    first = await office.reserve(holder="one")
    second = await office.reserve(wait_ms=30_000)
    assert (second.id, second.attempt) == ("a", 2)
    assert second.receipt != first.receipt
    assert "its TTR ran out" in second.history[0]
    assert codes_of(await office.desk.finish([first.receipt])) == ["stale"]
    assert codes_of(await office.desk.finish([second.receipt])) == ["ok"]


async def test_a_finish_is_finished_again_by_its_own_receipt_only(office: Office) -> None:
    """57: finish twice."""
    await office.add("a")
    job = await office.reserve()
    first, again = await office.desk.finish([job.receipt]), await office.desk.finish([job.receipt])
    assert codes_of(first) == codes_of(again) == ["ok"]
    topic, key, seq, until_ms, _, nonce = job.receipt.split(".")
    forged = ".".join((topic, key, seq, until_ms, "0" * 12, nonce))
    assert codes_of(await office.desk.finish([forged])) == ["stale"]


async def test_of_many_receipts_each_has_its_own_answer(office: Office) -> None:
    await office.try_add("a", "b", "c")
    jobs = await office.desk.reserve(TOPIC, most=3, wait_ms=10_000)
    await office.desk.delete(TOPIC, jobs[1].id)
    asked = [jobs[0].receipt, jobs[1].receipt, "no receipt", jobs[2].receipt, jobs[0].receipt]
    assert codes_of(await office.desk.finish(asked)) == ["ok", "stale", "bad", "ok", "ok"]


async def test_a_touch_holds_it_longer_under_the_same_receipt(office: Office) -> None:
    await office.add("a", ttr_ms=60_000)
    job = await office.reserve()
    [touched] = await office.desk.touch([job.receipt], ttr_ms=600_000)
    assert touched.code == "ok"
    assert touched.until_ms > job.until_ms + 500_000
    office.clock.ahead_ms = 120_000
    assert codes_of(await office.desk.finish([job.receipt])) == ["ok"]


async def test_a_release_gives_it_back_at_once_or_later(office: Office) -> None:
    await office.add("a")
    job = await office.reserve()
    assert codes_of(await office.desk.release([job.receipt], delay_ms=0, counts=False)) == ["ok"]
    again = await office.reserve()
    assert again.attempt == 1
    assert codes_of(await office.desk.release([again.receipt], delay_ms=3_600_000, reason="not yet")) == ["ok"]
    listed = await office.desk.peek(TOPIC, "a")
    assert listed is not None
    assert (listed.state, listed.attempts) == ("delayed", 1)
    assert "not yet" in listed.history[-1]
    assert codes_of(await office.desk.finish([again.receipt])) == ["stale"]


async def test_a_release_without_a_delay_waits_as_the_topic_says(office: Office) -> None:
    await office.set(backoff="100s", backoff_cap="1000s")
    await office.add("a")
    waits = []
    for _ in range(2):
        job = await office.reserve()
        await office.desk.release([job.receipt])
        listed = await office.desk.peek(TOPIC, "a")
        assert listed is not None
        waits.append(listed.due_ms - office.clock.now_ms())
        assert await office.desk.kick(TOPIC, "a") == 1
    assert 90_000 < waits[0] <= 120_000
    assert 190_000 < waits[1] <= 240_000


async def test_the_last_attempt_makes_a_dead_letter_with_its_history(office: Office) -> None:
    await office.add("a", body={"x": 1}, attempts=2)
    for reason in ("first", "second"):
        job = await office.reserve()
        await office.desk.release([job.receipt], delay_ms=0, reason=reason)
    assert await office.desk.reserve(TOPIC, wait_ms=50) == []
    [letter] = await office.dead()
    assert (letter["engine"], letter["name"], letter["id"], letter["attempts"]) == ("jobs", TOPIC, "a", 2)
    assert [each["reason"] for each in letter["history"]] == ["first", "second"]
    assert await office.state("a") == "done"


async def test_what_is_used_up_or_expired_is_not_handed_out(office: Office) -> None:
    await office.add("late", delay_ms=0, expires_in_ms=1)
    await office.add("dies", attempts=1, ttr_ms=1_000)
    first = await office.reserve()
    assert first.id == "dies"
    while len(letters := await office.dead()) < 2:
        assert await office.desk.reserve(TOPIC, wait_ms=200) == []
    assert {letter["id"]: letter["reason"].partition(":")[0] for letter in letters} == {
        "late": "expired",
        "dies": "1 attempts are used up",
    }
    assert [await office.state(job_id) for job_id in ("late", "dies")] == ["done", "done"]


async def test_a_bury_sets_it_aside(office: Office) -> None:
    await office.add("a")
    job = await office.reserve()
    assert codes_of(await office.desk.bury([job.receipt], reason="poison")) == ["ok"]
    assert [letter["reason"] for letter in await office.dead()] == ["poison"]
    assert await office.desk.reserve(TOPIC) == []


async def test_finish_by_id_ends_the_hold_that_there_is(office: Office) -> None:
    await office.add("a", topic="one")
    await office.add("a", topic="two")
    assert (await office.desk.finish_by_id("a")).code == "not_found"
    await office.reserve("one")
    assert (await office.desk.finish_by_id("a", is_allowed=lambda topic: topic == "two")).code == "not_found"
    assert (await office.desk.finish_by_id("a")).code == "ok"
    assert [await office.state("a", topic) for topic in ("one", "two")] == [None, "ready"]
    assert (await office.desk.finish_by_id("a")).code == "ok", "the other was never handed out, so this is a repeat"
    await office.desk.release([(await office.reserve("two")).receipt])
    assert (await office.desk.finish_by_id("a")).code == "unknown"
    assert (await office.desk.finish_by_id("a", is_allowed=lambda topic: topic == "one")).code == "ok"
    assert (await office.desk.finish_by_id("unheard")).code == "not_found"


@pytest.mark.parametrize("remember", ["", "1h"])
async def test_who_held_a_job_that_was_finished_by_its_id_is_told_that_it_is_over(
    office: Office, remember: str
) -> None:
    if remember:
        await office.set(remember=remember)
    await office.add("a")
    receipt = (await office.reserve()).receipt
    assert (await office.desk.finish_by_id("a")).code == "ok"
    assert codes_of(await office.desk.finish([receipt])) == ["stale"]
    assert (await office.desk.finish_by_id("a")).code == "ok", "a repeat"


@pytest.mark.parametrize("remember", ["", "1h"])
async def test_a_repeat_of_a_finish_by_id_ends_no_later_job(office: Office, remember: str) -> None:
    """Its answer was lost, or a desk that stood still took up its first try now."""
    if remember:
        await office.set(remember=remember)
    await office.add("a")
    await office.reserve()
    assert (await office.desk.finish_by_id("a", nonce="mine")).code == "ok"
    assert (await office.desk.finish_by_id("a", nonce="mine")).code == "ok"
    await office.add("a", on_same="replace")
    later = await office.reserve()
    assert (await office.desk.finish_by_id("a", nonce="mine")).code == "ok"
    assert await office.state("a") == "reserved"
    assert codes_of(await office.desk.finish([later.receipt])) == ["ok"]
    await office.add("a", on_same="replace")
    await office.reserve()
    assert (await office.desk.finish_by_id("a", nonce="mine")).code == "ok"
    assert await office.state("a") == "reserved"
    assert (await office.desk.finish_by_id("a", nonce="another")).code == "ok"
    assert await office.state("a") != "reserved"


@pytest.mark.parametrize("end", ["delete", "finish", "replace"])
@pytest.mark.parametrize("how", ["bury", "release"])
async def test_what_ends_while_it_is_buried_is_no_dead_letter(
    office: Office, monkeypatch: pytest.MonkeyPatch, end: str, how: str
) -> None:
    """Whoever sends dead letters again would run it once more."""
    await office.set(attempts=1)
    await office.add("a")
    receipt = (await office.reserve()).receipt

    async def write_then_end(*given: Any) -> list[int | StreamError]:
        written = await write_dead_letters(*given)
        if end == "replace":
            await office.add("a", on_same="replace")
        else:
            ended = office.desk.delete(TOPIC, "a") if end == "delete" else office.desk.finish_by_id("a")
            assert (await ended).code == "ok"
        return written

    monkeypatch.setattr("actors.jobs.reservations.write_dead_letters", write_then_end)
    settled = office.desk.bury([receipt]) if how == "bury" else office.desk.release([receipt])
    assert codes_of(await settled) == ["stale"]
    assert await office.dead() == []


@pytest.mark.parametrize(
    ("end", "then"),
    [
        *((end, "") for end in ("delete", "finish by the id", "finish", "replace", None)),
        *((end, then) for end in ("delete", "replace", None) for then in ("another is there", "another has ended")),
    ],
)
async def test_a_dead_letter_whose_job_came_to_another_end_runs_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch, end: str | None, then: str
) -> None:
    """The bury had no answer, and its caller asked no more. `then`: what became of another job of its id."""

    async def lose(*given: Any) -> list[int | StreamError]:
        await write_dead_letters(*given)
        return [OutcomeUnknown("no answer", subject="")]

    await office.add("a")
    receipt = (await office.reserve()).receipt
    with monkeypatch.context() as patch:
        patch.setattr("actors.jobs.reservations.write_dead_letters", lose)
        assert codes_of(await office.desk.bury([receipt])) == ["unknown"]
    match end:
        case "delete":
            assert (await office.desk.delete(TOPIC, "a")).code == "ok"
        case "finish by the id":
            assert (await office.desk.finish_by_id("a")).code == "ok"
        case "finish":
            assert codes_of(await office.desk.finish([receipt])) == ["ok"]
        case "replace":
            await office.add("a", on_same="replace")
        case _:
            assert codes_of(await office.desk.bury([receipt])) == ["ok"]
    if then and end != "replace":
        await office.add("a")
    if then == "another has ended":
        assert codes_of(await office.desk.finish([(await office.reserve()).receipt])) == ["ok"]
    stands = await office.state("a")
    assert len(await office.dead()) == 1
    await office.desk.kick(TOPIC, "a")
    is_sent = end is None and then != "another is there"
    assert await office.state("a") == ("ready" if is_sent else stands)
    assert len(await office.dead()) == (end is None and not is_sent)


@pytest.mark.three_servers
async def test_finish_by_id_finds_what_was_reserved_just_now(office: Office) -> None:
    """Of three servers one may be a moment behind, and be the one that is asked."""
    for number in range(400):
        await office.add(f"{number}")
        assert (await office.reserve()).id == f"{number}"
        assert (await office.desk.finish_by_id(f"{number}")).code == "ok", number


# ---- what a person does


async def test_a_delete_that_is_repeated_is_told_what_the_first_one_did(office: Office) -> None:
    """Its answer was lost, or its desk stopped in the midst of it."""
    await office.add()
    for _ in range(2):
        assert (await office.desk.delete(TOPIC, "1", nonce="mine")).code == "ok"
    assert (await office.desk.delete(TOPIC, "1", nonce="another")).code == "not_found"
    await office.add()
    assert (await office.desk.delete(TOPIC, "1", nonce="mine")).code == "ok"
    assert await office.state() == "ready", "a job that was added since stands"


async def test_a_delete_of_its_callers_own_that_is_repeated_within_a_day_takes_no_later_job(office: Office) -> None:
    await office.add()
    assert (await office.desk.delete(TOPIC, "1", nonce="mine")).code == "ok"
    office.clock.ahead_ms = KEPT_MS - 60_000
    await office.add()
    assert (await office.desk.delete(TOPIC, "1", nonce="mine")).code == "ok"
    assert await office.state() == "ready", "a job that was added since stands"


async def test_an_id_that_is_deleted_often_knows_no_more_than_its_latest_adds_and_deletes(office: Office) -> None:
    for number in range(MOST_PAST):
        await office.add(nonce=f"add-{number}")
        assert (await office.desk.delete(TOPIC, "1", nonce=f"delete-{number}")).code == "ok"
    found = await office.store.find_key(TOPIC, "1")
    assert found is not None
    assert found.done is not None
    assert len(found.done.past) == MOST_PAST


@pytest.mark.parametrize("state", ["delayed", "ready", "reserved"])
async def test_what_was_deleted_is_never_handed_out(office: Office, state: str) -> None:
    await office.add("a", delay_ms=3_600_000 if state == "delayed" else 0)
    receipt = (await office.reserve()).receipt if state == "reserved" else ""
    answer = await office.desk.delete(TOPIC, "a")
    assert (answer.code, answer.reason) == ("ok", f"it was {state}")
    assert await office.state("a") is None
    assert (await office.desk.delete(TOPIC, "a")).code == "not_found"
    if receipt:
        assert codes_of(await office.desk.finish([receipt])) == ["stale"]
    assert await office.desk.reserve(TOPIC, wait_ms=20) == []


async def test_an_id_is_deleted_in_every_topic_that_is_allowed(office: Office) -> None:
    for topic in ("one", "two", "three"):
        await office.add("a", topic=topic, delay_ms=3_600_000)
    assert (await office.desk.delete(None, "a", is_allowed=lambda topic: topic != "two")).code == "ok"
    assert [await office.state("a", topic) for topic in ("one", "two", "three")] == [None, "delayed", None]
    assert (await office.desk.delete(None, "a", is_allowed=lambda topic: topic != "two")).code == "not_found"


@pytest.mark.parametrize("end", ["finish", "bury"])
async def test_what_ends_before_its_delete_is_stored_is_not_told_as_deleted(
    office: Office, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    await office.set(remember="1h")
    await office.add("a")
    receipt = (await office.reserve()).receipt
    stream: JobStream = office.store.delete.__self__._jobs  # type: ignore[attr-defined]
    move_on = stream.move

    async def end_first(move: Move) -> int | StreamError:
        monkeypatch.setattr(stream, "move", move_on)
        assert codes_of(await (office.desk.finish if end == "finish" else office.desk.bury)([receipt])) == ["ok"]
        return await move_on(move)

    monkeypatch.setattr(stream, "move", end_first)
    assert (await office.desk.delete(TOPIC, "a")).code == "not_found"
    assert (await office.state("a"), len(await office.dead())) == ("done", end == "bury")


async def test_what_is_over_is_not_deleted_and_stays_known(office: Office) -> None:
    await office.set(remember="1h")
    await office.add("a")
    await office.desk.finish([(await office.reserve()).receipt])
    answer = await office.desk.delete(TOPIC, "a")
    assert (answer.code, answer.reason) == ("not_found", "it is over already")
    assert await office.state("a") == "done"


@pytest.mark.parametrize("job_id", ["plain", "with blanks and ümlauts", "a" * 255, "h_1", "..", "*", "$JS.API.>"])
async def test_any_printable_id_is_added_found_and_deleted(office: Office, job_id: str) -> None:
    """7, 8, 11, 13, 15, 53."""
    await office.add(job_id, delay_ms=3_600_000)
    peeked = await office.desk.peek(TOPIC, job_id)
    assert peeked is not None
    assert peeked.id == job_id
    assert (await office.desk.delete(None, job_id)).code == "ok"


async def answering(
    office: Office, names: list[str], *, is_deaf: Callable[[int], bool] = lambda _asked: False
) -> tuple[list[GoneAsk], Callable[[], Awaitable[None]]]:
    """Have nodes of these names drop copies, as workers do. `is_deaf(n)`: nobody hears the n-th request."""
    asked: list[GoneAsk] = []

    def heard(message: Message) -> None:
        asked.append(json.decode(message.payload, type=GoneAsk))
        for name in [] if is_deaf(len(asked)) else names:
            frame = f"PUB {message.reply}  ".encode()
            payload = json.encode(GoneAnswer(name))
            office.connection.client.send(frame + b"%d\r\n%b\r\n" % (len(payload), payload))

    subscription = await office.connection.subscribe(office.namespace.subject("gone"), heard)
    return asked, subscription.unsubscribe


async def test_a_delete_waits_for_the_nodes_that_fetched_ahead(office: Office) -> None:
    await office.add("a")
    office.handling = {"n1", "n2"}
    asked, stop = await answering(office, ["n1", "n2", "n3"])
    assert (await office.desk.delete(TOPIC, "a")).code == "ok"
    assert asked == [GoneAsk(TOPIC, token_of("a"))]
    await stop()


async def test_a_delete_asks_again_whoever_did_not_hear_it(office: Office) -> None:
    """A link that breaks takes the request along, and the node is there again a moment later, with its copy."""
    await office.add("a")
    office.handling = {"n1"}
    asked, stop = await answering(office, ["n1"], is_deaf=lambda number: number == 1)
    assert (await office.desk.delete(TOPIC, "a")).code == "ok"
    assert asked == 2 * [GoneAsk(TOPIC, token_of("a"))]
    await stop()


async def test_a_delete_does_not_wait_long_for_a_dead_node(office: Office) -> None:
    await office.add("a")
    office.handling = {"n1", "dead"}

    def dies(_asked: int) -> bool:
        office.handling = {"n1"}
        return False

    asked, stop = await answering(office, ["n1"], is_deaf=dies)
    assert (await office.desk.delete(TOPIC, "a")).code == "ok"
    assert len(asked) > 1
    await stop()


async def test_a_delete_is_unknown_while_a_node_that_lives_does_not_reply(office: Office) -> None:
    """Its server and ours do not reach each other, and both reach the third. It may still begin its copy."""
    await office.add("a")
    office.handling = {"n1", "n2"}
    _, stop = await answering(office, ["n1"])
    with pytest.raises(OutcomeUnknown, match="n2"):
        await office.desk.delete(TOPIC, "a", nonce="0123456789abcdef")
    await stop()
    _, stop = await answering(office, ["n1", "n2"])
    assert (await office.desk.delete(TOPIC, "a", nonce="0123456789abcdef")).code == "ok"
    await stop()


async def test_a_kick_makes_delayed_jobs_ready(office: Office) -> None:
    await office.try_add(*[f"{n}" for n in range(5)], delay_ms=3_600_000)
    assert await office.desk.kick(TOPIC, "3") == 1
    assert (await office.reserve()).id == "3"
    assert await office.desk.kick(TOPIC, most=2) == 2
    assert len(await office.desk.reserve(TOPIC, most=10, wait_ms=10_000)) == 2
    assert [await office.desk.kick(TOPIC, "unheard"), await office.desk.kick("unheard")] == [0, 0]


@pytest.mark.three_servers
@pytest.mark.parametrize("was", ["delayed", "buried"])
async def test_a_repeat_of_a_kick_by_id_makes_no_later_job_ready(office: Office, was: str) -> None:
    """Its answer was lost, or a desk that stood still took up its first try now."""
    await office.add("a", delay_ms=3_600_000 if was == "delayed" else 0)
    if was == "buried":
        await office.desk.bury([(await office.reserve()).receipt])
    for _ in range(2):
        assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    receipt = (await office.reserve()).receipt
    await (office.desk.bury if was == "buried" else office.desk.finish)([receipt])
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    assert (await office.state("a"), len(await office.dead())) == ((None, 0) if was == "delayed" else ("done", 1))
    await office.add("a", delay_ms=3_600_000, on_same="replace")
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    assert await office.state("a") == "delayed"
    assert await office.desk.kick(TOPIC, "a", nonce="another") == 1
    assert await office.state("a") == "ready"


@pytest.mark.three_servers
async def test_a_kick_just_before_the_job_is_due_leaves_its_mark_too(office: Office) -> None:
    await office.add("a", delay_ms=300)
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    await office.desk.finish([(await office.reserve()).receipt])
    await office.add("a", delay_ms=3_600_000)
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    assert await office.state("a") == "delayed"


async def test_a_kick_that_meets_the_firing_is_answered_as_one(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is ready, as was asked for. Another kick stands for the timer."""
    stream: JobStream = office.desk._store.kick_delayed.__self__._jobs  # type: ignore[attr-defined]
    move = stream.move

    async def move_late(*given: Any) -> int | StreamError:
        monkeypatch.setattr(stream, "move", move)
        assert await office.desk.kick(TOPIC, "a") == 1
        return await move(*given)

    await office.add("a", delay_ms=3_600_000)
    monkeypatch.setattr(stream, "move", move_late)
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    assert await office.state("a") == "ready"
    assert await office.desk.kick(TOPIC, "a", nonce="another") == 0, "it was ready before"


async def test_a_kick_goes_on_over_several_pages(office: Office) -> None:
    """A page of jobs has at most 4 MiB."""
    await office.try_add(*[f"{n}" for n in range(25)], body="x" * 200_000, delay_ms=3_600_000)
    page = await office.store.list_jobs(TOPIC, "delayed", most=24)
    assert len(page.found) < 24
    assert await office.desk.kick(TOPIC, most=24) == 24
    count = await office.store.count(TOPIC)
    assert (count.ready, count.delayed) == (24, 1)


async def test_a_kick_brings_back_what_was_buried_before_what_is_delayed(office: Office) -> None:
    await office.try_add("a", "b")
    for job in await office.desk.reserve(TOPIC, most=2, wait_ms=10_000):
        await office.desk.bury([job.receipt], reason="poison")
    await office.add("later", delay_ms=3_600_000)
    assert await office.desk.kick(TOPIC, most=10) == 2
    assert sorted(job.id for job in await office.desk.reserve(TOPIC, most=10, wait_ms=10_000)) == ["a", "b"]
    assert await office.dead() == []
    assert await office.desk.kick(TOPIC, most=10) == 1


async def test_a_kick_brings_back_one_that_was_buried(office: Office) -> None:
    await office.add("a", body={"x": 1})
    await office.desk.bury([(await office.reserve()).receipt], reason="poison")
    assert await office.desk.kick(TOPIC, "a") == 1
    again = await office.reserve()
    assert (again.id, bytes(again.body), again.attempt) == ("a", b'{"x":1}', 1)


async def test_lists_are_paged_and_hold_each_job_once(office: Office) -> None:
    await office.try_add(*[f"{n}" for n in range(25)], delay_ms=3_600_000)
    await office.add("ready")
    found, after = [], ""
    while True:
        page = await office.desk.list(TOPIC, state="delayed", after=after, limit=10)
        found += [job.id for job in page.jobs]
        after = page.after
        if not after:
            break
    assert found == [f"{n}" for n in range(25)]
    assert [job.id for job in (await office.desk.list(TOPIC, state="ready")).jobs] == ["ready"]


async def test_a_page_of_large_jobs_is_short_and_the_list_goes_on(office: Office) -> None:
    await office.try_add(*[f"{n}" for n in range(12)], body="x" * 200_000, delay_ms=3_600_000)
    pages, after = [], ""
    while True:
        page = await office.desk.list(TOPIC, after=after, limit=1000, most_bytes=500_000)
        pages.append(len(page.jobs))
        after = page.after
        if not after:
            break
    assert sum(pages) == 12
    assert max(pages) <= 3
    assert len((await office.desk.list(TOPIC, limit=5, most_bytes=1000)).jobs) >= 1


async def test_a_list_by_due_time(office: Office) -> None:
    now_ms = office.clock.now_ms()
    for hours in (1, 2, 3):
        await office.add(f"{hours}", delay_ms=hours * 3_600_000)
    page = await office.desk.list(TOPIC, due_after_ms=now_ms + 5_400_000, due_before_ms=now_ms + 9_000_000)
    assert [job.id for job in page.jobs] == ["2"]


async def test_a_cursor_that_somebody_changed_is_refused(office: Office) -> None:
    """68."""
    await office.try_add("a", "b", "c", delay_ms=3_600_000)
    after = (await office.desk.list(TOPIC, limit=1)).after
    assert [job.id for job in (await office.desk.list(TOPIC, limit=1, after=after)).jobs] == ["b"]
    number, mark = after.rsplit(".", 1)
    for changed in ("x", "0.1", after + "0", f"0.99.{mark}", f"{number}.{'0' * 12}", "é", f"{number}.é"):
        with pytest.raises(BadJob) as refused:
            await office.desk.list(TOPIC, limit=1, after=changed)
        assert refused.value.field == "after"
    with pytest.raises(BadJob):
        await office.desk.list(TOPIC, state="ready", after=after)


async def test_counts_and_topics(office: Office) -> None:
    await office.try_add("a", "b", "c")
    await office.add("d", delay_ms=3_600_000)
    await office.add("e", topic="other", priority="high")
    await office.reserve()
    await office.desk.finish([(await office.reserve()).receipt])
    while (counts := await office.desk.count(TOPIC)).ready != 1:  # the server takes an ack a moment after it came
        await a_moment()
    assert (counts.delayed, counts.reserved, counts.done) == (1, 1, 0)
    while len(office.desk.topics()) < 2:
        await a_moment()
    assert [view.topic for view in office.desk.topics()] == [TOPIC, "other"]


async def test_a_topic_is_changed_and_a_bad_setting_refused(office: Office) -> None:
    view = await office.desk.change_topic(TOPIC, {"ttr": "90s", "attempts": 3})
    assert (view.settings["ttr"], view.settings["attempts"]) == ("90s", 3)
    with pytest.raises(BadJob) as refused:
        await office.desk.change_topic(TOPIC, {"ttr": "90"})
    assert refused.value.field == "ttr"
    view = await office.desk.change_topic(TOPIC, {"ttr": None})
    assert (view.settings["ttr"], view.settings["attempts"]) == ("1m", 3)


async def test_what_is_set_at_one_desk_is_shown_at_another_at_once(office: Office) -> None:
    async with open_second_office(office.connection) as other:
        shown = []
        for number in range(1, 31):
            await office.desk.change_topic(TOPIC, {"most_waiting": number})
            shown.append((await other.desk.change_topic(TOPIC, {})).settings["most_waiting"])
    assert shown == list(range(1, 31))


async def test_what_is_set_for_all_topics_is_changed_under_the_name_default(office: Office) -> None:
    assert (await office.desk.change_topic("default", {"attempts": 4})).settings["attempts"] == 4
    while (await office.desk.change_topic(TOPIC, {})).settings["attempts"] != 4:
        await a_moment()
    (refused,) = await office.try_add("a", topic="default")
    assert (refused.code, office.desk.topics()) == ("bad", [])
    with pytest.raises(BadJob):
        await office.desk.reserve("default")


async def test_what_the_broker_does_not_take_is_told(office: Office) -> None:
    await office.add("a")
    await office.connection.api(f"STREAM.DELETE.{office.namespace.stream('JOBS')}")
    with pytest.raises(NoStream):
        await office.desk.peek(TOPIC, "a")


async def test_jobs_of_a_topic_with_slots_are_not_reserved_and_the_refusal_says_what_to_do(office: Office) -> None:
    await office.add("a")
    await office.desk.change_topic(TOPIC, {"slots": 2})
    with pytest.raises(BadJob) as refused:
        await office.desk.reserve(TOPIC)
    assert refused.value.field == "topic"
    assert "only 2 calls of a key run at once, so only handlers in nodes take its jobs" in str(refused.value)
    assert f"run them by @penstock.job, or lift the limit by `penstock jobs topic {TOPIC} slots=0`" in str(
        refused.value
    )
    await office.desk.change_topic(TOPIC, {"slots": 0})
    assert (await office.reserve()).id == "a"
