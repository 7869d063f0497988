"""Jobs, receipts and topics over plain HTTP."""

from typing import Any

import anyio
import pytest
from aiohttp import ClientSession

from tests.support.moments import a_moment

pytestmark = pytest.mark.three_servers


async def call(client: ClientSession, method: str, path: str, body: object = None, status: int = 200) -> Any:
    async with client.request(method, path, json=body) as response:
        told = await response.json(content_type=None)
        assert response.status == status, told
        return told


async def until_counted(client: ClientSession, topic: str, state: str, count: int) -> None:
    """Wait until every server has what was stored: counts and lists may be a moment old on three."""
    with anyio.fail_after(20):
        while (await call(client, "GET", f"/v1/topics/{topic}"))[state] != count:
            await a_moment()


async def add(client: ClientSession, topic: str, body: object, status: int = 201) -> Any:
    return await call(client, "POST", f"/v1/topics/{topic}/jobs", body, status)


async def reserve(client: ClientSession, topic: str, **asked: object) -> list[dict[str, Any]]:
    told = await call(client, "POST", f"/v1/topics/{topic}/reserve", {"wait_ms": 10_000, **asked})
    jobs: list[dict[str, Any]] = told["jobs"]
    return jobs


async def settle(client: ClientSession, how: str, *receipts: str, **asked: object) -> list[dict[str, Any]]:
    told = await call(client, "POST", f"/v1/receipts/{how}", {"receipts": receipts, **asked})
    answers: list[dict[str, Any]] = told["answers"]
    assert told["ok"] == [one["code"] for one in answers].count("ok")
    return answers


async def test_a_job_is_added_reserved_and_finished(client: ClientSession, topic: str) -> None:
    added = await add(client, topic, {"id": "a/b ü", "body": {"n": [1, 2]}, "ttr_ms": 30_000, "attempts": 3})
    assert {**added, "due_ms": 0} == {"topic": topic, "id": "a/b ü", "state": "ready", "due_ms": 0, "is_new": True}
    (job,) = await reserve(client, topic)
    assert (job["id"], job["body"], job["attempt"], job["most_attempts"]) == ("a/b ü", {"n": [1, 2]}, 1, 3)
    assert 25_000 < job["until_ms"] - added["due_ms"] < 60_000
    assert [one["code"] for one in await settle(client, "finish", job["receipt"])] == ["ok"]
    await call(client, "GET", f"/v1/topics/{topic}/jobs/a%2Fb%20%C3%BC", status=404)


async def test_a_list_is_answered_one_by_one(client: ClientSession, topic: str) -> None:
    jobs: list[dict[str, object]] = [{"id": str(number), "delay_ms": 60_000} for number in range(1000)]
    jobs[7] = {"id": "7", "delay_ms": -1}
    told = await add(client, topic, jobs, 200)
    assert told["added"] == 999
    statuses = [one["status"] for one in told["answers"]]
    assert (statuses.count(201), statuses[7]) == (999, 422)
    assert told["answers"][7]["what"] == "delay_ms"
    await until_counted(client, topic, "delayed", 999)


async def test_a_reserve_brings_as_many_as_it_asks_for_while_there_are_as_many(
    client: ClientSession, topic: str
) -> None:
    """On three servers it brought none, 24 times of 26."""
    jobs = [{"id": str(number)} for number in range(1000)]
    assert (await add(client, topic, jobs, 200))["added"] == 1000
    await until_counted(client, topic, "ready", 1000)
    held = [await reserve(client, topic, most=100)]
    while sum(map(len, held)) < 1000:
        held.append(await reserve(client, topic, most=100))
    assert len(held) <= 12, "a server may be a moment behind, once"
    assert {job["id"] for jobs in held for job in jobs} == {job["id"] for job in jobs}
    assert await reserve(client, topic, most=100, wait_ms=0) == []


async def test_without_an_id_one_is_made(client: ClientSession, topic: str) -> None:
    first, second = await add(client, topic, {}), await add(client, topic, {})
    assert first["id"]
    assert first["id"] != second["id"]


async def test_the_same_id_is_kept_replaced_or_refused(client: ClientSession, topic: str) -> None:
    job = {"id": "1", "body": "a", "delay_ms": 60_000}
    await add(client, topic, job)
    assert (await add(client, topic, job, 200))["is_new"] is False
    other = await add(client, topic, {**job, "body": "b"}, 409)
    assert (other["code"], other["what"]) == ("exists", "id")
    assert "on_same=replace" in other["hint"]
    assert (await add(client, topic, {**job, "on_same": "error"}, 409))["code"] == "exists"
    assert (await add(client, topic, {**job, "body": "b", "on_same": "replace"}))["is_new"] is True
    assert (await call(client, "GET", f"/v1/topics/{topic}/jobs/1"))["body"] == "b"


async def test_a_key_used_again_is_told_as_it_is(client: ClientSession, topic: str) -> None:
    """By then its job is over: the same body is a repeat, another is not."""
    path, key = f"/v1/topics/{topic}/jobs", {"Idempotency-Key": "k"}
    async with client.post(path, json={"id": "1", "body": 1}, headers=key) as first:
        assert first.status == 201
    (job,) = await reserve(client, topic)
    await settle(client, "finish", job["receipt"])
    async with client.post(path, json={"id": "1", "body": 1}, headers=key) as same:
        assert (same.status, (await same.json())["state"]) == (201, "done")
    async with client.post(path, json={"id": "1", "body": 2}, headers=key) as other:
        told = await other.json()
        assert (other.status, told["code"]) == (422, "bad")
        assert "this one was not added" in told["detail"]


async def test_a_repeat_of_a_kick_with_its_key_makes_no_later_job_ready(client: ClientSession, topic: str) -> None:
    path, later = f"/v1/topics/{topic}/jobs/1", {"id": "1", "delay_ms": 3_600_000}
    await add(client, topic, later)
    for key, state in (("k", "ready"), ("k", "delayed"), ("other", "ready")):
        async with client.post(f"{path}/kick", headers={"Idempotency-Key": key}) as answer:
            assert (answer.status, (await answer.json())["done"]) == (200, "kicked")
        assert (await call(client, "GET", path))["state"] == state
        await add(client, topic, {**later, "on_same": "replace"})


async def test_a_repeat_of_a_trigger_with_its_key_adds_no_second_job(client: ClientSession, topic: str) -> None:
    path, ids = f"/v1/topics/{topic}/schedules", list[str]()
    await call(client, "POST", path, {"name": "daily", "cron": "@daily"}, status=201)
    for headers in ({"Idempotency-Key": "k"}, {"Idempotency-Key": "k"}, {"Idempotency-Key": "other"}, {}, {}):
        async with client.post(f"{path}/daily/trigger", headers=headers) as answer:
            ids.append((await answer.json())["id"])
    assert (ids[0] == ids[1], len(set(ids))) == (True, 4)


async def test_a_key_used_again_for_another_change_of_a_schedule_is_another_call(
    client: ClientSession, topic: str
) -> None:
    """The third is a late try of the first."""
    path, key, told = f"/v1/topics/{topic}/schedules", {"Idempotency-Key": "k"}, list[str]()
    for cron in ("@daily", "@hourly", "@daily"):
        async with client.post(path, json={"name": "one", "cron": cron, "replace": True}, headers=key) as answer:
            told.append((await answer.json())["schedule"]["cron"])
    assert told == ["@daily", "@hourly", "@hourly"]


@pytest.mark.parametrize("key", ["a b", "ü", "x" * 252])
async def test_a_key_that_is_none_is_named(client: ClientSession, topic: str, key: str) -> None:
    async with client.post(f"/v1/topics/{topic}/jobs", json={}, headers={"Idempotency-Key": key}) as answer:
        told = await answer.json()
        assert (answer.status, told["what"]) == (400, "Idempotency-Key")


async def test_the_longest_key_serves_a_list(client: ClientSession, topic: str) -> None:
    path, key = f"/v1/topics/{topic}/jobs", {"Idempotency-Key": "x" * 251}
    for _ in range(2):
        async with client.post(path, json=[{"body": n} for n in range(1000)], headers=key) as answer:
            assert (await answer.json())["added"] == 1000
    await until_counted(client, topic, "ready", 1000)


async def test_what_a_topic_remembers_is_told_to_who_deletes_it_or_adds_it(client: ClientSession, topic: str) -> None:
    await call(client, "PATCH", f"/v1/topics/{topic}", {"remember": "10m"})
    await add(client, topic, {"id": topic})
    (job,) = await reserve(client, topic)
    await settle(client, "finish", job["receipt"])
    deleted = await call(client, "DELETE", f"/v1/topics/{topic}/jobs/{topic}", status=404)
    assert deleted["detail"] == "it is over already"
    gone = await call(client, "POST", "/queue", {"command": "delete", "topic": topic, "id": topic})
    assert gone["error"] == "not_found: it is over already"
    again = await add(client, topic, {"id": topic}, 409)
    assert (again["code"], again["detail"].rpartition("; ")[2]) == ("over", "use another id, or on_same=replace")
    again = await call(client, "POST", "/queue", {"command": "add", "topic": topic, "id": topic})
    assert again["error"].endswith("is over, and nothing was added"), "that protocol has no on_same"


async def test_a_long_poll_answers_when_a_job_becomes_ready(client: ClientSession, topic: str) -> None:
    answers: list[list[dict[str, Any]]] = []

    async def wait() -> None:
        answers.append(await reserve(client, topic, most=5, wait_ms=30_000))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await add(client, topic, {"id": "1", "delay_ms": 500})
    assert [job["id"] for job in answers[0]] == ["1"]


async def test_nothing_ready_is_an_empty_answer(client: ClientSession, topic: str) -> None:
    assert await reserve(client, topic, wait_ms=0) == []
    assert await reserve(client, topic, wait_ms=50) == []
    async with client.post(f"/v1/topics/{topic}/reserve") as response:
        assert (response.status, await response.json()) == (200, {"jobs": []})


async def test_receipts_are_touched_released_and_buried(client: ClientSession, topic: str) -> None:
    await add(client, topic, [{"id": str(number)} for number in range(3)], 200)
    jobs: dict[str, dict[str, Any]] = {}
    while len(jobs) < 3:
        jobs.update((job["id"], job) for job in await reserve(client, topic, most=3))
    (touched,) = await settle(client, "touch", jobs["0"]["receipt"], ttr_ms=120_000)
    assert touched["until_ms"] > jobs["0"]["until_ms"]
    (released,) = await settle(client, "release", jobs["1"]["receipt"], delay_ms=0, reason="later")
    (buried,) = await settle(client, "bury", jobs["2"]["receipt"], reason="no use")
    assert (released["code"], buried["code"]) == ("ok", "ok")
    (again,) = await reserve(client, topic)
    assert (again["id"], again["attempt"]) == ("1", 2)
    answers = await settle(client, "finish", jobs["0"]["receipt"], jobs["1"]["receipt"], "no.such.1.receipt", "junk")
    assert [one["code"] for one in answers] == ["ok", "stale", answers[2]["code"], "bad"]
    assert answers[2]["code"] in ("stale", "bad")


async def test_a_deleted_job_is_not_handed_out_and_its_receipt_is_stale(client: ClientSession, topic: str) -> None:
    await add(client, topic, {"id": "1"})
    (job,) = await reserve(client, topic)
    assert (await call(client, "DELETE", f"/v1/topics/{topic}/jobs/1"))["done"] == "deleted"
    (answer,) = await settle(client, "finish", job["receipt"])
    assert answer["code"] == "stale"
    missing = await call(client, "DELETE", f"/v1/topics/{topic}/jobs/1", status=404)
    assert (missing["code"], missing["what"], missing["value"]) == ("not_found", "id", "1")


async def test_a_delayed_job_is_kicked(client: ClientSession, topic: str) -> None:
    await add(client, topic, {"id": "1", "delay_ms": 3_600_000})
    assert (await call(client, "POST", f"/v1/topics/{topic}/jobs/1/kick"))["done"] == "kicked"
    assert [job["id"] for job in await reserve(client, topic)] == ["1"]
    assert (await call(client, "POST", f"/v1/topics/{topic}/jobs/1/kick", status=404))["code"] == "not_found"


async def test_lists_come_in_pages(client: ClientSession, topic: str) -> None:
    await add(client, topic, [{"id": f"{number:03}", "delay_ms": 60_000, "body": number} for number in range(25)], 200)
    await until_counted(client, topic, "delayed", 25)
    found, after = list[str](), ""
    for _ in range(10):
        query = f"state=delayed&limit=10{f'&after={after}' if after else ''}"
        page = await call(client, "GET", f"/v1/topics/{topic}/jobs?{query}")
        assert len(page["jobs"]) <= 10
        found += [job["id"] for job in page["jobs"]]
        after = page.get("next", "")
        if not after:
            break
    assert sorted(found) == [f"{number:03}" for number in range(25)]


async def test_a_topics_settings_are_shown_and_changed(client: ClientSession, topic: str) -> None:
    assert (await call(client, "GET", f"/v1/topics/{topic}"))["settings"]["attempts"] == 10
    changed = await call(client, "PATCH", f"/v1/topics/{topic}", {"attempts": 3, "ttr": "5s", "is_paused": True})
    assert changed["settings"]["attempts"] == 3
    assert changed["settings"]["is_paused"] is True
    assert changed["settings"]["ttr"] == "5s"
    back = await call(client, "PATCH", f"/v1/topics/{topic}", {"attempts": None, "is_paused": None})
    assert (back["settings"]["attempts"], back["settings"]["ttr"]) == (10, "5s")
    bad = await call(client, "PATCH", f"/v1/topics/{topic}", {"ttr": "5"}, 422)
    assert (bad["what"], bad["code"]) == ("ttr", "bad")
    unknown = await call(client, "PATCH", f"/v1/topics/{topic}", {"atempts": 3}, 422)
    assert "atempts" in unknown["detail"]


async def test_a_paused_topic_hands_out_nothing_until_it_goes_on(client: ClientSession, topic: str) -> None:
    await call(client, "PATCH", f"/v1/topics/{topic}", {"is_paused": True})
    await add(client, topic, {"id": "1"})
    with anyio.fail_after(30):
        while await reserve(client, topic, wait_ms=0):  # the pause is heard of within a moment
            await a_moment()
    answers: list[list[dict[str, Any]]] = []

    async def wait() -> None:
        answers.append(await reserve(client, topic, wait_ms=30_000))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await call(client, "PATCH", f"/v1/topics/{topic}", {"is_paused": False})
    assert [job["id"] for job in answers[0]] == ["1"]


async def test_topics_are_listed_with_their_counts(client: ClientSession, topic: str) -> None:
    await add(client, f"{topic}-a", {"delay_ms": 60_000})
    await add(client, f"{topic}-b", {})
    page = await call(client, "GET", f"/v1/topics?after={topic}&limit=1")
    assert page["topics"] == [{"topic": f"{topic}-a", "delayed": 1, "ready": 0, "reserved": 0, "done": 0}]
    page = await call(client, "GET", f"/v1/topics?after={page['next']}&limit=1")
    assert page["topics"][0]["topic"] == f"{topic}-b"


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_health_is_told(client: ClientSession, path: str) -> None:
    assert await call(client, "GET", path) == {"status": "ok"}
    async with client.head(path) as response:
        assert (response.status, await response.read()) == (200, b"")
        assert response.headers["Content-Length"] == str(len(b'{"status":"ok"}'))


async def test_the_document_is_served(client: ClientSession) -> None:
    document = await call(client, "GET", "/schema")
    assert document["openapi"].startswith("3.1")
    assert document == await call(client, "GET", "/schema/openapi.json")
    assert "/v1/topics/{topic}/jobs" in document["paths"]
