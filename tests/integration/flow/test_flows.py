"""Flows of an app in node processes: every row once, whatever loads it, whoever dies."""

from __future__ import annotations

import signal
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from anyio import fail_after

from actors.flow.flows import RoundReport
from penstock.errors import NotAccepted
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_flows import FlowCalls
from penstock.sdk.client_jobs import Jobs
from penstock.sdk.client_rates import RateCalls
from penstock.sdk.client_schedules import Schedules
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from tests.support.command import Running, penstock
from tests.support.flow_bank import WITHIN_S, Bank
from tests.support.moments import a_moment
from tests.support.server import make_topology, topology_for

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the nodes are processes of their own


@pytest.fixture
async def bank(server: EmbeddedServer, connection: Connection, tmp_path: Path) -> Bank:
    await make_topology(connection, topology_for(connection))
    return Bank(server, connection, tmp_path)


async def test_every_row_is_executed_once_on_two_nodes(bank: Bank) -> None:
    bank.make(tables=7, rows=300)
    async with bank.node("n1"), bank.node("n2"):
        await bank.until(lambda ran: len(ran) == 2_100)
        assert bank.has_run_each_once()
        with fail_after(WITHIN_S):  # a round is noted after its rows were loaded, and they may have run by then
            rounds = (await bank.progress()).rounds
            while sum(each.new for each in rounds) < 2_100 - 300:
                rounds = (await bank.progress()).rounds
                await a_moment()
    assert all(each.shards == 7 and not each.errors for each in rounds)


async def test_a_loader_that_begins_anew_each_time_loads_each_row_once(bank: Bank) -> None:
    """Rows in flight come first in what it reads, so more is asked for than is missing."""
    bank.make(tables=3, rows=400)
    async with bank.node("n1", FLOW_PLAIN="1", FLOW_TABLES="3"):
        ran = await bank.until(lambda ran: len(ran) == 1_200)
        assert max(ran.values()) <= 2  # once by each of the app's two flows


async def test_no_row_is_left_behind_and_none_is_twice_when_nodes_are_killed(bank: Bank) -> None:
    """A row runs again only if its node died over it: those are the ones that it had in its hands."""
    bank.make(tables=10, rows=1_000)
    async with bank.node("n1", FLOW_RATE="1500") as first, bank.node("n2", FLOW_RATE="1500"):
        await bank.until(lambda ran: len(ran) > 2_000)
        await first.end(signal.SIGKILL)
        async with bank.node("n3", FLOW_RATE="1500"):
            ran = await bank.until(lambda ran: len(ran) == 10_000)
    twice = sum(count - 1 for count in ran.values())
    assert twice <= 2 * 500, "more than what one node can have in its hands"


async def test_a_node_that_stands_still_keeps_no_shard_from_the_others(bank: Bank) -> None:
    """The server still gives it requests. There are more shards than are asked at the same time."""

    async def later(than_ms: int) -> list[RoundReport]:
        return [one for one in (await bank.progress()).rounds if one.began_ms > than_ms]

    bank.make(tables=200, rows=200)
    async with (
        bank.node("n1", FLOW_RATE="200", FLOW_EVERY="3s"),
        bank.node("n2", FLOW_RATE="200", FLOW_EVERY="3s") as second,
    ):
        await bank.until(lambda ran: len(ran) > 300)
        second.process.send_signal(signal.SIGSTOP)
        stopped_ms = now_ms()
        with fail_after(WITHIN_S):  # the first one, unless the other node is late on a busy machine
            while not any(  # noqa: ASYNC110 # a record is read now and then
                one.silent <= 20 and one.new >= 0.9 * one.asked > 0 for one in await later(stopped_ms + 1_000)
            ):
                await anyio.sleep(0.05)
        second.process.send_signal(signal.SIGCONT)


async def test_no_key_of_a_flow_has_more_calls_at_once_than_slots_over_two_nodes(bank: Bank) -> None:
    bank.make(tables=1, rows=0)
    async with bank.node("n1", FLOW_SLOTS="1") as first, bank.node("n2", FLOW_SLOTS="1") as second:
        await first.logged("node.ready")
        await second.logged("node.ready")
        bank.fill(rows=200)
        calls = await bank.calls(200)
    for side in ("side-0", "side-1"):
        ours = sorted((began_s, ended_s) for one, began_s, ended_s, _ in calls if one == side)
        assert len(ours) == 100
        assert all(ended_s <= began_s for (_, ended_s), (began_s, _) in pairwise(ours))
    assert len({pid for *_, pid in calls}) == 2


async def test_the_slots_of_a_flow_are_changed_while_it_runs(bank: Bank) -> None:
    bank.make(tables=1, rows=2_000)
    async with bank.node("n1", FLOW_SLOTS="1") as running:
        await running.logged("node.ready")
        flows = FlowCalls(ServiceClient(bank.connection, "flow", 30.0))
        await bank.calls(20)
        declared = {"slots": 1, "slot_key": "of.side", "when_full": "queue"}
        assert declared.items() <= (await flows.show("slotted")).settings.items()
        changed = await flows.set("slotted", slots=8, slot_key="of")
        assert (changed.settings["slots"], changed.settings["slot_key"]) == (8, "of")
        with fail_after(WITHIN_S):
            while _most_at_once(await bank.calls(1)) < 2:  # noqa: ASYNC110 # a file tells nobody that it changed
                await anyio.sleep(0.05)
        assert (await flows.set("slotted", slots=0)).settings["slots"] == 0
        assert declared.items() <= (await flows.set("slotted", **dict.fromkeys(declared))).settings.items()


def _most_at_once(calls: list[tuple[str, float, float, int]]) -> int:
    """Return how many calls of one side ran at the same time at most."""
    return max(sum(one[0] == side and one[1] <= at_s < one[2] for one in calls) for side, at_s, *_ in calls)


async def test_a_person_learns_what_a_row_waits_for(bank: Bank) -> None:
    bank.make(tables=2, rows=200)
    async with bank.node("n1", "--labels", "a", FLOW_GROUPS="a=odd,b=EVEN", FLOW_RATE="1") as running:
        await running.logged("node.ready")
        flows = FlowCalls(ServiceClient(bank.connection, "flow", 30.0))

        async def until(code: str, shard: str, *keys: int) -> str:
            """Wait until this is in the way of one of these rows, and return the reason."""
            with fail_after(WITHIN_S):
                while True:
                    for key in keys:
                        if (told := await flows.why("prizes", shard, key)).code == code:
                            return told.reason
                    await a_moment()

        assert "of a, b" in await until("group", "0", 1)
        assert "1 a second" in await until("rate", "1", *range(100))  # one runs each second
        assert "in flight; the next round" in await until("full", "1", 199)
        assert "named 2 others" in await until("shard", "7", 1)
        await bank.until(lambda ran: len(ran) >= 1)
        await flows.pause("prizes")
        assert "penstock flows resume prizes" in await until("paused", "1", 199)
        with pytest.raises(NotAccepted, match="no flow 'other'"):
            await flows.why("other", "1", 1)


async def test_a_node_that_stops_leaves_its_round_to_another_one(bank: Bank) -> None:
    """The round asks its shards over 36 s, since the rows in flight last for longer."""
    flows = FlowCalls(ServiceClient(bank.connection, "flow", 30.0))

    def a_node(name: str, *arguments: str) -> AbstractAsyncContextManager[Running]:
        return bank.node(name, *arguments, FLOW_RATE="1", FLOW_EVERY="1m", FLOW_LEAD="10s")

    async def loaded(count: int) -> None:
        """Wait until so many rows are in flight or were executed."""
        with fail_after(WITHIN_S):
            while (await flows.show("prizes")).in_flight + len(bank.ran()) < count:
                await a_moment()

    bank.make(tables=10, rows=200)
    async with a_node("n1") as first, a_node("n2", "--roles", "timer,desk") as second:
        await first.logged("node.ready")
        await second.logged("node.ready")
        await flows.run("prizes")
        await bank.until(lambda ran: len(ran) >= 5)
        await flows.run("prizes")
        await loaded(71)
        await first.end(signal.SIGTERM)
        assert not [line for line in first.lines if line["event"] == "node.drain_cut_short"]
        rounds = (await bank.progress()).rounds
        assert [one.asked - one.new for one in rounds] == [0, rounds[-1].asked - 1], "what it did is noted"
        async with a_node("n3"):
            await loaded(72)


async def test_a_person_learns_that_no_round_loads_a_row(bank: Bank) -> None:
    bank.make(tables=1, rows=200)
    which = "flow-rounds-prizes/every"
    async with bank.node("n1", FLOW_RATE="1") as running:
        await running.logged("node.ready")
        flows = FlowCalls(ServiceClient(bank.connection, "flow", 30.0))
        schedules = Schedules(ServiceClient(bank.connection, "schedules", 30.0))
        jobs = Jobs(ServiceClient(bank.connection, "jobs", 30.0))
        await bank.until(lambda ran: len(ran) >= 1)
        assert (await flows.why("prizes", "0", 199)).code == "full"
        await schedules.pause(which)
        assert f"penstock schedules resume {which}" in await why_stopped(flows)
        await schedules.resume(which)
        assert now_ms() < (await flows.why("prizes", "0", 199)).until_ms, "a round comes, after however long a pause"
        await jobs.change_topic("flow-rounds-prizes", is_paused=True)
        assert "penstock jobs topic flow-rounds-prizes --resume" in await why_stopped(flows)
        await jobs.change_topic("flow-rounds-prizes", is_paused=False)
        await schedules.remove(which)
        assert f"the schedule {which} of the flow's rounds was removed" in await why_stopped(flows)
        await flows.set("prizes", every="2s")
        assert (await flows.why("prizes", "0", 199)).code == "full"


async def why_stopped(flows: FlowCalls) -> str:
    """Return why no round loads a row, once none does."""
    with fail_after(WITHIN_S):
        while (told := await flows.why("prizes", "0", 199)).code != "stopped":
            await a_moment()
    return told.reason


async def test_why_finds_a_row_of_a_shard_whose_name_has_slashes(bank: Bank, server: EmbeddedServer) -> None:
    bank.make(tables=1, rows=5)
    where = ("--nats", server.url, "--namespace", bank.connection.namespace.name)
    async with bank.node("n1", FLOW_PLAIN="1", FLOW_PREFIX="east/db/", FLOW_RATE="1") as running:
        await running.logged("node.ready")
        with fail_after(WITHIN_S):
            while not (await bank.progress("plain")).names:
                await a_moment()
        for id_, told in (
            ("plain/east/db/0/4", "row plain/east/db/0/4 is "),
            ("plain/east/db/0/a/b", "row plain/east/db/0/a/b is not loaded: the last round loaded"),
            ("plain/east/1/4", "row plain/east/1/4 is not loaded: `split` does not name its shard"),
        ):
            ended = await penstock("why", id_, *where)
            assert told in ended.out, ended.err
            assert ("does not name" in ended.out) == ("does not name" in told), ended.out


async def test_rows_that_wait_for_a_slot_are_among_the_most_that_are_loaded(bank: Bank) -> None:
    bank.make(tables=1, rows=500)
    loaded, ended = 0, 0
    async with bank.node("n1", FLOW_SLOTS="1", FLOW_TAKES="1", FLOW_MOST="20"):
        with fail_after(WITHIN_S):
            while ended < 12:
                rounds = (await bank.progress("slotted")).rounds
                ended = len(await bank.calls(0))
                loaded = max(loaded, sum(one.new for one in rounds) - ended)
    assert 2 < loaded <= 20


async def test_a_row_whose_key_is_full_waits_for_a_slot(bank: Bank) -> None:
    bank.make(tables=1, rows=50)
    async with bank.node("n1", FLOW_SLOTS="1", FLOW_TAKES="60") as running:
        await running.logged("node.ready")
        flows = FlowCalls(ServiceClient(bank.connection, "flow", 30.0))
        taken = "the one slot of its key '1' is taken: n1 has 1"
        with fail_after(WITHIN_S):
            while taken not in (told := await flows.why("slotted", "0", 49)).reason:  # noqa: ASYNC110 # as it stands
                await anyio.sleep(0.05)
        assert told.code == "slot"
        jobs = Jobs(ServiceClient(bank.connection, "jobs", 30.0))
        with fail_after(WITHIN_S):
            while not (await jobs.count("flow-rows-slotted")).delayed:  # noqa: ASYNC110 # as it stands
                await anyio.sleep(0.05)
        with fail_after(WITHIN_S):  # the one that runs, and those that wait for its slot, once none is being put off
            while (await flows.show("slotted")).in_flight != 50:  # noqa: ASYNC110 # as it stands
                await anyio.sleep(0.05)
        rates, is_listed = RateCalls(ServiceClient(bank.connection, "rates", 30.0)), False
        with fail_after(WITHIN_S):
            while not is_listed:
                listed = (await rates.show("slotted", kind="flow")).slots
                of_keys = {one.key: (one.kind, one.name, one.taken, one.most, one.nodes) for one in listed}
                is_listed = of_keys.get("1") == ("flow", "slotted", 1, 1, {"n1": 1}) and any(
                    one.waiting for one in listed
                )
                await a_moment()


async def test_a_row_that_had_no_slot_was_not_executed(bank: Bank) -> None:
    bank.make(tables=1, rows=50)
    async with bank.node("n1", FLOW_SLOTS="1", FLOW_TAKES="60") as running:
        await running.logged("node.ready")
        flows = FlowCalls(ServiceClient(bank.connection, "flow", 30.0))
        dropped_ms = now_ms()
        await flows.set("slotted", when_full="drop_newest")
        with fail_after(WITHIN_S):
            while (told := await flows.why("slotted", "0", 49)).state != "ended":
                await a_moment()
    assert "dropped, since its key had no free slot" in told.reason
    assert dropped_ms + 3_590_000 < told.until_ms < now_ms() + 3_610_000


async def test_a_loader_slower_than_the_interval_goes_on_in_the_next_round(bank: Bank) -> None:
    """It had its shard left alone for `load_timeout`, 10 s, each time. Here it takes at least three loads."""
    bank.make(tables=1, rows=450)
    async with bank.node("n1", FLOW_RATE="100", FLOW_LOAD_S="1.4"):
        await bank.until(lambda ran: len(ran) == 450)
    began = bank.began()
    assert began[-1] - began[0] < 20
    assert bank.has_run_each_once()


async def test_only_the_tables_of_a_living_group_are_loaded(bank: Bank) -> None:
    bank.make(tables=6, rows=50)
    async with bank.node("n1", "--labels", "a", FLOW_GROUPS="a=odd,b=EVEN"):
        ran = await bank.until(lambda ran: len(ran) == 150)
        assert {shard for shard, _ in ran} == {"1", "3", "5"}
        async with bank.node("n2", "--labels", "b", FLOW_GROUPS="a=odd,b=EVEN"):
            await bank.until(lambda ran: len(ran) == 300)


async def test_a_split_that_fails_is_told_and_tried_again(bank: Bank) -> None:
    bank.make(tables=2, rows=10)
    async with bank.node("n1", FLOW_TABLES="broken") as running:
        await running.logged("flow.split_failed", flow="prizes")
        with fail_after(WITHIN_S):
            while not (progress := await bank.progress()).rounds:
                await a_moment()
    assert "split: " in progress.rounds[-1].errors[0]
    assert progress.every_ms == progress.rounds[-1].every_ms > 0, "else the round itself fails, and is a dead letter"
    async with bank.node("n2"):
        await bank.until(lambda ran: len(ran) == 20)


async def test_a_flow_is_seen_and_changed_while_it_runs(bank: Bank) -> None:
    bank.make(tables=4, rows=5_000)
    async with bank.node("n1", FLOW_RATE="100") as running:
        await running.logged("node.ready")
        flows = FlowCalls(ServiceClient(bank.connection, "flow", 30.0))
        await bank.until(lambda ran: len(ran) > 100)
        view = await flows.show("prizes")
        assert (view.rate, view.every, view.is_paused, view.settings["groups"]) == (100.0, "1s", False, {})
        assert {each.flow for each in await flows.list()} == {"prizes", "plain", "slotted"}
        view = await flows.set("prizes", rate=5_000, every="2s", most_in_flight=9_000)
        told = await running.logged("flow.settings", key="prizes")  # FLOW-36
        assert told["before"] == {"every_ms": 1_000, "longest_ms": 1_000, "most_in_flight": 100_000}
        assert told["after"] == {"every_ms": 2_000, "longest_ms": 2_000, "most_in_flight": 9_000}
        told = await running.logged("topic.settings", key="flow-rows-prizes", after={"rate": 5_000.0})
        assert told["before"] == {"rate": 100.0}
        assert (view.rate, view.every, view.settings["longest"]) == (5_000.0, "2s", "2s")
        await bank.until(lambda ran: len(ran) > 12_000)
        assert (await flows.pause("prizes")).is_paused
        with pytest.raises(NotAccepted, match="is paused; resume it first"):
            await flows.run("prizes")
        await flows.resume("prizes")
        await flows.run("prizes")
        view = await flows.set("prizes", rate=None, every=None)
        assert (view.rate, view.every) == (100.0, "1s")


async def test_a_person_learns_what_keeps_a_flow_from_its_rate(bank: Bank) -> None:
    bank.make(tables=1, rows=200)
    async with bank.node("n1", FLOW_RATE="100") as running:
        await running.logged("node.ready")
        flows = FlowCalls(ServiceClient(bank.connection, "flow", 30.0))
        await bank.until(lambda ran: len(ran) == 200)
        with fail_after(WITHIN_S):
            while not (limit := (await flows.show("prizes")).limited_by) or limit.code in ("silent", "loads"):
                await a_moment()
        assert limit.code == "rows", limit.reason
        assert [one.limited_by and one.limited_by.code for one in await flows.list() if one.rate] == ["rows"]
        assert "the tables have no more" in (await flows.why("prizes", "0", 4711)).reason


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"rat": 1}, "did you mean rate"),
        ({"rate": -1}, "use 0.001 to"),
        ({"rate": 1e-5}, "use 0.001 to"),
        ({"rate": "fast"}, "use 0.001 to"),
        ({"load_timeout": "1m"}, "use 100ms to 30s"),
        ({"every": "soon"}, "every"),
        ({"every": "10ms"}, "use 1s to 1d"),
        ({"groups": {"a": "some"}}, "use ALL, ODD, EVEN"),
        ({"most_in_flight": 0}, "most_in_flight"),
        ({"longest": "1s", "every": "5s"}, "longest"),
        ({"slots": -1}, "slots"),
        ({"slots": 2, "slot_key": "a..b"}, "slot_key"),
        ({"when_full": "wait"}, "when_full"),
    ],
)
async def test_a_bad_setting_is_refused_and_changes_nothing(bank: Bank, values: dict[str, object], why: str) -> None:
    bank.make(tables=1, rows=1)
    async with bank.node("n1") as running:
        await running.logged("node.ready")
        flows = FlowCalls(ServiceClient(bank.connection, "flow", 30.0))
        await bank.until(lambda ran: len(ran) == 1)
        before = await flows.show("prizes")
        with pytest.raises(NotAccepted, match=why):
            await flows.set("prizes", **values)
        with pytest.raises(NotAccepted, match="no flow 'other'"):
            await flows.show("other")
        assert (await flows.show("prizes")).settings == before.settings
