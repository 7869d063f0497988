"""An installation of batches under attack: conductors and executors as processes, instances, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from actors.batch.desk import BatchDesk
from actors.batch.instances import Instances
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance, files_at
from actors.batch.tasks import Tasks
from streams.buckets.bucket import Bucket
from streams.buckets.files import Files
from streams.clock import SYSTEM, monotonic_s
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import Connection, connect
from streams.messages.batch import Counts, last_outcomes
from streams.publish.publisher import Publisher
from streams.pull.backlog import consumers_pending
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.batches import batch_of
from tests.support.batches_chaos_app import ONCE, SPREAD, STREAMED, end_of
from tests.support.chaos import Form, eventually
from tests.support.chaos_nodes import ChaosNode
from tests.support.processes import ServerProcess, cluster, urls_of

APP = "tests.support.batches_chaos_app"
AT_ONCE = 32


class BatchVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all instances. A run is whole when every one is done and nothing is wrong with it."""

    scenario: str
    seed: int
    is_long: bool
    seconds: float
    instances: int
    items: int
    kills: dict[str, int]
    server_kills: int
    crashes: dict[str, int]
    wrong: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.wrong and self.items > 0

    def line(self) -> str:
        """Return one JSON object on one line."""
        told = {"verdict": "ok" if self.is_whole else "FAILED", **msgspec.to_builtins(self)}
        return msgspec.json.encode(told).decode()


class BatchWorld:
    """One installation, and a desk of the test's own."""

    server: EmbeddedServer
    """Its one server, where it is one."""

    def __init__(self, folder: Path, url: str, connection: Connection, publisher: Publisher, app: str = APP) -> None:
        self.folder = folder
        self._app = app
        self.nodes: dict[str, ChaosNode] = {}
        self.crashes: Counter[str] = Counter()
        self.server_kills = 0
        self.made: dict[str, tuple[str, int]] = {}
        """Task and number of items of each instance."""
        self.tasks = Tasks(Bucket(connection, publisher, connection.namespace.bucket("TASKS"), bytes))
        self.instances = Instances(Bucket(connection, publisher, connection.namespace.bucket("INSTANCES"), bytes))
        self._url = url
        self._connection = connection
        self._items = BatchItems(connection, publisher)
        self._files = Files(connection, publisher, connection.namespace.bucket("FILES"))
        self._desk = BatchDesk(
            tasks=self.tasks,
            instances=self.instances,
            items=self._items,
            files=self._files,
            beats=Bucket(connection, publisher, connection.namespace.bucket("BEATS"), bytes),
            clock=SYSTEM,
        )
        self._began_s = monotonic_s()

    def new_node(self, name: str, role: str) -> ChaosNode:
        """Return a node of one role that is not started yet."""
        app = ("--app", self._app) if role == "executor" else ()
        node = self.nodes[name] = ChaosNode(name, ["--nats", self._url, "--roles", role, *app], self.folder)
        return node

    async def begin(self, form: Form) -> list[ChaosNode]:
        """Start some nodes, and give them an instance of each kind."""
        nodes = [self.new_node(name, name.rstrip("12")) for name in ("conductor1", "executor1", "executor2")]
        for node in nodes:
            await node.start()
            await node.ready()
        await self.submit("once", ONCE, form.pick(200, 2_000), 0.01)
        await self.submit("streamed", STREAMED, form.pick(5_000, 100_000), 0.05)
        await self.submit("spread", SPREAD, form.pick(20_000, 1_000_000), form.pick(1, 2) / 10)
        return nodes

    async def submit(self, instance_id: str, task: str, items: int, takes_s: float, **named: Any) -> None:
        """Make an instance as soon as its task is known."""

        async def is_known() -> bool:
            return task in self.tasks.known()

        await eventually(is_known, 60, f"no executor serves {task}")
        given = {"items": items, "takes_s": takes_s, "notes": str(self._notes(instance_id))}
        await self._desk.submit(batch_of(task, given, id=instance_id, **named))
        self.made[instance_id] = task, items

    async def cancel(self, instance_id: str) -> None:
        """End an instance; what is over meanwhile stays so."""
        await self._desk.cancel(instance_id)

    async def is_over(self) -> bool:
        """True once every instance has ended and no pointer is left."""
        views = [await self._desk.show(instance_id) for instance_id in self.made]
        pending = await consumers_pending(self._connection, self._connection.namespace.stream("WORK"))
        return all(view.is_over for view in views) and not sum(pending.values())

    async def verdict(self, scenario: str, form: Form, *, within_s: float) -> BatchVerdict:
        """Wait for the end, and judge."""
        wrong: list[str] = []
        try:
            await eventually(self.is_over, within_s, "not every instance has ended")
        except TimeoutError as late:
            wrong.append(str(late))
        for instance_id in self.made:
            wrong += [f"{instance_id}: {fault}" for fault in await self._faults(instance_id)]
        return BatchVerdict(
            scenario=scenario,
            seed=form.seed,
            is_long=form.is_long,
            seconds=round(monotonic_s() - self._began_s, 1),
            instances=len(self.made),
            items=sum(items for _, items in self.made.values()),
            server_kills=self.server_kills,
            kills={name: node.kills for name, node in self.nodes.items()},
            crashes=dict(self.crashes),
            wrong=tuple(wrong[:10]),
        )

    async def _faults(self, instance_id: str) -> list[str]:
        task, items = self.made[instance_id]
        record = await self.instances.get(instance_id)
        if record.state != "done" or record.seal is None:
            return [f"is {record.state}: {record.reason}; {record.counts}, {len(record.open)} open"]
        ends = await self._ends(record, record.seal.chunks)
        faults = [] if sum(ends.values()) == items == record.seal.items else [f"{ends} of {items} items"]
        expected = Counter(end_of(number) for number in range(items)) if task != ONCE else ends
        if ends != expected:
            faults.append(f"{dict(ends)} ended, not {dict(expected)}")
        if record.counts != _counts(ends):
            faults.append(f"{record.counts} is recorded of {dict(ends)}")
        told = msgspec.json.decode(record.result)
        if {name: told.get(name) for name in ("items", "marks", "ends")} != {
            "items": items,
            "marks": 1,
            "ends": dict(ends),
        }:
            faults.append(f"the result is {told}")
        if await self._files.info(files_at(instance_id, record.result_fence) + "out.jsonl") is None:
            faults.append("it has no file")
        if task == ONCE:
            faults += self._begun_faults(instance_id, ends)
        return faults

    async def _ends(self, record: Instance, chunks: int) -> Counter[str]:
        """Return how the items ended by their results in the log, `none` for those that have no end."""
        ends: Counter[str] = Counter()
        for first in range(0, chunks, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, chunks))
            results = await self._items.results(record, numbers)
            for number, chunk in zip(numbers, await self._items.chunks(record, numbers), strict=True):
                assert chunk is not None, f"chunk {number} of {record.instance_id} is gone"
                ends.update(end.status if end else "none" for end in last_outcomes(chunk, results[number]))
        return ends

    def _begun_faults(self, instance_id: str, ends: Counter[str]) -> list[str]:
        begun = Counter(self._notes(instance_id).read_text().split())
        twice = [number for number, times in begun.items() if times > 1]
        faults = [f"{twice[:5]} began twice"] if twice else []
        if set(ends) - {"ok", "unknown"} or ends["ok"] > len(begun):
            faults.append(f"{len(begun)} began, {dict(ends)} ended")
        return faults

    def _notes(self, instance_id: str) -> Path:
        return self.folder / f"{instance_id}.notes"


def _counts(ends: Counter[str]) -> Counts:
    return Counts(
        succeeded=ends["ok"],
        failed=ends["failed"],
        unknown=ends["unknown"],
        skipped=ends["skipped"],
        cancelled=ends["cancelled"],
    )


@asynccontextmanager
async def open_batch_world(folder: Path, *, app: str = APP) -> AsyncIterator[BatchWorld]:
    """Open an installation in a folder, on a server of its own; end it at the end."""
    async with embedded_server(folder / "server") as server, _opened(folder, server.url, app=app) as world:
        world.server = server
        yield world


@asynccontextmanager
async def open_batch_cluster(folder: Path) -> AsyncIterator[tuple[BatchWorld, list[ServerProcess]]]:
    """Open an installation on three servers, of whose streams each has a copy."""
    async with cluster(folder) as servers, _opened(folder, urls_of(servers), replicas=3) as world:
        yield world, servers


@asynccontextmanager
async def _opened(folder: Path, url: str, *, app: str = APP, replicas: int = 1) -> AsyncIterator[BatchWorld]:
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connect(url, name="chaos", namespace=Namespace()))
        await apply(connection, wanted(connection.namespace, profile="fast", replicas=replicas))
        publisher = await stack.enter_async_context(Publisher(connection))
        world = BatchWorld(folder, url, connection, publisher, app)
        async with anyio.create_task_group() as following:
            await following.start(world.tasks.run)
            await following.start(world.instances.run)
            try:
                yield world
            finally:
                for node in world.nodes.values():
                    await node.close()
                following.cancel_scope.cancel()
