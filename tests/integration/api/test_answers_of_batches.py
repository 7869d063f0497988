"""The answers about batches and schedules, byte for byte (test_answers.py)."""

import json

import anyio

from tests.support.answers import Recorder, check, until
from tests.support.batch_node import UNSERVED
from tests.support.moments import a_moment

BATCHES = "/v1/batches"

CSV = "sku,price\nA1,10\nA2,-1\n"


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
    await http("PATCH", "/v1/tasks/regster", '{"item_rate": 1}')
    await http("PATCH", "/v1/tasks/odd", '{"item_rate": 1}', token="tenant")
    await http("PATCH", "/v1/tasks/odd", '{"item_rate": 1}', token="reader")
    await http("POST", f"{BATCHES}/none", "{}")
    await http("POST", f"{BATCHES}/regster", "{}")
    await http("POST", f"{BATCHES}/regster", "{}", token="counter")
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
    await batch("limit", '{"task": "regster", "set": {}}')
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
