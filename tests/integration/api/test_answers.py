"""Every operation at every door, asked rightly and wrongly, is answered as it always was, byte for byte. Here: of jobs.

The answers are in tests/golden/answers. Where one is meant to change, run test_answers*.py once with
PENSTOCK_GOLDEN=write, and read what it changed there before it is committed.
"""

import json
from typing import Any

from penstock.api.http.openapi import document
from penstock.api.operations import OPERATIONS
from streams.clock import now_ms
from tests.support.answers import FOLDER, Recorder, check, until

JOBS, RECEIPTS, BATCHES = "/v1/topics/mail/jobs", "/v1/receipts", "/v1/batches"
LARGE = json.dumps({"body": "x" * (256 * 1024)})
YEAR_MS = 365 * 86_400_000


async def test_jobs_over_http(asker: Recorder) -> None:
    http = asker.http
    await http("POST", JOBS, '{"id": "a", "body": {"to": 7}}')
    await http("POST", JOBS, '{"id": "a", "body": {"to": 7}}')
    await http("POST", JOBS, '{"id": "a", "body": {"to": 8}}')
    await http("POST", JOBS, '{"id": "a", "body": {"to": 8}, "on_same": "error"}')
    await http("POST", JOBS, '{"id": "k"}', headers={"Idempotency-Key": "once"})
    await http("POST", JOBS, '{"id": "k"}', headers={"Idempotency-Key": "once"})
    every = {"id": "z", "body": [1, "é"], "due_ms": now_ms() + YEAR_MS, "ttr_ms": 90_000, "priority": "high"}
    await http(
        "POST", JOBS, json.dumps(every | {"attempts": 9, "expires_ms": now_ms() + 2 * YEAR_MS, "on_same": "keep"})
    )
    await http("POST", JOBS, '{"id": "l", "delay_ms": 3600000, "expires_in_ms": 7200000, "priority": "low"}')
    await http("POST", JOBS, "{}")
    await http("POST", JOBS, '[{"id": "m"}, {"id": "a", "body": 9}, {"id": 7}, 7, {"delay_ms": -1}, {"x": 1}]')
    await http("POST", JOBS, '[{"id": "a", "on_same": "error"}, {"id": "\\u0007"}, {"ttr_ms": 1}]')
    for bad in ("", "{", "[]", "7", '{"id": 7}', '{"dealy_ms": 5}', '{"delay_ms": -1}', '{"due_ms": "soon"}'):
        await http("POST", JOBS, bad)
    for bad in (
        '{"priority": "urgent"}',
        '{"attempts": 0}',
        '{"on_same": "what"}',
        '{"ttr_ms": 999}',
        '{"body": 1e400}',
    ):
        await http("POST", JOBS, bad)
    await http("POST", JOBS, '{"id": "\\u0007"}')
    await http("POST", JOBS, '{"delay_ms": 5, "due_ms": 4000000000000}')
    await http("POST", JOBS, '{"expires_in_ms": 5, "delay_ms": 10}')
    await http("POST", JOBS, f'{{"body": {"[" * 200}1{"]" * 200}}}')
    await http("POST", JOBS, LARGE)
    await http("POST", JOBS, "id=1", headers={"Content-Type": "application/x-www-form-urlencoded"})
    await http("POST", JOBS, "{}", token="reader")
    await http("POST", JOBS, "{}", token="")
    await http("POST", "/v1/topics/bad!/jobs", "{}")
    await http("POST", "/v1/topics/default/jobs", "{}")
    await http("POST", "/v1/topics/mail/jobs?x=1", '{"id": "query"}')
    await http("GET", f"{JOBS}/a")
    await http("GET", f"{JOBS}/z")
    await http("GET", f"{JOBS}/none")
    await http("GET", f"{JOBS}/%ff")
    for job_id in ("a/why", "z/why", "none/why", "%ff/why"):
        await http("GET", f"{JOBS}/{job_id}")
    await http("GET", f"{JOBS}?state=delayed&limit=1")
    await http("GET", f"{JOBS}?state=ready&limit=2&due_after_ms=1&due_before_ms=4000000000000")
    for bad in ("state=gone", "limit=0", "limit=x", "after=1.abc", "what=1", "limit=1&limit=2", "state"):
        await http("GET", f"{JOBS}?{bad}")
    await http("POST", f"{JOBS}/l/kick")
    await http("POST", f"{JOBS}/l/kick")
    await http("POST", f"{JOBS}/none/kick")
    await http("DELETE", f"{JOBS}/l")
    await http("DELETE", f"{JOBS}/l")
    await http("DELETE", f"{JOBS}/k", token="reader")
    await http("PUT", f"{JOBS}/k")
    await http("GET", "/v1/nothing")
    await http("POST", f"{JOBS}/a")
    await http("GET", "/health", token="")
    await http("GET", "/ready", token="")
    check("jobs_http", asker.text)


async def test_reservations_over_http(asker: Recorder) -> None:
    http = asker.http
    here, reserve = "/v1/topics/held/jobs", "/v1/topics/held/reserve"
    for job_id in ("a", "b", "c", "d", "e"):
        await http("POST", here, json.dumps({"id": job_id, "body": {"to": job_id}, "attempts": 2}))
        [job] = (await http("POST", reserve, '{"most": 1, "wait_ms": 10000, "ttr_ms": 600000}'))["jobs"]
        receipts = json.dumps([job["receipt"], "nothing"])
        match job_id:
            case "a":
                await http("GET", f"{here}/a")
                await http("POST", f"{RECEIPTS}/finish", f'{{"receipts": {receipts}}}')
                await http("POST", f"{RECEIPTS}/finish", f'{{"receipts": {receipts}}}')
            case "b":
                await http("POST", f"{RECEIPTS}/touch", f'{{"receipts": {receipts}, "ttr_ms": 5000000}}')
                await http("POST", f"{RECEIPTS}/touch", f'{{"receipts": {receipts}}}')
                await http("POST", f"{RECEIPTS}/touch", f'{{"receipts": {receipts}, "ttr_ms": 1}}')
            case "c":
                body = f'{{"receipts": {receipts}, "delay_ms": 7200000, "reason": "later", "counts": false}}'
                await http("POST", f"{RECEIPTS}/release", body)
                await http("POST", f"{RECEIPTS}/release", body)
                await http("GET", f"{here}/c")
            case "d":
                await http("POST", f"{RECEIPTS}/bury", f'{{"receipts": {receipts}, "reason": "bad"}}')
                await http("GET", f"{here}/d")
            case _:
                await http("POST", f"{RECEIPTS}/finish", f'{{"receipts": {receipts}}}', token="tenant")
                await http("DELETE", f"{here}/e")
                await http("POST", f"{RECEIPTS}/finish", f'{{"receipts": {receipts}}}')
    for verb in ("finish", "touch", "release", "bury"):
        for bad in ("", "{}", '{"receipts": []}', '{"receipts": "a"}', '{"receipts": [""], "x": 1}'):
            await http("POST", f"{RECEIPTS}/{verb}", bad)
        await http("POST", f"{RECEIPTS}/{verb}", '{"receipts": ["a"]}', token="reader")
    await http("POST", f"{RECEIPTS}/release", '{"receipts": ["a"], "delay_ms": -1}')
    await http("POST", f"{RECEIPTS}/bury", '{"receipts": ["a"], "reason": 7}')
    await http("POST", reserve)
    for bad in ('{"most": 0}', '{"wait_ms": 99999999}', '{"ttr_ms": 1}', '{"holder": "me"}', "["):
        await http("POST", reserve, bad)
    await http("POST", reserve, token="reader")
    await http("POST", "/v1/topics/default/reserve", "{}")
    await http("POST", "/v1/topics/held/reservations?most=0")
    await http("POST", "/v1/topics/held/reservations?what=0")
    await http("POST", here, '{"id": "pushed", "body": 1}')
    await http("POST", "/v1/topics/held/reservations?most=1&ttr_ms=600000", until_event=True)
    kept = "/v1/topics/kept"
    await http("PATCH", kept, '{"remember": "1d"}')
    await http("POST", f"{kept}/jobs", '{"id": "a", "body": 1}')
    [job] = (await http("POST", f"{kept}/reserve", '{"wait_ms": 10000}'))["jobs"]
    await http("POST", f"{RECEIPTS}/finish", json.dumps({"receipts": [job["receipt"]]}))
    await http("GET", f"{kept}/jobs/a")
    await http("GET", f"{kept}/jobs?state=done")
    await http("POST", f"{kept}/jobs", '{"id": "a"}')
    await asker.service("jobs", "add", '{"topic": "kept", "id": "a"}')
    await asker.service("jobs", "peek", '{"topic": "kept", "id": "a"}')
    await asker.service("jobs", "list", '{"topic": "kept", "state": "done"}')
    check("reservations_http", asker.text)


async def test_topics_over_http(asker: Recorder) -> None:
    http, here = asker.http, "/v1/topics"
    await http("POST", f"{here}/first/jobs", '{"id": "a"}', token="tenant")
    await http("POST", f"{here}/second/jobs", '{"id": "a", "delay_ms": 3600000}', token="tenant")
    await http("GET", here, token="tenant")
    await http("GET", f"{here}?limit=1", token="tenant")
    await http("GET", f"{here}?limit=1&after=first", token="tenant")
    await http("GET", f"{here}?limit=0")
    await http("GET", f"{here}/first", token="tenant")
    await http("GET", f"{here}/unused")
    await http("GET", f"{here}/bad!")
    changes = {"ttr": "90s", "attempts": 7, "backoff": "2s", "backoff_cap": "10m", "backoff_growth": "linear"}
    more = {"remember": "1d", "rate": 2.5, "is_paused": True, "most_waiting": 100}
    await http("PATCH", f"{here}/changed", json.dumps(changes | more))
    await http("PATCH", f"{here}/changed", '{"ttr": null, "rate": null, "is_paused": false}')
    for bad in ("", "{", '{"ttr": "soon"}', '{"attempts": 0}', '{"rate": "x"}', '{"what": 1}', '{"ttr": "1ms"}'):
        await http("PATCH", f"{here}/changed", bad)
    await http("PATCH", f"{here}/changed", '{"rate": 1}', token="reader")
    await http("PATCH", f"{here}/bad!", '{"rate": 1}')
    check("topics_http", asker.text)


async def test_paths_and_methods(asker: Recorder) -> None:
    """What is at a path, and what is at none."""
    for path in ("/", "/v1", "/v1/topics", "/v1/topics/", "/V1/topics", "/health", "/health/", "/schema/", "/schema/x"):
        for method in ("GET", "HEAD", "OPTIONS"):
            if (path, method) != ("/v1/topics", "GET") and (path, method) != ("/v1/topics/", "GET"):
                await asker.http(method, path)
    for path in ("/v1/topics/mail", f"{JOBS}/none", f"{JOBS}/none/kick", f"{BATCHES}/count", f"{BATCHES}/none/items"):
        for method in ("OPTIONS", "PUT", "PATCH", "HEAD"):
            await asker.http(method, path)
    for path in (
        f"{JOBS}/a%2Fb",
        f"{JOBS}/%20",
        f"{JOBS}/none/",
        f"{JOBS}/a/b/c",
        "/v1/receipts/finish",
        "/v1/topics/%2F",
    ):
        await asker.http("GET", path)
    for path in ("/v1//topics", "/v1/./topics", "/v1/topics/..", "/queue/", "/ready", "/v1/topics/%ff", "/v1/tasks/"):
        await asker.http("OPTIONS", path)
        await asker.http("DELETE", path)
    await asker.http("POST", "/schema", "{}")
    await asker.http("GET", "/nothing", token="")
    check("paths_http", asker.text)


async def test_the_original_protocol(asker: Recorder) -> None:
    async def queue(body: str, *, token: str = "all") -> None:
        await asker.http("POST", "/queue", body, token=token)

    await queue('{"command": "add", "topic": "old", "id": "a", "delay": 0, "ttr": 60, "body": "{\\"order\\": 1}"}')
    await queue('{"command": "add", "topic": "old", "id": "a", "TTR": 60, "body": "{\\"order\\": 1}"}')
    await queue('{"command": "add", "topic": "old", "id": "a", "body": "other"}')
    await queue('{"command": "pop", "topic": "old", "timeout": 10}')
    await queue('{"command": "pop", "topic": "old"}')
    await queue('{"command": "finish", "id": "a"}')
    await queue('{"command": "finish", "id": "a"}')
    await queue('{"command": "add", "topic": "old", "id": "unheld", "delay": 3600.5, "body": {"plain": true}}')
    await queue('{"command": "finish", "id": "unheld"}')
    await queue('{"command": "delete", "id": "unheld"}')
    await queue('{"command": "delete", "topic": "old", "id": "unheld"}')
    await queue('{"command": "delete", "id": "none"}', token="tenant")
    for bad in ("", "{", "7", "{}", '{"command": "what"}', '{"command": "add", "topic": "old"}', '{"command": "pop"}'):
        await queue(bad)
    await queue('{"command": "add", "topic": "old", "id": "c", "delay": -1}')
    await queue('{"command": "add", "topic": "old", "id": "c", "ttr": 0}')
    await queue('{"command": "add", "topic": "bad!", "id": "c"}')
    await queue('{"command": "add", "topic": "old", "id": "c", "what": 1}')
    await queue('{"command": "pop", "topic": "old", "timeout": 100}')
    await queue('{"command": "pop", "topic": "bad!"}')
    await queue('{"command": "add", "topic": "old", "id": "c"}', token="reader")
    await queue('{"command": "pop", "topic": "old"}', token="")
    await asker.http("GET", "/queue")
    await asker.http("POST", "/queue/more", "{}")
    check("queue", asker.text)


async def test_jobs_as_a_service(asker: Recorder) -> None:
    async def jobs(endpoint: str, payload: str | bytes = b"") -> dict[str, Any]:
        return await asker.service("jobs", endpoint, payload)

    await asker.about("penstock-jobs")
    await jobs("add", '{"topic": "svc", "id": "a", "body": {"to": 7}}')
    await jobs("add", '{"topic": "svc", "id": "a", "body": {"to": 7}}')
    await jobs("add", '{"topic": "svc", "id": "a", "on_same": "error"}')
    every = {"topic": "svc", "id": "z", "body": [1, "é"], "due_ms": now_ms() + YEAR_MS, "ttr_ms": 90_000}
    more = {"priority": "high", "attempts": 9, "expires_ms": now_ms() + 2 * YEAR_MS, "on_same": "keep", "nonce": "n"}
    await jobs("add", json.dumps(every | more))
    await jobs(
        "add", '[{"topic": "svc", "id": "l", "delay_ms": 3600000}, {"topic": "svc", "id": 7}, 7, {"topic": "b!"}]'
    )
    for raw in (b"", b"{", b"7", b"[7", b"\xff", b"\xef\xbb\xbf{}", b"{}", b'{"topic": "svc", "x": 1}'):
        await jobs("add", raw)
    for bad in (
        '"delay_ms": -1',
        '"ttr_ms": 1',
        '"attempts": 0',
        '"priority": "x"',
        '"id": "\\u0007"',
        '"due_ms": "x"',
    ):
        await jobs("add", f'{{"topic": "svc", {bad}}}')
    [held] = (await jobs("reserve", '{"topic": "svc", "wait_ms": 10000, "ttr_ms": 600000, "holder": "me"}'))["jobs"]
    receipt = json.dumps(held["receipt"])
    await jobs("peek", '{"topic": "svc", "id": "a"}')
    await jobs("touch", f'{{"receipt": {receipt}, "ttr_ms": 900000}}')
    await jobs("touch", f'{{"receipts": [{receipt}, "nothing"]}}')
    await jobs("release", f'{{"receipt": {receipt}, "delay_ms": 7200000, "reason": "later", "counts": false}}')
    await jobs("release", f'{{"receipt": {receipt}}}')
    await jobs("kick", '{"topic": "svc", "id": "a"}')
    [held] = (await jobs("reserve", '{"topic": "svc", "wait_ms": 10000}'))["jobs"]
    await jobs("bury", json.dumps({"receipts": [held["receipt"]], "reason": "bad"}))
    await jobs("kick", '{"topic": "svc", "most": 5}')
    await jobs("reserve", '{"topic": "svc", "wait_ms": 10000, "most": 1}')
    await jobs("finish", '{"id": "a"}')
    await jobs("finish", '{"id": "none"}')
    await jobs("finish", '{"receipt": "nothing"}')
    await jobs("finish", '{"receipts": ["nothing", "nothing"]}')
    for verb in ("finish", "touch", "release", "bury"):
        for bad in ("", "{", '{"receipt": "a", "receipts": ["b"]}', '{"receipts": "a"}', '{"what": 1}'):
            await jobs(verb, bad)
        await jobs(verb, json.dumps({"receipts": ["a"] * 1001}))
    for bad in ('{"topic": "svc", "most": 0}', '{"topic": "b!"}', '{"topic": "svc", "wait_ms": -1}', '{"most": 1}'):
        await jobs("reserve", bad)
    await jobs("reserve", '{"topic": "svc", "holder": "\\u0007"}')
    await jobs("list", '{"topic": "svc", "limit": 1}')
    await jobs("list", '{"topic": "svc", "state": "delayed", "due_after_ms": 1, "due_before_ms": 3000000000000}')
    for bad in ("", '{"topic": "svc", "state": "x"}', '{"topic": "svc", "limit": 0}', '{"topic": "svc", "after": "x"}'):
        await jobs("list", bad)
    await jobs("count", '{"topic": "svc"}')
    await jobs("count", '{"topics": ["svc", "unused"]}')
    for bad in ('{"topics": ["b!"]}', '{"limit": 0}', '{"what": 1}'):
        await jobs("count", bad)
    await jobs("peek", '{"topic": "svc", "id": "none"}')
    await jobs("peek", '{"topic": "svc"}')
    await jobs("why", '{"topic": "svc", "id": "a"}')
    await jobs("why", '{"topic": "svc", "id": "z"}')
    await jobs("why", '{"id": "none"}')
    await jobs("why", '{"topic": "svc"}')
    await jobs("delete", '{"topic": "svc", "id": "l", "nonce": "x"}')
    await jobs("delete", '{"topic": "svc", "id": "l", "nonce": "x"}')
    await jobs("delete", '{"id": "l"}')
    await jobs("delete", '{"topic": "svc"}')
    await jobs("kick", '{"topic": "svc", "most": 0}')
    await jobs("kick", '{"topic": "default"}')
    await jobs("topic", '{"topic": "svc"}')
    await jobs("topic", '{"topic": "svc", "set": {"ttr": "90s", "rate": 2.5}}')
    await jobs("topic", '{"topic": "svc", "set": {"ttr": "1ms"}}')
    await jobs("topic", '{"topic": "svc", "set": {"what": 1}}')
    await jobs("topics", '{"what": 1}')
    await jobs("topics", '{"limit": 1001}')
    assert (await asker.look("jobs", "topics"))["topics"]
    check("jobs_service", asker.text)


async def test_plain_publishes(asker: Recorder) -> None:
    await asker.publish("job.pub", '{"id": "a", "body": 1, "delay_ms": 3600000, "expires_in_ms": 7200000}')
    await asker.publish("job.pub", '{"topic": "pub", "id": "a", "body": 1, "delay_ms": 3600000, "nonce": "n"}')
    for bad in (b"", b"{", b"\xff", b"7", b'{"topic": "other"}', b'{"x": 1}', b'{"id": "a", "body": 2}'):
        await asker.publish("job.pub", bad)
    for bad in (b'{"delay_ms": -1}', b'{"ttr_ms": 1}', b'{"id": "\\u0007"}', b'{"id": "a", "on_same": "error"}'):
        await asker.publish("job.pub", bad)
    await asker.publish("job.b!", b"{}")
    await asker.service("jobs", "peek", '{"topic": "pub", "id": "a"}')
    await asker.publish("batch.count", '{"input": {"n": 1}, "id": "p1", "tenant": "t2", "priority": 3}')
    await asker.publish("batch.count", '{"task": "count", "input": {"n": 1}, "id": "p1", "tenant": "t2"}')
    for bad in (b"", b"{", b"\xff", b'{"task": "other"}', b'{"x": 1}', b'{"file": "x"}', b'{"weight": 0}'):
        await asker.publish("batch.count", bad)
    await asker.publish("batch.none", b"{}")
    await asker.publish("batch.b!", b"{}")
    await until(asker, "p1")
    await asker.service("batch", "show", '{"id": "p1"}')
    check("publishes", asker.text)


def test_the_document() -> None:
    check("openapi", json.dumps(document(), indent=1, ensure_ascii=False) + "\n")


def test_every_operation_is_asked() -> None:
    asked = "".join(file.read_text() for file in FOLDER.glob("*_http.txt"))
    for operation in OPERATIONS:
        assert f": {operation.method} {operation.path.partition('{')[0]}" in asked or operation.path == "/queue"
