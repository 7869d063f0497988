"""Executor: works on what the conductor points at, for the tasks that this process serves.

In: pointers of WORK, two consumers a task: splits and reduces, and chunks. Out: chunks under the split's fence and
their seal, or how far a streaming one is; one result a round of a chunk; what a reduce returned; a word to the
conductor after each. State: none; the record and the log have it.
Under redelivery: a pointer to what is over, or bears an old fence, is acknowledged and forgotten. A chunk that is run
twice has one result, the first one. For tasks that are not idempotent each item is marked before it begins, and one
that was begun and has no end is asked about, or ends as `unknown`.
When it cannot go on: the pointer is given back, and comes again to anybody; a step whose executor falls silent is begun
anew under another fence.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Raw

from actors.actor import FATAL
from actors.batch_instances import Instances, UnknownInstance
from actors.batch_items import BatchItems
from actors.batch_tasks import TaskRecord
from actors.batch_worker.contexts import NotJson, ReduceContext, SplitContext, as_json
from actors.batch_worker.elsewhere import open_elsewhere
from actors.batch_worker.handler import TaskHandler
from actors.batch_worker.lanes import Gate, ItemRates, TaskGate
from actors.batch_worker.rounds import Round, run_items
from actors.batch_worker.singly import run_marked
from actors.failpoints import reach
from actors.logs import fields
from actors.model import batch_moves as moves
from actors.model.batch_record import FINAL, Instance, made_so_far
from actors.model.batch_rounds import attempts_of, cancelled, gone, items_to_run, may_leave, result_of, rounds_before
from actors.model.batch_versions import is_older
from streams.batch_messages import Chunk, ChunkResult, Outcome, Pointer, decode_pointer
from streams.bucket import Bucket
from streams.clock import Clock
from streams.connection import Connection
from streams.delivery import Delivery
from streams.errors import MalformedMessage, RevisionConflict, StreamError
from streams.files import Files
from streams.puller import Puller
from streams.topology import batch_consumers, ensure_consumer

log = logging.getLogger(__name__)

__all__ = ["Executor"]

KEEP_ALIVE_S = 1.0
BEAT_S = 3.0
BEAT_TTL_S = 10
STAGE_S = 0.5
"""How often what a streaming split has made is let out: each time may be a short chunk and a change of the record."""
AGAIN_S = 1.0
ASIDE_S = 5.0
STEPS_AT_ONCE = 2


class NothingBegan(Exception):
    """The node was told to stop before anything of the pointer's work began; it is anybody's."""


class TooOld(Exception):
    """Newer code than ours made the items of the instance."""

    def __init__(self, task: str, ours: str, needed: str) -> None:
        super().__init__(f"task {task}: version {ours or '(none)'} here, {needed} made the items; upgrade this worker")
        self.needed = needed


class Executor:
    """Serves tasks in one process. `node` names it in results and beats. `chunk_items(record)`: how many items a chunk
    of the task has at the most. `at_once(task)`: items of a task that may be at work here at the same time, 0: any
    number. `newest(task)`: the newest version of its code that is at work anywhere."""

    def __init__(
        self,
        handlers: Sequence[TaskHandler],
        *,
        node: str,
        connection: Connection,
        instances: Instances,
        items: BatchItems,
        files: Files,
        beats: Bucket[bytes],
        rates: ItemRates,
        chunk_items: Callable[[TaskRecord], int],
        at_once: Callable[[str], int],
        newest: Callable[[str], str | None],
        clock: Clock,
        stop: anyio.Event,
    ) -> None:
        self._handlers = {handler.record.task: handler for handler in handlers}
        self._node = node
        self._connection = connection
        self._instances = instances
        self._items = items
        self._files = files
        self._beats = beats
        self._rates = rates
        self._chunk_items = chunk_items
        self._at_once = at_once
        self._newest = newest
        self._told_old: set[str] = set()
        self._turns: dict[str, anyio.Lock] = {}
        self._clock = clock
        self._stop = stop

    @property
    def tasks(self) -> tuple[str, ...]:
        """The keys of the tasks that are served."""
        return tuple(self._handlers)

    @property
    def handlers(self) -> tuple[TaskHandler, ...]:
        """What this process serves."""
        return tuple(self._handlers.values())

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Work until the node is asked to stop, and then finish what is in hand."""
        async with open_elsewhere(self.handlers, self._connection) as handlers, anyio.create_task_group() as tasks:
            for handler in handlers:
                steps, maps = batch_consumers(self._connection.namespace, handler.record.task)
                for spec, most in ((steps, STEPS_AT_ONCE), (maps, handler.chunks)):
                    await ensure_consumer(self._connection, spec)
                    await tasks.start(partial(self._serve, handler, spec.stream, spec.name, most))
            task_status.started()

    async def _serve(
        self, handler: TaskHandler, stream: str, consumer: str, most: int, *, task_status: TaskStatus[None]
    ) -> None:
        opened = Puller(self._connection, stream, consumer, capacity=most, keep_alive_s=KEEP_ALIVE_S)
        async with opened as puller, anyio.create_task_group() as reading:
            async with anyio.create_task_group() as hands:
                reading.start_soon(self._read, handler, puller, hands)
                task_status.started()
                await self._stop.wait()
                puller.set_capacity(0)
            reading.cancel_scope.cancel()

    async def _read(self, handler: TaskHandler, puller: Puller, hands: TaskGroup) -> None:
        while True:
            delivery = await puller.receive()
            if self._stop.is_set():
                await delivery.nak()
            else:
                hands.start_soon(self._handle, handler, puller, delivery)

    async def _handle(self, handler: TaskHandler, puller: Puller, delivery: Delivery) -> None:
        """Work on one pointer, to its end. Raises FATAL errors only."""
        try:
            pointer = decode_pointer(delivery.payload)
            await self._work(handler, pointer, is_repeat=delivery.delivered > 1)
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
            await delivery.nak()
        except TooOld as error:
            await self._step_aside(handler, puller, delivery, error)
        except Exception as error:  # one pointer's trouble, foreseen or not, must not stop the others
            trace = None if isinstance(error, StreamError) else error
            log.warning("executor.gave_back", exc_info=trace, extra=fields(subject=delivery.subject, error=str(error)))
            await delivery.nak(AGAIN_S)
        finally:
            if not delivery.is_settled:
                delivery.forget()

    async def _step_aside(self, handler: TaskHandler, puller: Puller, delivery: Delivery, error: TooOld) -> None:
        """Leave the work to newer code: where that is at work, take none of the task's for a while; else drop the
        pointer, so that it is not in the way of older instances. It is offered again when such code comes."""
        if str(error) not in self._told_old:
            self._told_old.add(str(error))
            log.warning("executor.too_old", extra=fields(subject=delivery.subject, error=str(error)))
        newest = self._newest(handler.record.task)
        if newest is None or is_older(newest, error.needed):
            await delivery.ack()
            return
        most = puller.capacity or handler.chunks
        puller.set_capacity(0)
        await delivery.nak()
        with anyio.move_on_after(ASIDE_S):
            await self._stop.wait()
        puller.set_capacity(0 if self._stop.is_set() else most)

    async def _work(self, handler: TaskHandler, pointer: Pointer, *, is_repeat: bool) -> None:
        record = await self._instances.get(pointer.instance_id)
        if record.state in FINAL:
            return
        made = made_so_far(record)
        needed = made.version if made is not None else ""
        if is_older(handler.record.version, needed) and not record.is_cancelling:
            raise TooOld(handler.record.task, handler.record.version, needed)
        if pointer.step == "map":
            is_open = any((each.chunk, each.round) == (pointer.chunk, pointer.round) for each in record.open)
            if is_open and not record.is_paused:  # resumed, it is offered anew
                await self._map(handler, record, pointer)
        elif record.step_fence == pointer.fence and not record.is_cancelling:
            if is_repeat:
                await self._renew(record)
            elif await self._begins(record):
                await self._step(handler, record)

    async def _renew(self, record: Instance) -> None:
        """Have the step begun under a new fence: whoever had this pointer first may have written some of it, or write
        on. A split that is not the same twice would be a mixture of two."""
        fence = record.step_fence
        await self._instances.move(
            record.instance_id, lambda before: moves.renew_step(before, fence, self._clock.now_ms())
        )

    # ---- a split or a reduce

    async def _begins(self, record: Instance) -> bool:
        """Say that the step is under way here; False if it is already: somebody removed its pointer from the queue, and
        it was offered again."""
        told = {"by": self._node, "done": 0, "total": None}
        try:
            await self._beats.create(_beat_key(record), msgspec.json.encode(told), ttl_s=BEAT_TTL_S)
        except RevisionConflict:
            return False
        return True

    async def _step(self, handler: TaskHandler, record: Instance) -> None:
        """Run a step while it beats, within its time, and say how it ended."""
        context, body = self._opened(handler, record)
        limit_s = handler.record.step_timeout_ms / 1000
        failed: Exception | None = None
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope(deadline=anyio.current_time() + limit_s)
            tasks.start_soon(self._beat, record, context, scope)
            if handler.record.is_streaming and isinstance(context, SplitContext):
                tasks.start_soon(self._stream, record, context)
            try:
                with scope:
                    await body()
                if scope.cancelled_caught and not context.is_cancelled:
                    raise TimeoutError(f"took longer than {limit_s:g} s, its step_timeout_s")
            except Exception as error:  # the border to the user's code
                if isinstance(error, StreamError) and not isinstance(error, MalformedMessage):
                    failed = error  # raised below: within the group it would become a group of its own
                else:
                    log.warning("step.failed", exc_info=error, extra=fields(instance=record.instance_id))
                    await self._fail(handler, record, f"{record.state}: {type(error).__name__}: {error}")
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed

    def _opened(
        self, handler: TaskHandler, record: Instance
    ) -> tuple[SplitContext | ReduceContext, Callable[[], Awaitable[None]]]:
        """Return what the step's code is given, and what runs it."""
        latest = partial(self._instances.seen, record.instance_id)
        if record.state == "reducing":
            reduce = ReduceContext(record, self._files, latest, self._items)
            return reduce, partial(self._reduce, handler, record, reduce)
        chunk_items = self._chunk_items(handler.record)
        version = handler.record.version
        split = SplitContext(record, self._files, latest, self._items, chunk_items=chunk_items, version=version)
        return split, partial(self._split, handler, record, split)

    async def _split(self, handler: TaskHandler, record: Instance, context: SplitContext) -> None:
        await handler.split(context)
        reach("batch.split")
        seal = await context.seal()
        reach("batch.seal")
        await self._instances.move(
            record.instance_id, lambda before: moves.seal_split(before, seal, self._clock.now_ms())
        )

    async def _stream(self, record: Instance, context: SplitContext) -> None:
        """Let out what the split has made so far, every now and then."""
        chunks = 0
        while True:
            await anyio.sleep(STAGE_S)
            try:
                made = await context.made()
                if made.chunks > chunks:
                    await self._instances.move(record.instance_id, partial(moves.stage, made=made))
                    chunks = made.chunks
                    reach("batch.stage")
            except FATAL:
                raise
            except (StreamError, UnknownInstance) as error:  # the split meets it too, if it stays
                log.warning("executor.stage_failed", extra=fields(instance=record.instance_id, error=str(error)))

    async def _reduce(self, handler: TaskHandler, record: Instance, context: ReduceContext) -> None:
        answer = await handler.reduce(context)
        reach("batch.reduce")
        try:
            result = as_json(answer, "what reduce returned")
        except NotJson as error:
            result = Raw(msgspec.json.encode({"not_told": str(error)}))
        await self._instances.move(
            record.instance_id,
            lambda before: moves.reduced(before, record.step_fence, result, self._clock.now_ms()),
        )

    async def _fail(self, handler: TaskHandler, record: Instance, reason: str) -> None:
        policy, now_ms = handler.record.retries, self._clock.now_ms()
        await self._instances.move(
            record.instance_id, lambda before: moves.fail_step(before, record.step_fence, reason, policy, now_ms)
        )

    async def _beat(self, record: Instance, context: SplitContext | ReduceContext, step: anyio.CancelScope) -> None:
        """Say every few seconds that the step is under way, and how far. One that counts no more and does not see it
        for itself is ended."""
        while True:
            was_cancelled = context.is_cancelled
            await anyio.sleep(BEAT_S)
            if was_cancelled and context.is_cancelled:
                step.cancel()
                return
            told = {"by": self._node, "done": context.done, "total": context.total}
            try:
                await self._beats.put(_beat_key(record), msgspec.json.encode(told), ttl_s=BEAT_TTL_S)
            except FATAL:
                raise
            except StreamError as error:  # the step itself goes on: its writes have a fence, and tries of their own
                log.warning("executor.beat_failed", extra=fields(instance=record.instance_id, error=str(error)))

    # ---- a chunk

    async def _map(self, handler: TaskHandler, record: Instance, pointer: Pointer) -> None:
        """Run a round of a chunk, and store its one result."""
        chunk = await self._items.chunk(record, pointer.chunk)
        earlier = await self._items.rounds(record.instance_id, pointer.chunk, rounds_before(pointer.round))
        if earlier is not None and any(each.round == pointer.round for each in earlier):
            return
        if chunk is None or earlier is None:
            log.error("chunk.gone", extra=fields(instance=record.instance_id, chunk=pointer.chunk))
            result = gone(pointer.chunk, pointer.round, self._node)
        else:
            result = await self._result(handler, record, pointer, chunk, earlier)
        reach("batch.map")
        await self._items.add_result(record.instance_id, result)
        reach("batch.result")

    async def _result(
        self, handler: TaskHandler, record: Instance, pointer: Pointer, chunk: Chunk, earlier: Sequence[ChunkResult]
    ) -> ChunkResult:
        """Run a round, and return what became of it. A node that is told to stop leaves to the next round what has not
        begun; raises NothingBegan if that is all."""
        indexes = items_to_run(chunk, earlier, pointer.round, record.redo)
        outcomes: list[Outcome] = []
        is_cancelled = partial(self._is_cancelled, record.instance_id)
        if not record.is_cancelling:
            turn = Round(record.instance_id, attempts_of(indexes, earlier, pointer.round), most=handler.record.attempts)
            items = [(index, chunk.items[index - chunk.first]) for index in indexes]
            gate = TaskGate(self._rates, handler.record.task, is_cancelled, self._stop)
            outcomes = await self._run(handler, turn, pointer, items, gate)
        ran = {outcome.index for outcome in outcomes}
        left = [index for index in indexes if index not in ran]
        if record.is_cancelling or is_cancelled():
            outcomes, left = sorted(outcomes + cancelled(left), key=lambda outcome: outcome.index), []
        elif left and (not outcomes or not may_leave(pointer.round)):
            raise NothingBegan
        return result_of(chunk, pointer.chunk, pointer.round, outcomes, earlier, self._node, left=len(left))

    async def _run(
        self, handler: TaskHandler, turn: Round, pointer: Pointer, items: Sequence[tuple[int, Raw]], gate: Gate
    ) -> list[Outcome]:
        """Run the items as the task's limits let them go. Of a task whose items are limited in number no others are at
        work in this process meanwhile."""
        most = self._at_once(handler.record.task)
        turns = self._turns.setdefault(handler.record.task, anyio.Lock())
        outcomes: list[Outcome] = []
        if not handler.record.is_idempotent:
            async with turns if most == 1 else nullcontext():
                return await run_marked(handler, turn, pointer, items, self._items, gate)
        if not most:
            return await run_items(handler, turn, items, gate)
        for first in range(0, len(items), most):
            async with turns:
                outcomes += await run_items(handler, turn, items[first : first + most], gate)
        return outcomes

    def _is_cancelled(self, instance_id: str) -> bool:
        latest = self._instances.seen(instance_id)
        return latest is not None and latest.is_cancelling


def _beat_key(record: Instance) -> str:
    return f"{record.instance_id}.{record.step_fence}"
