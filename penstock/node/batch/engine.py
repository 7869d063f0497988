"""Wires the batches of one node: the shared parts, and the actors with their roles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from anyio.abc import TaskStatus

from actors.batch.callbacks import Moments
from actors.batch.conductor import Conductor
from actors.batch.desk import BatchDesk
from actors.batch.executor.chunks import Chunks
from actors.batch.executor.executor import Executor
from actors.batch.executor.handler import TaskHandler
from actors.batch.executor.lanes import chunk_size
from actors.batch.executor.looks import Looks
from actors.batch.executor.steps import Steps
from actors.batch.instances import Instances
from actors.batch.items import BatchItems
from actors.batch.row_look import RowLook
from actors.batch.rules.callbacks import parse_allowed
from actors.batch.submissions import batch_submissions
from actors.batch.tasks import TaskLimits, TaskRecord, Tasks, UnknownTask
from actors.batch.uploads import Uploads
from actors.batch.versions import missing_consumers, newest_version, waits_for
from actors.runtime.broker.resurrected import ResurrectedMessages
from actors.runtime.crowd import for_each
from actors.runtime.membership import Members, NodeRecord
from actors.runtime.rates.counts import is_waited_for
from actors.runtime.rates.shares import SharedRates, part_of, sharers
from actors.runtime.rates.slot_look import SlotLook
from actors.runtime.rules.slot_keys import Slots
from actors.runtime.submissions import Submissions
from actors.runtime.supervisor import ActorSpec
from actors.runtime.tending import tended_by
from penstock.api.service.service import DeskService
from penstock.node.batch.archive import BatchArchive, archive_folder
from penstock.node.batch.callbacks import signer
from penstock.node.batch.submitting import submitter
from penstock.node.node import AT_ONCE, Node
from penstock.sdk.batches import task_handlers
from streams.buckets.bucket import Bucket
from streams.buckets.files import Files
from streams.chance import chance

__all__ = ["BatchEngine", "open_batch_engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEngine:
    """One node's batches."""

    tasks: Tasks
    instances: Instances
    desk: BatchDesk
    conductor: Conductor
    uploads: Uploads
    resurrected: ResurrectedMessages
    executor: Executor | None
    looks: Looks | None
    service: DeskService
    submissions: Submissions

    @property
    def served(self) -> tuple[str, ...]:
        """The tasks that this node serves, for its record."""
        return self.executor.tasks if self.executor is not None else ()

    @property
    def declared(self) -> tuple[TaskRecord, ...]:
        """What this node's code says of its tasks."""
        return tuple(each.record for each in self.executor.handlers) if self.executor is not None else ()

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        """The versions of these tasks' code, for tasks that name one."""
        return tuple((record.task, record.version) for record in self.declared if record.version)

    @property
    def unmade(self) -> dict[str, str]:
        """Why consumers of these tasks could not be made."""
        return self.executor.unmade if self.executor is not None else {}

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the engine's actors in start order."""
        return (
            ActorSpec(name="tasks", role="", run=self.tasks.run, policy=AT_ONCE),
            ActorSpec(name="instances", role="", run=self.instances.run, policy=AT_ONCE),
            *self._executors(),
            ActorSpec(name="conductor", role="conductor", run=self.conductor.run),
            ActorSpec(name="uploads", role="conductor", run=self.uploads.run),
            ActorSpec(name="resurrected work", role="conductor", run=self.resurrected.run),
            ActorSpec(name="batch submissions", role="desk", run=self.submissions.run, drains=True),
            ActorSpec(name="batch service", role="desk", run=self.service.run, drains=True),
        )

    def _executors(self) -> tuple[ActorSpec, ...]:
        executor = self.executor
        if executor is None:
            return ()

        async def run(*, task_status: TaskStatus[None]) -> None:
            await for_each(executor.handlers, lambda handler: self.tasks.declare(handler.record))
            await executor.run(task_status=task_status)

        looks = (
            () if self.looks is None else (ActorSpec(name="looks", role="executor", run=self.looks.run, drains=True),)
        )
        return (ActorSpec(name="executor", role="executor", run=run, drains=True), *looks)


@asynccontextmanager
async def open_batch_engine(node: Node, handlers: Sequence[TaskHandler] | None = None) -> AsyncIterator[BatchEngine]:
    """Open the engine's shared parts, one of each for the node. `handlers`: by default all registered ones."""
    tasks, instances = Tasks(node.bucket("TASKS")), Instances(node.bucket("INSTANCES"))
    items = BatchItems(node.connection, node.publisher)
    files = Files(node.connection, node.publisher, node.connection.namespace.bucket("FILES"))
    beats = node.bucket("BEATS")
    handlers = tuple(task_handlers().values()) if handlers is None else handlers
    rates = node.rates.of("batch", lambda task: _limits(tasks, task).item_rate)
    executor = looks = None
    if handlers and node.config.has_role("executor"):
        executor = _executor(node, handlers, tasks, instances, items, files, beats, rates)
        looks = Looks(handlers, node.connection, node.stop, version=version("penstock"))
    desk = BatchDesk(
        tasks=tasks,
        instances=instances,
        items=items,
        files=files,
        beats=beats,
        clock=node.clock,
        waits_for=partial(waits_for, node.members, node.bounds, lambda task: _limits(tasks, task).zone),
        callbacks=parse_allowed(node.config.callback_hosts),
        admit=node.connection.store.admit,
        full_key=SlotLook(node.connection).full,
        look_at=RowLook(node.connection).at,
        missing=lambda task: missing_consumers(node.members.live().values(), node.connection.namespace, task),
        waits_for_rate=partial(_waits_for_rate, node),
    )
    folder = archive_folder(node.config)
    conductor = Conductor(
        connection=node.connection,
        publisher=node.publisher,
        members=node.members,
        instances=instances,
        tasks=tasks,
        items=items,
        files=files,
        beats=beats,
        clock=node.clock,
        chance=chance,
        tell=Moments(instances, node.publisher, node.connection.namespace).tell,
        archive=None if folder is None else BatchArchive(folder, desk, lambda notice: node.store.tell(notice)).keep,
    )
    yield BatchEngine(
        tasks=tasks,
        instances=instances,
        desk=desk,
        conductor=conductor,
        uploads=Uploads(files, instances, node.members, node.clock),
        resurrected=ResurrectedMessages(
            node.connection,
            [node.connection.namespace.stream("WORK")],
            node.memory,
            tended_by(node.members, "conductor"),
        ),
        executor=executor,
        looks=looks,
        service=DeskService("batch", desk, node.connection, node.stop),
        submissions=batch_submissions(submitter(desk), node.connection, node.publisher, node.stop),
    )


def _executor(
    node: Node,
    handlers: Sequence[TaskHandler],
    tasks: Tasks,
    instances: Instances,
    items: BatchItems,
    files: Files,
    beats: Bucket[bytes],
    rates: SharedRates,
) -> Executor:
    at_once = _at_once(tasks, node.members)
    steps = Steps(
        node=node.members.name,
        instances=instances,
        items=items,
        files=files,
        beats=beats,
        chunk_items=lambda record: chunk_size(record.chunk_items, _limits(tasks, record.task).item_rate),
        clock=node.clock,
        chance=chance,
    )
    chunks = Chunks(
        node=node.members.name,
        instances=instances,
        items=items,
        rates=rates,
        at_once=at_once,
        slots=node.slots,
        slots_of=partial(_slots_of, tasks),
        chance=chance,
        stop=node.stop,
    )
    return Executor(
        handlers,
        connection=node.connection,
        instances=instances,
        steps=steps,
        chunks=chunks,
        newest=lambda task: newest_version(node.members, task),
        may_take=lambda task: at_once(task) != 0,
        stop=node.stop,
        bound_of=lambda task: _limits(tasks, task).zone,
        bounds=node.bounds,
        region_key_of=lambda task: _limits(tasks, task).region_key,
        sign=signer(node),
    )


async def _waits_for_rate(node: Node, task: str) -> bool:
    nodes = {name for name, live in node.members.live().items() if task in live.tasks}
    return await is_waited_for(node.connection, nodes, f"batch.{task}", node.clock.now_ms())


def _limits(tasks: Tasks, task: str) -> TaskLimits:
    try:
        return tasks.current(task).limits
    except UnknownTask:
        return TaskLimits()


def _slots_of(tasks: Tasks, handler: TaskHandler) -> Slots | None:
    return tasks.of_any(handler.record.task).slots


def _at_once(tasks: Tasks, members: Members) -> Callable[[str], int | None]:
    """Return, as a function of the task, how many of its items this process may work on at once. None: no limit."""

    serving = sharers(members, _serves)

    def at_once(task: str) -> int | None:
        most = _limits(tasks, task).item_concurrency
        return part_of(most, serving(task), members.name) if most else None

    return at_once


def _serves(node: NodeRecord, task: str) -> bool:
    return task in node.tasks
