"""Executor: works on the conductor's pointers, for the tasks that this process serves.

In: pointers of WORK, two consumers a task: splits and reduces, and chunks. They are there only while instances of the
task are at work (ADR 80). Out: chunks under the split's fence and their seal, or the progress of a streaming one, one
result a round of a chunk, the value that a reduce returned, and a message to the conductor after each. State: none. The
record and the log have it.

Under redelivery: a pointer to finished work, or with an old fence, is acknowledged and forgotten. A chunk that is run
twice has one result, the first one. For tasks that are not idempotent each item is marked before it begins. If one was
begun and has no end, the task's `check` decides, or it ends as `unknown`. For other tasks an item that kills its
process is found, and fails. When it cannot go on: the pointer is given back, and comes again to any node. A step whose
executor falls silent is begun anew under another fence.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
from anyio.abc import TaskStatus
from msgspec import Raw

from actors.batch.executor.chunks import Chunks, NothingBegan
from actors.batch.executor.external import Sign, open_external
from actors.batch.executor.handler import Reject, TaskHandler
from actors.batch.executor.steps import Steps
from actors.batch.instances import Instances, UnknownInstance
from actors.batch.rules.record import FINAL, made_so_far
from actors.batch.rules.versions import is_older
from actors.runtime.actor import FATAL, handle_each
from actors.runtime.bounds import WorkBounds
from actors.runtime.broker.unmade import Unmade
from actors.runtime.logs import fields
from actors.runtime.rules.slot_keys import key_reader
from streams.clock import monotonic_s, until_turn_s
from streams.errors import MalformedMessage, StreamError
from streams.link.connection import Connection
from streams.messages.batch import Pointer, decode_pointer
from streams.pull.delivery import Delivery
from streams.pull.puller import Puller
from streams.reads.log import subjects_of
from streams.topology.specs import ConsumerSpec, batch_consumers
from streams.topology.topology import ensure_consumer

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 1.0
AGAIN_S, MOST_AGAIN_S = 1.0, 30.0
"""A pointer that was given back comes again after a second for each delivery that it has had."""
ASIDE_S = 5.0
SHARE_S = 0.25
"""How soon a worker takes over the part of one that has left."""
FEW = 50
"""Tasks whose parts are all looked at so soon."""
QUIET_S = 60.0
"""So long after the last of a task's instances has ended does a process go on to pull. A pointer that was given back
comes again within it."""
MISSING_S = 2.0
"""Between two requests for consumers that the server may have removed."""
STEPS_AT_ONCE = 2
STATES = {"split": "splitting", "reduce": "reducing"}
"""The state in which a step may begin. A pointer may come late, and the fence stays after its step has ended."""


class TooOld(Exception):
    """Newer code than ours made the items of the instance."""

    def __init__(self, task: str, ours: str, needed: str) -> None:
        super().__init__(f"task {task}: version {ours or '(none)'} here, {needed} made the items; upgrade this worker")
        self.needed = needed


@dataclass
class _Served:
    """A task that this process pulls work for, until `end` is set. `since_s`: when an instance was last at work."""

    since_s: float = field(default_factory=monotonic_s)
    end: anyio.Event = field(default_factory=anyio.Event)


class Executor:
    """Serves tasks in one process. `newest(task)`: the newest version of its code on any live node. `may_take(task)`:
    whether its items may run here. They may not if other processes already run as many as the limit allows.
    `bound_of(task)`: where its code may run, by `bounds`. `sign`: signs the requests to external programs."""

    def __init__(
        self,
        handlers: Sequence[TaskHandler],
        *,
        connection: Connection,
        instances: Instances,
        steps: Steps,
        chunks: Chunks,
        newest: Callable[[str], str | None],
        may_take: Callable[[str], bool],
        stop: anyio.Event,
        bound_of: Callable[[str], str],
        bounds: WorkBounds,
        region_key_of: Callable[[str], str],
        sign: Sign,
    ) -> None:
        self._handlers = {handler.record.task: handler for handler in handlers}
        self._connection = connection
        self._instances = instances
        self._steps = steps
        self._chunks = chunks
        self._newest = newest
        self._may_take = may_take
        self._served: dict[str, _Served] = {}
        self._missing: set[ConsumerSpec] = set()
        self._unmade = Unmade("executor")
        self._are_missing = anyio.Event()
        self._aside: set[Puller] = set()
        self._shared: dict[Puller, tuple[TaskHandler, bool]] = {}
        """With whether the task's limit of items counts."""
        self._bound_of = bound_of
        self._region_key_of = region_key_of
        self._bounds = bounds
        self._working: Counter[str] = Counter()
        self._bounds.watch(lambda: [self._bound_of(task) for task, count in self._working.items() if count])
        self._logged_old: set[str] = set()
        self._sign = sign
        self._stop = stop

    @property
    def tasks(self) -> tuple[str, ...]:
        """The keys of the served tasks."""
        return tuple(self._handlers)

    @property
    def unmade(self) -> dict[str, str]:
        """Why consumers could not be made at the last try, by their names."""
        return self._unmade.reasons

    @property
    def handlers(self) -> tuple[TaskHandler, ...]:
        """The handlers of this process."""
        return tuple(self._handlers.values())

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Work until the node stops, and then finish the work in hand."""
        opened = open_external(self.handlers, self._connection, self._sign)
        async with opened as handlers, anyio.create_task_group() as beside:
            beside.start_soon(self._keep_shares)
            beside.start_soon(self._make_missing)
            async with anyio.create_task_group() as tasks:
                by_name = {handler.record.task: handler for handler in handlers}
                self._served.clear()

                def serve(task: str, *, is_due: bool = False) -> None:
                    may_serve = task in by_name and task not in self._served and not self._stop.is_set()
                    if may_serve and (is_due or self._instances.is_at_work(task)):
                        self._served[task] = _Served()
                        tasks.start_soon(self._serve_task, by_name[task], serve)

                remove = self._instances.on_change(lambda key: serve(self._instances.task_of(key)))
                try:
                    for task in by_name:
                        serve(task)
                    for task in await self._waited_for():
                        serve(task, is_due=True)
                    task_status.started()
                    await self._stop.wait()
                finally:
                    remove()
                for served in self._served.values():
                    served.end.set()
            beside.cancel_scope.cancel()

    async def _waited_for(self) -> set[str]:
        """Return the tasks of the pointers that wait, also of instances that ended while nobody served them."""
        namespace = self._connection.namespace
        pattern = namespace.pattern("work", "batch", ">")
        subjects = await subjects_of(self._connection, namespace.stream("WORK"), pattern)
        return {subject.removeprefix(pattern.removesuffix(">")).partition(".")[0] for subject in subjects}

    async def _serve_task(self, handler: TaskHandler, serve: Callable[[str], None]) -> None:
        """Work on a task's pointers while instances of it are at work, and for a while after that."""
        task = handler.record.task
        end = self._served[task].end
        try:
            steps, maps = batch_consumers(self._connection.namespace, task, is_clustered=self._connection.is_clustered)
            async with anyio.create_task_group() as lanes:
                lanes.start_soon(partial(self._serve, handler, steps, STEPS_AT_ONCE, end, is_map=False))
                lanes.start_soon(partial(self._serve, handler, maps, handler.chunks, end, is_map=True))
        finally:
            del self._served[task]
        serve(task)  # an instance may have come at the last moment

    async def _serve(
        self, handler: TaskHandler, spec: ConsumerSpec, most: int, end: anyio.Event, *, is_map: bool
    ) -> None:
        try:
            while not await self._make(spec):
                with anyio.move_on_after(MISSING_S):
                    await end.wait()
                if end.is_set():
                    return
            await self._pull(handler, spec, most, end, is_map=is_map)
        finally:
            self._missing.discard(spec)
            self._unmade.forget(spec.name)

    async def _pull(
        self, handler: TaskHandler, spec: ConsumerSpec, most: int, end: anyio.Event, *, is_map: bool
    ) -> None:
        opened = Puller(
            self._connection,
            spec.stream,
            spec.name,
            capacity=0 if end.is_set() else most,
            keep_alive_s=KEEP_ALIVE_S,
            on_trouble=partial(self._miss, spec),
        )
        async with opened as puller:
            self._shared[puller] = handler, is_map
            self._share(puller)
            try:
                await handle_each(puller, partial(self._handle, handler, puller), end)
            finally:
                self._shared.pop(puller, None)

    async def _make(self, spec: ConsumerSpec) -> bool:
        """Make a consumer if it is not there, and return whether it is. Raises ConnectionLost only."""
        return await self._unmade.make(spec.name, ensure_consumer(self._connection, spec))

    def _miss(self, spec: ConsumerSpec) -> None:
        self._missing.add(spec)
        self._are_missing.set()

    async def _make_missing(self) -> None:
        """Make consumers again for ever that refuse to deliver. The server has removed those from which no process
        took anything for long, for example while the task was bound to another zone."""
        while True:
            await self._are_missing.wait()
            self._are_missing = anyio.Event()
            while self._missing:
                for spec in tuple(self._missing):
                    if await self._make(spec):
                        self._missing.discard(spec)
                    elif spec not in self._missing:  # nobody wants it any more
                        self._unmade.forget(spec.name)
                await anyio.sleep(MISSING_S)

    async def _keep_shares(self) -> None:
        """Look after the parts of all served tasks, until the node stops, and leave tasks that are quiet."""
        for turn in itertools.count():
            some = list(self._shared)
            parts = 1 if len(some) <= FEW else 12  # of many tasks each is looked at once in three seconds
            for puller in some[turn % parts :: parts]:
                self._share(puller)
            for task in list(self._served)[turn % parts :: parts]:
                self._leave_if_quiet(task)
            await anyio.sleep(until_turn_s(SHARE_S))
            if self._stop.is_set():
                return

    def _leave_if_quiet(self, task: str) -> None:
        served, now_s = self._served[task], monotonic_s()
        if self._working[task] or self._instances.is_at_work(task):
            served.since_s = now_s
        elif now_s > served.since_s + QUIET_S:
            served.end.set()

    def _share(self, puller: Puller) -> None:
        """Take nothing that is bound to another zone, and no chunks while other processes are as many as may work on
        the task's items."""
        if puller not in self._shared:
            return
        handler, is_map = self._shared[puller]
        task = handler.record.task
        if self._is_ending(task):
            return
        most = handler.chunks + self._chunks.stuck(task) if is_map else STEPS_AT_ONCE
        if not self._may_run(task) or (is_map and not self._may_take(task)):
            most = 0
        if puller.capacity != most and puller not in self._aside:
            puller.set_capacity(most)

    def _is_ending(self, task: str) -> bool:
        return self._stop.is_set() or task not in self._served or self._served[task].end.is_set()

    def _in_region(self, handler: TaskHandler) -> TaskHandler:
        """Return the handler, which rejects items whose region belongs to another zone."""
        task, decode = handler.record.task, handler.decode
        path, bound = self._region_key_of(task), self._bound_of(task)
        if not path:
            return handler
        read = key_reader(f"1.{path}" if handler.record.is_sheet else path)

        def decode_in_region(item: Raw) -> object:
            why = self._bounds.stray(f"task {task}", read(bytes(item)), bound)
            if why:
                raise Reject(f"it may not be here: {why}")
            return decode(item)

        return replace(handler, decode=decode_in_region)

    def _may_run(self, task: str) -> bool:
        return self._bounds.may_run(self._bound_of(task), "tasks", task)

    async def _handle(self, handler: TaskHandler, puller: Puller, delivery: Delivery) -> None:
        """Work on one pointer, to its end. Raises FATAL errors only."""
        task = handler.record.task
        if not self._may_run(task):
            self._share(puller)
            await self._give_back(delivery)
            return
        self._working[task] += 1
        try:
            await self._work_on(handler, puller, delivery)
        finally:
            self._working[task] -= 1

    async def _give_back(self, delivery: Delivery) -> None:
        """Leave a pointer to a node of another zone."""
        try:
            await delivery.nak()
        except FATAL:
            raise
        except StreamError as error:
            log.debug("executor.not_given_back", extra=fields(subject=delivery.subject, error=str(error)))
        finally:
            if not delivery.is_settled:
                delivery.forget()

    async def _work_on(self, handler: TaskHandler, puller: Puller, delivery: Delivery) -> None:
        try:
            pointer = decode_pointer(delivery.payload)
            await self._work(handler, pointer, delivery.delivered)
            await delivery.ack()
            news = self._connection.namespace.subject("batch", "news", pointer.instance_id)
            await self._connection.publish_core(news)
        except FATAL:
            raise
        except MalformedMessage as error:
            await delivery.term(f"no pointer: {error}")
        except UnknownInstance:
            await delivery.ack()
        except NothingBegan:
            await delivery.nak(0 if self._stop.is_set() else AGAIN_S)
        except TooOld as error:
            await self._step_aside(handler, puller, delivery, error)
        except Exception as error:  # the trouble of one pointer, foreseen or not, must not stop the others
            trace = None if isinstance(error, StreamError) else error
            log.warning("executor.gave_back", exc_info=trace, extra=fields(subject=delivery.subject, error=str(error)))
            await delivery.nak(min(AGAIN_S * delivery.delivered, MOST_AGAIN_S))
        finally:
            if not delivery.is_settled:
                delivery.forget()

    async def _step_aside(self, handler: TaskHandler, puller: Puller, delivery: Delivery, error: TooOld) -> None:
        """Leave the work to newer code. If a live node has it, take none of the task's pointers for a while. If not,
        drop the pointer, so that it does not block older instances. It is offered again when such code comes."""
        if str(error) not in self._logged_old:
            self._logged_old.add(str(error))
            log.warning("executor.too_old", extra=fields(subject=delivery.subject, error=str(error)))
        newest = self._newest(handler.record.task)
        if newest is None or is_older(newest, error.needed):
            await delivery.ack()
            return
        most = puller.capacity or handler.chunks
        self._aside.add(puller)
        puller.set_capacity(0)
        await delivery.nak()
        with anyio.move_on_after(ASIDE_S):
            await self._stop.wait()
        self._aside.discard(puller)
        puller.set_capacity(0 if self._is_ending(handler.record.task) else most)

    async def _work(self, handler: TaskHandler, pointer: Pointer, deliveries: int) -> None:
        record = await self._instances.get(pointer.instance_id)
        if record.state in FINAL:
            return
        made = made_so_far(record)
        needed = made.version if made is not None else ""
        if is_older(handler.record.version, needed) and not record.is_cancelling:
            raise TooOld(handler.record.task, handler.record.version, needed)
        if record.is_paused:
            return  # when it is resumed, it is offered again
        if pointer.step == "map":
            is_open = any((each.chunk, each.round) == (pointer.chunk, pointer.round) for each in record.open)
            if is_open:
                await self._chunks.run(self._in_region(handler), record, pointer, deliveries=deliveries)
        elif (record.state, record.step_fence) == (STATES[pointer.step], pointer.fence) and not record.is_cancelling:
            await self._steps.run(handler, record, is_repeat=deliveries > 1)
