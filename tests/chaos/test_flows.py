"""A flow's rate and rows while its nodes and servers are killed, stopped, cut off, and have wrong clocks."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from msgspec import Struct

from actors.flow.governor import LEASE_TTL_S
from actors.jobs.rules.schedule_record import Schedule
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_schedules import Schedules
from streams.clock import monotonic_s, now_ms
from streams.link.connection import Connection, connect
from streams.messages.rates import LIFE_S, SECOND_S
from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form
from tests.support.command import Running
from tests.support.flow_bank import Bank, between, each_second, fullest
from tests.support.processes import Cluster, cluster, open_links, urls_of
from tests.support.proxy import proxy
from tests.support.server import Reachable, leading, make_topology, topology_for

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the nodes are processes of their own

JITTER, SHORT_JITTER = 0.05, 0.1
"""Between the word that lets a row begin and its first line lie milliseconds, dozens of them on a busy machine. The
short form runs beside other tests."""
BACK = 0.9
"""The part of the rate that is reached again. The short form runs beside other tests."""

ENDED_S = LEASE_TTL_S + LIFE_S + SECOND_S
"""How long after a fault what was given before it may still begin."""


class FlowVerdict(Struct, frozen=True, kw_only=True):
    """`most`: rows in the fullest second, which began `most_at_s` after the fault. `shares`: the part of the rate that
    was reached, by what went on. `least`: what it must be. `back_s`: when the last second below `BACK` of the rate
    ended, from the fault on. `twice`: rows that ran more than once, at most `most_twice`. `seconds`: rows in each
    second since the fault."""

    what: str
    rate: int
    nodes: int
    most: int
    most_at_s: float
    shares: dict[str, float]
    least: dict[str, float]
    jitter: float
    back_s: float
    twice: int
    most_twice: int
    seconds: list[int]

    @property
    def is_whole(self) -> bool:
        is_within = self.most <= math.ceil(self.rate * (1 + self.jitter)) + self.nodes
        is_back = all(self.shares[name] >= least for name, least in self.least.items())
        return is_within and is_back and self.twice <= self.most_twice

    def line(self) -> str:
        return f"{'ok' if self.is_whole else 'FAILED'} {self}"


class Attack:
    """Nodes that execute the rows of a flow, and what the attack must leave whole."""

    def __init__(self, bank: Bank, form: Form, stack: AsyncExitStack) -> None:
        self.bank = bank
        self.rate = form.pick(200, 500)
        self._jitter = JITTER if form.is_long else SHORT_JITTER
        self.nodes: dict[str, Running] = {}
        self.hurt_s = 0.0
        self._stack = stack
        self._spans: dict[str, tuple[float, float]] = {}

    async def start(self, *names: str, **how: object) -> None:
        """Start nodes, and return when they are ready."""
        for name in names:
            started = self.bank.node(name, FLOW_RATE=str(self.rate), FLOW_LEAD="10s", **how)  # type: ignore[arg-type] # as it takes it
            self.nodes[name] = await self._stack.enter_async_context(started)
        for name in names:
            await self.nodes[name].logged("node.ready")

    async def steady(self, *, by: str = "", after_s: float = 0.0) -> None:
        """Return once the rate is reached for two seconds, from now or from `after_s` later on. `by`: this node has
        rows, too."""
        since_s = monotonic_s() + after_s
        with anyio.fail_after(60):
            while not self._is_steady(since_s) or (by and not self.bank.began(pid=self.nodes[by].process.pid)):  # noqa: ASYNC110 # a file tells nobody
                await anyio.sleep(0.1)

    def _is_steady(self, since_s: float) -> bool:
        upto_s = monotonic_s() - 0.5
        return upto_s - 2 >= since_s and between(self.bank.began(), upto_s - 2, upto_s) >= 2 * self.rate * BACK

    async def led_by_another(self, governor: str) -> None:
        """Return once another node than this one is the governor."""
        with anyio.fail_after(60):
            while await self.bank.governor() == governor:  # noqa: ASYNC110 # a lease tells nobody that it has ended
                await anyio.sleep(0.1)

    def hurt(self) -> None:
        """Say that the fault comes now."""
        self.hurt_s = monotonic_s()

    async def measure(self, what: str, seconds: float) -> None:
        """Measure for some seconds how much of the rate is reached."""
        self._spans[what] = await self.bank.runs_for(seconds)

    def verdict(self, what: str, *, least: dict[str, float], most_twice: int = 0) -> FlowVerdict:
        began, now_s = self.bank.began(), monotonic_s()
        most, most_s = fullest(began)
        return FlowVerdict(
            what=what,
            rate=self.rate,
            nodes=len(self.nodes),
            most=most,
            most_at_s=round(most_s - self.hurt_s, 1),
            shares={
                name: round(between(began, from_s, to_s) / (to_s - from_s) / self.rate, 3)
                for name, (from_s, to_s) in self._spans.items()
            },
            least=least,
            jitter=self._jitter,
            back_s=round(back(began, self.hurt_s, now_s - 0.5, self.rate * BACK), 1),
            twice=sum(count - 1 for count in self.bank.ran().values()),
            most_twice=most_twice,
            seconds=each_second(began, self.hurt_s, now_s),
        )


def back(began: Sequence[float], from_s: float, upto_s: float, enough: float) -> float:
    """Return after how long the last second with less ended."""
    steps = range(int((upto_s - from_s - 1) * 10))
    return max(
        (at / 10 + 1 for at in steps if between(began, from_s + at / 10, from_s + at / 10 + 1) < enough), default=0
    )


@asynccontextmanager
async def attack(server: Reachable, connection: Connection, folder: Path, form: Form) -> AsyncIterator[Attack]:
    """Have a bank with rows for minutes, until the block ends."""
    await make_topology(connection, topology_for(connection))
    bank = Bank(server, connection, folder)
    bank.make(tables=8, rows=form.pick(2_000, 8_000))
    async with AsyncExitStack() as stack:
        yield Attack(bank, form, stack)


async def test_the_rate_falls_while_an_executor_is_cut_off_and_is_back_when_it_heals(
    server: Reachable, connection: Connection, tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    async with attack(server, connection, tmp_path, form) as town:
        async with proxy(int(server.url.rpartition(":")[2])) as link:
            await town.start("n1")
            await town.start("n2", url=link.url)
            await town.steady()
            link.freeze()
            town.hurt()
            await town.measure("cut off", form.pick(6, 20))
            link.heal()
            await town.steady()
            await town.measure("healed", form.pick(4, 20))
            assert_whole(
                town.verdict(
                    "an executor is cut off", least={"cut off": 0.4, "healed": BACK}, most_twice=town.rate // 2
                )
            )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_governor_that_dies_or_stands_still_leaves_the_rate_and_never_exceeds_it(
    server: Reachable,
    connection: Connection,
    tmp_path: Path,
    form: Form,
    assert_whole: AssertWhole,
    how: signal.Signals,
) -> None:
    async with attack(server, connection, tmp_path, form) as town:
        await town.start("n1", "n2", "n3")
        await town.steady()
        name = await town.bank.governor()
        governor = town.nodes[name]
        governor.process.send_signal(how)
        town.hurt()
        await town.led_by_another(name)
        await town.steady(after_s=ENDED_S)
        await town.measure("without it", form.pick(4, 15))
        if how is signal.SIGSTOP:
            governor.process.send_signal(signal.SIGCONT)
            await town.steady()
            await town.measure("it is back", form.pick(4, 15))
        least = dict.fromkeys(("without it", "it is back") if how is signal.SIGSTOP else ("without it",), BACK)
        assert_whole(town.verdict(f"the governor: {how.name}", least=least, most_twice=town.rate))


async def test_nodes_whose_clocks_are_wrong_keep_the_rate(
    server: Reachable, connection: Connection, tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    async with attack(server, connection, tmp_path, form) as town:
        await town.start("ahead", off_ms=90_000)
        await town.start("behind", off_ms=-90_000)
        schedules = Schedules(ServiceClient(connection, "schedules", 30.0))
        await schedules.put("flow-ticks/beat", Schedule(every_ms=1_000, misfire="all", overlap="allow"))
        await town.steady()
        town.hurt()
        await town.measure("two", form.pick(6, 20))
        await town.start("right")
        await town.steady(by="right")
        await town.measure("three", form.pick(4, 20))
        assert_whole(town.verdict("clocks 90 s wrong", least={"two": BACK, "three": BACK}))
        rounds = (await town.bank.progress()).rounds
        gaps = [later.began_ms - earlier.began_ms for earlier, later in pairwise(rounds)]
        assert max(gaps) < 3_000, gaps
        assert not any(each.errors for each in rounds)
        ticks = town.bank.ticks()
        assert len(ticks) >= form.pick(10, 40)
        assert {later - earlier for (earlier, _), (later, _) in pairwise(ticks)} == {1_000}, ticks
        late = [(at_s - monotonic_s()) * 1000 + now_ms() - due_ms for due_ms, at_s in ticks]
        assert -20 <= min(late) <= max(late) <= 2_000, late


@pytest.mark.parametrize("how", ["at once", "rolling"])
async def test_nodes_that_restart_lose_no_row(
    server: Reachable, connection: Connection, tmp_path: Path, form: Form, assert_whole: AssertWhole, how: str
) -> None:
    async with attack(server, connection, tmp_path, form) as town:
        await town.start("n1", "n2")
        await town.steady()
        town.hurt()
        if how == "at once":
            for node in town.nodes.values():
                node.process.send_signal(signal.SIGTERM)
            for node in town.nodes.values():
                assert await node.end() == 0
            await town.start("n1", "n2")
        else:
            for name in ("n1", "n2"):
                assert await town.nodes[name].end(signal.SIGTERM) == 0
                await town.start(name)
        await town.steady(by="n1")
        await town.measure("restarted", form.pick(4, 20))
        assert_whole(town.verdict(f"restart {how}", least={"restarted": BACK}))


@pytest.mark.parametrize("how", ["killed", "stopped", "cut off"])
async def test_a_server_that_leads_the_leases_costs_seconds_and_no_row(
    tmp_path: Path, form: Form, assert_whole: AssertWhole, how: str
) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        links = await enter(open_links())
        servers = await enter(cluster(tmp_path, links=links))
        connection = await enter(connect(urls_of(servers), name="first"))
        async with attack(Cluster(servers), connection, tmp_path, form) as town:
            # the nodes of a cut-off server begin nothing
            for name, server in zip(("n1", "n2", "n3"), servers, strict=True):
                await town.start(name, url=server.url if how == "cut off" else urls_of(servers))
            await town.steady()
            stream = f"KV_{connection.namespace.bucket('LEASES')}"
            at = servers.index(await leading(servers, connection, f"STREAM.INFO.{stream}"))
            town.hurt()
            if how == "killed":
                servers[at].kill()
            elif how == "stopped":
                servers[at].send_signal(signal.SIGSTOP)
            else:
                links.part(at, (at + 1) % 3)
                links.part(at, (at + 2) % 3)
            await town.steady(after_s=ENDED_S)
            await town.measure("without it", form.pick(3, 20))
            least = {"without it": BACK}
            if form.is_long:
                least["it is back"] = BACK
                if how == "killed":
                    servers[at].start()
                elif how == "stopped":
                    servers[at].send_signal(signal.SIGCONT)
                else:
                    links.join()
                await town.steady()
                await town.measure("it is back", 20)
            assert_whole(town.verdict(f"leader of the leases: {how}", least=least, most_twice=town.rate))
