"""Rates as people see and change them, over two nodes: what is told was begun, and what is set acts at once."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from actors.flow.flows import Flows
from actors.flow.rates_desk import RatesDesk, RatesView, RateView
from actors.jobs.rules.job_answers import Added
from actors.jobs.topics import Topics
from penstock.errors import NotAccepted, UsageError
from penstock.node.rate_doors import _topic_door
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_adds import new_job
from penstock.sdk.client_jobs import Jobs
from penstock.sdk.client_rates import RateCalls
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.buckets import add_bucket
from tests.support.command import Ended, Running, node, penstock
from tests.support.jobs import topology_of_jobs
from tests.support.moments import a_moment
from tests.support.server import make_topology, topology_for

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the nodes are processes of their own

RATE = 50.0


class Town:
    """Nodes with handlers under a rate, and what these wrote down."""

    def __init__(self, server: EmbeddedServer, connection: Connection, folder: Path) -> None:
        self.notes = folder / "notes"
        self.rates = RateCalls(ServiceClient(connection, "rates", 30.0))
        self.jobs = Jobs(ServiceClient(connection, "jobs", 30.0))
        self._where = ("--nats", server.url)
        self._namespace = connection.namespace.name

    def node(
        self, name: str, *arguments: str, app: str = "tests.support.rates_app"
    ) -> AbstractAsyncContextManager[Running]:
        more = ("--name", name, "--sink", "none", "--app", app, *arguments)
        named = {"PENSTOCK_NAMESPACE": self._namespace, "PENSTOCK_LOG_FORM": "json", "PENSTOCK_HTTP": "off"}
        return node(*self._where, *more, environment={**named, "RATES_NOTES": str(self.notes)})

    @asynccontextmanager
    async def two(self) -> AsyncIterator[tuple[Running, Running]]:
        """Run two nodes until the block ends. The topic has a rate, and work for minutes."""
        async with self.node("n1") as first, self.node("n2") as second:
            await first.logged("node.ready")
            await second.logged("node.ready")
            await self.jobs.change_topic("mail", rate=RATE)
            added = await self.jobs.add_many(new_job("mail", {"n": number}) for number in range(int(150 * RATE)))
            assert all(isinstance(each, Added) for each in added)
            yield first, second

    async def command(self, *arguments: str, **environment: str) -> Ended:
        return await penstock("rates", *arguments, *self._where, "--namespace", self._namespace, **environment)

    def begun(self) -> Counter[int]:
        """Return how many began in each second since 1970, by the handlers' own notes."""
        return Counter(int(line.split()[1]) // 1000 for line in self.notes.read_text().splitlines())

    def has_noted(self, first: int, counts: list[int]) -> bool:
        """Return whether the handlers noted so many in these seconds. One that begins late on a busy machine notes a
        later second."""
        noted = self.begun()
        by_second = all(abs(count - noted[first + at]) <= 5 for at, count in enumerate(counts))
        return by_second and abs(sum(counts) - sum(noted[first + at] for at in range(len(counts)))) <= 5

    async def until(self, is_so: Callable[[RatesView], bool]) -> RatesView:
        """Return how the topic's rate stands once it is so."""
        with anyio.fail_after(60):
            while not is_so(view := await self.rates.show("mail")):
                await a_moment()
        return view


def only(view: RatesView) -> RateView:
    [one] = view.rates
    return one


def both_are_held_back(view: RatesView) -> bool:
    return sum(node.begun > 0 and node.is_waiting for node in only(view).nodes) == 2


@pytest.fixture
async def town(server: EmbeddedServer, connection: Connection, tmp_path: Path) -> Town:
    await make_topology(connection, topology_for(connection))
    return Town(server, connection, tmp_path)


async def test_a_rate_is_listed_with_its_nodes_and_a_change_acts_at_once(town: Town) -> None:
    async with town.two():
        view = await town.until(lambda view: both_are_held_back(view) and bool(view.governor))
        assert [(each.kind, each.name, each.rate) for each in (await town.rates.list()).rates] == [
            ("topic", "mail", RATE)
        ]
        for refused in (town.rates.list, town.jobs.topics):
            with pytest.raises(NotAccepted, match="limit"):
                await refused(limit=0)
        assert (view.governor in ("n1", "n2"), view.answered, view.asked, view.silent) == (True, 2, 2, [])
        assert sum(node.share for node in only(view).nodes) <= RATE
        changed = await town.rates.set("mail", 4 * RATE, kind="topic")
        assert (changed.before, changed.rate) == (RATE, 4 * RATE)
        await town.until(lambda view: only(view).rate == 4 * RATE)  # the other desk may be asked, which hears of it
        view = await town.until(lambda view: only(view).last > 3 * RATE)
        assert max(only(view).begun) <= 4 * RATE
        assert (await town.rates.set("mail", None)).rate == 0
        with anyio.fail_after(60):
            while (await town.rates.list()).rates:
                await a_moment()


async def test_why_names_the_rate_only_while_jobs_wait_for_it(town: Town) -> None:
    async with town.node("n1", app="tests.support.job_app") as node:
        await node.logged("node.ready")

        async def add(topic: str, rate: float) -> list[str]:
            await town.jobs.change_topic(topic, rate=rate)
            task = {"notes": str(town.notes), "takes_s": 600}
            added = await town.jobs.add_many(new_job(topic, task) for _ in range(40))
            return [each.id for each in added if isinstance(each, Added)]

        async def until(codes: list[str], *jobs: str) -> None:
            with anyio.fail_after(60):
                while [told.code for job in jobs for told in await town.jobs.why(job)] != codes:
                    await a_moment()

        busy, slow = await add("awaits", 1_000), await add("lists", 0.01)
        await until(["at_work", "turn"], busy[0], busy[-1])
        await until(["rate"], slow[-1])
        await node.end(signal.SIGKILL)


async def test_watch_prints_each_second_once_and_what_the_handlers_began(town: Town) -> None:
    async with town.two():
        await town.until(lambda view: only(view).last > 0.8 * RATE)
        is_near = False
        with anyio.fail_after(120):
            while not is_near:
                ended = await town.command("watch", "topic/mail", "--json", "--seconds", "8")
                lines = [json.loads(line) for line in ended.out.splitlines()]
                seconds = [line["at_ms"] // 1000 for line in lines]
                assert seconds == [*range(seconds[0], seconds[0] + 8)]
                counts = [rate["begun"] for line in lines for rate in line["rates"]]
                assert [rate["rate"] for line in lines for rate in line["rates"]] == [RATE] * 8
                is_near = town.has_noted(seconds[0], counts) and sum(counts) > 0.8 * 8 * RATE
        plain = await town.command("watch", "--seconds", "2", PYTHONIOENCODING="ascii")
    told = plain.out.splitlines()
    assert [bool(re.fullmatch(r"20\S+ \S+ topic/mail \d+ of 50/s [_.:=+*#-]", line)) for line in told] == [True, True]


async def test_a_node_that_does_not_answer_is_named(town: Town) -> None:
    async with town.two() as (_, second):
        await town.until(lambda view: len(only(view).nodes) == 2)
        second.process.send_signal(signal.SIGSTOP)
        try:
            view = await town.until(lambda view: view.silent == ["n2"])  # a busy machine may keep n1 silent, too
            assert (view.answered, view.asked) == (1, 2)
            assert [node.node for node in only(view).nodes] == ["n1"]
        finally:
            second.process.send_signal(signal.SIGCONT)
        await town.until(lambda view: view.answered == 2)


async def test_a_report_says_how_near_the_seconds_were_and_draws_them(town: Town, tmp_path: Path) -> None:
    chart = tmp_path / "mail.svg"
    async with town.two():
        await town.until(lambda view: only(view).last > 0.8 * RATE)
        is_near = False
        with anyio.fail_after(120):
            while not is_near:
                ended = await town.command("report", "mail", "--seconds", "4", "--svg", str(chart), "--json")
                assert ended.code == 0, ended.err
                report = ended.json()
                is_near = town.has_noted(report["began_ms"] // 1000, report["begun"]) and not report["unheard"]
        shown = await town.command("show", "mail")
        listed = await town.command("list")
    assert (report["name"], report["seconds"], report["rate"]) == ("topic/mail", 4, RATE)
    assert (report["least"], report["most"]) == (min(report["begun"]), max(report["begun"]))
    drawn = chart.read_text()
    assert "topic/mail:" in drawn
    assert ">target<" in drawn
    assert "topic/mail: 50/s" in shown.out
    assert "last minute: " in shown.out
    assert "topic/mail   50/s" in listed.out
    assert max(map(len, (shown.out + listed.out).splitlines())) <= 80
    assert "governor: n" in listed.out


async def test_what_cannot_be_is_refused_with_what_to_do(town: Town, tmp_path: Path) -> None:
    async with town.node("n1") as running:
        await running.logged("node.ready")
        await town.jobs.change_topic("free", rate=0)
        for rate in (-1, -0.5, 1e9, 0.0001):
            with pytest.raises(NotAccepted, match=r"rate: '.*': use 0.001 to 1,000,000 a second, or 0") as refused:
                await town.rates.set("free", rate)
            assert (refused.value.code, refused.value.field) == ("bad", "rate")
        with pytest.raises(UsageError, match="rate: nan is no number to set"):
            await town.rates.set("free", float("nan"))
        for kind, told in (
            ("", "no topic, flow, task, platform or source 'none'; see"),
            ("flow", "no flow 'none'; start the appl"),
        ):
            with pytest.raises(NotAccepted, match=told) as refused:
                await town.rates.set("none", 5, kind=kind)
            assert refused.value.code == "not_found"
        with pytest.raises(NotAccepted, match="kind: 'queue': use topic, flow, task, platform, source"):
            await town.rates.show("free", kind="queue")
        with pytest.raises(NotAccepted, match="seconds"):
            await town.rates.show("free", seconds=121)
        for arguments, told in (
            (("watch", "free"), "topic/free: has no rate, so nothing is counted; `penstock rates set topic/free 100`"),
            (("report", "none"), "no topic, flow, task, platform or source 'none'"),
            (("show", "task/none"), "no task 'none'"),
        ):
            ended = await town.command(*arguments)
            assert ended.code != 0
            assert told in ended.err
        assert "no rates; `penstock rates set topic/NAME 100` sets one" in (await town.command("list")).out
    for typed, told in (
        (("set", "free", "fast"), "rate: 'fast': use a number a second"),
        (("set", "free", "-5"), "rate: '-5': use a number from 0 on"),
        (("set", "free", "5/y"), "rate: '5/y': use a number a second"),
        (("set", "free", "nan"), "rate: 'nan': use a number"),
        (("report", "free", "--svg", str(tmp_path / "none" / "a.svg")), "cannot be written; name a file in a folder"),
    ):
        ended = await town.command(*typed)
        assert (ended.code, told in ended.err) == (2, True), ended.err
    ended = await town.command("list")
    assert "no node answers; start one with the role `desk`" in ended.err


async def test_the_rate_of_a_topic_is_set_at_a_node_that_has_not_heard_of_it_yet(
    connection: Connection, publisher: Publisher
) -> None:
    await make_topology(connection, topology_of_jobs(connection.namespace))
    bucket = Bucket(connection, publisher, await add_bucket(connection, "TOPICS"), bytes)
    there, here = (Topics(bucket, connection, connection.namespace) for _ in range(2))
    await there.change("mail", {"rate": 5})
    door = _topic_door(here, Flows(bucket))
    desk = RatesDesk(connection, doors={"topic": door}, leases=bucket, living=set, clock=SYSTEM)
    changed = await desk.set("topic", "mail", 7)
    assert (changed.before, changed.rate) == (5, 7)
