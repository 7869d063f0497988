"""Tokens over HTTP: who is let in, to which topics, for what; and how they change while the gateway runs."""

import logging
from typing import Any

import anyio
import pytest
from aiohttp import ClientSession

from actors.runtime.logs import FACTS
from penstock.api.http import door
from penstock.api.http.tokens import (
    VERBS,
    BadToken,
    TokenWish,
    create_token,
    forget_tokens,
    list_tokens,
    revoke_token,
    rotate_token,
)
from streams.clock import now_ms
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.gateway import RunningGateway, SharedGateway, running_gateway
from tests.support.moments import a_moment

pytestmark = pytest.mark.three_servers


async def call(
    gateway: SharedGateway | RunningGateway, token: str, method: str, path: str, body: object = None
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with ClientSession(gateway.url, headers=headers) as client:
        async with client.request(method, path, json=body) as response:
            return response.status, await response.json(content_type=None)


async def status(gateway: SharedGateway | RunningGateway, token: str, method: str, path: str, body: Any = None) -> int:
    return (await call(gateway, token, method, path, body))[0]


async def test_without_a_valid_token_nothing_is_told(guarded_gateway: SharedGateway, topic: str) -> None:
    good = guarded_gateway.token(topic)
    for wrong in ("", good[:-1] + ("a" if good[-1] != "a" else "b"), good + "x", "pst_0000000000_" + "a" * 43):
        code, problem = await call(guarded_gateway, wrong, "GET", "/v1/topics")
        assert (code, problem["code"]) == (401, "unauthorized")
        assert "what" not in problem
    assert await status(guarded_gateway, good, "GET", "/v1/topics") == 200
    for path in ("/health", "/ready", "/schema"):
        assert await status(guarded_gateway, "", "GET", path) == 200


@pytest.mark.parametrize(
    ("verb", "allowed"),
    [
        ("add", {"add"}),
        ("reserve", {"reserve", "push"}),
        ("settle", {"finish", "touch", "release", "bury"}),
        ("delete", {"delete"}),
        ("read", {"show", "list", "topic", "topics"}),
        ("admin", {"kick", "change"}),
    ],
)
async def test_a_token_does_what_its_verbs_say_and_no_more(
    guarded_gateway: SharedGateway, topic: str, verb: str, allowed: set[str]
) -> None:
    token = guarded_gateway.token(f"{topic}-{verb}", verbs=(verb,))
    path, receipts = f"/v1/topics/{topic}", {"receipts": ["a.b.1.c"]}
    calls: dict[str, tuple[str, str, object]] = {
        "add": ("POST", f"{path}/jobs", {}),
        "reserve": ("POST", f"{path}/reserve", {}),
        "push": ("POST", f"{path}/reservations?most=0", None),
        "finish": ("POST", "/v1/receipts/finish", receipts),
        "touch": ("POST", "/v1/receipts/touch", receipts),
        "release": ("POST", "/v1/receipts/release", receipts),
        "bury": ("POST", "/v1/receipts/bury", receipts),
        "delete": ("DELETE", f"{path}/jobs/1", None),
        "show": ("GET", f"{path}/jobs/1", None),
        "list": ("GET", f"{path}/jobs", None),
        "topic": ("GET", path, None),
        "topics": ("GET", "/v1/topics", None),
        "kick": ("POST", f"{path}/jobs/1/kick", None),
        "change": ("PATCH", path, {"attempts": 5}),
    }
    refused = {
        name
        for name, (how, where, body) in calls.items()
        if await status(guarded_gateway, token, how, where, body) == 403
    }
    assert refused == calls.keys() - allowed


async def test_the_original_protocol_has_the_same_verbs(guarded_gateway: SharedGateway, topic: str) -> None:
    token = guarded_gateway.token(topic, verbs=("add",), topics=(topic,))
    commands = [
        {"command": "add", "topic": topic, "id": topic},
        {"command": "add", "topic": "other", "id": topic},
        {"command": "pop", "topic": topic},
        {"command": "finish", "id": topic},
        {"command": "delete", "id": topic},
    ]
    assert [await status(guarded_gateway, token, "POST", "/queue", one) for one in commands] == [
        200,
        403,
        403,
        403,
        403,
    ]


async def test_a_topic_that_is_not_the_tokens_is_refused_whether_or_not_it_is_there(
    guarded_gateway: SharedGateway, topic: str
) -> None:
    token = guarded_gateway.token(topic, topics=(f"{topic}-*",))
    anybody = guarded_gateway.token(f"{topic}-all")
    assert await status(guarded_gateway, anybody, "POST", f"/v1/topics/{topic}/jobs", {"id": "1"}) == 201
    there = await call(guarded_gateway, token, "GET", f"/v1/topics/{topic}/jobs/1")
    assert there == await call(guarded_gateway, token, "GET", f"/v1/topics/x{topic}/jobs/1")
    assert there[0] == 403
    assert await status(guarded_gateway, token, "POST", f"/v1/topics/{topic}-a/jobs", {"id": "1"}) == 201


async def test_rates_flows_and_zones_beyond_its_topics_are_not_the_tokens(
    guarded_gateway: SharedGateway, topic: str
) -> None:
    own = guarded_gateway.token(f"{topic}-admin", topics=(f"{topic}-own*",), verbs=("add", "read", "admin"))
    whole = guarded_gateway.token(f"{topic}-whole", topics=("*",), verbs=("add", "read", "admin"))
    for name in (f"{topic}-own", f"{topic}-other"):
        assert await status(guarded_gateway, whole, "POST", f"/v1/topics/{name}/jobs", {}) == 201
        await _until_known(guarded_gateway, whole, name)
        assert await status(guarded_gateway, whole, "PATCH", f"/v1/rates/topic/{name}", {"rate": 7}) == 200
    assert await status(guarded_gateway, own, "PATCH", f"/v1/rates/topic/{topic}-own", {"rate": 8}) == 200
    assert await status(guarded_gateway, own, "GET", f"/v1/rates/topic/{topic}-own") == 200
    for method, path in (
        ("PATCH", f"/v1/rates/topic/{topic}-other"),
        ("GET", f"/v1/rates/topic/{topic}-other"),
        ("PATCH", "/v1/rates/task/nobody"),
        ("PATCH", "/v1/flows/nobody"),
        ("POST", "/v1/flows/nobody/pause"),
        ("GET", "/v1/flows/nobody"),
        ("POST", "/v1/zones/nobody/drain"),
        ("POST", "/v1/zones/nobody/restore"),
        ("PATCH", "/v1/routing"),
    ):
        body = None if method == "GET" else {"rate": 9} if "/rates/" in path else {}
        assert await status(guarded_gateway, own, method, path, body) == 403, path
    assert await status(guarded_gateway, whole, "GET", f"/v1/rates/topic/{topic}-other") == 200
    found: dict[str, list[str]] = {}
    for token in (own, whole):
        _, listed = await call(guarded_gateway, token, "GET", "/v1/rates?limit=1000")
        found[token] = [each["name"] for each in listed["rates"]]
    assert found[own] == [f"{topic}-own"]
    assert {f"{topic}-own", f"{topic}-other"} <= set(found[whole])


async def test_a_schedule_looks_at_sources_of_its_token_alone(guarded_gateway: SharedGateway, topic: str) -> None:
    patterns = (f"{topic}-*", "teashop/s1")
    token = guarded_gateway.token(f"{topic}-looks", topics=patterns, verbs=("read", "admin"))
    for source, expected in (("teashop/s2", 403), ("teashop/s1", 422)):  # there is none, which is for its token to know
        wanted = {"name": "looks", "every": "1h", "source": source}
        assert await status(guarded_gateway, token, "POST", f"/v1/topics/{topic}-a/schedules", wanted) == expected


async def _until_known(gateway: SharedGateway, token: str, topic: str) -> None:
    with anyio.fail_after(30):
        while await status(gateway, token, "GET", f"/v1/rates/topic/{topic}") != 200:
            await a_moment()


async def test_two_tenants_use_one_topic_and_never_meet(guarded_gateway: SharedGateway, topic: str) -> None:
    north, south = (guarded_gateway.token(f"{topic}-{name}", namespace=f"{topic}{name}") for name in "ns")
    everybody = guarded_gateway.token(topic)
    jobs = f"/v1/topics/{topic}/jobs"
    for token, body in ((north, "north"), (south, "south")):
        code, added = await call(guarded_gateway, token, "POST", jobs, {"id": "1", "body": body})
        assert (code, added["topic"], added["is_new"]) == (201, topic, True)

    _, told = await call(guarded_gateway, north, "POST", f"/v1/topics/{topic}/reserve", {"wait_ms": 10_000})
    (job,) = told["jobs"]
    assert (job["topic"], job["body"]) == (topic, "north")
    assert job["receipt"].startswith(f"{topic}.")
    receipts = {"receipts": [job["receipt"]]}
    _, foreign = await call(guarded_gateway, south, "POST", "/v1/receipts/finish", receipts)
    assert foreign["answers"][0]["code"] == "stale"
    _, plain = await call(guarded_gateway, everybody, "POST", "/v1/receipts/finish", receipts)
    assert plain["answers"][0]["code"] == "stale"
    _, own = await call(guarded_gateway, north, "POST", "/v1/receipts/finish", receipts)
    assert own["answers"][0]["code"] == "ok"

    _, finished = await call(guarded_gateway, north, "POST", "/queue", {"command": "delete", "id": "nobodys"})
    _, theirs = await call(guarded_gateway, everybody, "DELETE", f"/v1/topics/{topic}/jobs/1")
    assert (finished["success"], theirs["code"]) == (False, "not_found")
    _, topics = await call(guarded_gateway, south, "GET", "/v1/topics")
    assert [one["topic"] for one in topics["topics"]] == [topic]
    _, listed = await call(guarded_gateway, everybody, "GET", "/v1/topics?limit=1000")
    assert not [one for one in listed["topics"] if "--" in one["topic"]]


async def test_an_id_alone_settles_nothing_of_another_tenant(guarded_gateway: SharedGateway, topic: str) -> None:
    north, south = (guarded_gateway.token(f"{topic}-{name}", namespace=f"{topic}{name}") for name in "ns")
    await call(guarded_gateway, north, "POST", "/queue", {"command": "add", "topic": "t", "id": topic})
    popped = await call(guarded_gateway, north, "POST", "/queue", {"command": "pop", "topic": "t", "timeout": 10})
    assert popped == (200, {"success": True, "id": topic, "value": ""})
    for command in ("finish", "delete"):
        _, reply = await call(guarded_gateway, south, "POST", "/queue", {"command": command, "id": topic})
        _, unknown = await call(guarded_gateway, south, "POST", "/queue", {"command": command, "id": f"x{topic}"})
        assert reply["success"] is False
        assert {**reply, "id": ""} == {**unknown, "id": ""}, "no telling whether another tenant has it"
    assert (await call(guarded_gateway, north, "POST", "/queue", {"command": "finish", "id": topic}))[1]["success"]


async def test_a_rate_holds_and_says_when_to_come_again(guarded_gateway: SharedGateway, topic: str) -> None:
    token = guarded_gateway.token(topic, rate=2.0)
    headers = {"Authorization": f"Bearer {token}"}
    async with ClientSession(guarded_gateway.url, headers=headers) as client:
        async with client.post(f"/v1/topics/{topic}/jobs", json=[{} for _ in range(100)]) as response:
            assert response.status == 200, "a batch is let in whole"
        async with client.get("/v1/topics") as response:
            problem = await response.json(content_type=None)
            assert (response.status, problem["code"]) == (429, "too_many")
            assert int(response.headers["Retry-After"]) == problem["retry_after_s"] > 30


async def test_a_quota_of_waiting_jobs_holds(guarded_gateway: SharedGateway, topic: str) -> None:
    token = guarded_gateway.token(topic, namespace=topic, most_waiting=10)
    code, _ = await call(guarded_gateway, token, "POST", "/v1/topics/t/jobs", [{"delay_ms": 60_000} for _ in range(10)])
    assert code == 200
    code, problem = await call(guarded_gateway, token, "POST", "/v1/topics/t/jobs", {})
    assert (code, problem["code"]) == (429, "quota")
    assert "10 jobs wait already; 10 may" in problem["detail"]


async def test_many_wrong_tokens_from_one_address_are_slowed_down_and_right_ones_are_not(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "FAILED_RATE", 0.001)
    async with running_gateway(connection, publisher) as gateway:
        good = await gateway.token("good")
        codes = [await status(gateway, "wrong", "GET", "/v1/topics") for _ in range(25)]
        assert codes == [401] * 20 + [429] * 5
        assert await status(gateway, good, "GET", "/v1/topics") == 200


async def test_tokens_are_made_rotated_and_revoked_live(connection: Connection, publisher: Publisher) -> None:
    async with running_gateway(connection, publisher) as gateway:
        assert await status(gateway, "", "GET", "/v1/topics") == 200, "open to this machine while there are none"
        first = await gateway.token("app", verbs=("read",))
        assert await status(gateway, "", "GET", "/v1/topics") == 401
        second, record = await rotate_token(gateway.tokens, "app", now_ms=now_ms())
        assert record.verbs == ("read",)
        with pytest.raises(BadToken, match="has 2 live tokens"):
            await create_token(gateway.tokens, TokenWish(name="app"), now_ms=now_ms())
        await _until(gateway, second, 200)
        assert await status(gateway, first, "GET", "/v1/topics") == 200, "both are valid meanwhile"
        (oldest, _) = await list_tokens(gateway.tokens)
        await revoke_token(gateway.tokens, "app", oldest.id, now_ms=now_ms())
        await _until(gateway, first, 401)
        assert await status(gateway, second, "GET", "/v1/topics") == 200
        await revoke_token(gateway.tokens, "app", now_ms=now_ms())
        await _until(gateway, second, 401)
        assert await status(gateway, "", "GET", "/v1/topics") == 401, "once there were tokens, one is needed"
        with pytest.raises(BadToken, match="has no token that is not revoked"):
            await revoke_token(gateway.tokens, "app", now_ms=now_ms())


async def test_after_the_last_token_the_way_to_open_it_is_named_and_works(
    connection: Connection, publisher: Publisher
) -> None:
    async with running_gateway(connection, publisher) as gateway:
        text = await gateway.token("only")
        assert "tokens add" not in (await call(gateway, "wrong", "GET", "/v1/topics"))[1]["detail"]
        with pytest.raises(BadToken, match="revoke it first"):
            await forget_tokens(gateway.tokens, "only", now_ms=now_ms())
        await revoke_token(gateway.tokens, "only", now_ms=now_ms())
        await _until(gateway, text, 401)
        for token in ("", text):
            code, problem = await call(gateway, token, "GET", "/v1/topics")
            assert (code, "penstock tokens add NAME" in problem["detail"]) == (401, True)
        again = await gateway.token("other")
        assert await status(gateway, again, "GET", "/v1/topics") == 200
        await revoke_token(gateway.tokens, "other", now_ms=now_ms())
        await forget_tokens(gateway.tokens, "only", now_ms=now_ms())
        await _until(gateway, again, 401)
        await forget_tokens(gateway.tokens, "other", now_ms=now_ms())
        await _until(gateway, "", 200)
        assert await list_tokens(gateway.tokens) == []


async def test_a_token_expires(connection: Connection, publisher: Publisher) -> None:
    async with running_gateway(connection, publisher) as gateway:
        text = await gateway.token("brief", expires_ms=now_ms() + 3_600_000)
        assert await status(gateway, text, "GET", "/v1/topics") == 200
        gateway.ahead_ms = 3_600_000
        assert await status(gateway, text, "GET", "/v1/topics") == 401


async def test_a_record_that_is_none_does_not_open_the_gateway(connection: Connection, publisher: Publisher) -> None:
    async with running_gateway(connection, publisher) as gateway:
        await gateway.tokens.put("app.1", b"{broken")
        await _until(gateway, "", 401)
        with pytest.raises(BadToken, match=r"record app\.1: is no token's"):
            await list_tokens(gateway.tokens)


async def test_only_the_hash_is_stored(connection: Connection, publisher: Publisher) -> None:
    async with running_gateway(connection, publisher) as gateway:
        text = await gateway.token("app")
        (entry,) = await gateway.tokens.entries()
        secret = text.split("_", 2)[2]
        assert len(secret) == 43, "256 bits"
        assert secret.encode() not in entry.value


async def test_who_deletes_kicks_and_changes_is_in_the_log(
    connection: Connection, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_gateway(connection, publisher) as gateway:
        text = await gateway.token("app", verbs=VERBS)
        for number in range(2):
            await call(gateway, text, "POST", "/v1/topics/t/jobs", {"id": str(number), "delay_ms": 60_000})
        await call(gateway, text, "POST", "/v1/topics/t/jobs/0/kick")
        await call(gateway, text, "DELETE", "/v1/topics/t/jobs/1")
        await call(gateway, text, "POST", "/queue", {"command": "delete", "id": "none"})
        await call(gateway, text, "PATCH", "/v1/topics/t", {"is_paused": True})
    facts = {record.getMessage(): record.__dict__[FACTS] for record in caplog.records if FACTS in record.__dict__}
    assert facts["job.kicked"] == {"by": "app", "address": "127.0.0.1", "topic": "t", "id": "0", "is_done": True}
    assert facts["topic.changed"]["settings"] == {"is_paused": True}
    deleted = [record.__dict__[FACTS] for record in caplog.records if record.getMessage() == "job.deleted"]
    assert [(one["by"], one["id"], one["is_done"]) for one in deleted] == [("app", "1", True), ("app", "none", False)]
    assert text not in caplog.text


async def _until(gateway: RunningGateway, token: str, expected: int) -> None:
    with anyio.fail_after(30):
        while await status(gateway, token, "GET", "/v1/topics") != expected:
            await a_moment()
