"""The client of other programs, against the service: what it makes easy, and what it does when answers are lost."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from msgspec import Raw, Struct

import penstock
from actors.jobs.rules.job_answers import NotAdded
from penstock.api.service import calls as service_calls
from penstock.sdk import calls, client_jobs, held_jobs
from penstock.sdk.client import Client
from penstock.sdk.held_jobs import HeldJob
from streams.link.connection import Connection
from streams.messages.jobs import LARGEST_BODY
from tests.support.desks import TOPIC, Office, open_office, open_service
from tests.support.moments import a_moment

pytestmark = pytest.mark.three_servers

HOUR, HOUR_MS = timedelta(hours=1), 3_600_000


@pytest.fixture
async def office(connection: Connection) -> AsyncIterator[Office]:
    async with open_office(connection) as opened, open_service(opened):
        yield opened


class Letter(Struct):
    to: int


# ---- adding


async def test_a_job_added_here_is_held_and_finished_there(client: Client, office: Office) -> None:
    added = await client.jobs.add(TOPIC, {"to": 7}, id="order-7")
    assert (added.id, added.state, added.is_new) == ("order-7", "ready", True)
    async with client.jobs.reserve(TOPIC, wait=10) as job:
        assert job is not None
        assert (job.id, job.body, job.body_as(Letter), job.attempt) == ("order-7", {"to": 7}, Letter(7), 1)
        assert await office.state("order-7") == "reserved"
    assert await office.state("order-7") is None


async def test_each_reserve_holds_a_job_while_there_is_one(client: Client) -> None:
    """On three servers none of six did."""
    await client.jobs.add_many([penstock.new_job(TOPIC, id=str(number)) for number in range(20)])
    held = set()
    for number in range(20):
        async with client.jobs.reserve(TOPIC, wait=10) as job:
            assert job is not None, number
            held.add(job.id)
    assert held == {str(number) for number in range(20)}


async def test_times_are_seconds_timedeltas_and_moments(client: Client, office: Office) -> None:
    due = datetime.now(UTC) + HOUR
    one, two, three = (
        await client.jobs.add(TOPIC, delay=3600),
        await client.jobs.add(TOPIC, delay=HOUR),
        await client.jobs.add(TOPIC, due=due, ttr=HOUR, expires_in="2h"),
    )
    four = await client.jobs.add(TOPIC, delay="1h", ttr="90s")
    moments_ms = [added.due_ms for added in (one, two, three, four)]
    assert max(moments_ms) - min(moments_ms) < 60_000
    timed = await client.jobs.peek(TOPIC, four.id)
    assert timed is not None
    assert timed.ttr_ms == 90_000
    shown = await client.jobs.peek(TOPIC, three.id)
    assert shown is not None
    assert (shown.ttr_ms, shown.due_ms) == (3_600_000, round(due.timestamp() * 1000))


@pytest.mark.parametrize(
    "asked",
    [
        {"delay": "30"},
        {"delay": float("nan")},
        {"delay": True},
        {"due": datetime(2030, 1, 1)},  # noqa: DTZ001 # that it has no zone is the point
        {"body": object()},
        {"body": Raw(b"{")},
        {"body": float("nan"), "delay": float("inf")},
    ],
)
async def test_what_cannot_be_meant_is_refused_before_it_is_sent(client: Client, asked: dict[str, object]) -> None:
    with pytest.raises(penstock.UsageError):
        await client.jobs.add(TOPIC, **asked)  # type: ignore[arg-type] # the wrong types are the point


@pytest.mark.parametrize(
    ("topic", "asked", "field"),
    [
        ("a b", {}, "topic"),
        (TOPIC, {"delay": -1}, "delay_ms"),
        (TOPIC, {"ttr": 0.1}, "ttr_ms"),
        (TOPIC, {"id": "\n"}, "id"),
    ],
)
async def test_what_the_desk_refuses_is_raised_with_its_field(
    client: Client, topic: str, asked: dict[str, object], field: str
) -> None:
    with pytest.raises(penstock.NotAccepted) as refused:
        await client.jobs.add(topic, **asked)  # type: ignore[arg-type] # a table of keywords
    assert (refused.value.code, refused.value.field) == ("bad", field)


async def test_an_id_that_is_taken(client: Client) -> None:
    await client.jobs.add(TOPIC, 1, id="a", delay=HOUR)
    kept = await client.jobs.add(TOPIC, 2, id="a", delay=HOUR)
    assert (kept.is_new, kept.is_same_body) == (False, False)
    with pytest.raises(penstock.NotAccepted) as refused:
        await client.jobs.add(TOPIC, 2, id="a", delay=HOUR, on_same="error")
    assert refused.value.code == "exists"
    assert (await client.jobs.add(TOPIC, 2, id="a", delay=HOUR, on_same="replace")).is_new


async def test_many_are_added_in_parts_each_with_its_own_answer(client: Client, office: Office) -> None:
    jobs = [penstock.new_job(TOPIC, "x" * 1000, id=f"{n}") for n in range(1500)]
    jobs[3] = penstock.new_job("a b", id="3")
    jobs[4] = penstock.new_job(TOPIC, Raw(b'"' + b"x" * LARGEST_BODY + b'"'), id="4")
    answers = await client.jobs.add_many(jobs)
    assert [answer.id for answer in answers] == [job.id for job in jobs]
    assert [at for at, answer in enumerate(answers) if isinstance(answer, NotAdded)] == [3, 4]
    assert (await office.desk.count(TOPIC)).ready == 1498


# ---- holding


async def test_nothing_ready_gives_none(client: Client) -> None:
    await client.jobs.add(TOPIC, delay=HOUR)
    async with client.jobs.reserve(TOPIC) as job:
        assert job is None


async def test_who_waits_gets_it(client: Client) -> None:
    found: list[HeldJob] = []

    async def work() -> None:
        async with client.jobs.reserve(TOPIC, wait=30) as job:
            assert job is not None
            found.append(job)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await client.jobs.add(TOPIC, 1)
    assert [job.body for job in found] == [1]


async def test_a_long_wait_is_asked_for_in_pieces(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_jobs, "PIECE_MS", 50)
    asked: list[str] = []
    ask = client.jobs._service.request

    async def count(endpoint: str, payload: bytes, **more: Any) -> calls.Answered:
        asked.append(endpoint)
        if asked == ["reserve"] * 3:
            await client.jobs.add(TOPIC, 1)
        return await ask(endpoint, payload, **more)

    monkeypatch.setattr(client.jobs._service, "request", count)
    [job] = await client.jobs.reserve_many(TOPIC, wait=3600)
    assert job.body == 1
    assert asked.count("reserve") >= 3
    began_s = anyio.current_time()
    assert await client.jobs.reserve_many(TOPIC, wait=0.2) == []
    assert anyio.current_time() - began_s >= 0.15


async def test_an_exception_gives_it_back_with_the_reason(client: Client, office: Office) -> None:
    await client.jobs.add(TOPIC, id="a")
    with pytest.raises(ZeroDivisionError):
        async with client.jobs.reserve(TOPIC, wait=10):
            _ = 1 / 0
    shown = await client.jobs.peek(TOPIC, "a")
    assert shown is not None
    assert (shown.state, shown.attempts) == ("delayed", 1)
    assert "ZeroDivisionError: division by zero" in shown.history[0]


async def test_a_cancellation_gives_it_back_as_it_was(client: Client) -> None:
    await client.jobs.add(TOPIC, id="a")
    with anyio.CancelScope() as scope:
        async with client.jobs.reserve(TOPIC, wait=10):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    [again] = await client.jobs.reserve_many(TOPIC, wait=10)
    assert (again.id, again.attempt) == ("a", 1)


async def test_what_the_block_settled_is_left_alone(client: Client, office: Office) -> None:
    for job_id in ("released", "buried", "finished"):
        await client.jobs.add(TOPIC, id=job_id)
        async with client.jobs.reserve(TOPIC, wait=10) as job:
            assert job is not None
            if job_id == "released":
                await job.release(delay=HOUR, reason="not yet")
            elif job_id == "buried":
                await job.bury("poison")
            else:
                await job.finish()
    assert [await office.state(one) for one in ("released", "buried", "finished")] == ["delayed", "done", None]
    assert len(await office.dead()) == 1


async def test_while_the_block_runs_the_job_is_touched(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_jobs, "TOUCHES", 100)
    await client.jobs.add(TOPIC, id="a", ttr=20)
    async with client.jobs.reserve(TOPIC, wait=10) as job:
        assert job is not None
        found = await office.store.find(TOPIC, "a")
        assert found is not None
        while found.seq == (again := await office.store.find(TOPIC, "a") or found).seq:
            await a_moment()
        assert found.job is not None
        assert again.job is not None
        assert again.job.until_ms > found.job.until_ms
    assert await office.state("a") is None


async def until_ms(office: Office, *, after: int = 0) -> int:
    """Return when the hold of the job `a` ends, as soon as that is later than `after`."""
    while True:
        found = await office.store.find(TOPIC, "a")
        if found is not None and found.job is not None and found.job.until_ms > after:
            return found.job.until_ms
        await a_moment()


async def test_a_hold_of_a_length_of_its_own_keeps_that_length(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is touched within that time, not within the job's own, which may be longer."""
    monkeypatch.setattr(held_jobs, "TOUCHES", 100)
    await client.jobs.add(TOPIC, id="a", ttr=600)
    async with client.jobs.reserve(TOPIC, wait=10, ttr=20) as job:
        assert job is not None
        first = await until_ms(office)
        assert await until_ms(office, after=first) < first + 20_000
        await job.release(delay=0)
    [held] = await client.jobs.reserve_many(TOPIC, wait=10, ttr=20)
    first = await until_ms(office)
    await held.touch()
    assert await until_ms(office, after=first) < first + 20_000


async def test_a_job_that_is_lost_ends_the_block(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_jobs, "TOUCHES", 100)
    await client.jobs.add(TOPIC, id="a", ttr=10)
    ended = False

    async def lose_it() -> None:
        nonlocal ended
        async with client.jobs.reserve(TOPIC, wait=10):
            try:
                await client.jobs.delete("a")
                await anyio.sleep_forever()
            finally:
                ended = True

    with pytest.raises(penstock.Stale):
        await lose_it()
    assert ended


async def test_a_finish_that_is_too_late_is_told(client: Client, office: Office) -> None:
    await client.jobs.add(TOPIC, id="a")
    with pytest.raises(penstock.Stale):
        async with client.jobs.reserve(TOPIC, wait=10):
            await client.jobs.delete("a")


async def test_many_are_held_and_finished(client: Client, office: Office) -> None:
    await client.jobs.add_many([penstock.new_job(TOPIC, n) for n in range(30)])
    held: list[HeldJob] = []
    while len(held) < 30:  # a server may be a moment behind
        held += await client.jobs.reserve_many(TOPIC, most=30 - len(held), wait=10, ttr=100, holder="batch")
    assert {job.ttr_s for job in held} == {100.0}
    await client.jobs.release(held[0], delay=0, counts=False)
    answers = await client.jobs.finish_many(held)
    assert [answer.code for answer in answers] == ["stale", *["ok"] * 29]
    assert (await client.jobs.count(TOPIC)).ready == 1


async def test_by_receipt_alone(client: Client, office: Office) -> None:
    await client.jobs.add(TOPIC, id="a")
    [job] = await client.jobs.reserve_many(TOPIC, wait=10)
    await client.jobs.touch(job.receipt, 90)
    await client.jobs.finish(job.receipt)
    await client.jobs.finish(job.receipt)
    with pytest.raises(penstock.Stale):
        await client.jobs.touch(job.receipt)
    with pytest.raises(penstock.NotAccepted):
        await client.jobs.finish("no receipt")


# ---- looking


async def test_what_a_person_does(client: Client, office: Office) -> None:
    for n in range(5):
        await client.jobs.add(TOPIC, n, id=f"{n}", delay=HOUR)
    assert [job.id async for job in client.jobs.list(TOPIC, page=2)] == ["0", "1", "2", "3", "4"]
    assert await client.jobs.kick(TOPIC, "0") == 1
    assert await client.jobs.delete("1") is True
    assert await client.jobs.delete("1") is False
    assert await client.jobs.peek(TOPIC, "1") is None
    counts = await client.jobs.count(TOPIC)
    assert (counts.delayed, counts.ready) == (3, 1)
    [job] = await client.jobs.reserve_many(TOPIC, wait=10)
    await client.jobs.finish_by_id(job.id)
    with pytest.raises(penstock.NotAccepted):
        await client.jobs.finish_by_id("unheard")
    await client.jobs.change_topic(TOPIC, ttr="90s")
    assert [view.topic for view in await client.jobs.topics()] == [TOPIC]
    with pytest.raises(penstock.NotAccepted):
        await client.jobs.counts(["default"])
    with pytest.raises(penstock.NotAccepted):
        await client.jobs.change_topic(TOPIC, ttr=-1)
    with pytest.raises(penstock.UsageError, match="ttr: 'for ever' is not a duration; write a text with its unit"):
        await client.jobs.change_topic(TOPIC, ttr="for ever")
    view = await client.jobs.change_topic(TOPIC, ttr=timedelta(minutes=2), backoff=1.5, attempts=4)
    assert [view.settings[name] for name in ("ttr", "backoff", "attempts")] == ["2m", "1500ms", 4]


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 4])
async def test_topics_and_their_counts_come_in_pages(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    for name in ("b", "c", "a"):
        await client.jobs.add(name, id="1")
    while len(office.desk.known_topics()) < 3:
        await a_moment()
    monkeypatch.setattr(service_calls, "ROOM", office.connection.max_payload - 500)  # one topic fits
    wanted = ["a", "b", "c"]
    assert [view.topic for view in await client.jobs.topics(limit=limit)] == wanted[:limit]
    assert [view.topic for view in await client.jobs.topics(after="a", limit=limit)] == wanted[1:][:limit]
    assert [(one.topic, one.ready) for one in await client.jobs.counts(limit=limit)] == [
        (name, 1) for name in wanted[:limit]
    ]
    assert [one.topic for one in await client.jobs.counts(["c", "none", "a"])] == ["c", "none", "a"]
