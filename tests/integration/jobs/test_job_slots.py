"""At most n calls at once under a key, over the nodes of a real server, whoever waits, dies or is cut off."""

from __future__ import annotations

import anyio
import pytest

from actors.jobs.obstacles import Obstacles
from actors.runtime.bounds import Anywhere
from actors.runtime.rules import slots_held
from streams.clock import SYSTEM
from tests.support.job_workers import handler, until_gone, working
from tests.support.jobs import Jobs
from tests.support.moments import a_moment
from tests.support.slots import KeyedCalls, governed, make_slots_last

BY_M = {"slots": 2, "slot_key": "m"}


@pytest.fixture(autouse=True)
def slots_last(monkeypatch: pytest.MonkeyPatch) -> None:
    make_slots_last(monkeypatch)
    monkeypatch.setattr("streams.topology.specs.job_ack_wait_s", lambda _is_clustered: 30.0)  # nor does it end a hold


async def add(jobs: Jobs, key: object, *ids: str, **more: object) -> None:
    for job_id in ids:
        await jobs.add(job_id, body={"m": key, **more})


async def test_no_more_calls_of_a_key_run_at_once_than_its_slots_and_all_are_run(jobs: Jobs) -> None:
    calls = KeyedCalls(takes_s=0.02)
    await jobs.added(60, body={"m": "a"})
    async with governed(jobs):
        async with working(jobs, handler(calls.handle), settings=BY_M) as work:
            await add(jobs, "b", *(f"b{n}" for n in range(20)))
            await calls.log.until(lambda log: log.count("ended") == 80)
            await work.end()
    assert calls.most == {"a": 2, "b": 2}


@pytest.mark.three_servers
async def test_two_nodes_have_the_slots_of_a_key_together_and_both_come_to_some(jobs: Jobs) -> None:
    calls, others = KeyedCalls(takes_s=0.02), KeyedCalls(takes_s=0.02)
    others.running, others.most = calls.running, calls.most  # of both together
    async with governed(jobs):
        async with working(jobs, handler(calls.handle), settings=BY_M, node="n1"):
            async with working(jobs, handler(others.handle), settings=BY_M, node="n2"):
                await jobs.added(200, body={"m": 7})
                with anyio.fail_after(60):
                    while calls.log.count("ended") + others.log.count("ended") < 200:
                        await a_moment()
    assert calls.most == {"7": 2}
    assert calls.log.count("ended") > 20
    assert others.log.count("ended") > 20


async def test_jobs_of_a_full_key_do_not_stand_in_the_way_of_other_keys(jobs: Jobs) -> None:
    calls = KeyedCalls()
    for start in range(0, 10_000, 1_000):
        await jobs.store.add_many([(jobs.make(f"a{n}", body={"m": "a"}), "keep") for n in range(start, start + 1_000)])
    for n in range(100):
        await jobs.add(f"b{n}", body={"m": f"b{n}"})
    async with governed(jobs):
        async with working(jobs, handler(calls.handle, concurrency=200), settings={**BY_M, "slots": 1}) as work:
            await calls.log.until(lambda log: log.count("begun b") - log.count("cancelled b") == 100, within_s=120)
            await calls.log.until(lambda log: log.count("begun a") - log.count("cancelled a") == 1)
            with anyio.fail_after(120):
                while (counts := await jobs.store.count("mail")).ready + counts.delayed < 10_100:
                    await a_moment()
            calls.release.set()
            await calls.log.until(lambda log: log.count("ended a") >= 2)
            work.stop()
    assert calls.most["a"] == 1


async def test_a_newcomer_to_a_full_key_is_dropped_and_that_is_written_down(jobs: Jobs) -> None:
    calls = KeyedCalls()
    async with governed(jobs):
        async with working(jobs, handler(calls.handle), settings={**BY_M, "when_full": "drop_newest"}) as work:
            await add(jobs, "a", "1", "2")
            await calls.log.until(lambda log: log.count("begun") == 2)
            await add(jobs, "a", "3")
            await outcome_is(jobs, "3", "dropped")
            await add(jobs, "b", "4")
            await calls.log.has("begun 4 1")
            calls.release.set()
            await calls.log.until(lambda log: log.count("ended") == 3)
            await until_gone(jobs, "1")
            await until_gone(jobs, "2")
            await add(jobs, "a", "3")
            await calls.log.has("begun 3 1")
            labels = {"topic": "mail", "outcome": "dropped"}
            with anyio.fail_after(30):
                while work.measures.registry.get_sample_value("penstock_jobs_handled_total", labels) != 1:
                    await a_moment()


async def test_a_newcomer_takes_the_slot_of_the_longest_call_of_any_node(jobs: Jobs) -> None:
    first, second = KeyedCalls(), KeyedCalls()
    settings = {**BY_M, "when_full": "cancel_running"}
    async with governed(jobs):
        async with working(jobs, handler(first.handle, concurrency=1), settings=settings, node="n1"):
            await add(jobs, "a", "1")
            await first.log.has("begun 1 1")
            async with working(jobs, handler(second.handle), settings=settings, node="n2"):
                await add(jobs, "a", "2")
                await second.log.has("begun 2 1")
                await add(jobs, "a", "3")
                await outcome_is(jobs, "1", "cancelled")
                with anyio.fail_after(30):
                    while first.log.count("begun 3") + second.log.count("begun 3") < 1:
                        await a_moment()
                assert first.log.count("cancelled 1 True") == 1
                assert second.log.count("cancelled") == 0
                assert (await jobs.dead()) == []


async def test_more_slots_count_at_once_and_fewer_when_calls_end(jobs: Jobs) -> None:
    calls = KeyedCalls()
    async with governed(jobs):
        async with working(jobs, handler(calls.handle), settings={**BY_M, "slots": 1}) as work:
            await add(jobs, "a", *(f"{n}" for n in range(8)))
            await calls.log.until(lambda log: log.count("begun") == 1)
            await work.topics.change("mail", {"slots": 3})
            await calls.log.until(lambda log: log.count("begun") == 3)
            await work.topics.change("mail", {"slots": 1})
            calls.release.set()
            await calls.log.until(lambda log: log.count("ended") == 8)
            await work.topics.change("mail", {"slots": 0})
            calls.release = anyio.Event()
            await add(jobs, "a", "c0", "c1", "c2", "c3", "c4")
            await calls.log.until(lambda log: log.count("begun c") == 5)
    assert calls.most == {"a": 5}


async def test_a_job_without_the_field_counts_under_the_empty_key(jobs: Jobs) -> None:
    calls = KeyedCalls()
    async with governed(jobs):
        async with working(jobs, handler(calls.handle), settings={**BY_M, "slots": 1, "slot_key": "x.y"}):
            await add(jobs, "a", "1")
            await calls.log.has("begun 1 1")
            await jobs.add("2", body=[1])
            await jobs.add("3", body={"m": "b", "x": {"y": 5}})
            await calls.log.has("begun 3 1")
            assert calls.log.count("begun 2") == 0
            calls.release.set()
            await calls.log.has("begun 2 1")


async def test_a_call_whose_slot_is_not_renewed_is_cancelled_and_its_job_runs_again(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_held, "LIFE_S", 1.5)
    calls = KeyedCalls()
    async with working(jobs, handler(calls.handle), settings=BY_M):
        async with governed(jobs):
            await add(jobs, "a", "1")
            await calls.log.has("begun 1 1")
        # Nobody governs any more. A late machine may have cancelled it before, too.
        await calls.log.until(lambda log: log.count("begun 1 1") == log.count("cancelled 1 True"))
        begun = calls.log.count("begun 1 1")
        async with governed(jobs):
            await calls.log.until(lambda log: log.count("begun 1 1") > begun)
            calls.release.set()
            await calls.log.has("ended 1")


async def outcome_is(jobs: Jobs, job_id: str, outcome: str) -> None:
    """Wait until the job has ended so."""
    with anyio.fail_after(30):
        while True:
            found = await jobs.store.find("mail", job_id)
            if found is not None and found.done is not None:
                assert found.done.outcome == outcome
                return
            await a_moment()


async def test_a_person_learns_who_has_the_slot_that_a_job_waits_for(jobs: Jobs) -> None:
    calls = KeyedCalls()
    async with governed(jobs):
        async with working(jobs, handler(calls.handle), settings={**BY_M, "slots": 1}, node="n1") as work:
            await add(jobs, "a", "1", "2")
            await calls.log.until(lambda log: log.count("begun") == 1)
            obstacles = Obstacles(
                jobs.connection, work.topics, lambda _topic: ["n1"], SYSTEM, Anywhere(), lambda _topic, _name: ""
            )
            with anyio.fail_after(30):
                while True:
                    found = await jobs.store.find("mail", "2")
                    assert found is not None
                    [told] = await obstacles.of([found])
                    if told.reason.startswith("the one slot of its key 'a' is taken: n1 has 1"):
                        break
                    await a_moment()
            assert told.code == "slot"
            calls.release.set()
            await until_gone(jobs, "2")
