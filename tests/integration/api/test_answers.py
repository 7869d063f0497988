"""Every operation at every door, asked rightly and wrongly, is answered as it always was, byte for byte.

The answers are in tests/golden/answers. Where one is meant to change, run the test once with PENSTOCK_GOLDEN=write and
read what it changed there before it is committed.
"""

import json
import os
from collections.abc import AsyncIterator
from difflib import unified_diff
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from aiohttp import ClientSession, TCPConnector

from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice
from actors.fetch.sources import SourceKey
from actors.flow.flows import FlowRecord, Flows
from penstock.api.http.openapi import document
from penstock.api.operations import OPERATIONS
from penstock.errors import NotAccepted
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_flows import FlowCalls
from penstock.sdk.client_sources import SourceCalls
from streams.buckets.bucket import Bucket
from streams.clock import now_ms
from streams.publish.publisher import Publisher
from tests.support.answers import FOLDER, Recorder
from tests.support.batch_node import UNSERVED, BatchNode
from tests.support.engine import add_source
from tests.support.moments import a_moment

LARGE = json.dumps({"body": "x" * (256 * 1024)})
JOBS, RECEIPTS, BATCHES = "/v1/topics/mail/jobs", "/v1/receipts", "/v1/batches"
YEAR_MS = 365 * 86_400_000
CSV = "sku,price\nA1,10\nA2,-1\n"


@pytest.fixture
async def asker(node: BatchNode) -> AsyncIterator[Recorder]:
    connector = TCPConnector(force_close=False)
    async with (
        node.connected() as link,
        Publisher(link) as publisher,
        ClientSession(node.url, connector=connector) as session,
    ):
        yield Recorder(session, link, publisher, node.tokens)


def check(name: str, text: str) -> None:
    """Compare with the golden file."""
    file = FOLDER / f"{name}.txt"
    if os.environ.get("PENSTOCK_GOLDEN") == "write":
        file.write_text(text)
    changes = [*unified_diff(file.read_text().splitlines(), text.splitlines(), file.name, "now", lineterm="", n=4)]
    if changes:
        pytest.fail("\n".join(changes), pytrace=False)


async def until(asker: Recorder, batch: str, state: str = "done") -> None:
    """Wait until an instance is in a state; nothing of that is written down."""
    with anyio.fail_after(60):
        while (await asker.look("batch", "show", json.dumps({"id": batch})))["state"] != state:
            await a_moment()


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


async def test_batches_over_http(asker: Recorder) -> None:
    http = asker.http
    await http("POST", f"{BATCHES}/count?id=h1&priority=5", '{"n": 3}')
    await until(asker, "h1")
    await http("POST", f"{BATCHES}/count?id=h1&priority=5", '{"n": 3}')
    await http("POST", f"{BATCHES}/count?id=h1", '{"n": 4}')
    await http("GET", f"{BATCHES}/h1")
    await http("GET", f"{BATCHES}/h1/why")
    await http("GET", f"{BATCHES}/none/why")
    await http("GET", f"{BATCHES}/h1/items?limit=2")
    await http("GET", f"{BATCHES}/h1/items?status=failed")
    for bad in ("status=what", "limit=0", "cursor=x", "what=1"):
        await http("GET", f"{BATCHES}/h1/items?{bad}")
    await http("GET", f"{BATCHES}/h1/result")
    named = {"Content-Type": "text/csv", "X-File-Name": "pro%C3%BCdukte.csv"}
    await http("POST", f"{BATCHES}/register?id=h2&params=%7B%22who%22%3A1%7D&callback=none", CSV, headers=named)
    await until(asker, "h2")
    await http("GET", f"{BATCHES}/h2")
    await http("GET", f"{BATCHES}/h2/items")
    await http("GET", f"{BATCHES}/h2/result?name=none")
    await http("POST", f"{BATCHES}/h1/retry", '{"items": [9]}')
    await http("POST", f"{BATCHES}/h1/retry")
    for bad in ("{", '{"items": "x"}', '{"items": [-1]}', '{"what": 1}'):
        await http("POST", f"{BATCHES}/h1/retry", bad)
    await http("POST", f"{BATCHES}/odd?id=h3", '{"n": 1}')
    await until(asker, "h3")
    await http("GET", f"{BATCHES}/h3/result")
    await http("POST", f"{BATCHES}/{UNSERVED}?id=h4", "{}", token="tenant")
    await until(asker, "tenant--h4", "splitting")
    for verb in ("pause", "resume", "retry", "cancel"):
        await http("POST", f"{BATCHES}/h4/{verb}", token="tenant")
        await http("POST", f"{BATCHES}/none/{verb}", token="tenant")
    await http("GET", f"{BATCHES}/tenant--h4")
    await http("GET", f"{BATCHES}/h1", token="tenant")
    await http("GET", f"{BATCHES}?task={UNSERVED}", token="tenant")
    await http("GET", f"{BATCHES}?state=what&limit=5")
    await http("GET", f"{BATCHES}?limit=0")
    await http("GET", "/v1/tasks", token="counter")
    await http("PATCH", "/v1/tasks/odd", '{"item_rate": 2.5, "main_concurrency": 3}')
    await http("PATCH", "/v1/tasks/odd", '{"item_rate": null, "main_concurrency": null}')
    for bad in ("", "{", '{"what": 1}', '{"item_rate": -1}', '{"item_rate": "x"}'):
        await http("PATCH", "/v1/tasks/odd", bad)
    await http("PATCH", "/v1/tasks/none", '{"item_rate": 1}')
    await http("PATCH", "/v1/tasks/odd", '{"item_rate": 1}', token="tenant")
    await http("PATCH", "/v1/tasks/odd", '{"item_rate": 1}', token="reader")
    await http("POST", f"{BATCHES}/none", "{}")
    await http("POST", f"{BATCHES}/register", "{}", token="counter")
    await http("POST", f"{BATCHES}/count", "{")
    await http("POST", f"{BATCHES}/count?id=a%2Fb", "{}")
    await http("POST", f"{BATCHES}/count?id=a--b", "{}", token="operator")
    await http("POST", f"{BATCHES}/count?priority=101", "{}")
    await http("POST", f"{BATCHES}/count?sheet=x", "{}")
    await http("POST", f"{BATCHES}/count?callback=http%3A%2F%2Felsewhere", "{}")
    await http("POST", f"{BATCHES}/register?params=%7B", CSV, headers={"Content-Type": "text/csv"})
    await http("POST", f"{BATCHES}/register?encoding=what", CSV, headers={"Content-Type": "text/csv"})
    await http("POST", f"{BATCHES}/register", CSV, headers={"Content-Type": "text/plain"})
    await http("POST", BATCHES, "{}")
    sent = {"Content-Type": "multipart/form-data; boundary=X"}
    part = '--X\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    await http("POST", BATCHES, part.format("task", "count") + part.format("what", "1") + "--X--", headers=sent)
    await http("POST", BATCHES, part.format("task", "count") + part.format("task", "odd") + "--X--", headers=sent)
    await http("POST", BATCHES, part.format("task", "count"), headers=sent)
    await http("POST", f"{BATCHES}/register/check", f"{CSV}A3,cheap\n", headers=named)
    await http("POST", f"{BATCHES}/register/check", "PK\x03\x04", headers={"Content-Type": "text/csv"})
    await http("POST", f"{BATCHES}/count/check", '{"n": 3}')
    await http("POST", f"{BATCHES}/none/check", "{}")
    await http("POST", f"{BATCHES}/count/check?sheet=x", "{}")
    await http("POST", f"{BATCHES}/count", json.dumps("x" * 70_000))
    for query in ("kind=csv", "kind=jsonl", "kind=csv&status=failed", "kind=jsonl&status=failed"):
        await http("GET", f"{BATCHES}/h2/sheet?{query}")
    for bad in ("kind=xls", "status=what", "what=1"):
        await http("GET", f"{BATCHES}/h2/sheet?{bad}")
    await http("GET", f"{BATCHES}/h2/why?row=3")
    await http("GET", f"{BATCHES}/h2/why?row=9")
    await http("POST", f"{BATCHES}/h2/retry", '{"rows": [9]}')
    await http("POST", f"{BATCHES}/h2/retry", '{"rows": [3], "items": [1]}')
    await http("POST", f"{BATCHES}/h1/retry", '{"rows": [3]}')
    await http("DELETE", f"{BATCHES}/h3", token="reader")
    await http("DELETE", f"{BATCHES}/h3")
    await http("DELETE", f"{BATCHES}/h3")
    await http("POST", f"{BATCHES}/{UNSERVED}?id=h5", "{}")
    await until(asker, "h5", "splitting")
    await http("DELETE", f"{BATCHES}/h5")
    await http("GET", f"{BATCHES}/h5/sheet")
    check("batches_http", asker.text)


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


async def test_schedules_over_http(asker: Recorder) -> None:
    http, here = asker.http, "/v1/topics/tick/schedules"
    daily = {"name": "daily", "cron": "30 9 * * MON-FRI", "tz": "Europe/Berlin", "body": {"kind": "é"}}
    await http("POST", here, json.dumps(daily))
    await http("POST", here, json.dumps(daily))
    await http("POST", here, json.dumps(daily | {"tz": "UTC"}))
    await http("POST", here, json.dumps(daily | {"tz": "UTC", "replace": True}))
    every: dict[str, object] = {"name": "all", "every_ms": 60_000, "start_ms": 4_000_000_000_000, "jitter_ms": 5_000}
    more = {"data_time": "at", "ttr_ms": 9_000, "attempts": 2, "priority": "high", "expires_in_ms": 60_000}
    await http("POST", here, json.dumps(every | more | {"misfire": "all", "most_missed": 5, "overlap": "allow"}))
    await http("POST", here, '{"name": "delay", "fixed_delay_ms": 60000, "initial_delay_ms": 4000000000}')
    await http("POST", here, '{"name": "once", "at_ms": 4000000000000}')
    await http("GET", "/v1/schedules?topic=tick")
    await http("GET", "/v1/schedules?topic=tick&limit=1&after=tick/daily")
    for bad in ("topic=b!", "limit=0", "what=1"):
        await http("GET", f"/v1/schedules?{bad}")
    await http("GET", f"{here}/all?next=2")
    await http("GET", f"{here}/none")
    await http("GET", f"{here}/b!")
    for bad in ("next=101", "next=x", "what=1"):
        await http("GET", f"{here}/all?{bad}")
    for verb in ("pause", "pause", "resume", "resume"):
        await http("POST", f"{here}/daily/{verb}")
    await http("POST", f"{here}/all/trigger", '{"at_ms": 1690000000000}')
    await http("POST", f"{here}/all/trigger", '{"at_ms": 1690000000000}')
    await http("POST", f"{here}/all/trigger")
    await http("POST", f"{here}/all/backfill", '{"from_ms": 1700000000000, "to_ms": 1700000600000}')
    await http("POST", f"{here}/all/backfill", '{"from_ms": 1700000000000, "to_ms": 1700000600000}')
    await http("POST", f"{here}/once/backfill", '{"from_ms": 1700000000000, "to_ms": 1700000600000}')
    for bad in ("", "{", '{"from_ms": 5}', '{"from_ms": 5, "to_ms": -1}', '{"from_ms": 5, "to_ms": 5}'):
        await http("POST", f"{here}/daily/backfill", bad)
    await http("POST", f"{here}/daily/backfill", '{"from_ms": 5, "to_ms": 4000000000000}')
    for bad in ("{", '{"at_ms": -1}', '{"at_ms": 4000000000000}', '{"what": 1}'):
        await http("POST", f"{here}/all/trigger", bad)
    for bad in (
        "",
        "{",
        "7",
        "{}",
        '{"name": "x"}',
        '{"name": "b!", "cron": "@daily"}',
        '{"name": "x", "cron": "61 * * * *"}',
        '{"name": "x", "cron": "@daily", "tz": "Europe/Berlim"}',
        '{"name": "x", "cron": "@daily", "every_ms": 1000}',
        '{"name": "x", "every_ms": 999}',
        '{"name": "x", "every_ms": "10m"}',
        '{"name": "x", "at_ms": 1700000000000}',
        '{"name": "x", "cron": "@daily", "misfire": "all"}',
        '{"name": "x", "cron": "@daily", "overlap": "what"}',
        '{"name": "x", "cron": "@daily", "ttr_ms": 1}',
        '{"name": "x", "cron": "@daily", "data_time": "at", "body": [1]}',
        '{"name": "x", "cron": "@daily", "body": "\\ud800"}',
        '{"name": "x", "corn": "@daily"}',
    ):
        await http("POST", here, bad)
    batch = {"name": "batch", "every_ms": 60_000, "batch": "count", "body": {"input": {"n": 3}, "weight": 2}}
    for wish in (
        batch,
        batch | {"batch": "none"},
        batch | {"body": {"n": 3}},
        batch | {"body": {"weight": 0}},
        batch | {"source": "mall/s1"},
        batch | {"batch": "", "source": "mall/s1", "body": {"last": "2h"}},
        batch | {"batch": "", "source": "mall", "body": {"last": "2h"}},
        batch | {"batch": "", "body": None, "replace": True},
    ):
        await http("POST", here, json.dumps(wish))
    await http("POST", here, json.dumps(batch), token="tenant")
    await http("POST", here, json.dumps(batch | {"batch": "", "source": "mall/s1"}), token="tenant")
    await http("POST", f"{here}/batch/trigger", '{"at_ms": 1690000000000}', token="tenant")
    await http("DELETE", f"{here}/batch", token="tenant")
    await http("DELETE", f"{here}/batch")
    for token in ("reader", "tenant", "counter", ""):
        await http("POST", here, json.dumps(daily), token=token)
        await http("GET", f"{here}/daily", token=token)
        await http("GET", "/v1/schedules?topic=tick", token=token)
    for verb in ("pause", "resume", "trigger", "backfill"):
        await http("POST", f"{here}/daily/{verb}", "{}", token="reader")
    await http("DELETE", f"{here}/daily", token="reader")
    for name in ("daily", "daily", "all", "delay", "once", "b!"):
        await http("DELETE", f"{here}/{name}")
    await http("DELETE", f"{here}/daily", token="tenant")
    await http("POST", "/v1/topics/bad!/schedules", json.dumps(daily))
    check("schedules_http", asker.text)


async def test_schedules_as_a_service(asker: Recorder) -> None:
    async def ask(endpoint: str, payload: str | bytes = b"") -> None:
        await asker.service("schedules", endpoint, payload)

    await asker.about("penstock-schedules")
    daily = {"topic": "tock", "name": "daily", "cron": "@daily", "body": [1]}
    await ask("add", json.dumps(daily))
    await ask("add", json.dumps(daily))
    await ask("add", json.dumps(daily | {"cron": "@hourly"}))
    await ask("add", json.dumps(daily | {"cron": "@hourly", "replace": True}))
    wish = {"topic": "tock", "name": "batch", "cron": "@daily", "batch": "count", "tenant": "t1", "body": {"input": 1}}
    await ask("add", json.dumps(wish))
    await ask("add", json.dumps(wish | {"name": "x", "tenant": "b!"}))
    await ask("add", json.dumps(wish | {"name": "x", "body": {}, "batch": "none"}))
    await ask("trigger", '{"topic": "tock", "name": "batch", "at_ms": 1690000000000}')
    await ask("remove", '{"topic": "tock", "name": "batch"}')
    await ask("list", '{"topic": "tock"}')
    one = '"topic": "tock", "name": "daily"'
    await ask("show", f'{{{one}, "next": 1}}')
    for verb in ("pause", "pause", "resume"):
        await ask(verb, f"{{{one}}}")
    await ask("trigger", f'{{{one}, "at_ms": 1690000000000}}')
    await ask("trigger", f"{{{one}}}")
    await ask("backfill", f'{{{one}, "from_ms": 1700000000000, "to_ms": 1700006000000}}')
    await ask("backfill", f'{{{one}, "from_ms": 1700000000000, "to_ms": 1700006000000}}')
    for bad in ("", "{", '"cron": 7', '"every_ms": 1', '"cron": "@daily", "x": 1', '"at_ms": 1700000000000'):
        await ask("add", f'{{"topic": "tock", "name": "x", {bad}}}')
    await ask("add", b"\xff")
    await ask("add", '{"topic": "b!", "name": "x", "cron": "@daily"}')
    await ask("list", '{"topic": "b!"}')
    await ask("show", f'{{{one}, "next": 101}}')
    await ask("trigger", f'{{{one}, "at_ms": 4000000000000}}')
    await ask("backfill", f'{{{one}, "from_ms": 5, "to_ms": 5}}')
    for verb in ("show", "pause", "resume", "trigger", "backfill", "remove"):
        for bad in ("", "{", '{"topic": "tock"}', '{"topic": "tock", "name": "b!"}', f'{{{one}, "x": 1}}'):
            await ask(verb, bad)
    await ask("remove", f"{{{one}}}")
    check("schedules_service", asker.text)


async def test_batches_as_a_service(asker: Recorder) -> None:
    async def batch(endpoint: str, payload: str | bytes = b"") -> None:
        await asker.service("batch", endpoint, payload)

    await asker.about("penstock-batch")
    every = {"task": "count", "input": {"n": 3}, "id": "s1", "tenant": "t1", "priority": 5, "weight": 2}
    await batch("submit", json.dumps(every | {"name": "n", "callback": "https://shop.example.com/told?key=7"}))
    await until(asker, "s1")
    with anyio.fail_after(60):  # the first call fails, and which state it has is left out before
        while "state" not in (await asker.look("batch", "show", '{"id": "s1"}'))["calls"][0]:
            await a_moment()
    await batch("submit", json.dumps(every))
    await batch("show", '{"id": "s1"}')
    await batch("why", '{"id": "s1"}')
    await batch("why", '{"id": "s1", "item": 0}')
    await batch("why", '{"id": "s1", "item": -1}')
    await batch("items", '{"id": "s1", "status": "ok", "most": 2}')
    await batch("items", '{"id": "s1", "cursor": "0.2"}')
    await batch("list", '{"task": "count", "state": "done", "tenant": "t1", "most": 5}')
    await batch("retry", '{"id": "s1"}')
    await batch("retry", '{"id": "s1", "items": [9]}')
    await batch("submit", json.dumps({"task": UNSERVED, "id": "s2", "callback": "none"}))
    await until(asker, "s2", "splitting")
    for verb in ("pause", "resume", "retry", "cancel"):
        await batch(verb, '{"id": "s2"}')
    for verb in ("show", "why", "pause", "resume", "cancel", "retry", "items"):
        for bad in ("", '{"id": "none"}', '{"id": "b!"}', '{"id": "s1", "x": 1}', "{", '{"id": 7}'):
            await batch(verb, bad)
    for bad in (
        '"task": "none"',
        '"x": 1',
        '"task": "count", "weight": 0',
        '"task": "count", "tenant": "b!"',
        '"task": 7',
    ):
        await batch("submit", f"{{{bad}}}")
    for bad in (
        '"file": "x"',
        '"encoding": "x"',
        '"name": "\\u0007"',
        '"callback": "https://elsewhere/"',
        '"id": "b!"',
    ):
        await batch("submit", f'{{"task": "count", {bad}}}')
    await batch("submit", b"\xff")
    await batch("items", '{"id": "s1", "status": "x"}')
    await batch("items", '{"id": "s1", "cursor": "x"}')
    await batch("items", '{"id": "s1", "most": 0}')
    await batch("list", '{"most": 0}')
    await batch("list", '{"after": "x"}')
    await batch("list", '{"tenant": "none"}')
    await batch("limit", '{"task": "odd", "set": {"item_rate": 5}}')
    await batch("limit", '{"task": "odd", "set": {"item_rate": null}}')
    await batch("limit", '{"task": "odd", "set": {"what": 1}}')
    await batch("limit", '{"task": "none", "set": {}}')
    await batch("limit", '{"task": "odd"}')
    await batch("tasks")
    await batch("tasks", '{"x": 1}')
    await batch("tasks", '{"most": 1}')
    await batch("tasks", '{"most": 0}')
    await batch("sheet", '{"id": "s1"}')
    await batch("sheet", '{"id": "s1", "status": "failed"}')
    await batch("sheet", '{"id": "none"}')
    await batch("delete", '{"id": "s1"}')
    await batch("delete", '{"id": "s1"}')
    check("batches_service", asker.text)


async def declared(node: BatchNode) -> None:
    """Declare a flow as an application does, and wait until the node knows it."""
    async with node.connected() as link, Publisher(link) as publisher:
        flows = FlowCalls(ServiceClient(link, "flow", 30.0))
        record = FlowRecord(flow="pay", app="shop", declared_rate=50.0)
        await Flows(Bucket(link, publisher, link.namespace.bucket("FLOWS"), bytes)).declare(record)
        with anyio.fail_after(30):
            while "pay" not in {view.flow for view in await flows.list()}:
                await a_moment()


async def test_flows(asker: Recorder, node: BatchNode) -> None:
    await declared(node)
    http, here = asker.http, "/v1/flows"
    await http("GET", here)
    await http("GET", f"{here}/pay")
    await http("GET", f"{here}/none")
    await http("GET", f"{here}/b!")
    await http("GET", here, token="tenant")
    for query in ("shard=1&key=7", "shard=1", "shard=1&key=7&what=1"):
        await http("GET", f"{here}/pay/why?{query}")
    await http("GET", f"{here}/none/why?shard=1&key=7")
    await http("PATCH", f"{here}/pay", '{"rate": 500, "every": "2s", "groups": {"a": "odd", "b": "EVEN"}}')
    await http("PATCH", f"{here}/pay", '{"rate": null, "every": null, "groups": {"a": 2}, "lead": "1s"}')
    for bad in ("", "{", "[]", '{"rate": -1}', '{"every": "1ms"}', '{"what": 1}', '{"groups": {"a": "x"}}'):
        await http("PATCH", f"{here}/pay", bad)
    await http("PATCH", f"{here}/none", '{"rate": 1}')
    await http("PATCH", f"{here}/pay", '{"rate": 1}', token="reader")
    for verb in ("run", "pause", "run", "resume"):
        await http("POST", f"{here}/pay/{verb}")
    await http("POST", f"{here}/none/pause")
    await http("POST", f"{here}/pay/pause", token="reader")
    flow = partial(asker.service, "flow")
    await flow("list")
    for query in ("after=pay", "after=oa&limit=1", "limit=0", "what=1"):
        await http("GET", f"{here}?{query}")
    await flow("list", '{"after": "pay"}')
    await flow("list", '{"limit": 1001}')
    for verb in ("show", "pause", "run", "resume", "run"):
        await flow(verb, '{"flow": "pay"}')
        await flow(verb, '{"flow": "none"}')
        await flow(verb, '{"what": 1}')
    await flow("set", '{"flow": "pay", "set": {"rate": 20, "longest": "1m"}}')
    await flow("set", '{"flow": "pay", "set": {"longest": "1s"}}')
    await flow("set", '{"flow": "none", "set": {}}')
    await flow("why", '{"flow": "pay", "shard": "1", "key": "7"}')
    await flow("why", '{"flow": "pay", "shard": "1"}')
    await flow("why", '{"flow": "none", "shard": "1", "key": "7"}')
    check("flows_http", asker.text)


async def test_sources(asker: Recorder, node: BatchNode) -> None:
    """No node fetches here, so nobody reads an open slice."""
    hole = Hole("t", 1, 60_000, 90_000, attempts=5, reason="500")
    ledger = Ledger(0, 90_000, 60_000, open=(OpenSlice("t", 1, 0, 60_000),), holes=(hole,))
    async with node.connected() as link, Publisher(link) as publisher:
        settings = Bucket(link, publisher, link.namespace.bucket("SETTINGS"), bytes)
        ledgers = Bucket(link, publisher, link.namespace.bucket("LEDGERS"), bytes)
        for shop in ("s1", "s2", "s3"):
            await settings.put(f"source.mall.{shop}", b'{"adapter": "mall"}')
        await ledgers.put("mall.s1", msgspec.json.encode(ledger))
        await ledgers.put("mall.s3", b"{")
    http, here = asker.http, "/v1/sources/mall"
    for path in ("s1", "s2", "s3", "s4", "b!", "*", "%3E", "%ff"):
        await http("GET", f"{here}/{path}/why")
    for slice_id in ("t1-0-60000", "t1-60000-90000", "t1-7-8", "t1-0", "", "x", "a&slice=b"):
        await http("GET", f"{here}/s1/why?slice={slice_id}")
    for shop in ("s2", "s3", "s4"):
        await http("GET", f"{here}/{shop}/why?slice=t1-0-60000")
    await http("GET", f"{here}/s1/why?what=1")
    await http("GET", f"{here}/s1/why", token="tenant")
    await http("POST", f"{here}/s1/why")
    why = partial(asker.service, "sources", "why")
    await why('{"platform": "mall", "source": "s1"}')
    await why('{"platform": "mall", "source": "s1", "slice": "t1-0-60000"}')
    for bad in ('{"platform": "mall", "source": "s4"}', '{"platform": "mall", "source": "*"}', '{"platform": "mall"}',
                '{"platform": "mall", "source": "s1", "slice": "x"}', "{", '{"what": 1}'):  # fmt: skip
        await why(bad)
    async with node.connected() as link:
        calls = SourceCalls(ServiceClient(link, "sources", 30.0))
        assert (await calls.why("mall", "s1")).code == "nobody"
        assert (await calls.why_slice("mall", "s1", "t1-60000-90000")).code == "hole"
        with pytest.raises(NotAccepted, match="no source mall/s4"):
            await calls.why("mall", "s4")
    account = {"base_url": "http://127.0.0.1:9", "shop": "s1"}
    rows = [
        {"source": f"zoo/s{n}", "adapter": "mall", "account": account, "start": "-1d", "paused": True} for n in (1, 2)
    ]
    many = json.dumps(rows)
    await http("POST", "/v1/sources?dry_run=true", many)
    await http("POST", "/v1/sources", json.dumps([*rows, {**rows[0], "adapter": "mal"}]))
    for body in (many, many, json.dumps([{**rows[0], "settings": {"retries": 7}}]), "[{}]", "{}", "[", ""):
        await http("POST", "/v1/sources", body)
    await http("POST", "/v1/sources?update=true", json.dumps([{**rows[0], "settings": {"retries": 7}}]))
    await http("POST", "/v1/sources", many, token="tenant")
    await http("POST", "/v1/sources", many, token="hook")
    for query in ("after=zoo", "after=zoo&limit=1", "after=zoo/s1", "limit=0", "what=1"):
        await http("GET", f"/v1/sources/export?{query}")
    for path in ("/v1/sources", "/v1/sources/export"):
        await http("GET", path, token="tenant")
    sources = partial(asker.service, "sources")
    await sources("import", json.dumps({"sources": rows}))
    await sources("export", '{"after": "zoo/s1"}')
    for name in ("import", "export", "list"):
        await sources(name, '{"what": 1}')
    async with node.connected() as link:
        calls = SourceCalls(ServiceClient(link, "sources", 30.0))
        shown = await calls.list(after="zoo", limit=1)
        assert ([each.source for each in shown.sources], shown.next) == (["zoo/s1"], "zoo/s1")
        assert [each.source for each in (await calls.list(after=shown.next)).sources] == ["zoo/s2"]
        (row,) = (await calls.export(after="zoo", limit=1)).sources
        assert (row.source, row.settings, row.paused) == ("zoo/s1", {"retries": 7}, True)
        assert (await calls.add_many([row, rows[1]])).same == 2
    await asker.about("penstock-sources")
    check("sources_http", asker.text)


async def test_zones(asker: Recorder) -> None:
    """No node has a zone here, so all are dead."""
    http, zones, routing = asker.http, "/v1/zones", "/v1/routing"
    await http("GET", zones)
    await http("GET", routing)
    await http("POST", f"{zones}/a/drain")
    await http("GET", f"{zones}/a/shards?after=0&wait_ms=1")
    await http("GET", f"{zones}/a/shards?after=x")
    whole = '{"map": {"shards": 10, "zones": {"a": "0-4", "b": "5-9"}, "takeover": "5s"}}'
    await http("POST", f"{routing}/plan", whole)
    await http("PATCH", routing, whole)
    await http("PATCH", routing, whole)
    for bad in ("", "{", "[]", "{}", '{"what": 1}', '{"moves": {"10": "a"}}', '{"moves": {"1": "z"}}', '{"epoch": 9}',
                '{"drain": "5"}', '{"takeover": "2d"}', '{"balance": true, "if_epoch": 7}',
                '{"map": {"shards": 10, "zones": {"a": "0-4", "b": "6-9"}}}',
                '{"map": {"shards": 10, "zones": {"a": "0-5", "b": "5-9"}}}',
                '{"map": {"shards": 100, "zones": {"a": "0-100"}}}'):  # fmt: skip
        await http("PATCH", routing, bad)
    await http("PATCH", routing, '{"balance": true}', token="reader")
    await http("GET", zones, token="tenant")
    await http("GET", f"{zones}/a")
    await http("GET", f"{zones}/z")
    await http("GET", f"{zones}/b!")
    await http("POST", f"{zones}/a/drain", '{"dry_run": true}')
    await http("POST", f"{zones}/a/drain")
    await http("POST", f"{zones}/a/drain")
    await http("POST", f"{zones}/a/restore", '{"dry_run": 1}')
    await http("POST", f"{zones}/a/restore")
    await http("POST", f"{zones}/a/restore")
    await http("POST", f"{zones}/z/drain")
    await http("GET", f"{routing}/history")
    for query in ("limit=1", "limit=1&after=3", "after=1", "after=x", "limit=0"):
        await http("GET", f"{routing}/history?{query}")
    for query in ("limit=1", "limit=1&after=a", "after=b", "limit=0"):
        await http("GET", f"{zones}?{query}")
    for epoch in ("", "?epoch=2", "?epoch=9", "?epoch=x"):
        await http("GET", f"{routing}/report{epoch}")
    service = partial(asker.service, "zones")
    await service("list")
    await service("list", '{"after": "a"}')
    await service("history", '{"after": "2", "limit": 1}')
    await service("history", '{"after": "x"}')
    for verb in ("show", "drain", "restore"):
        await service(verb, '{"zone": "b"}')
        await service(verb, '{"zone": "z"}')
        await service(verb, '{"what": 1}')
    await service("plan", '{"moves": {"3": "b"}}')
    await service("apply", '{"change": {"moves": {"3": "b"}}, "by": "ann"}')
    await service("apply", '{"change": {"moves": {"3": "z"}}}')
    await service("apply", '{"what": 1}')
    await service("routing")
    await service("report", '{"epoch": 4}')
    check("zones_http", asker.text)


async def test_rates(asker: Recorder, node: BatchNode) -> None:
    """Nothing begins here, so all counts are zero."""
    await declared(node)
    http, here = asker.http, "/v1/rates"
    await asker.look("flow", "set", '{"flow": "pay", "set": {"rate": 50}}')
    await asker.look("jobs", "topic", '{"topic": "limited", "set": {"rate": 2.5}}')
    await http("GET", f"{here}/flow/pay?seconds=3")
    await http("GET", f"{here}/topic/limited")
    await http("GET", f"{here}?after=topic/zzz")
    await http("GET", f"{here}?after=zoo")
    await http("GET", f"{here}?limit=0")
    for bad in ("seconds=0", "seconds=121", "seconds=x", "what=1"):
        await http("GET", f"{here}?{bad}")
        await http("GET", f"{here}/flow/pay?{bad}")
    for path in ("queue/pay", "flow/none", "task/pay", "topic/flow-rows-pay", "flow/b!", "flow", "flow/%ff"):
        await http("GET", f"{here}/{path}")
    await http("GET", here, token="tenant")
    await http("GET", f"{here}/flow/pay", token="tenant")
    for kind, name in (("flow", "pay"), ("task", "odd"), ("topic", "limited")):
        await http("PATCH", f"{here}/{kind}/{name}", '{"rate": 500}')
        await http("PATCH", f"{here}/{kind}/{name}", '{"rate": 0}')
        await http("PATCH", f"{here}/{kind}/{name}", '{"rate": null}')
        for bad in ("", "{", "[]", "{}", '{"rate": -1}', '{"rate": 1e7}', '{"rate": "x"}', '{"rate": 1, "what": 1}'):
            await http("PATCH", f"{here}/{kind}/{name}", bad)
    await http("PATCH", f"{here}/flow/none", '{"rate": 1}')
    await http("PATCH", f"{here}/flow/pay", '{"rate": 1}', token="reader")
    await http("PATCH", f"{here}/flow/pay", '{"rate": 1}', token="tenant")
    rates = partial(asker.service, "rates")
    await rates("list", '{"what": 1}')
    await rates("list", '{"after": "what/x"}')
    await rates("show", '{"name": "pay"}')
    await rates("show", '{"name": "odd", "kind": "task", "seconds": 2}')
    for bad in ('{"name": "none"}', '{"name": "pay", "kind": "queue"}', '{"name": "pay", "seconds": 121}', "{}"):
        await rates("show", bad)
    await rates("set", '{"name": "pay", "rate": 7}')
    await rates("set", '{"name": "odd", "kind": "task", "rate": 7.5}')
    for bad in ('{"name": "pay", "rate": -1}', '{"name": "none", "rate": 1}', '{"name": "pay"}', "{"):
        await rates("set", bad)
    for kind, name in (("flow", "pay"), ("task", "odd"), ("topic", "limited")):
        await rates("set", f'{{"name": "{name}", "kind": "{kind}", "rate": null}}')
    await asker.about("penstock-rates")
    check("rates_http", asker.text)


async def test_looks_at_sources(asker: Recorder, node: BatchNode) -> None:
    """No allocator runs here, so that a look waits for ever."""
    shop, here = SourceKey("hint", "s1"), "/v1/sources/hint/s1/look"
    start_ms = now_ms() - 3_600_000
    async with node.connected() as link, Publisher(link) as publisher:
        await add_source(link, publisher, shop, adapter="mall", url="http://127.0.0.1:9", start_ms=start_ms)
        client = SourceCalls(ServiceClient(link, "sources", 30.0))
        with anyio.fail_after(30):
            code = "not_found"
            while code == "not_found":
                with pytest.raises(NotAccepted) as caught:
                    await client.look("hint", "s1", start_ms=9)
                code = caught.value.code
        assert (code, caught.value.field) == ("bad", "start_ms")
        view = await client.look("hint", "s1", start_ms=start_ms, end_ms=start_ms + 20_000)
        assert (view.source, view.is_new, view.start_ms <= start_ms) == ("hint/s1", True, True)
    http = asker.http
    await http("POST", here)
    await http("POST", here, '{"id": 7, "what": ["a", "platform", "says"]}', token="hook")
    await http("POST", f"{here}?start_ms={start_ms}&end_ms={start_ms + 60_000}", token="hook")
    await http("POST", f"{here}?start_ms={start_ms + 1_000}&end_ms={start_ms + 2_000}")
    later_ms = now_ms() + 3_600_000
    for bad in (f"start_ms={later_ms}", f"end_ms={later_ms}", "start_ms=9", "start_ms=x", "to=1"):
        await http("POST", f"{here}?{bad}")
    await http("POST", f"{here}?start_ms={start_ms}&end_ms={start_ms}")
    await http("POST", here, "{")
    await http("POST", here, "id=7", headers={"Content-Type": "application/x-www-form-urlencoded"})
    for path in ("hint/none", "none/s1", "hint/b!", "hint/%ff"):
        await http("POST", f"/v1/sources/{path}/look")
    await http("GET", here)
    for token in ("reader", "tenant", ""):
        await http("POST", here, token=token)
    await http("POST", "/v1/sources/hint/s2/look", token="hook")
    await http("POST", "/v1/topics/mail/jobs", "{}", token="hook")
    sources = partial(asker.service, "sources")
    await sources("look", '{"platform": "hint", "source": "s1"}')
    await sources(
        "look", f'{{"platform": "hint", "source": "s1", "start_ms": {start_ms}, "end_ms": {start_ms + 1_000}}}'
    )
    for ask in (
        '{"platform": "hint", "source": "none"}',
        '{"platform": "hint", "source": "s1", "start_ms": 9}',
        "{}",
        "{",
    ):
        await sources("look", ask)
    check("looks_http", asker.text)


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
