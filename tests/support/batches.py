"""A node's batches in the test's own process, and conditions to wait for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from actors.batch.callbacks import TRIES
from actors.batch.desk import BatchDesk
from actors.batch.executor.handler import TaskHandler
from actors.batch.executor.lanes import Admitted, Item, first
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance
from actors.batch.views import View
from actors.runtime.membership import NodeRecord, Status
from actors.runtime.supervisor import ActorSpec, Supervisor
from penstock.node.batch.callbacks import open_callbacks
from penstock.node.batch.engine import BatchEngine, open_batch_engine
from penstock.node.config import Config
from penstock.node.flow.engine import open_flow_engine
from penstock.node.jobs.engine import open_jobs_engine
from penstock.node.node import Node, open_node
from penstock.sdk.batches import task_handlers
from streams.backoff import Backoff
from streams.link.connection import Connection
from streams.messages.batch import ChunkResult, NewBatch, Outcome
from tests.support.server import make_topology, topology_for

LONG_S = 120.0


def batch_of(task: str, given: Any = None, **named: Any) -> NewBatch:
    """Return what the desk takes, with `given` as its input."""
    return NewBatch(task=task, input=Raw(msgspec.json.encode(given)), **named)


class OpenGate:
    """A gate that admits every item at once."""

    def is_shut(self) -> bool:
        return False

    async def admit(self, waiting: deque[Item], most: int) -> Admitted:
        return Admitted(first(waiting, most))

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        pass


class Plant:
    """A running node with batches, its desk, and what it says of its instances."""

    def __init__(self, engine: BatchEngine, items: BatchItems, supervisor: Supervisor, node: Node) -> None:
        self.engine = engine
        self.items = items
        self.node = node
        self.members = node.members
        self.desk: BatchDesk = engine.desk
        self._supervisor = supervisor

    def failures(self) -> dict[str, str]:
        return {state.name: state.last_error for state in self._supervisor.states() if state.failures}

    async def record(self, instance_id: str) -> Instance:
        return await self.engine.instances.get(instance_id)

    async def until(self, instance_id: str, *states: str, within_s: float = LONG_S) -> View:
        """Wait until an instance is in one of the states, and return it."""
        changed = anyio.Event()

        def tell(_changed: str) -> None:
            changed.set()

        self.engine.instances.on_change(tell)
        with anyio.fail_after(within_s):
            while (view := await self.desk.show(instance_id)).state not in states:
                await changed.wait()
                changed = anyio.Event()
        return view

    async def submit(
        self, task: str, given: Any = None, *, upload: AsyncIterable[bytes] | None = None, **named: Any
    ) -> View:
        return await self.desk.submit(batch_of(task, given, **named), upload=upload)

    async def run(self, task: str, given: Any = None, **named: Any) -> View:
        """Submit an instance and wait for its end."""
        view = await self.submit(task, given, **named)
        return await self.until(view.instance_id, "done", "failed", "cancelled")

    async def results(self, instance_id: str) -> list[ChunkResult]:
        """Return all results of an instance, as they stand in the log."""
        record = await self.record(instance_id)
        return [result async for _, result in self.items.results_after(record, 0)]


@asynccontextmanager
async def plant(
    connection: Connection,
    tasks: Sequence[str | TaskHandler],
    *,
    name: str = "n1",
    roles: tuple[str, ...] = (),
    calls: Mapping[str, Any] | None = None,
    tries: Backoff = TRIES,
    drain_s: float = 10,
) -> AsyncIterator[Plant]:
    """Run a node's batches, serving these tasks, until the block ends. No actor may have failed by then. With `calls`,
    the configuration of callbacks, it runs jobs too, which carry them."""
    await make_topology(connection, topology_for(connection))
    config = Config(nats="nats://given", roles=roles, namespace=connection.namespace.name, **(calls or {}))
    stop = anyio.Event()
    record = NodeRecord(node=name, run=name, roles=roles)
    async with open_node(config, connection, record, stop) as node:
        async with (
            open_batch_engine(node, [_handler(task) for task in tasks]) as engine,
            _jobs_of(node, tries) as jobs,
            open_flow_engine(node) as flow,
        ):
            node.status = lambda: Status(tasks=engine.served, versions=engine.versions, unmade=engine.unmade)
            specs = [*node.actors(), *flow.actors(), *jobs, *engine.actors()]
            supervisor = Supervisor(
                [spec for spec in specs if config.has_role(spec.role)], stop=stop, drain_s=drain_s, chance=lambda: 0.0
            )
            async with anyio.create_task_group() as running:
                await running.start(supervisor.run)
                assert set(engine.served) <= set(engine.tasks.known())
                made = Plant(engine, BatchItems(connection, node.publisher), supervisor, node)
                yield made
                stop.set()
            assert made.failures() == {}


@asynccontextmanager
async def _jobs_of(node: Node, tries: Backoff) -> AsyncIterator[tuple[ActorSpec, ...]]:
    if not node.config.callback_hosts:
        yield ()
        return
    async with open_callbacks(node, tries) as callers, open_jobs_engine(node, callers) as jobs:
        yield (*jobs.actors(), *jobs.handlers.actors)


def _handler(task: str | TaskHandler) -> TaskHandler:
    return task_handlers()[task] if isinstance(task, str) else task


@asynccontextmanager
async def plant_in_its_own_task(connection: Connection, tasks: Sequence[str]) -> AsyncIterator[Plant]:
    """The same for a fixture, whose two halves run in two tasks, which no task group bears."""
    found: asyncio.Future[Plant] = asyncio.get_running_loop().create_future()
    is_over = asyncio.Event()

    async def live() -> None:
        async with plant(connection, tasks) as made:
            found.set_result(made)
            await is_over.wait()

    living = asyncio.create_task(live())

    def tell(ended: asyncio.Task[None]) -> None:
        if not found.done():
            found.set_exception(ended.exception() or AssertionError("the node ended before it began"))

    living.add_done_callback(tell)
    yield await found
    is_over.set()
    await living
