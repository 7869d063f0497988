"""A try of a change of settings that comes late, when another try of its call was done and others have called since."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest
from aiohttp import ClientSession

from actors.fetch.sources import SourceKey
from actors.flow.flows import FlowRecord, Flows, rounds_topic
from actors.jobs.rules.schedule_record import decode_schedule
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_flows import FlowCalls
from penstock.sdk.client_rates import RateCalls
from streams.buckets.bucket import Bucket
from streams.calls import CALL_HEADER
from streams.clock import now_ms
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.micro import QUESTION_HEADER, WHO, Has
from streams.publish.publisher import Publisher
from tests.support.batch_node import UNSERVED, BatchNode
from tests.support.engine import add_source
from tests.support.moments import a_moment

Try = Callable[..., Awaitable[dict[str, Any]]]
WHOLE = {"shards": 4, "zones": {"a": "0-1", "b": "2-3"}}


@pytest.fixture
async def link(node: BatchNode) -> AsyncIterator[Connection]:
    async with node.connected() as link:
        yield link


@pytest.fixture
def tried(link: Connection) -> Try:
    """Ask a service once, as the first try of a call (`call` names it) or as a later one (`of`), and return the
    answer."""

    async def ask(service: str, endpoint: str, *, call: str = "", of: str = "", **values: Any) -> dict[str, Any]:
        headers = {CALL_HEADER: of, QUESTION_HEADER: secrets.token_hex(8)} if of else {QUESTION_HEADER: call}
        subject = link.namespace.api(service, endpoint)
        answer = await link.request(subject, msgspec.json.encode(values), headers=headers, timeout_s=20)
        told: dict[str, Any] = msgspec.json.decode(answer.payload)
        assert "error" not in told, told
        return told

    return ask


@pytest.fixture
async def flow(link: Connection) -> str:
    """A flow that the node knows."""
    name = f"pay-{secrets.token_hex(3)}"
    async with Publisher(link) as publisher:
        flows = Flows(Bucket(link, publisher, link.namespace.bucket("FLOWS"), bytes))
        await flows.declare(FlowRecord(flow=name, app="shop", declared_rate=50.0))
    with anyio.fail_after(30):
        while name not in {view.flow for view in await FlowCalls(ServiceClient(link, "flow", 30.0)).list()}:
            await a_moment()
    return name


async def test_a_late_try_sets_a_topic_to_nothing_again(tried: Try) -> None:
    topic = f"t{secrets.token_hex(6)}"
    pause = {"topic": topic, "set": {"is_paused": True, "rate": 5}}
    assert (await tried("jobs", "topic", call="one", **pause))["settings"]["is_paused"]
    assert (await tried("jobs", "topic", of="one", **pause))["settings"]["is_paused"]
    resume = {"topic": topic, "set": {"is_paused": False, "rate": 1}}
    assert not (await tried("jobs", "topic", call="two", **resume))["settings"]["is_paused"]
    late = (await tried("jobs", "topic", of="one", **pause))["settings"]
    assert (late["is_paused"], late["rate"]) == (False, 1)
    assert (await tried("jobs", "topic", call="three", **pause))["settings"]["is_paused"]


async def test_a_late_try_changes_no_flow(tried: Try, flow: str) -> None:
    change = {"flow": flow, "set": {"every": "7s", "rate": 500, "slots": 3}}
    told = await tried("flow", "set", call="f-one", **change)
    assert (told["every"], told["rate"], told["settings"]["slots"]) == ("7s", 500, 3)
    await tried("flow", "set", call="f-two", flow=flow, set={"every": "9s", "rate": 100, "slots": 2})
    late = await tried("flow", "set", of="f-one", **change)
    assert (late["every"], late["rate"], late["settings"]["slots"]) == ("9s", 100, 2)
    assert (await tried("flow", "pause", call="f-three", flow=flow))["is_paused"]
    assert not (await tried("flow", "resume", call="f-four", flow=flow))["is_paused"]
    assert not (await tried("flow", "pause", of="f-three", flow=flow))["is_paused"]


async def test_a_late_try_begins_no_further_round(tried: Try, flow: str, link: Connection) -> None:
    await tried("flow", "set", call="r-zero", flow=flow, set={"every": "1h"})
    for call in ({"call": "r-one"}, {"of": "r-one"}, {"call": "r-two"}, {"of": "r-one"}):
        await tried("flow", "run", flow=flow, **call)
    async with Publisher(link) as publisher:
        schedules = Bucket(link, publisher, link.namespace.bucket("RECURRING"), bytes)
        [entry] = await schedules.entries(f"{rounds_topic(flow)}.>")
    assert len(decode_schedule(entry.raw).nonces) == 2, "one for each of two calls"


async def test_a_late_try_imports_nothing_again(tried: Try) -> None:
    def row(rate: int, shop: str) -> dict[str, Any]:
        account = {"base_url": "http://127.0.0.1:9", "shop": shop, "token": "env:T"}
        return {"source": "mall/late", "adapter": "mall", "account": account, "settings": {"rate": rate}}

    async def now() -> tuple[int, str]:
        [found] = (await tried("sources", "export", call=secrets.token_hex(4)))["sources"]
        return found["settings"]["rate"], found["account"]["shop"]

    first = {"sources": [row(5, "a")], "update": True}
    assert (await tried("sources", "import", call="i-1", **first))["added"] == 1
    assert (await tried("sources", "import", of="i-1", **first))["same"] == 1
    second = {"sources": [row(7, "a")], "update": True}
    assert (await tried("sources", "import", call="i-2", **second))["changed"] == 1
    assert (await tried("sources", "import", call="i-3", sources=[row(9, "b")], update=True))["changed"] == 1
    for of, late in (("i-1", first), ("i-2", second)):
        assert (await tried("sources", "import", of=of, **late))["same"] == 1
        assert await now() == (9, "b")
    assert (await tried("sources", "import", call="i-4", **first))["changed"] == 1
    assert await now() == (5, "a")


async def test_a_late_try_sets_no_rate(tried: Try, flow: str, link: Connection) -> None:
    async with Publisher(link) as publisher:
        shop = SourceKey("late", "s1")
        await add_source(link, publisher, shop, adapter="mall", url="http://127.0.0.1:9", start_ms=now_ms())
    rates = RateCalls(ServiceClient(link, "rates", 30.0))
    with anyio.fail_after(30):
        while not any(rate.name == "late/s1" for rate in (await rates.show("late/s1", kind="source")).rates):
            await a_moment()
    for kind, name in (("flow", flow), ("task", UNSERVED), ("source", "late/s1"), ("platform", "late")):
        ask = {"kind": kind, "name": name}
        assert (await tried("rates", "set", call=f"{kind}-1", **ask, rate=500))["rate"] == 500
        assert (await tried("rates", "set", call=f"{kind}-2", **ask, rate=100))["rate"] == 100
        assert (await tried("rates", "set", of=f"{kind}-1", **ask, rate=500))["rate"] == 100, kind
        assert (await tried("rates", "set", call=f"{kind}-3", **ask, rate=500))["rate"] == 500


async def test_a_late_try_limits_no_task(tried: Try) -> None:
    for call, said, limits in (("call", "l-1", 7), ("call", "l-2", 5), ("of", "l-1", 7)):
        told = await tried("batch", "limit", task=UNSERVED, set={"item_concurrency": limits}, **{call: said})
    assert told["limits"]["item_concurrency"] == 5


async def test_a_late_try_moves_no_shards(tried: Try) -> None:
    await tried("zones", "apply", call="z-0", change={"map": WHOLE})
    drained = await tried("zones", "drain", call="z-1", zone="a")
    restored = await tried("zones", "restore", call="z-2", zone="a")
    late = await tried("zones", "drain", of="z-1", zone="a")
    assert late["map"]["epoch"] == restored["map"]["epoch"] == drained["map"]["epoch"] + 1
    assert late["map"]["zones"]["a"] == "0-1"
    assert late["plan"]["moves"] == []
    assert (await tried("zones", "drain", call="z-3", zone="a"))["map"]["zones"].get("a", "") == ""


async def test_a_second_try_has_the_name_of_its_call(link: Connection) -> None:
    """Another service of the test's own: its first instance never answers, and one that has not got the request says
    that it lives."""
    heard: list[Message] = []
    service = ServiceClient(link, "silent", 10.0)
    async with anyio.create_task_group() as tasks:

        def hear(request: Message) -> None:
            heard.append(request)
            if len(heard) == 2:
                tasks.start_soon(link.publish_core, request.reply, b"{}")

        def told(question: Message) -> None:
            tasks.start_soon(link.publish_core, question.reply, msgspec.json.encode(Has("other")))

        await link.subscribe(service.subject("set"), hear)
        await link.subscribe(f"{service.subject('set')}.other", hear)
        await link.subscribe(service.subject(WHO), told)
        assert (await service.request("set", b"{}")).is_repeated
    first, second = (dict(each.headers) for each in heard)
    assert CALL_HEADER not in first
    assert second[CALL_HEADER] == first[QUESTION_HEADER] != second[QUESTION_HEADER]


async def test_over_http_the_key_names_the_call(node: BatchNode, flow: str) -> None:
    async with ClientSession(node.url, headers={"Authorization": f"Bearer {node.tokens['operator']}"}) as session:

        async def patched(rate: float, key: str, token: str = "operator") -> float:
            headers = {"Idempotency-Key": key, "Authorization": f"Bearer {node.tokens[token]}"}
            async with session.patch(f"/v1/flows/{flow}", json={"rate": rate}, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                told: dict[str, Any] = await answer.json()
                return float(told["rate"])

        assert [await patched(5, "k1"), await patched(7, "k2"), await patched(5, "k1")] == [5, 7, 7]
        assert await patched(5, "k1", token="all") == 5, "another caller's key is another call"
