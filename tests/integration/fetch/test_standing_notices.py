"""Notices of what waits for a person and is of no source alone: each once, grouped, and its end as well."""

from __future__ import annotations

import anyio
import pytest

from actors.fetch import monitor
from actors.runtime.rules.notices import Notice
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.reads.log import purge_subject
from streams.topology.specs import fetch_consumer
from streams.topology.topology import ensure_consumer
from tests.integration.fetch.test_monitor import offer_nothing
from tests.support.engine import Node, put_setting, running_node
from tests.support.moments import a_moment
from tests.support.office import Office, an_office


def told(notices: list[Notice]) -> list[str]:
    return [notice.kind for notice in notices]


async def send_to(office: Office, node: Node, connection: Connection, publisher: Publisher) -> None:
    """Have notices sent to the office, and wait until the node knows it."""
    await put_setting(connection, publisher, "fetch.default", {"scan_every": "100ms", "webhook": office.url})
    with anyio.fail_after(30):
        while node.settings.current("", "").webhook != office.url:
            await a_moment()


async def test_a_stuck_consumer_and_its_end_are_notices(connection: Connection, publisher: Publisher) -> None:
    spec = fetch_consumer(connection.namespace, "mall", "tail")
    path = f"CONSUMER.PAUSE.{spec.stream}.{spec.name}"
    async with an_office() as office, running_node(connection, publisher, roles=("monitor",)) as node:
        node.engine.monitor.progress.stuck_s = 0.3
        await send_to(office, node, connection, publisher)
        await ensure_consumer(connection, spec)
        await connection.api(path, {"pause_until": "2099-01-01T00:00:00Z"})
        await offer_nothing(connection, publisher, "t1-0-1")
        pull = await connection.send_request(
            f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{spec.name}",
            b'{"batch": 5, "expires": 60000000000}',
            deadline_s=1e9,
        )
        [stuck] = await office.until(1)
        await connection.api(path, {})
        await offer_nothing(connection, publisher, "t1-1-2")
        await office.until(2)
        pull.cancel()
    assert told(office.taken) == ["consumer_stuck", "consumer_stuck_over"]
    assert f"{spec.name} of {spec.stream} (1 wait)" in stuck.text
    assert "nats consumer info" in stuck.what_to_do


async def test_refused_settings_and_their_end_are_notices(connection: Connection, publisher: Publisher) -> None:
    async with an_office() as office, running_node(connection, publisher, roles=("monitor",)) as node:
        await send_to(office, node, connection, publisher)
        await put_setting(connection, publisher, "fetch.mall", {"slice": 5})
        [first] = await office.until(1)
        await put_setting(connection, publisher, "fetch.mall", {"slice": 6})
        await office.until(2)
        await put_setting(connection, publisher, "fetch.mall", {"slice": "90s"})
        await office.until(3)
    assert told(office.taken) == ["settings_refused", "settings_refused", "settings_refused_over"]
    assert "fetch.mall: " in first.text
    assert "slice" in first.text


async def test_dead_letters_that_grow_are_notices_until_none_is_left(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "COUNT_DEAD_S", 0.1)
    names, stream = connection.namespace, connection.namespace.stream("DEAD")

    async def bury(engine: str, name: str, *ids: str) -> None:
        for dead_id in ids:
            await publisher.publish(names.dead(engine, name, dead_id), b"{}", message_id=f"{name}.{dead_id}")

    async with an_office() as office, running_node(connection, publisher, roles=("monitor",)) as node:
        await send_to(office, node, connection, publisher)
        await bury("fetch", "mall", "s1_t1-0-60000")  # a hole has its own notice
        await bury("jobs", "mails", "1", "2")
        [first] = await office.until(1)
        await bury("jobs", "mails", "3")
        await bury("sink", "main", "1")
        second = (await office.until(2))[1]
        await purge_subject(connection, stream, names.pattern("dead", "jobs", "*", "*"))
        await purge_subject(connection, stream, names.pattern("dead", "sink", "*", "*"))
        await office.until(3)
    assert told(office.taken) == ["dead_letters", "dead_letters", "dead_letters_over"]
    assert first.text.endswith(" of jobs mails")
    assert "1 of sink main" in second.text
    assert first.what_to_do.startswith("penstock dead list")
