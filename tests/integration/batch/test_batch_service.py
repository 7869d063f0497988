"""The batch desk as a service: JSON in and out, errors by the protocol; and with the `nats` command."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from penstock.admin.dead_letters import Resubmit, plan
from penstock.api.service.service import SERVICES
from penstock.sdk.client_batches import Batches
from streams.link.connection import Connection
from streams.messages.fetch import decode_dead_letter
from streams.publish.publisher import Publisher
from streams.reads.log import read_log
from tests.support.batch_node import BatchNode
from tests.support.moments import a_moment
from tests.support.natscli import NatsCli

pytestmark = pytest.mark.three_servers

SHEET = "sku,price\nA1,10\nA2,-1\n"
COUNT = {"task": "count", "input": {"n": 3}}


class Answer(NamedTuple):
    """What the service says. `number` is 0 where it is no error."""

    number: int
    told: Any


async def ask(link: Connection, endpoint: str, asked: object = None, *, raw: bytes | None = None) -> Answer:
    payload = raw if raw is not None else b"" if asked is None else json.dumps(asked).encode()
    answer = await link.request(link.namespace.api("batch", endpoint), payload, timeout_s=30)
    return Answer(int(answer.headers.get("Nats-Service-Error-Code", "0")), json.loads(answer.payload))


async def test_an_input_is_submitted_and_looked_at(link: Connection, batches: Batches) -> None:
    made = await ask(link, "submit", {**COUNT, "id": "svc-1", "tenant": "t1"})
    assert (made.number, made.told["instance_id"], made.told["task"]) == (0, "svc-1", "count")
    await batches.wait("svc-1", timeout_s=30)
    shown = (await ask(link, "show", {"id": "svc-1"})).told
    counts = {"succeeded": 3, "failed": 0, "unknown": 0, "skipped": 0, "cancelled": 0}
    assert (shown["state"], shown["counts"], shown["result"]) == ("done", counts, {"total": 3})
    page = (await ask(link, "items", {"id": "svc-1", "status": "ok", "most": 2})).told
    assert [item["item"] for item in page["items"]] == [0, 1]
    rest = (await ask(link, "items", {"id": "svc-1", "cursor": page["cursor"]})).told
    assert ([item["item"] for item in rest["items"]], rest["cursor"]) == ([2], "")
    listed = (await ask(link, "list", {"tenant": "t1"})).told["batches"]
    assert [each["instance_id"] for each in listed] == ["svc-1"]
    assert {"register", "count"} <= {each["task"] for each in (await ask(link, "tasks")).told["tasks"]}


async def test_rows_are_looked_at_and_nothing_is_made(link: Connection) -> None:
    rows = [[2, {"sku": "A1", "price": "10"}], [3, {"sku": "A2", "price": "cheap"}]]
    looked = await ask(link, "check", {"task": "register", "id": "svc-look", "rows": rows, "shown": 1})
    assert looked.number == 0
    assert [field["name"] for field in looked.told["fields"]] == ["sku", "price"]
    assert looked.told["rows"] == [{"row": 2, "item": {"sku": "A1", "price": 10.0}}]
    assert ([fault["row"] for fault in looked.told["faults"]], looked.told["failing"]) == ([3], 1)
    for wrong in ({"rows": [7]}, {"rows": rows, "shown": -1}, {"rows": rows * 501}, {"file": "svc-look/upload-1"}):
        assert (await ask(link, "check", {"task": "register", **wrong})).number == 400
    assert (await ask(link, "check", {"task": "nobody", "rows": rows})).number == 404
    assert (await ask(link, "show", {"id": "svc-look"})).number == 404


async def test_a_callback_is_named_or_refused(link: Connection, batches: Batches) -> None:
    url = "https://shop.example.com/told"
    made = await ask(link, "submit", {**COUNT, "id": "svc-called", "callback": url})
    assert (made.number, made.told["callback"]) == (0, url)
    refused = await ask(link, "submit", {**COUNT, "callback": "https://shop.example.com:4222/"})
    assert (refused.number, refused.told["error"]["code"], refused.told["error"]["field"]) == (400, "bad", "callback")
    assert "shop.example.com on port 4222 is not among the hosts" in refused.told["error"]["reason"]
    assert (await batches.submit("count", {"n": 1}, callback=url)).callback == url


async def test_the_same_under_one_id_is_one_instance(link: Connection) -> None:
    first = await ask(link, "submit", {**COUNT, "id": "svc-2"})
    again = await ask(link, "submit", {**COUNT, "id": "svc-2"})
    assert (again.number, again.told["created_ms"]) == (0, first.told["created_ms"])
    other = await ask(link, "submit", {**COUNT, "input": {"n": 4}, "id": "svc-2"})
    assert (other.number, other.told["error"]["code"], other.told["error"]["field"]) == (409, "exists", "id")


@pytest.mark.parametrize(
    ("endpoint", "asked", "number", "code"),
    [
        ("submit", {"task": "nobody"}, 404, "not_found"),
        ("submit", {"task": "count", "fil": "x"}, 400, "bad"),
        ("submit", {"task": "count", "id": "a.b"}, 400, "bad"),
        ("submit", {"task": "count", "priority": 101}, 400, "bad"),
        ("submit", {"task": "count", "weight": 0}, 400, "bad"),
        ("submit", {"task": "count", "name": "a\r\nb"}, 400, "bad"),
        ("submit", {"task": "count", "input": "x" * 70_000}, 400, "bad"),
        ("submit", {"task": "register", "id": "svc-x", "file": "svc-x/upload-1"}, 400, "bad"),
        ("submit", {"task": "register", "id": "svc-x", "file": "svc-y/upload-1"}, 400, "bad"),
        ("show", {"id": "nobody"}, 404, "not_found"),
        ("show", {"id": "x>"}, 400, "bad"),
        ("show", {}, 400, "bad"),
        ("pause", {"id": "nobody"}, 404, "not_found"),
        ("cancel", {"id": "nobody"}, 404, "not_found"),
        ("retry", {"id": "nobody"}, 404, "not_found"),
        ("list", {"most": 0}, 400, "bad"),
        ("tasks", {"x": 1}, 400, "bad"),
        ("limit", {"task": "nobody", "set": {}}, 404, "not_found"),
        ("limit", {"task": "count", "set": {"item_rat": 1}}, 400, "bad"),
        ("limit", {"task": "count", "set": {"item_rate": -1}}, 400, "bad"),
    ],
)
async def test_what_is_wrong_is_told(link: Connection, endpoint: str, asked: object, number: int, code: str) -> None:
    answer = await ask(link, endpoint, asked)
    assert (answer.number, answer.told["error"]["code"]) == (number, code)
    assert answer.told["error"]["reason"]


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[1]",
        b"\xff{}",
        b"\xef\xbb\xbf{}",
        b"[" * 5000,
        b'{"task": "count", "input": [1e400]}',
        b'{"task": "count", "input": %s}' % (b"[" * 200 + b"]" * 200),
    ],
)
async def test_what_is_no_request_is_told(link: Connection, raw: bytes) -> None:
    answer = await ask(link, "submit", raw=raw)
    assert (answer.number, answer.told["error"]["code"]) == (400, "bad")


@pytest.mark.parametrize(
    "cursor", ["x", "1", "1.", ".1", "-1.0", "1.0.0.0.0", "1.0.", "²." + "1", "9" * 30 + ".0", "1;2"]
)
async def test_a_tampered_cursor_is_refused(link: Connection, batches: Batches, cursor: str) -> None:
    await ask(link, "submit", {**COUNT, "id": "svc-3"})
    await batches.wait("svc-3", timeout_s=30)
    answer = await ask(link, "items", {"id": "svc-3", "cursor": cursor})
    assert (answer.number, answer.told["error"]["code"]) == (400, "bad")
    beyond = await ask(link, "items", {"id": "svc-3", "cursor": "999999.0"})
    assert (beyond.number, beyond.told["items"]) == (0, [])


async def test_a_retry_names_items_that_are_there_of_what_is_over(link: Connection, batches: Batches) -> None:
    await ask(link, "submit", {**COUNT, "id": "svc-4"})
    await batches.wait("svc-4", timeout_s=30)
    assert (await ask(link, "retry", {"id": "svc-4"})).told["error"]["code"] == "state"
    assert (await ask(link, "retry", {"id": "svc-4", "items": [3]})).told["error"]["code"] == "bad"
    assert (await ask(link, "retry", {"id": "svc-4", "items": [1]})).number == 0
    assert (await batches.wait("svc-4", timeout_s=30)).passes == 2


async def test_a_file_is_handed_in_and_fetched_with_the_nats_command(
    node: BatchNode, link: Connection, batches: Batches, tmp_path: Path
) -> None:
    nats = NatsCli.or_skip(node.server.url, tmp_path)
    assert SERVICES["batch"].name in await nats.run("micro", "ls")
    bucket = node.namespace.bucket("FILES")
    upload = tmp_path / "products.csv"
    upload.write_text(SHEET, encoding="utf-8")
    await nats.run("object", "put", bucket, str(upload), "--name", "svc-5/upload-1", "--force", "--no-progress")
    asked = {"task": "register", "id": "svc-5", "file": "svc-5/upload-1", "name": "products.csv"}
    subject = node.namespace.api("batch", "submit")
    assert "svc-5" in await nats.run("req", subject, json.dumps(asked))
    view = await batches.wait("svc-5", timeout_s=30)
    assert (view.state, view.counts.succeeded, view.counts.failed) == ("done", 1, 1)
    fetched = tmp_path / "fetched.xlsx"
    await nats.run("object", "get", bucket, f"{view.files_at}result.xlsx", "--output", str(fetched), "--no-progress")
    assert fetched.read_bytes().startswith(b"PK")


async def test_what_is_handed_in_by_a_publish_is_made(link: Connection, batches: Batches) -> None:
    async with Publisher(link) as publisher:
        for subject, asked in (
            ("submit.batch.count", {"id": "svc-6", "input": {"n": 2}, "tenant": "raw"}),
            ("submit.batch", {"id": "svc-7", "task": "count", "input": {"n": 3}, "tenant": "raw"}),
            ("submit.batch.count", {"input": {"n": 4}, "tenant": "raw"}),
        ):
            await publisher.publish(f"{link.namespace.name}.{subject}", json.dumps(asked).encode())
    with anyio.fail_after(30):
        while len(made := await batches.list(tenant="raw")) < 3:
            await a_moment()
    assert {"svc-6", "svc-7"} < {view.instance_id for view in made}
    pages, after = list[str](), ""
    while page := await batches.list(tenant="raw", most=1, after=after):
        pages += [view.instance_id for view in page]
        after = page[-1].place
    assert pages == [view.instance_id for view in made]
    assert [view.instance_id for view in await batches.list(tenant="raw", most=2, after=made[0].place)] == pages[1:]
    for view in made:
        assert (await batches.wait(view.instance_id, timeout_s=30)).state == "done"


@pytest.mark.parametrize(
    ("subject", "payload", "says"),
    [
        ("nobody", b"{}", "nobody"),
        ("count", b"{", "truncated"),
        ("count", b'{"task": "odd"}', "the subject says"),
        ("count", b'{"inptu": 1}', "inptu"),
        ("count.x", b"{}", "no task"),
        ("count", b'{"id": "svc-broken"}', "not readable"),
        ("count", b'{"callback": "https://shop.example.com:4222/"}', "is not among the hosts"),
    ],
)
async def test_what_is_handed_in_and_refused_is_a_dead_letter(
    link: Connection, subject: str, payload: bytes, says: str
) -> None:
    async with Publisher(link) as publisher:
        await publisher.publish(f"$KV.{link.namespace.bucket('INSTANCES')}.svc-broken", b"{")
        stored = await publisher.publish(f"{link.namespace.name}.submit.batch.{subject}", payload)
    stream, pattern = link.namespace.stream("DEAD"), link.namespace.pattern("dead", "batch", "*", str(stored.seq))
    with anyio.fail_after(30):
        while not (found := [entry async for entry in read_log(link, stream, pattern)]):
            await a_moment()
    letter = json.loads(found[0].payload)
    assert says in letter["reason"]
    again = plan(decode_dead_letter(found[0].payload))
    assert isinstance(again, Resubmit)
    assert again.payload == payload
