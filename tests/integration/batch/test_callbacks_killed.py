"""A node that is killed between telling and recording that: it has told, and tells again by the same id."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_batches import Batches
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.messages.batch import BatchEvent
from streams.reads.log import read_log
from streams.topology.specs import wanted
from tests.support.callbacks import SECRET, VARIABLE, receiver
from tests.support.command import node
from tests.support.server import make_topology

LONG_S = 80.0
ROLES = "conductor,executor,worker,timer,desk"


@pytest.mark.parametrize(("point", "calls"), [("batch.tell", 1), ("batch.called", 2)])
async def test_a_node_killed_before_it_could_record_what_it_told_has_told_it(
    connection: Connection, server: EmbeddedServer, point: str, calls: int
) -> None:
    namespace = connection.namespace
    await make_topology(connection, wanted(namespace, profile="fast"))
    batches = Batches(ServiceClient(connection, "batch", 30.0), connection)
    arguments = ["--nats", server.url, "--namespace", namespace.name, "--sink", "none", "--http", "off"]
    arguments += ["--roles", ROLES, "--app", "tests.support.batch_app"]

    def environment(**more: str) -> Mapping[str, str]:
        hosts = {"PENSTOCK_CALLBACK_HOSTS": office.host, "PENSTOCK_CALLBACK_SECRET": f"env:{VARIABLE}"}
        return {**hosts, VARIABLE: SECRET, "PENSTOCK_LOG_FORM": "json", **more}

    async with receiver() as office:
        async with node(*arguments, "--name", "first", environment=environment(PENSTOCK_CRASH_AT=point)) as first:
            await first.logged("node.ready", LONG_S)
            await batches.submit("count", {"n": 3}, id="i", callback=office.url)
            assert await first.end(within_s=LONG_S) == -9
        async with node(*arguments, "--name", "second", environment=environment()) as second:
            await second.logged("callback.taken", LONG_S, instance="i", moment="done")
            view = await batches.show("i")
        assert office.unsigned == 0
    assert view.state == "done"
    assert [(call.name, call.state) for call in view.calls] == [("done", "taken")]
    assert [call.body["event"] for call in office.calls] == ["done"] * calls
    assert len({(call.event_id, msgspec.json.encode(call.body)) for call in office.calls}) == 1
    pattern = namespace.pattern("events", "batch", ">")
    stored = [
        msgspec.json.decode(entry.payload, type=BatchEvent)
        async for entry in read_log(connection, namespace.stream("EVENTS"), pattern)
    ]
    assert {event.event_id for event in stored} == {office.calls[0].event_id}
