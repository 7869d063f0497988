"""Callbacks: the first failure and the end are told, at least once and signed, to whom the operator allows."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec
import pytest

import penstock
from actors.batch.callback_transport import open_callback_transport
from actors.batch.callbacks import CALLS_AT_ONCE, TIMEOUT_S, TOPIC, CallbackJob, CallbackSender
from actors.batch.conductor import Conductor
from actors.batch.rules.callbacks import parse_allowed
from actors.batch.rules.record import Instance, Moment
from actors.batch.rules.refusals import BatchRefused
from actors.jobs.dead_letters import job_of
from penstock.errors import UsageError
from streams.backoff import Backoff
from streams.link.connection import Connection
from streams.messages.batch import BatchEvent
from streams.reads.log import read_log
from tests.support.batches import LONG_S, Plant, plant
from tests.support.callbacks import SECRET, VARIABLE, Receiver, receiver
from tests.support.letters import dead_letters
from tests.support.moments import a_moment
from tests.support.proxy import proxy

SOON = Backoff(retries=2, base_ms=10, cap_ms=20)


@penstock.batch("told", attempts=1, chunk_items=2)
class Told:
    """Its items say whether they fail."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*ctx.input)

    async def map(self, item: str) -> None:
        if item == "bad":
            raise penstock.Reject("no such shop")

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        return {"succeeded": ctx.counts.succeeded}


@penstock.batch("told-broken", attempts=1, callback="https://nobody.example.com/told")
class Broken(Told):
    """It fails while it is split; who is called without being named is not allowed."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        raise OSError("no such file")


@penstock.batch("told-cancelled")
class UntilCancelled(Told):
    """It splits until it is cancelled."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        while not ctx.is_cancelled:
            await a_moment()


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)


@pytest.fixture
async def office() -> AsyncIterator[Receiver]:
    async with receiver() as made:
        yield made
        assert made.unsigned == 0


@asynccontextmanager
async def calling(connection: Connection, *hosts: str) -> AsyncIterator[Plant]:
    calls = {"callback_hosts": hosts, "callback_secret": f"env:{VARIABLE}"}
    async with plant(connection, ["told", "told-broken", "told-cancelled"], calls=calls, tries=SOON) as node:
        yield node


async def settled(node: Plant, instance_id: str, *states: str) -> tuple[Moment, ...]:
    """Wait until nothing is owed, and all calls are in one of the states; return them."""

    def is_settled(record: Instance) -> bool:
        return bool(record.moments) and all(moment.state in states for moment in record.moments)

    return (await record_when(node, instance_id, is_settled)).moments


async def record_when(node: Plant, instance_id: str, is_right: Callable[[Instance], bool]) -> Instance:
    changed = anyio.Event()
    node.engine.instances.on_change(lambda _changed: changed.set())
    with anyio.fail_after(LONG_S):
        while not is_right(record := await node.record(instance_id)):
            await changed.wait()
            changed = anyio.Event()
    return record


async def events(connection: Connection, instance_id: str) -> list[BatchEvent]:
    """Return the events of an instance, as they are stored."""
    stream = connection.namespace.stream("EVENTS")
    pattern = connection.namespace.pattern("events", "batch", "*", "told", instance_id)
    return [
        msgspec.json.decode(entry.payload, type=BatchEvent) async for entry in read_log(connection, stream, pattern)
    ]


async def test_the_first_failure_and_the_end_are_called_and_are_events(
    connection: Connection, office: Receiver
) -> None:
    async with calling(connection, office.host) as node:
        await node.run("told", ["ok", "bad", "ok", "bad"], id="i", callback=office.url)
        told = await settled(node, "i", "taken")
        assert [(moment.name, moment.tries) for moment in told] == [("first_failure", 1), ("done", 1)]
        view = await node.desk.show("i")
        stored = await events(connection, "i")
        record = await node.record("i")
    assert view.callback == f"http://127.0.0.1:{office.port}/told"  # without its query
    assert [call.name for call in view.calls] == ["first_failure", "done"]
    assert [event.event for event in stored] == ["first_failure", "done"]
    assert {call.event_id for call in office.calls} == {event.event_id for event in stored}
    [first] = office.taken("first_failure")
    assert (first.body["instance_id"], first.body["task"], first.body["items"]) == ("i", "told", 4)
    assert first.body["counts"]["failed"] >= 1
    assert first.body["reason"] in ('item 1: "no such shop"', 'item 3: "no such shop"')  # two chunks, side by side
    [done] = office.taken("done")
    assert done.event_id == f"i.{record.created_ms}.1.done"
    assert done.body["counts"] == {"succeeded": 2, "failed": 2, "unknown": 0, "skipped": 0, "cancelled": 0}


async def test_a_retry_tells_its_own_end(connection: Connection, office: Receiver) -> None:
    async with calling(connection, office.host) as node:
        await node.run("told", ["ok", "bad"], id="i", callback=office.url)
        await node.desk.retry("i")
        await office.until(lambda _calls: len(office.taken("done")) == 2)
        await settled(node, "i", "taken")
    assert {call.body["pass_no"] for call in office.taken("done")} == {1, 2}
    assert len(office.taken("first_failure")) == 1  # it had failed already


async def test_a_receiver_that_is_down_is_called_again(connection: Connection, office: Receiver) -> None:
    office.answers = [500, 503]
    async with calling(connection, office.host) as node:
        await node.run("told", ["ok"], id="i", callback=office.url)
        [done] = await settled(node, "i", "taken")
    assert (done.name, done.tries, done.info) == ("done", 3, "")
    assert [call.status for call in office.calls] == [500, 503, 200]
    assert len({call.event_id for call in office.calls}) == 1
    assert [call.body for call in office.calls] == [office.calls[0].body] * 3


async def test_a_receiver_that_hangs_holds_up_no_call_to_another(connection: Connection, office: Receiver) -> None:
    async with proxy(office.port) as hangs, calling(connection, office.host, f"127.0.0.1:{hangs.port}") as node:
        hangs.freeze()
        for at in range(CALLS_AT_ONCE + 2):
            await node.run("told", ["ok"], id=f"h{at}", callback=office.url.replace(str(office.port), str(hangs.port)))
        with anyio.fail_after(LONG_S):
            while hangs.open_links < CALLS_AT_ONCE:
                await a_moment()
        await node.run("told", ["ok"], id="i", callback=office.url)
        await office.until(lambda calls: [call.body["instance_id"] for call in calls] == ["i"], within_s=TIMEOUT_S / 2)
        assert hangs.open_links == CALLS_AT_ONCE
        hangs.heal()
        await office.until(lambda calls: len(calls) == CALLS_AT_ONCE + 3)


async def test_a_call_that_was_refused_a_place_is_owed_until_it_has_one(
    connection: Connection, office: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = connection.namespace.stream("SUBMIT")
    monkeypatch.setattr("actors.batch.conductor.AGAIN_MS", 20)
    looks, look = 0, Conductor._tend

    async def noted(conductor: Conductor, instance_id: str) -> int | None:
        nonlocal looks
        looks += "conductor.look_failed" in caplog.messages
        return await look(conductor, instance_id)

    monkeypatch.setattr(Conductor, "_tend", noted)
    async with calling(connection, office.host) as node:
        config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
        await connection.api(f"STREAM.UPDATE.{stream}", {**config, "max_msg_size": 1})
        await node.run("told", ["ok"], id="i", callback=office.url)
        with anyio.fail_after(LONG_S):
            while (record := await node.record("i")).moments[0].state == "owed":
                if looks > 5:
                    break
        assert caplog.messages.count("conductor.look_failed") == 1, "told once"
        assert [moment.state for moment in record.moments] == ["owed"]
        assert [event.event for event in await events(connection, "i")] == ["done"]
        await connection.api(f"STREAM.UPDATE.{stream}", config)
        [done] = await settled(node, "i", "taken")
    assert (done.name, done.tries) == ("done", 1)
    assert len(office.taken("done")) == 1


@pytest.mark.parametrize("status", [302, 307, 404, 500])
async def test_after_the_last_try_it_is_given_up_and_says_so(
    connection: Connection, office: Receiver, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    office.answers = [status] * 3
    async with calling(connection, office.host) as node:
        view = await node.run("told", ["ok"], id="i", callback=office.url)
        assert view.state == "done"  # whoever is to be told, it does not wait
        [done] = await settled(node, "i", "given_up")
        with anyio.fail_after(LONG_S):
            while not (letters := await dead_letters(connection)):
                await a_moment()
        stored = await events(connection, "i")
    assert (done.tries, done.info) == (3, f"the callback answers {status}; a status from 200 to 299 is needed")
    assert [event.event for event in stored] == ["done", "callback_given_up"]
    assert stored[1].reason == done.info
    assert [(letter.engine, letter.name) for letter in letters] == [("jobs", TOPIC)]
    assert "callback.given_up" in caplog.messages
    assert office.strayed == 0
    assert len(office.calls) == 3


async def test_who_names_nobody_is_not_called_and_still_an_event(connection: Connection, office: Receiver) -> None:
    async with calling(connection, office.host) as node:
        await node.run("told", ["bad"], id="i")
        record = await record_when(node, "i", lambda record: not record.moments)
        stored = await events(connection, "i")
    assert record.state == "done"
    assert [event.event for event in stored] == ["first_failure", "done"]
    assert office.calls == []


async def test_what_is_cancelled_or_fails_is_told(connection: Connection, office: Receiver) -> None:
    async with calling(connection, office.host) as node:
        await node.run("told-broken", ["ok"], id="broken", callback=office.url)
        await node.submit("told-cancelled", id="i", callback=office.url)
        await node.desk.cancel("i")
        await node.until("i", "cancelled")
        await settled(node, "i", "taken")
        await settled(node, "broken", "taken")
    assert [call.body["event"] for call in office.calls if call.body["instance_id"] == "i"] == ["cancelled"]
    [failed] = office.taken("failed")
    assert (failed.body["instance_id"], failed.body["items"]) == ("broken", None)
    assert "no such file" in failed.body["reason"]


async def test_a_tenant_is_told_of_its_batch_by_its_own_id(connection: Connection, office: Receiver) -> None:
    office.secret = hmac.new(SECRET.encode(), b"acme", hashlib.sha256).hexdigest()  # and with a key of its own
    async with calling(connection, office.host) as node:
        await node.run("told", ["ok"], id="acme--i", tenant="acme", callback=office.url)
        await settled(node, "acme--i", "taken")
        [event] = await events(connection, "acme--i")
    [done] = office.taken("done")
    assert (done.body["instance_id"], done.body["tenant"]) == ("i", "acme")
    assert event.instance_id == "acme--i"  # for whoever sees all tenants'


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "https://evil.example.org/", "nonsense"])
async def test_who_may_not_be_called_is_refused_at_the_door(connection: Connection, url: str) -> None:
    async with calling(connection, "shop.example.com") as node:
        with pytest.raises(BatchRefused, match="callback") as refused:
            await node.submit("told", ["ok"], callback=url)
        assert (refused.value.code, refused.value.field) == ("bad", "callback")
        assert await node.desk.all() == ([], "")


async def test_the_tasks_own_callback_holds_for_who_names_none(connection: Connection) -> None:
    async with calling(connection, "nobody.example.com") as node:
        assert (await node.submit("told-broken", ["ok"])).callback == "https://nobody.example.com/told"
        assert (await node.submit("told-broken", ["ok"], callback="none")).callback == ""
    async with calling(connection, "shop.example.com") as node:
        with pytest.raises(BatchRefused, match=r"nobody\.example\.com is not among the hosts"):
            await node.submit("told-broken", ["ok"])


@pytest.mark.parametrize(("text", "says"), [("short", "shorter than 16"), ("", "variable is not set")])
async def test_a_secret_that_is_none_ends_the_node(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=f"callback_secret: .*{says}"):
        async with calling(connection, "shop.example.com"):
            pytest.fail("it started")


async def test_a_name_that_leads_within_is_not_connected_to(connection: Connection, office: Receiver) -> None:
    """`localhost` stands for every name whose owner points it there after it was checked."""
    url = f"https://localhost:{office.port}/told?shop=7"
    async with calling(connection, f"localhost:{office.port}") as node:
        await node.run("told", ["ok"], id="i", callback=url)
        [done] = await settled(node, "i", "given_up")
    assert "which is not public; list its network in callback_hosts" in done.info
    assert "/told" not in done.info
    assert office.calls == []


async def test_a_call_for_a_deleted_batch_says_nothing_of_a_later_one_of_its_id(
    connection: Connection, office: Receiver
) -> None:
    office.answers = [500] * 6
    allowed = parse_allowed([office.host])
    async with calling(connection, office.host) as node, open_callback_transport(allowed) as transport:
        await node.run("told", ["ok"], id="i", callback=office.url)
        await settled(node, "i", "given_up")
        await node.desk.delete("i")
        await node.run("told", ["ok"], id="i", callback=office.url)
        await settled(node, "i", "given_up")
        caller = CallbackSender(
            instances=node.engine.instances,
            transport=transport,
            allowed=allowed,
            secret=lambda: SECRET,
            publisher=node.node.publisher,
            namespace=connection.namespace,
            clock=node.node.clock,
            chance=lambda: 0.0,
            tries=SOON,
        )
        with anyio.fail_after(LONG_S):
            while len(letters := await dead_letters(connection)) < 2:
                await a_moment()
        first, second = [msgspec.json.decode(job_of(each).body, type=CallbackJob) for each in letters]
        assert await caller.call(first, 1) is None
        assert [moment.state for moment in (await node.record("i")).moments] == ["given_up"]
        assert await caller.call(second, 1) is None
        assert [moment.state for moment in (await node.record("i")).moments] == ["taken"]
    assert [call.status for call in office.calls] == [500] * 6 + [200]
