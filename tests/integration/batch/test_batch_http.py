"""Batches over HTTP: a file in a stream, progress, items, the result; and whose they are."""

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import anyio
import anyio.lowlevel
import pytest
from aiohttp import ClientSession, FormData

from penstock.api.http.uploads import SHEETS
from penstock.sdk.client_batches import Batches
from streams.buckets.files import files_stream
from streams.link.connection import Connection
from tests.support.batch_app import ODD_NAME
from tests.support.batch_node import UNSERVED, BatchNode
from tests.support.moments import a_moment

pytestmark = pytest.mark.three_servers

CSV, JSON = {"Content-Type": "text/csv"}, {"Content-Type": "application/json"}
SHEET = b"sku,price\nA1,10\nA2,-1\n"
COUNT = {"n": 3}


@pytest.fixture
async def client(node: BatchNode) -> AsyncIterator[ClientSession]:
    """Calls with the operator's token."""
    async with ClientSession(node.url, headers=bearer(node, "operator")) as session:
        yield session


def bearer(node: BatchNode, name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {node.tokens[name]}"}


async def told(client: ClientSession, method: str, path: str, **sent: Any) -> tuple[int, Any]:
    """Return the status and the JSON of an answer."""
    async with client.request(method, path, **sent) as answer:
        return answer.status, await answer.json(content_type=None)


async def over(client: ClientSession, batch: str, **sent: Any) -> Any:
    """Wait for an instance's end, and return it."""
    with anyio.fail_after(60):
        while True:
            status, view = await told(client, "GET", f"/v1/batches/{batch}", **sent)
            assert status == 200, view
            if view["state"] in ("done", "failed", "cancelled"):
                return view
            await a_moment()


async def listed(client: ClientSession, batches: list[str], **sent: Any) -> Any:
    """Wait until these are the batches that are listed, and return them: a list is a moment behind."""
    with anyio.fail_after(60):
        while True:
            _, found = await told(client, "GET", "/v1/batches", **sent)
            if [each["id"] for each in found["batches"]] == batches:
                return found["batches"]
            await a_moment()


async def test_a_file_is_looked_at_and_nothing_is_made(client: ClientSession) -> None:
    body = "sku,price\n\u8336,10\nA2,cheap\n".encode("gb18030")
    sent, params = {**CSV, "X-File-Name": "tea.csv"}, {"id": "http-look"}
    status, look = await told(client, "POST", "/v1/batches/register/check", data=body, headers=sent, params=params)
    assert (status, look["rows"], look["failing"]) == (200, 2, 1)
    assert [(each["name"], each["type"]) for each in look["columns"]] == [("sku", "str"), ("price", "float")]
    assert look["first"][0] == {"row": 2, "item": {"sku": "\u8336", "price": 10.0}}
    assert look["faults"] == [{"row": 3, "reason": "the item does not fit: Expected `float`, got `str` - at `$.price`"}]
    assert "read as GB 18030" in look["note"]
    assert (await told(client, "GET", "/v1/batches/http-look"))[0] == 404
    path = "/v1/batches/register/check"
    assert (await told(client, "POST", path, data=b"PK\x03\x04", headers=CSV))[0] == 422
    assert (await told(client, "POST", "/v1/batches/nobody/check", data=SHEET, headers=CSV))[0] == 404
    status, look = await told(client, "POST", "/v1/batches/count/check", json=COUNT)
    assert (status, "split of its own" in look["unchecked"]) == (200, True)


async def test_a_batch_waits_for_its_time_and_for_another_one_of_its_owner(node: BatchNode) -> None:
    async with ClientSession(node.url, headers=bearer(node, "tenant")) as owner:
        first = {"id": "first", "due_ms": "2000000000000"}
        status, made = await told(owner, "POST", "/v1/batches/count", json=COUNT, params=first)
        assert (status, made["due_ms"], made["waits"]) == (201, 2000000000000, "begins at 2033-05-18T03:33:20Z")
        second = {"id": "second", "after": "first", "after_state": "not_done"}
        _, made = await told(owner, "POST", "/v1/batches/count", json=COUNT, params=second)
        waits = "begins when first has failed or was cancelled"
        assert (made["after"], made["after_state"], made["waits"]) == ("first", "not_done", waits)
        _, why = await told(owner, "GET", "/v1/batches/second/why")
        assert why["reason"] == f"it {waits}; that is pending"
        for name in ("other", "operator"):
            async with ClientSession(node.url, headers=bearer(node, name)) as other:
                status, refused = await told(other, "POST", "/v1/batches/count", json=COUNT, params={"after": "first"})
                assert (status, refused["what"], refused["value"]) == (404, "after", "first")
        for wrong in ({"delay_ms": "-1"}, {"delay_ms": "5", "due_ms": "5"}, {"after_state": "clean"}, {"after": "a b"}):
            assert (await told(owner, "POST", "/v1/batches/count", json=COUNT, params=wrong))[0] in (404, 422)
        await told(owner, "POST", "/v1/batches/first/cancel")
        assert (await over(owner, "second"))["state"] == "done"


def form(*fields: tuple[str, str], file: bytes | None = SHEET, name: str = "products.csv") -> FormData:
    """Return what a page's form sends."""
    sent = FormData(quote_fields=False, default_to_multipart=True)
    for field, value in fields:
        sent.add_field(field, value)
    if file is not None:
        sent.add_field("file", file, filename=name, content_type="application/vnd.ms-excel")
    return sent


async def test_a_page_sends_its_form(client: ClientSession) -> None:
    fields = (("task", "register"), ("id", "http-form"), ("params", '{"who": 1}'), ("priority", ""), ("callback", ""))
    status, made = await told(client, "POST", "/v1/batches", data=form(*fields))
    assert (status, made["id"], made["task"]) == (201, "http-form", "register")
    assert (await over(client, "http-form"))["counts"]["succeeded"] == 1
    again = form(*fields)
    assert (await told(client, "POST", "/v1/batches", data=again))[1]["id"] == "http-form"
    status, made = await told(
        client, "POST", "/v1/batches/count?id=http-bare", data=form(("input", '{"n": 2}'), file=None)
    )
    assert (status, (await over(client, "http-bare"))["items"]) == (201, 2)
    status, look = await told(client, "POST", "/v1/batches/register/check", data=form(("sheet", "")))
    assert (status, look["rows"]) == (200, 2)


@pytest.mark.parametrize(
    ("fields", "file", "status", "what"),
    [
        ((), SHEET, 422, "task"),
        ((("task", "register"), ("colour", "red")), SHEET, 422, "colour"),
        ((("task", "register"), ("priority", "high")), SHEET, 422, "priority"),
        ((("task", "register"), ("id", "a"), ("id", "b")), SHEET, 422, "id"),
        ((("task", "register"), ("input", "{}")), SHEET, 422, "input"),
        ((("task", "nobody"),), SHEET, 404, "task"),
        ((("task", "count"), ("input", "{")), None, 400, "body"),
        ((("task", "count"), ("input", "x" * 140_000)), None, 422, "input"),
    ],
)
async def test_a_form_that_does_not_fit_says_which_field(
    client: ClientSession, fields: tuple[tuple[str, str], ...], file: bytes | None, status: int, what: str
) -> None:
    refused = await told(client, "POST", "/v1/batches", data=form(*fields, file=file))
    assert (refused[0], refused[1]["what"]) == (status, what), refused


async def test_a_form_that_stops_or_has_more_behind_its_file_stores_nothing(
    client: ClientSession, link: Connection
) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=XX"}
    named = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\nsku,price\r\nA,1\r\n'
    nameless = b'--XX\r\nContent-Disposition: form-data; name=""\r\n\r\n\r\nB,2\r\n--XX--'
    for path, body, status in (
        ("register?id=http-cut", named, 400),
        ("register?id=http-cut", named + b"--X", 400),
        ("register?id=http-cut", named + b'--XX\r\nContent-Disposition: form-data; name="id"\r\n\r\n1\r\n--XX--', 422),
        ("register?id=http-cut", named + nameless, 422),
        ("register?id=http-cut", named + named + b"--XX--", 422),
        ("register?id=http-cut", b"rubbish" * 1_000, 400),
    ):
        assert (await told(client, "POST", f"/v1/batches/{path}", data=body, headers=kind))[0] == status
    assert (await told(client, "GET", "/v1/batches/http-cut"))[0] == 404
    send = b'--XX\r\nContent-Disposition: form-data; name="send"\r\n\r\n\r\n--XX--\r\n'  # a button without a value
    status, _ = await told(client, "POST", "/v1/batches/register?id=http-cut", data=named + send, headers=kind)
    assert (status, (await over(client, "http-cut"))["counts"]["succeeded"]) == (201, 1)


async def test_a_page_of_another_site_sends_no_form(client: ClientSession) -> None:
    for header in ({"Origin": "https://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}):
        sent = {"data": form(("task", "register")), "headers": header}
        assert (await told(client, "POST", "/v1/batches", **sent))[0] == 403


async def test_a_file_goes_in_and_its_result_comes_out(client: ClientSession) -> None:
    sent = {**CSV, "X-File-Name": "pro%C3%BCdukte.csv"}
    params = {"id": "http-1", "params": '{"who": "me"}'}
    status, made = await told(client, "POST", "/v1/batches/register", data=SHEET, headers=sent, params=params)
    assert (status, made["id"], made["task"]) == (201, "http-1", "register")
    view = await over(client, "http-1")
    assert (view["state"], view["items"], view["counts"]["succeeded"], view["counts"]["failed"]) == ("done", 2, 1, 1)
    assert view["files"] == ["result.xlsx"]
    _, page = await told(client, "GET", "/v1/batches/http-1/items", params={"status": "failed"})
    assert [(item["index"], item["info"]) for item in page["items"]] == [(1, "a price below zero")]
    async with client.get("/v1/batches/http-1/result") as answer:
        body, headers = await answer.read(), answer.headers
        assert answer.status == 200
    assert body.startswith(b"PK")
    assert int(headers["Content-Length"]) == len(body)
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Disposition"].startswith('attachment; filename="result.xlsx"')
    status, again = await told(client, "POST", "/v1/batches/http-1/retry", json={"items": [1]})
    assert (status, again["passes"]) == (200, 2)


@pytest.mark.parametrize(("charset", "encoding"), [("Shift_JIS", ""), ("utf-8", "shift-jis")])
async def test_a_csv_is_read_in_the_encoding_that_it_comes_with(
    client: ClientSession, charset: str, encoding: str
) -> None:
    sheet, sent = "sku,price\n\u7d05\u8336,3\n".encode("cp932"), {"Content-Type": f"text/csv; charset={charset}"}
    params = {"encoding": encoding} if encoding else {}
    _, made = await told(client, "POST", "/v1/batches/register", data=sheet, headers=sent, params=params)
    view = await over(client, made["id"])
    assert (view["state"], view["result"].get("note")) == ("done", None), view
    _, page = await told(client, "GET", f"/v1/batches/{made['id']}/items")
    assert page["items"][0]["item"][1]["sku"] == "\u7d05\u8336"


async def test_an_input_alone_is_submitted_listed_and_steered(client: ClientSession) -> None:
    status, made = await told(client, "POST", f"/v1/batches/{UNSERVED}", json={"n": 1000}, params={"priority": "5"})
    assert (status, made["priority"]) == (201, 5)
    batch = made["id"]
    for verb, states in (("pause", {"paused"}), ("resume", {"pending", "splitting", "running"})):
        status, view = await told(client, "POST", f"/v1/batches/{batch}/{verb}")
        assert (status, view["state"] in states) == (200, True), view
    await listed(client, [batch], params={"task": UNSERVED, "limit": "1"})
    status, refused = await told(client, "POST", f"/v1/batches/{batch}/retry")
    assert (status, refused["code"]) == (409, "state")
    status, nothing = await told(client, "GET", f"/v1/batches/{batch}/result")
    assert (status, nothing["code"]) == (404, "not_found")
    assert (await told(client, "POST", f"/v1/batches/{batch}/cancel"))[0] == 200
    assert (await over(client, batch))["state"] == "cancelled"


async def test_a_callback_is_named_and_how_far_it_is_is_shown(client: ClientSession) -> None:
    params = {"id": "http-called", "callback": "https://shop.example.com/told?key=7"}
    status, made = await told(client, "POST", "/v1/batches/count", json=COUNT, params=params)
    assert (status, made["callback"], made["calls"]) == (201, "https://shop.example.com/told", [])
    view = await over(client, "http-called")
    with anyio.fail_after(60):
        while view["calls"][0]["state"] == "owed":
            view = await over(client, "http-called")
            await a_moment()
    [call] = view["calls"]
    assert (call["event"], call["pass_no"], call["state"], call["tries"]) == ("done", 1, "waiting", 0)


async def test_tasks_are_listed_and_their_limits_changed(client: ClientSession) -> None:
    _, listed = await told(client, "GET", "/v1/tasks")
    assert {"register", "count"} <= {task["task"] for task in listed["tasks"]}
    assert [task["task"] for task in listed["tasks"] if task["is_streaming"]] == ["odd"]
    status, changed = await told(client, "PATCH", "/v1/tasks/count", json={"main_rate": 50})
    assert (status, changed["main_rate"], changed["main_concurrency"]) == (200, 50, 10)
    status, changed = await told(client, "PATCH", "/v1/tasks/count", json={"main_rate": None})
    assert (status, changed["main_rate"]) == (200, 0)


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("POST", "/v1/batches/nobody", {"json": COUNT}, 404, "not_found"),
        ("POST", "/v1/batches/nobody", {"data": SHEET, "headers": CSV}, 404, "not_found"),
        (
            "POST",
            "/v1/batches/count",
            {"data": b"{", "headers": JSON},
            400,
            "malformed",
        ),
        ("POST", "/v1/batches/count", {"data": SHEET, "headers": {"Content-Type": "image/png"}}, 415, "media_type"),
        ("POST", "/v1/batches/count", {"data": {"file": "x"}}, 415, "media_type"),
        ("POST", "/v1/batches/count?id=a.b", {"json": COUNT}, 422, "bad"),
        ("POST", "/v1/batches/count?id=acme--x", {"json": COUNT}, 422, "bad"),
        ("POST", "/v1/batches/count?name=x.csv", {"json": COUNT}, 422, "bad"),
        ("POST", "/v1/batches/count?callback=http://169.254.169.254/", {"json": COUNT}, 422, "bad"),
        ("POST", "/v1/batches/count?callback=https://evil.example.org/", {"json": COUNT}, 422, "bad"),
        ("POST", "/v1/batches/register?callback=nonsense", {"data": SHEET, "headers": CSV}, 422, "bad"),
        ("POST", "/v1/batches/count?nam=x.csv", {"json": COUNT}, 422, "bad"),
        ("POST", "/v1/batches/count", {"json": "x" * 70_000}, 422, "bad"),
        ("POST", "/v1/batches/count", {"data": io.BytesIO(b"1" * 1_100_000), "headers": JSON}, 413, "too_large"),
        ("POST", "/v1/batches/register?name=a%0D%0ASet-Cookie:x", {"data": SHEET, "headers": CSV}, 422, "bad"),
        ("POST", "/v1/batches/register?encoding=klingon", {"data": SHEET, "headers": CSV}, 422, "bad"),
        (
            "POST",
            "/v1/batches/register",
            {"data": SHEET, "headers": {"Content-Type": "text/csv; charset=x"}},
            422,
            "bad",
        ),
        ("POST", "/v1/batches/count?encoding=utf-8", {"json": COUNT}, 422, "bad"),
        ("POST", "/v1/batches/register?params={", {"data": SHEET, "headers": CSV}, 400, "malformed"),
        ("POST", "/v1/batches/register", {"data": b"", "headers": CSV}, 422, "bad"),
        ("GET", "/v1/batches/nobody", {}, 404, "not_found"),
        ("GET", "/v1/batches/nobody/items", {}, 404, "not_found"),
        ("GET", "/v1/batches/nobody/result?name=../x", {}, 404, "not_found"),
        ("GET", "/v1/batches/a%2Eb", {}, 422, "bad"),
        ("GET", "/v1/batches?limit=0", {}, 422, "bad"),
        ("POST", "/v1/batches/nobody/pause", {}, 404, "not_found"),
        ("POST", "/v1/batches/nobody/retry", {"json": {"items": [-1]}}, 422, "bad"),
        ("PATCH", "/v1/tasks/count", {"json": {"item_rate": -1}}, 422, "bad"),
        ("PATCH", "/v1/tasks/count", {"json": {"item_rat": 1}}, 422, "bad"),
        ("PATCH", "/v1/tasks/nobody", {"json": {"item_rate": 1}}, 404, "not_found"),
    ],
)
async def test_what_is_wrong_is_told(
    client: ClientSession, method: str, path: str, sent: Any, status: int, code: str
) -> None:
    if isinstance(data := sent.get("data"), io.BytesIO):
        sent = {**sent, "data": io.BytesIO(data.getvalue())}  # sending closes it, and this runs again on three servers
    found, problem = await told(client, method, path, **sent)
    assert (found, problem["code"]) == (status, code), problem
    assert "\n" not in problem["detail"]


async def test_a_repeat_finds_its_batch_though_what_it_was_to_follow_is_gone(
    client: ClientSession, batches: Batches
) -> None:
    await told(client, "POST", "/v1/batches/count", json=COUNT, params={"id": "http-before"})
    await over(client, "http-before")
    params = {"id": "http-after", "after": "http-before"}
    status, first = await told(client, "POST", "/v1/batches/count", json=COUNT, params=params)
    assert status == 201
    await over(client, "http-after")
    await batches.delete("http-before")
    status, again = await told(client, "POST", "/v1/batches/count", json=COUNT, params=params)
    assert (status, again.get("created_ms")) == (201, first["created_ms"]), again
    status, problem = await told(client, "POST", "/v1/batches/count", json=COUNT, params={**params, "id": "http-else"})
    assert (status, problem["code"], problem["what"]) == (404, "not_found", "after")


@pytest.mark.parametrize("cursor", ["x", "1", "9" * 30 + ".0", "-1.0"])
async def test_a_tampered_cursor_is_refused(client: ClientSession, cursor: str) -> None:
    await told(client, "POST", "/v1/batches/count", json=COUNT, params={"id": "http-2"})
    status, problem = await told(client, "GET", "/v1/batches/http-2/items", params={"cursor": cursor})
    assert (status, problem["code"]) == (422, "bad")


async def test_a_file_too_large_is_refused_before_it_is_sent(node: BatchNode) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(node.url.rpartition(":")[2]))
    head = ["POST /v1/batches/register HTTP/1.1", "Host: x", f"Content-Type: {SHEETS[1]}"]
    head += [f"Content-Length: {200 * 1024 * 1024 + 1}", f"Authorization: Bearer {node.tokens['operator']}", "", ""]
    writer.write("\r\n".join(head).encode())
    with anyio.fail_after(20):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()
    writer.close()
    await writer.wait_closed()


async def pieces(link: Connection) -> set[str]:
    """Return of which files there are pieces."""
    bucket = link.namespace.bucket("FILES")
    answer = await link.api(f"STREAM.INFO.{files_stream(bucket)}", {"subjects_filter": f"$O.{bucket}.C.>"})
    return set(answer["state"].get("subjects") or ())


async def test_an_upload_that_breaks_off_leaves_nothing(
    node: BatchNode, client: ClientSession, link: Connection
) -> None:
    before = await pieces(link)
    _, writer = await asyncio.open_connection("127.0.0.1", int(node.url.rpartition(":")[2]))
    head = ["POST /v1/batches/register?id=http-3 HTTP/1.1", "Host: x", "Content-Type: text/csv"]
    head += ["Content-Length: 9000000", f"Authorization: Bearer {node.tokens['operator']}", "", ""]
    writer.write("\r\n".join(head).encode() + b"x" * 8_000_000)
    with anyio.fail_after(60):
        await writer.drain()
        while not (begun := await pieces(link) - before):
            await a_moment()
        writer.close()
        await writer.wait_closed()
        while begun <= await pieces(link):
            await a_moment()
    assert (await told(client, "GET", "/v1/batches/http-3"))[0] == 404


async def test_a_large_file_in_parts_of_unknown_length_goes_through(client: ClientSession) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"sku,price\n"
        for _ in range(3):
            yield b"A1,10\n" * 200_000

    status, made = await told(client, "POST", "/v1/batches/odd", data=parts(), headers=CSV)
    assert status == 201, made
    view = await over(client, made["id"])
    assert (view["state"], "n" in view["reason"]) == ("failed", True)  # `odd` wants an input, but the file was taken


async def test_a_file_of_an_odd_name_is_named_safely(client: ClientSession) -> None:
    _, made = await told(client, "POST", "/v1/batches/odd", json={"n": 1})
    view = await over(client, made["id"])
    assert view["files"] == [ODD_NAME]
    async with client.get(f"/v1/batches/{made['id']}/result?name={quote(ODD_NAME)}") as answer:
        assert answer.status == 200
        named = answer.headers["Content-Disposition"]
    assert named == (
        'attachment; filename="a _price_list_ _berall.csv"; '
        "filename*=UTF-8''a%20%22price%22list%2C%20%C3%BCberall.csv"
    )


async def test_an_instance_is_its_tenants_alone(node: BatchNode, client: ClientSession) -> None:
    acme, other = ({"headers": bearer(node, name)} for name in ("acme", "other"))
    status, made = await told(client, "POST", "/v1/batches/count", json=COUNT, params={"id": "mine"}, **acme)
    assert (status, made["id"]) == (201, "mine")
    assert (await over(client, "mine", **acme))["state"] == "done"
    status, theirs = await told(client, "POST", "/v1/batches/count", json={"n": 4}, params={"id": "mine"}, **other)
    assert (status, theirs["id"]) == (201, "mine")
    [seen] = await listed(client, ["mine"], **acme)
    assert seen["items"] in (None, 3)
    for path in ("/v1/batches/mine", "/v1/batches/acme--mine", "/v1/batches/mine/items"):
        status, problem = await told(client, "GET", path)
        assert (status, problem["detail"]) == (404, "no such batch, or none of yours"), path
    for name in ("cancel", "pause", "retry"):
        assert (await told(client, "POST", f"/v1/batches/acme--mine/{name}", **other))[0] == 404
    assert (await told(client, "PATCH", "/v1/tasks/count", json={"item_rate": 1}, **acme))[0] == 403


async def test_an_input_that_names_anothers_file_neither_reads_nor_removes_it(
    node: BatchNode, client: ClientSession
) -> None:
    acme, other = ({"headers": bearer(node, name)} for name in ("acme", "other"))
    sent = {"headers": {**acme["headers"], **CSV}}
    await told(client, "POST", "/v1/batches/register", data=SHEET, params={"id": "secret"}, **sent)
    assert (await over(client, "secret", **acme))["state"] == "done"
    for stolen in ("acme--secret/result.xlsx", "acme--secret/upload-1"):
        await told(client, "POST", "/v1/batches/register", json={"file": "x"}, params={"id": "thief"}, **other)
        status, _ = await told(
            client, "POST", "/v1/batches/register", json={"file": stolen}, params={"id": "thief"}, **other
        )
        assert status == 422
    async with client.get("/v1/batches/secret/result", headers=acme["headers"]) as answer:
        assert answer.status == 200


async def test_a_token_does_what_its_verbs_and_topics_say(node: BatchNode, client: ClientSession) -> None:
    reader, counter = ({"headers": bearer(node, name)} for name in ("reader", "counter"))
    assert (await told(client, "GET", "/v1/tasks", **reader))[0] == 200
    assert (await told(client, "POST", "/v1/batches/count", json=COUNT, **reader))[0] == 403
    assert (await told(client, "PATCH", "/v1/tasks/count", json={}, **reader))[0] == 403
    _, listed = await told(client, "GET", "/v1/tasks", **counter)
    assert [task["task"] for task in listed["tasks"]] == ["count"]
    assert (await told(client, "POST", "/v1/batches/odd", json=COUNT, **counter))[0] == 404
    _, odd = await told(client, "POST", "/v1/batches/odd", json={"n": 1})
    assert (await told(client, "GET", f"/v1/batches/{odd['id']}", **counter))[0] == 404
    status, problem = await told(client, "GET", "/v1/tasks", headers={"Authorization": "Bearer nonsense"})
    assert (status, problem["code"]) == (401, "unauthorized")
