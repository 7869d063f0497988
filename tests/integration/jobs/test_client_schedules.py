"""Schedules by the Python client, through the service of a node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import penstock
from actors.jobs.rules.schedule_checks import check_schedule
from actors.jobs.rules.schedule_record import Schedule, decode_schedule
from actors.jobs.schedule_desk import READ_AT_ONCE, ScheduleDesk
from penstock.api.service.service import DeskService
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.desks import Started
from tests.support.natscli import NatsCli
from tests.support.server import make_topology

NIGHTLY = "mail/nightly"


@pytest.fixture
async def client(
    connection: Connection, publisher: Publisher, server: EmbeddedServer
) -> AsyncIterator[penstock.Client]:
    namespace = connection.namespace
    await make_topology(connection, wanted(namespace, profile="fast"))
    desk = ScheduleDesk(Bucket(connection, publisher, namespace.bucket("RECURRING"), bytes), SYSTEM)
    stop, started = anyio.Event(), Started()
    service = DeskService("schedules", desk, connection, stop)
    running = asyncio.create_task(service.run(task_status=started))
    await started.wait()
    async with penstock.connect(server.url, namespace=namespace.name) as client:
        yield client
    stop.set()
    await running


async def test_a_page_of_many_schedules_costs_what_is_on_it(
    client: penstock.Client, connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Bucket(connection, publisher, connection.namespace.bucket("RECURRING"), bytes)
    names = [f"n{number:03}" for number in range(600)]
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(records.put, f"mail.{name}", b'{"every_ms": 600000, "start_ms": 1}')
    read = list[Schedule]()

    def check(record: Schedule) -> Schedule:
        read.append(record)
        return check_schedule(record)

    monkeypatch.setattr("actors.jobs.schedule_desk.check_schedule", check)
    assert [each.name for each in await client.schedules.list(after="mail/n099", limit=50)] == names[100:150]
    assert len(read) <= 50 + READ_AT_ONCE
    read.clear()
    assert [each.name for each in await client.schedules.list()] == names
    assert len(read) <= len(names) + READ_AT_ONCE


async def test_a_schedule_is_added_shown_steered_and_removed(client: penstock.Client) -> None:
    schedules = client.schedules
    start = datetime(2096, 1, 1, tzinfo=UTC)
    wish = {"every": "10m", "start": start, "jitter": timedelta(seconds=5), "ttr": 9, "attempts": 2, "overlap": "allow"}
    added = await schedules.add(NIGHTLY, {"n": 1}, **wish)  # type: ignore[arg-type] # a plain dict
    assert added.is_changed
    assert not (await schedules.add(NIGHTLY, {"n": 1}, **wish)).is_changed  # type: ignore[arg-type]
    view = await schedules.show(NIGHTLY, next=2)
    assert (view.every_ms, view.jitter_ms, view.ttr_ms, view.attempts, view.overlap) == (
        600_000,
        5_000,
        9_000,
        2,
        "allow",
    )
    start_ms = round(start.timestamp() * 1000)
    assert (msgspec.json.decode(view.body), view.next_ms) == ({"n": 1}, [start_ms, start_ms + 600_000])
    with pytest.raises(penstock.NotAccepted, match="replace it") as taken:
        await schedules.add(NIGHTLY, cron="@daily")
    assert taken.value.code == "exists"
    assert (await schedules.add(NIGHTLY, cron="@daily", replace=True)).schedule.cron == "@daily"
    assert (await schedules.pause(NIGHTLY)).schedule.state == "paused"
    assert not (await schedules.pause(NIGHTLY)).is_changed
    assert (await schedules.resume(NIGHTLY)).schedule.state == "runs"
    assert (await schedules.trigger(NIGHTLY)).id.startswith("nightly.2")
    with pytest.raises(penstock.NotAccepted, match=r"end 2\d\d\d-.*: lies ahead"):
        await schedules.backfill(NIGHTLY, datetime.now(UTC), datetime.now(UTC) + timedelta(days=3))
    filled = await schedules.backfill(NIGHTLY, datetime.now(UTC) - timedelta(days=3))
    assert filled.schedule.backfill is not None
    await schedules.add("mail/a", every="1h")
    assert [each.name for each in await schedules.list("mail")] == ["a", "nightly"]
    assert [each.name for each in await schedules.list("mail", limit=1)] == ["a"]
    assert await schedules.list("other") == []
    for which in (NIGHTLY, "mail/a"):
        assert (await schedules.remove(which)).topic == "mail"
    with pytest.raises(penstock.NotAccepted, match="no schedule mail/nightly; there is none at all") as gone:
        await schedules.show(NIGHTLY)
    assert gone.value.code == "not_found"


async def test_the_nats_command_shows_them(
    client: penstock.Client, connection: Connection, server: EmbeddedServer, tmp_path: Path
) -> None:
    nats, bucket = NatsCli.or_skip(server.url, tmp_path), connection.namespace.bucket("RECURRING")
    await client.schedules.add(NIGHTLY, {"n": 1}, cron="@daily")
    assert "mail.nightly" in await nats.run("kv", "ls", bucket)
    raw = await nats.run("kv", "get", bucket, "mail.nightly", "--raw")
    record = decode_schedule(raw.strip().encode())
    assert (record.cron, msgspec.json.decode(record.body)) == ("@daily", {"n": 1})
    subject = connection.namespace.api("schedules", "show")
    shown = await nats.run("req", subject, '{"topic": "mail", "name": "nightly"}', "--raw")
    assert json.loads(shown)["cron"] == "@daily"


async def test_what_cannot_be_meant_is_refused(client: penstock.Client) -> None:
    with pytest.raises(penstock.UsageError, match="write TOPIC/NAME"):
        await client.schedules.pause("mail")
    with pytest.raises(TypeError, match="no option 'corn'"):
        await client.schedules.add(NIGHTLY, corn="@daily")  # type: ignore[call-arg]
    with pytest.raises(penstock.UsageError, match="has no zone"):
        await client.schedules.add(NIGHTLY, at=datetime(2096, 1, 1))  # noqa: DTZ001 # that is the point
    with pytest.raises(penstock.NotAccepted, match="the minute is not understood") as bad:
        await client.schedules.add(NIGHTLY, cron="61 * * * *")
    assert (bad.value.code, bad.value.field) == ("bad", "cron")


async def test_triggers_at_once_are_a_job_each_and_a_try_of_one_that_comes_late_is_none(
    client: penstock.Client, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker, tries, ids = client.schedules._service.connection, list[tuple[str, bytes]](), list[str]()
    ask = asker.send_request_now

    def note(subject: str, payload: bytes, **more: Any) -> asyncio.Future[Message]:
        tries.append((subject, payload))
        return ask(subject, payload, **more)

    async def trigger() -> None:
        ids.append((await client.schedules.trigger(NIGHTLY)).id)

    await client.schedules.add(NIGHTLY, cron="@daily")
    monkeypatch.setattr(asker, "send_request_now", note)
    async with anyio.create_task_group() as callers:
        for _ in range(10):
            callers.start_soon(trigger)
    assert len(set(ids)) == 10
    late = [json.loads((await connection.request(*each, timeout_s=20)).payload)["id"] for each in tries]
    assert set(late) == set(ids)
    assert (await client.schedules.trigger(NIGHTLY)).id not in ids
