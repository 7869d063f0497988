"""Traces by OpenTelemetry: one from the add to the handler, from the submission to the result, from fetch to sink."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import anyio
import pytest

import penstock
from actors.fetch import sink
from actors.fetch.sources import SourceKey
from actors.fetch.stores.function import FunctionStore
from actors.flow.flows import rounds_topic, rows_topic
from actors.runtime.tracing import traces
from penstock.errors import UsageError
from penstock.node.traces import begin_traces
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.messages.fetch import Order
from streams.publish.publisher import Publisher
from streams.topology.specs import sink_consumer, wanted
from streams.topology.topology import ensure_consumer
from tests.support.command import node
from tests.support.engine import a_mall, add_source, history_start_ms, running_node
from tests.support.moments import a_moment
from tests.support.server import make_topology
from tests.support.sinks import Watched

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra `traces` is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_trace_id

ASKED = "0af7651916cd43dd8448eb211c80319c"
PUBLISHED = "1af7651916cd43dd8448eb211c80319c"
"""Traces of other programs."""
WITHIN_S = 60.0


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this process, which traces for the length of a test. A program sets its provider once for good."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    traces.follow_provider()
    yield exporter
    monkeypatch.undo()
    traces.follow_provider()
    provider.shutdown()


def trace_of(span: ReadableSpan) -> str:
    return format_trace_id(span.context.trace_id)


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def printed(text: str) -> list[dict[str, Any]]:
    """Return the spans that the SDK's exporter for the console printed, one JSON after the other."""
    found, decoder, at = [], json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        span, at = decoder.raw_decode(text, at)
        found.append(span)
    return found


async def test_what_a_program_adds_and_submits_is_one_trace_to_its_end(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, spans: InMemorySpanExporter
) -> None:
    names = connection.namespace
    await make_topology(connection, wanted(names, profile="fast"))
    arguments = ("--nats", server.url, "--namespace", names.name, "--app", "tests.support.traced_app")
    switched_on = {"OTEL_TRACES_EXPORTER": "console", "PENSTOCK_HTTP": "127.0.0.1:0"}
    async with node(*arguments, environment=switched_on) as up:
        port = (await up.logged("gateway.listens"))["port"]
        await up.logged("node.ready")
        async with penstock.connect(server.url, namespace=names.name) as client, aiohttp.ClientSession() as http:
            await client.jobs.add("traced-letters", {}, id="alone", delay=0.2)
            await client.jobs.add_many([penstock.new_job("traced-plain", {}, id="listed", attempts=1)])
            url, headers = f"http://127.0.0.1:{port}/v1/topics/traced-letters/jobs", {"traceparent": parent(ASKED)}
            async with http.post(url, json={"id": "asked", "body": {"do": "fail"}}, headers=headers) as answer:
                assert answer.status == 201, up.lines[-1]
            job = b'{"id": "published", "body": {}}'
            told = {"Traceparent": parent(PUBLISHED)}
            await publisher.publish(names.subject("submit", "job", "traced-letters"), job, headers=told)
            await client.jobs.add("traced-remote", {}, id="held")
            async with client.jobs.reserve("traced-remote", wait=20) as held:
                assert held is not None
                assert traces.current()[3:35] == trace_of(named(spans, "add traced-remote")[0])
            view = await client.batches.submit("traced-rows", [1, 2, 3])
            view = await client.batches.wait(view.instance_id, timeout_s=WITHIN_S)
            assert view.result == 3
            with anyio.fail_after(WITHIN_S):
                for topic in ("traced-letters", "traced-plain"):
                    while (count := await client.jobs.count(topic)).ready or count.delayed:
                        await a_moment()
        assert await up.end(signal.SIGTERM) == 0
        assert up.process.stdout is not None
        made = printed(b"".join([chunk async for chunk in up.process.stdout]).decode())

    def of(name: str, fact: str, value: str) -> list[tuple[str, str]]:
        """Return the trace, and the status, of the node's spans of this name that have a fact."""
        mine = [span for span in made if span["name"] == name and span["attributes"].get(f"penstock.{fact}") == value]
        return [(span["context"]["trace_id"][2:], span["status"]["status_code"]) for span in mine]

    [alone] = named(spans, "add traced-letters")
    assert of("run traced-letters", "job", "alone") == [(trace_of(alone), "UNSET")]
    [listed] = named(spans, "add")
    assert of("run traced-plain", "job", "listed") == [(trace_of(listed), "ERROR")]
    assert of("run traced-letters", "job", "asked") == [(ASKED, "ERROR")]
    assert of("run traced-letters", "job", "published") == [(PUBLISHED, "UNSET")]
    [submitted] = named(spans, "submit traced-rows")
    ours = (trace_of(submitted), "UNSET")
    for step, times in (("split", 1), ("map", 2), ("reduce", 1)):
        assert of(f"{step} traced-rows", "batch", view.instance_id) == [ours] * times
    [run] = named(spans, "run traced-remote")
    assert trace_of(run) == trace_of(named(spans, "add traced-remote")[0])
    assert {span["resource"]["attributes"]["service.name"] for span in made} == {"penstock"}


async def test_a_fire_of_a_schedule_and_a_round_of_a_flow_each_begin_a_trace(
    server: EmbeddedServer, connection: Connection
) -> None:
    names = connection.namespace
    await make_topology(connection, wanted(names, profile="fast"))
    arguments = ("--nats", server.url, "--namespace", names.name, "--app", "tests.support.traced_app")
    async with node(*arguments, environment={"OTEL_TRACES_EXPORTER": "console"}) as up:
        await up.logged("node.ready")
        async with penstock.connect(server.url, namespace=names.name) as client:
            await client.schedules.add("traced-letters/often", {}, every="1s")
            with anyio.fail_after(WITHIN_S):
                while len((await client.schedules.show("traced-letters/often")).runs) < 3:
                    await a_moment()
                while sum(one.new for one in (await client.flows.show("traced-pay")).rounds) < 3:
                    await a_moment()
                while (count := await client.jobs.count(rows_topic("traced-pay"))).ready or count.reserved:
                    await a_moment()
        assert await up.end(signal.SIGTERM) == 0
        assert up.process.stdout is not None
        made = printed(b"".join([chunk async for chunk in up.process.stdout]).decode())

    def traces_of(name: str) -> list[str]:
        return [span["context"]["trace_id"] for span in made if span["name"] == name]

    fired, ran = traces_of("fire traced-letters"), traces_of("run traced-letters")
    assert len(set(fired)) == len(fired) >= 3
    assert ran
    assert set(ran) <= set(fired)
    rounds = traces_of(f"fire {rounds_topic('traced-pay')}")
    assert set(traces_of("load traced-pay")) <= set(rounds)
    paid = traces_of(f"run {rows_topic('traced-pay')}")
    assert len(paid) == 3
    assert set(paid) <= set(traces_of("load traced-pay"))


def parent(trace_id: str) -> str:
    return f"00-{trace_id}-b7ad6b7169203331-01"


async def test_orders_are_one_trace_from_the_slice_to_the_sink(
    connection: Connection, publisher: Publisher, spans: InMemorySpanExporter
) -> None:
    async def keep(orders: Sequence[Order]) -> None:
        """Take them."""

    store, stop = Watched(FunctionStore(keep)), anyio.Event()
    async with a_mall(ago_ms=10_000, orders=200) as mall, running_node(connection, publisher):
        await ensure_consumer(connection, sink_consumer(connection.namespace, "traced"))
        settings = sink.Settings(name="traced", wait_ms=5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_sinking, settings, connection, publisher, store, stop)
            source = SourceKey("mall", "s1")
            start_ms = history_start_ms(mall)
            await add_source(connection, publisher, source, adapter="mall", url=mall.url, start_ms=start_ms)
            await store.taken.until(lambda orders: len({order.order_key for order in orders}) >= 200)
            stop.set()
    fetched = {trace_of(span) for span in named(spans, "fetch mall")}
    stored = named(spans, "store traced")
    assert stored
    assert {trace_of(span) for span in stored} <= fetched
    assert all(span.parent is not None for span in stored)


async def _sinking(
    settings: sink.Settings, connection: Connection, publisher: Publisher, store: Watched, stop: anyio.Event
) -> None:
    await sink.run(settings, connection=connection, publisher=publisher, store=store, stop=stop)


def test_without_a_provider_nothing_is_traced_and_an_exporter_that_is_missing_is_named() -> None:
    begin_traces({})
    assert not traces.is_on
    assert traces.current() == ""
    with traces.span("nothing", "producer", {}) as span:
        assert span is None
    begin_traces({"OTEL_TRACES_EXPORTER": "none"})
    begin_traces({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"})
    assert not traces.is_on
    with pytest.raises(UsageError, match="install opentelemetry-exporter-otlp-proto-http"):
        begin_traces({"OTEL_TRACES_EXPORTER": "otlp"})
