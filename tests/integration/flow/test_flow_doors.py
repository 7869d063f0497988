"""Flows, rates and schedules as people see and change them with commands, at one server and at each of three."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from streams.link.connection import Connection
from tests.support.command import Ended, penstock
from tests.support.flow_bank import Bank
from tests.support.natscli import NatsCli
from tests.support.server import Reachable, make_topology, topology_for

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the nodes are processes of their own

RATE = 40.0


class Doors:
    """Commands, typed at one server after the other."""

    def __init__(self, urls: list[str], connection: Connection) -> None:
        self._urls = itertools.cycle(urls)
        self._where = ("--namespace", connection.namespace.name)

    async def type(self, line: str, *more: str) -> Ended:
        """Run `penstock LINE`."""
        return await penstock(*line.split(), *more, "--nats", next(self._urls), *self._where)

    async def told(self, line: str) -> Ended:
        """Run it, and have it end well. Tables of flows and rates fit 80 columns."""
        ended = await self.type(line)
        assert ended.code == 0, f"{line}: {ended.err}"
        if line.startswith(("flows list", "flows show", "rates list", "rates show")) and "--json" not in line:
            assert max(map(len, ended.out.splitlines()), default=0) <= 80, ended.out
        return ended

    async def refused(self, line: str, why: str) -> None:
        ended = await self.type(line)
        assert ended.code in (1, 2), f"{line}: {ended.out}"
        assert why in ended.err, f"{line}: {ended.err}"
        assert "Traceback" not in ended.err, ended.err


@asynccontextmanager
async def doors(server: Reachable, connection: Connection, folder: Path) -> AsyncIterator[tuple[Doors, Bank]]:
    """Have a node at each server, with rows for minutes, until the block ends."""
    await make_topology(connection, topology_for(connection))
    bank = Bank(server, connection, folder)
    bank.make(tables=3, rows=2_000)
    urls = server.url.split(",")
    async with AsyncExitStack() as stack:
        for number, url in enumerate(urls):
            running = await stack.enter_async_context(bank.node(f"n{number}", url=url, FLOW_RATE=str(RATE)))
            await running.logged("node.ready")
        await bank.until(lambda ran: len(ran) > RATE)
        yield Doors(urls, connection), bank


@pytest.mark.three_servers
async def test_flows_and_rates_are_seen_and_changed_at_each_server(
    server: Reachable, connection: Connection, tmp_path: Path
) -> None:
    async with doors(server, connection, tmp_path) as (at, bank):
        for _ in server.url.split(","):
            assert "prizes" in (await at.told("flows list")).out
            assert "flow/prizes" in (await at.told("rates list")).out
            assert "flow-rounds-prizes/every" in (await at.told("schedules list")).out
        shown = json.loads((await at.told("flows show prizes --json")).out)
        assert (shown["rate"], shown["is_paused"], shown["app"]) == (RATE, False, "tests.support.flow_app")
        told = (await at.told("flows show prizes")).out
        assert "prizes: runs, 40/s, every 1s" in told
        assert "groups = -\n" in told
        assert "slots = 0 (no limit)\n" in told
        assert "30/m" not in (await at.told("flows set prizes rate=30/m lead=2s")).out
        assert json.loads((await at.told("flows show prizes --json")).out)["rate"] == 0.5
        assert "flow/prizes: 60/s, before 0.5/s" in (await at.told("rates set flow/prizes 60")).out
        assert "60/s" in (await at.told("rates show prizes")).out
        assert "flow/prizes" in (await at.told("rates report prizes --seconds 2")).out
        assert "paused" in (await at.told("flows pause prizes")).out
        paused = len(bank.ran())
        await at.refused("flows run prizes", "flow prizes: is paused; resume it first")
        assert len(bank.ran()) <= paused + 5, "what was begun may end"
        assert "runs" in (await at.told("flows resume prizes")).out
        await at.told("flows run prizes")
        assert "40/s" in (await at.told("flows set prizes rate=")).out
        warned = "warning: groups: no live node that serves the flow has the label 'lite'"
        assert warned in (await at.told("flows set prizes groups=lite:1")).out
        [told] = json.loads((await at.told("flows show prizes --json")).out)["warnings"]
        assert told.endswith("no shard is loaded")
        assert "warning" not in (await at.told("flows set prizes groups=")).out
        assert bank.has_run_each_once()


@pytest.mark.three_servers
async def test_schedules_of_flows_are_seen_at_each_server_and_by_the_nats_command(
    server: Reachable, connection: Connection, tmp_path: Path
) -> None:
    async with doors(server, connection, tmp_path) as (at, _):
        which = "flow-rounds-prizes/every"
        for _ in server.url.split(","):
            assert "every 1s" in (await at.told(f"schedules show {which}")).out
        await at.told("schedules add mail/daily --cron @daily")
        assert "is there already" in (await at.told("schedules add mail/daily --cron @daily")).out
        await at.told("schedules pause mail/daily")
        assert "paused" in (await at.told("schedules list --topic mail")).out
        await at.told("schedules trigger mail/daily")
        await at.told("schedules resume mail/daily")
        nats, namespace = NatsCli.or_skip(server.url, tmp_path), connection.namespace
        bucket = namespace.bucket("RECURRING")
        assert "flow-rounds-prizes.every" in await nats.run("kv", "ls", bucket)
        record = json.loads(await nats.run("kv", "get", bucket, "flow-rounds-prizes.every", "--raw"))
        assert (record["every_ms"], record["overlap"]) == (1_000, "allow")
        for subject, body in (
            ("schedules.show", {"topic": "flow-rounds-prizes", "name": "every"}),
            ("schedules.list", {}),
            ("flow.show", {"flow": "prizes"}),
            ("flow.list", {}),
            ("rates.list", {}),
            ("rates.show", {"name": "prizes"}),
        ):
            reply = json.loads(await nats.run("req", f"{namespace.name}.api.{subject}", json.dumps(body), "--raw"))
            assert "prizes" in json.dumps(reply), (subject, reply)
            assert "error" not in reply, (subject, reply)


ODD = [
    ("flows show none", "no flow 'none'"),
    ("flows set none rate=1", "no flow 'none'"),
    ("flows show prizs", "no flow 'prizs'; did you mean prizes?"),
    ("flows run prizs", "no flow 'prizs'; did you mean prizes?"),
    ("flows set prizes rate", "'rate': write NAME=VALUE, as rate=500"),
    ("flows set prizes rate=fast", "rate: 'fast': use a number a second"),
    ("flows set prizes rate=-1", "rate: '-1'"),
    ("flows set prizes rate=1e-9", "use 0.001 to"),
    ("flows set prizes every=5", "every: '5' has no unit"),
    ("flows set prizes speed=5", "'speed': is not a setting of flows"),
    ("flows set prizes groups=a", "write LABEL:PART"),
    ("flows set prizes groups=a.b:1", "no node can have this label"),
    ("flows set prizes most_in_flight=many", "most_in_flight: 'many' is no number"),
    ("rates set flow/none 5", "no flow 'none'"),
    ("rates set prizs 5", "source 'prizs'; did you mean flow/prizes?"),
    ("rates show task/prizes", "no task 'prizes'; did you mean flow/prizes?"),
    ("rates set a/b/c 5", "kind: 'a': use topic, flow, task"),
    ("rates report prizes --seconds 0", "Invalid value for '--seconds'"),
    ("schedules show none", "schedule 'none': write TOPIC/NAME"),
    ("schedules show mail/none", "no schedule mail/none; there are flow-rounds-plain/every"),
    ("schedules add mail/x", "either cron or every"),
    ("schedules trigger mail/none", "no schedule mail/none"),
    ("why mail/none", "mail/none: no job, batch, source"),
    ("why none", "no job, batch, source, slice or row of a flow is called so"),
]


async def test_what_cannot_be_is_refused_with_what_to_do(
    server: Reachable, connection: Connection, tmp_path: Path
) -> None:
    async with doors(server, connection, tmp_path) as (at, _):
        for line, why in ODD:
            await at.refused(line, why)
        await at.told("jobs add mail 1 --id o7 --delay 1h")
        for name in ("o7", "mail/o7"):
            assert "job mail/o7 is delayed: it is not due yet" in (await at.told(f"why {name}")).out
