"""Jobs that the desk hands out: who waits for them, pauses, rates and priorities."""

from collections.abc import Callable
from contextlib import suppress

import anyio
import pytest

from actors.jobs import topics
from actors.jobs.rules.job_answers import Added, NotAdded, Reserved
from actors.jobs.rules.topic_settings import LANES
from streams.errors import OutcomeUnknown, Refused
from streams.messages.jobs import NewJob, body_of, decode_job
from streams.pull.once import PullOnce
from streams.topology.specs import job_consumer
from tests.support.desks import TOPIC, Office
from tests.support.moments import a_moment


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
