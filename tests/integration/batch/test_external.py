"""Tasks whose items a program elsewhere runs: the same outcomes, rounds and limits as for Python's own."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from aiohttp import web

import penstock
from actors.batch.views import View
from penstock.sdk.batches import task_handlers
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.batch import Counts
from tests.support.batches import LONG_S, Plant, plant
from tests.support.callbacks import SECRET, is_signed

QUICK: dict[str, Any] = {"retry_base_s": 0.01, "retry_cap_s": 0.02}


ODD = {
    "odd": (b'"ok"', b"7"),
    "latin": (b'"ok"', b'{"name":"caf\xe9"}'),
    "endless": (b'"ok"', b"[1e400]"),
    "deep": (b'"ok"', b"[" * 200 + b"]" * 200),
    "latin no": (b'"failed"', b'"no caf\xe9"'),
    "endless no": (b'"failed"', b"[1e400]"),
}
"""Statuses and infos that are JSON for a careless reader."""


class Shop:
    """A program that answers as the item's name says. `asked`: each request, by the names in it."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[tuple[Mapping[str, str], bytes]] = []
        self.over = anyio.Event()

    def outcomes(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        told = (self._outcome(each["index"], each["item"]["name"], each["attempt"]) for each in body["items"])
        lists = (outcome if isinstance(outcome, list) else [outcome] for outcome in told if outcome is not None)
        return {"outcomes": [outcome for each in lists for outcome in each]}

    def _outcome(self, index: int, name: str, attempt: int) -> dict[str, Any] | list[dict[str, Any]] | None:
        self.asked[name] += 1
        match name:
            case "told":
                return {"index": index, "status": "ok", "info": {"id": 7}, "more": "is ignored"}
            case "no":
                return {"index": index, "status": "failed", "info": "no such shop"}
            case "there":
                return {"index": index, "status": "skipped", "info": "was there"}
            case "busy":
                return {"index": index, "status": "again", "info": "busy"}
            case "forgotten" if attempt == 1:
                return None
            case "twice" if attempt == 1:
                return [{"index": index, "status": "failed"}, {"index": index, "status": "ok"}]
            case "always twice":
                return [{"index": index, "status": "ok"}, {"index": index, "status": "failed"}]
        return {"index": index, "status": "ok"}


def named(body: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each["index"], each["item"]["name"]) for each in body["items"]]


@asynccontextmanager
async def http_shop(shop: Shop) -> AsyncIterator[str]:
    """Serve the shop over HTTP, with the troubles of HTTP for items that ask for them."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        shop.requests.append((dict(request.headers), await request.read()))
        first = body["items"][0]
        match first["item"]["name"], first["attempt"]:
            case ("422", _):
                shop.asked["422"] += 1
                return web.Response(status=422, text="no  such\nfield")
            case ("503", 1):
                return web.Response(status=503)
            case ("redirect", 1):
                return web.Response(status=307, headers={"Location": str(request.url)})
            case ("odd", _):
                shop.asked["odd"] += len(body["items"])
                told = {name: b'{"index":%d,"status":%s,"info":%s}' % (at, *ODD[name]) for at, name in named(body)}
                return web.Response(body=b'{"outcomes":[%s]}' % b",".join(told.values()))
            case ("garbage", 1):
                return web.Response(text="<html>")
            case ("cut", 1):
                assert request.transport is not None
                request.transport.abort()
            case ("hangs", 1):
                await shop.over.wait()
        return web.json_response(shop.outcomes(body))

    app = web.Application()
    app.router.add_post("/items", answer)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/items"
    finally:
        shop.over.set()
        await runner.cleanup()


@asynccontextmanager
async def nats_shop(
    connection: Connection, subject: str, answer: Callable[[Message], tuple[bytes, dict[str, str]]]
) -> AsyncIterator[None]:
    """Answer requests on a subject until the block ends."""
    send, receive = anyio.create_memory_object_stream[Message](100)

    async def serve() -> None:
        async for message in receive:
            payload, headers = answer(message)
            await connection.publish_core(message.reply, payload, headers=headers)

    listening = await connection.subscribe(subject, send.send_nowait)
    await connection.flush()
    with send, receive:
        async with anyio.create_task_group() as serving:
            serving.start_soon(serve)
            yield
            serving.cancel_scope.cancel()
    await listening.unsubscribe()


async def run(node: Plant, task: str, names: list[str]) -> View:
    """Run an instance whose sheet has a row for each name."""

    async def upload() -> AsyncIterator[bytes]:
        yield "\n".join(["name", *names, ""]).encode()

    view = await node.submit(task, upload=upload(), name="rows.csv")
    return await node.until(view.instance_id, "done", "failed", within_s=LONG_S)


@pytest.mark.parametrize("door", ["http", "nats"])
async def test_requests_are_signed_with_a_key_of_the_task_and_name_it(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    monkeypatch.setenv("KEY_OF_CALLS", SECRET)
    shop, subject, task = Shop(), f"{connection.namespace.name}.signed", f"signed-{door}"

    def answer(message: Message) -> tuple[bytes, dict[str, str]]:
        shop.requests.append((message.headers, message.payload))
        return msgspec.json.encode(shop.outcomes(msgspec.json.decode(message.payload))), {}

    async with http_shop(shop) as url, nats_shop(connection, subject, answer):
        penstock.external_batch(task, url if door == "http" else f"nats:{subject}")
        async with plant(connection, [task], calls={"callback_secret": "env:KEY_OF_CALLS"}) as node:
            view = await run(node, task, ["plain"])
    [(headers, body)] = shop.requests
    assert (headers["Penstock-Task"], headers["Penstock-Instance"]) == (task, view.instance_id)
    key = hmac.new(SECRET.encode(), f"task:{task}".encode(), hashlib.sha256).hexdigest()
    assert is_signed(headers["Penstock-Signature"], body, key)
    assert not is_signed(headers["Penstock-Signature"], body + b" ", key)
    assert not is_signed(headers["Penstock-Signature"], body, SECRET), "the program does not get the nodes' secret"


async def test_without_a_secret_nothing_is_signed(connection: Connection) -> None:
    shop = Shop()
    async with http_shop(shop) as url:
        penstock.external_batch("unsigned", url)
        async with plant(connection, ["unsigned"]) as node:
            view = await run(node, "unsigned", ["plain"])
    [(headers, _)] = shop.requests
    assert headers["Penstock-Instance"] == view.instance_id
    assert "Penstock-Signature" not in headers


async def test_a_secret_that_is_gone_sends_no_request(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_CALLS", SECRET)
    shop = Shop()
    async with http_shop(shop) as url:
        penstock.external_batch("keyless", url, attempts=2, **QUICK)
        async with plant(connection, ["keyless"], calls={"callback_secret": "env:KEY_OF_CALLS"}) as node:
            monkeypatch.delenv("KEY_OF_CALLS")
            view = await run(node, "keyless", ["plain"])
            found = await ends(node, view)
    assert found["plain"][0] == "failed"
    assert "callback_secret: " in str(found["plain"][1])
    assert SECRET not in str(found)
    assert shop.requests == []


async def ends(node: Plant, view: View) -> dict[str, tuple[str | None, Any]]:
    page = await node.desk.items.page(view.instance_id)
    return {each.item[1]["name"]: (each.status, each.info) for each in page.items}


async def test_items_are_posted_and_answered(connection: Connection) -> None:
    shop = Shop()
    async with http_shop(shop) as url:
        penstock.external_batch("posted", url, attempts=2, **QUICK)
        async with plant(connection, ["posted"]) as node:
            view = await run(node, "posted", ["plain", "told", "no", "there", "busy", "forgotten"])
            found = await ends(node, view)
            record = node.engine.tasks.current("posted")
    assert (view.state, view.counts) == ("done", Counts(succeeded=3, failed=2, skipped=1))
    assert found["told"] == ("ok", {"id": 7})
    assert found["no"] == ("failed", "no such shop")
    assert found["there"] == ("skipped", "was there")
    assert found["busy"] == ("failed", "busy")
    assert (shop.asked["busy"], shop.asked["forgotten"], shop.asked["plain"]) == (2, 2, 1)
    first = shop.bodies[0]
    assert first["instance"] == view.instance_id
    assert first["items"][1] == {"index": 1, "attempt": 1, "item": {"name": "told"}}
    assert record.executor == f"http:{url}"
    assert view.result["files"] == ["result.xlsx"]


async def test_an_item_that_an_answer_names_twice_is_sent_again(connection: Connection) -> None:
    shop = Shop()
    async with http_shop(shop) as url:
        penstock.external_batch("twice-named", url, attempts=2, **QUICK)
        async with plant(connection, ["twice-named"]) as node:
            view = await run(node, "twice-named", ["plain", "twice", "always twice"])
            found = await ends(node, view)
    assert view.counts == Counts(succeeded=2, failed=1)
    assert found["always twice"] == ("failed", "the answer names it 2 times: ok, failed")
    assert (shop.asked["plain"], shop.asked["twice"], shop.asked["always twice"]) == (1, 2, 2)


async def test_what_nobody_could_read_of_an_answer_costs_the_info_alone(connection: Connection) -> None:
    shop = Shop()
    async with http_shop(shop) as url:
        penstock.external_batch("unread", url, attempts=2, **QUICK)
        async with plant(connection, ["unread"]) as node:
            view = await run(node, "unread", list(ODD))
            found = await ends(node, view)
            assert (view.state, view.counts) == ("done", Counts(succeeded=4, failed=2))
            assert shop.asked["odd"] == len(ODD), "nothing ran again"
    assert found["odd"] == ("ok", 7)
    for name in ("latin", "endless", "deep"):
        status, info = found[name]
        assert (status, list(info)) == ("ok", ["not_told"])
    assert found["latin no"] == ("failed", "no caf\ufffd")
    assert found["endless no"] == ("failed", "[1e400]")


async def test_trouble_on_the_way_goes_round_again_and_a_refusal_does_not(connection: Connection) -> None:
    shop = Shop()
    troubles = ["503", "redirect", "garbage", "cut", "hangs"]
    async with http_shop(shop) as url:
        penstock.external_batch("troubled", url, attempts=2, chunk_items=1, timeout_s=3.0, **QUICK)
        async with plant(connection, ["troubled"]) as node:
            view = await run(node, "troubled", ["422", *troubles])
            found = await ends(node, view)
            shop.over.set()
    assert view.counts == Counts(succeeded=5, failed=1)
    assert found["422"] == ("failed", "422: no such field")
    assert shop.asked["422"] == 1
    assert {body["items"][0]["attempt"] for body in shop.bodies if body["items"][0]["item"]["name"] in troubles} >= {2}


async def test_nobody_there_fails_the_items_at_the_last_attempt(connection: Connection) -> None:
    penstock.external_batch("nobody", "http://127.0.0.1:1/items", attempts=2, **QUICK)
    penstock.external_batch("silent", f"nats:{connection.namespace.name}.nobody", attempts=2, **QUICK)
    async with plant(connection, ["nobody", "silent"]) as node:
        for task, reason in (("nobody", "no answer: ClientConnectorError"), ("silent", "nobody")):
            view = await run(node, task, ["a", "b"])
            assert view.counts == Counts(failed=2)
            assert all(reason in str(info) for _, info in (await ends(node, view)).values())


async def test_items_are_asked_for_on_a_subject(connection: Connection) -> None:
    shop, subject = Shop(), f"{connection.namespace.name}.shop"

    def answer(message: Message) -> tuple[bytes, dict[str, str]]:
        shop.requests.append((message.headers, message.payload))
        body = msgspec.json.decode(message.payload)
        first = body["items"][0]
        if first["item"]["name"] == "refused":
            return b"", {"Nats-Service-Error": "no such field", "Nats-Service-Error-Code": "400"}
        if first["item"]["name"] == "down" and first["attempt"] == 1:
            return b"", {"Nats-Service-Error": "later", "Nats-Service-Error-Code": "500"}
        return msgspec.json.encode(shop.outcomes(body)), {}

    penstock.external_batch("asked", f"nats:{subject}", attempts=2, chunk_items=1, **QUICK)
    async with nats_shop(connection, subject, answer), plant(connection, ["asked"]) as node:
        view = await run(node, "asked", ["plain", "told", "no", "refused", "down", "forgotten"])
        found = await ends(node, view)
    assert view.counts == Counts(succeeded=4, failed=2)
    assert found["refused"] == ("failed", "400: no such field")
    assert found["no"] == ("failed", "no such shop")
    assert found["told"] == ("ok", {"id": 7})


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("ftp://shop/items", "say http://HOST"),
        ("http://user:secret@shop/items", "'shop/items'"),
        ("http:///items", "say http://HOST"),
        ("http://shop:99999/", "say http://HOST"),
        ("nats:a b", "nats:SUBJECT"),
        ("nats:shop.>", "nats:SUBJECT"),
        ("", "say http://HOST"),
    ],
)
def test_a_place_that_is_none_is_refused(place: str, told: str) -> None:
    with pytest.raises(penstock.UsageError, match=told) as refused:
        penstock.external_batch("no-place", place)
    assert "secret" not in str(refused.value)
    assert "no-place" not in task_handlers()


def test_a_task_is_served_once() -> None:
    @penstock.batch("taken")
    class Taken:
        async def map(self, item: Any) -> None: ...

    with pytest.raises(penstock.UsageError, match="serves it"):
        penstock.external_batch("taken", "http://shop/items")
    with pytest.raises(penstock.UsageError, match="attempts"):
        penstock.external_batch("taken-attempts", "http://shop/items", attempts=0)
    assert "taken-attempts" not in task_handlers()
