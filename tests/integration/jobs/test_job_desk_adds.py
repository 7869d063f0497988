"""What the desk adds, and what it answers to the same add again."""

import pytest
from msgspec import Raw, json
from msgspec.structs import replace

from actors.jobs.rules.job_answers import Added, NotAdded, TopicCounted
from streams.link.connection import Connection
from streams.messages.jobs import NewJob, body_of
from tests.support.desks import TOPIC, Office, codes_of, open_second_office
from tests.support.moments import a_moment


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
    assert codes_of(answers).count("ok") == 999
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
    assert codes_of(await office.try_add("a")) == ["over"]
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
    assert codes_of(answers) == ["ok", "ok", "ok", "quota"]
    again = await office.try_add("a", "e")
    assert codes_of(again) == ["ok", "quota"]
    assert isinstance(again[0], Added)
    assert not again[0].is_new
    await office.desk.finish([(await office.reserve()).receipt])
    while codes_of(await office.try_add("e")) != ["ok"]:  # as soon as the count is taken anew
        await a_moment()


async def test_a_full_topic_knows_repeats_and_takes_what_replaces(office: Office) -> None:
    await office.set(most_waiting=1)
    over = NewJob(topic=TOPIC, id="over", nonce="n", body=Raw(b"1"))
    await office.desk.add([over])
    await office.desk.finish([(await office.reserve()).receipt])
    other = NewJob(topic=TOPIC, id="other", body=Raw(b"1"), delay_ms=600_000)
    while codes_of(await office.desk.add([other])) != ["ok"]:  # as soon as the count is taken anew
        await a_moment()
    for on_same in ("keep", "replace", "error"):
        (again,) = await office.desk.add([replace(over, on_same=on_same)])
        assert isinstance(again, Added)
        assert (again.is_new, again.state) == (True, "done")
    assert codes_of(await office.desk.add([replace(other, on_same="replace", body=Raw(b"2"))])) == ["ok"]
    assert codes_of(await office.try_add("new")) == ["quota"]


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
