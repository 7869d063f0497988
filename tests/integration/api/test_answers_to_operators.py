"""The answers about flows, sources, zones and rates, byte for byte (test_answers.py)."""

import json
from functools import partial

import anyio
import msgspec
import pytest

from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice
from actors.fetch.sources import SourceKey
from actors.flow.flows import FlowRecord, Flows
from penstock.errors import NotAccepted
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_flows import FlowCalls
from penstock.sdk.client_sources import SourceCalls
from streams.buckets.bucket import Bucket
from streams.clock import now_ms
from streams.publish.publisher import Publisher
from tests.support.answers import Recorder, check
from tests.support.batch_node import BatchNode
from tests.support.engine import add_source
from tests.support.moments import a_moment


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
    await http("GET", f"{here}/pays")
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
    await flow("set", '{"flow": "pays", "set": {}}')
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
    await http("GET", f"{zones}/z/shards")
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
