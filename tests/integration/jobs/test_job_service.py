"""The desk as a service: JSON in and out, one or several at once, errors by the protocol; and the `nats` command."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from penstock.api.service.service import SERVICES
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from tests.support.desks import TOPIC, Office, open_office, open_service
from tests.support.moments import a_moment
from tests.support.natscli import NatsCli

pytestmark = pytest.mark.three_servers


class Answer(NamedTuple):
    """What the service says. `number` is 0 where it is no error."""

    number: int
    told: Any


@pytest.fixture
async def office(connection: Connection) -> AsyncIterator[Office]:
    async with open_office(connection) as opened, open_service(opened):
        yield opened


async def ask(office: Office, endpoint: str, asked: object = None, *, raw: bytes | None = None) -> Answer:
    payload = raw if raw is not None else b"" if asked is None else json.dumps(asked).encode()
    answer = await office.connection.request(office.namespace.api("jobs", endpoint), payload, timeout_s=30)
    return Answer(int(answer.headers.get("Nats-Service-Error-Code", "0")), json.loads(answer.payload))


async def test_a_job_goes_all_the_way(office: Office) -> None:
    added = await ask(office, "add", {"topic": TOPIC, "id": "a", "body": {"to": 7}})
    assert (added.number, added.told["code"], added.told["state"]) == (0, "ok", "ready")
    reserved = await ask(office, "reserve", {"topic": TOPIC, "wait_ms": 10_000, "holder": "me"})
    [job] = reserved.told["jobs"]
    assert (job["id"], job["body"], job["attempt"]) == ("a", {"to": 7}, 1)
    touched = await ask(office, "touch", {"receipt": job["receipt"], "ttr_ms": 90_000})
    assert touched.told["until_ms"] > job["until_ms"]
    assert (await ask(office, "count", {"topic": TOPIC})).told["reserved"] == 1
    assert (await ask(office, "peek", {"topic": TOPIC, "id": "a"})).told["holder"] == "me"
    assert (await ask(office, "finish", {"receipt": job["receipt"]})).told["code"] == "ok"
    assert (await ask(office, "peek", {"topic": TOPIC, "id": "a"})).number == 404


async def test_several_at_once_are_answered_one_by_one(office: Office) -> None:
    jobs: list[object] = [{"topic": TOPIC, "id": f"{n}"} for n in range(4)]
    jobs[2] = {"topic": TOPIC, "id": 7}
    answers = (await ask(office, "add", jobs)).told["answers"]
    assert [answer["code"] for answer in answers] == ["ok", "ok", "bad", "ok"]
    assert "job 2 of the list" in answers[2]["reason"]
    held = (await ask(office, "reserve", {"topic": TOPIC, "most": 10, "wait_ms": 10_000})).told["jobs"]
    receipts = [job["receipt"] for job in held]
    released = await ask(office, "release", {"receipts": receipts[:1], "delay_ms": 3_600_000, "reason": "later"})
    assert [answer["code"] for answer in released.told["answers"]] == ["ok"]
    finished = await ask(office, "finish", {"receipts": receipts})
    assert [answer["code"] for answer in finished.told["answers"]] == ["stale", "ok", "ok"]


async def test_hundreds_are_reserved_and_finished(office: Office) -> None:
    jobs = [{"topic": TOPIC, "id": str(number)} for number in range(300)]
    assert {answer["code"] for answer in (await ask(office, "add", jobs)).told["answers"]} == {"ok"}
    receipts: list[str] = []
    while len(receipts) < 300:
        held = (await ask(office, "reserve", {"topic": TOPIC, "most": 100, "wait_ms": 10_000})).told["jobs"]
        assert held
        receipts += [job["receipt"] for job in held]
    finished = (await ask(office, "finish", {"receipts": receipts})).told["answers"]
    assert [answer["code"] for answer in finished] == ["ok"] * 300


async def test_one_alone_that_is_refused_is_an_error(office: Office) -> None:
    refused = await ask(office, "add", {"topic": TOPIC, "delay_ms": -1})
    assert (refused.number, refused.told["error"]["code"], refused.told["error"]["field"]) == (400, "bad", "delay_ms")
    await ask(office, "add", {"topic": TOPIC, "id": "a", "on_same": "error"})
    taken = await ask(office, "add", {"topic": TOPIC, "id": "a", "on_same": "error", "body": 2})
    assert (taken.number, taken.told["error"]["code"], taken.told["error"]["state"]) == (409, "exists", "ready")
    [job] = (await ask(office, "reserve", {"topic": TOPIC, "wait_ms": 10_000})).told["jobs"]
    assert (await ask(office, "bury", {"receipt": job["receipt"], "reason": "poison"})).number == 0
    stale = await ask(office, "touch", {"receipt": job["receipt"]})
    assert (stale.number, stale.told["error"]["code"]) == (409, "stale")
    for endpoint, asked in (("peek", {"topic": TOPIC, "id": "b"}), ("delete", {"id": "b"}), ("finish", {"id": "b"})):
        unknown = await ask(office, endpoint, asked)
        assert (unknown.number, unknown.told["error"]["code"]) == (404, "not_found")


async def test_topics_are_shown_and_changed(office: Office) -> None:
    await ask(office, "add", {"topic": TOPIC})
    changed = await ask(office, "topic", {"topic": TOPIC, "set": {"is_paused": True, "ttr": "90s"}})
    assert (changed.told["settings"]["is_paused"], changed.told["settings"]["ttr"]) == (True, "90s")
    while not (await ask(office, "topic", {"topic": TOPIC})).told["settings"]["is_paused"]:
        await a_moment()
    assert [one["topic"] for one in (await ask(office, "topics")).told["topics"]] == [TOPIC]
    assert (await ask(office, "reserve", {"topic": TOPIC})).told["jobs"] == []
    bad = await ask(office, "topic", {"topic": TOPIC, "set": {"tttr": "9s"}})
    assert (bad.number, bad.told["error"]["field"]) == (400, "tttr")


async def test_kicked_deleted_and_finished_by_id(office: Office) -> None:
    await ask(office, "add", [{"topic": TOPIC, "id": one, "delay_ms": 3_600_000} for one in ("a", "b", "c")])
    assert (await ask(office, "kick", {"topic": TOPIC, "id": "a"})).told == {"kicked": 1}
    assert (await ask(office, "kick", {"topic": TOPIC})).told == {"kicked": 1}
    assert (await ask(office, "delete", {"id": "c"})).told["code"] == "ok"
    held = (await ask(office, "reserve", {"topic": TOPIC, "most": 2, "wait_ms": 10_000})).told["jobs"]
    assert sorted(job["id"] for job in held) == ["a", "b"]
    assert (await ask(office, "finish", {"id": "a"})).told["code"] == "ok"


async def test_long_polls_hold_up_nothing(office: Office) -> None:
    found: list[Answer] = []

    async def poll() -> None:
        found.append(await ask(office, "reserve", {"topic": TOPIC, "wait_ms": 30_000}))

    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(poll)
        while office.desk._handout.waiting < 40:
            await a_moment()
        await ask(office, "add", [{"topic": TOPIC, "id": f"{n}"} for n in range(40)])
    assert sorted(int(answer.told["jobs"][0]["id"]) for answer in found) == list(range(40))


async def test_a_node_that_stops_ends_its_long_polls_and_answers_them(connection: Connection) -> None:
    found: list[Answer] = []
    async with open_office(connection) as office, anyio.create_task_group() as tasks:
        async with open_service(office) as stop:
            await office.topics.use(TOPIC, "normal")

            async def poll() -> None:
                found.append(await ask(office, "reserve", {"topic": TOPIC, "wait_ms": 50_000}))

            tasks.start_soon(poll)
            while not office.desk._handout.waiting:
                await a_moment()
            stop.set()
    assert found == [Answer(0, {"jobs": []})]


async def test_an_answer_always_fits_into_a_message(office: Office) -> None:
    """A thousand jobs of nearly a kilobyte do not: some are left for the next."""
    jobs = [{"topic": TOPIC, "id": f"{n:04}", "body": "x" * 900} for n in range(1000)]
    for start in range(0, 1000, 500):
        await ask(office, "add", jobs[start : start + 500])
    ids: set[str] = set()
    while len(ids) < 1000:
        answer = await ask(office, "reserve", {"topic": TOPIC, "most": 1000, "wait_ms": 10_000})
        assert answer.number == 0
        ids |= {job["id"] for job in answer.told["jobs"]}
    listed = await ask(office, "list", {"topic": TOPIC, "state": "reserved", "limit": 1000})
    assert listed.number == 0
    assert 0 < len(listed.told["jobs"]) < 1000
    assert listed.told["after"]


async def test_while_the_broker_takes_nothing_the_answer_says_so(office: Office) -> None:
    await ask(office, "add", {"topic": TOPIC, "id": "a"})
    await office.connection.api(f"STREAM.DELETE.{office.namespace.stream('JOBS')}")
    missing = await ask(office, "peek", {"topic": TOPIC, "id": "a"})
    assert (missing.number, missing.told["error"]["code"]) == (503, "unavailable")


async def test_the_nats_command_lists_and_asks_it(server: EmbeddedServer, office: Office, tmp_path: Path) -> None:
    nats = NatsCli.or_skip(server.url, tmp_path)
    assert SERVICES["jobs"].name in await nats.run("micro", "ls")
    told = await nats.run("req", office.namespace.api("jobs", "add"), '{"topic": "mail", "id": "by-hand"}', "--raw")
    assert json.loads(told)["id"] == "by-hand"
    told = await nats.run("req", office.namespace.api("jobs", "reserve"), '{"topic": "mail"}', "--raw")
    [job] = json.loads(told)["jobs"]
    told = await nats.run(
        "req", office.namespace.api("jobs", "finish"), json.dumps({"receipt": job["receipt"]}), "--raw"
    )
    assert json.loads(told)["code"] == "ok"
