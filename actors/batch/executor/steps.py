"""Runs splits and reduces: each once under its fence, while it sends heartbeats, within its time.

The record names the fence under which a step was begun. Its heartbeat shows that it is under way. If an executor falls
silent, or gives the pointer back, the step is begun anew under another fence, and nobody reads what the first one still
writes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial

import anyio
import msgspec
from msgspec import Raw

from actors.batch.executor.contexts import NotJson, ReduceContext, SplitContext, as_json, text_of
from actors.batch.executor.handler import Reject, TaskHandler
from actors.batch.instances import Instances, UnknownInstance
from actors.batch.items import BatchItems
from actors.batch.rules import moves
from actors.batch.rules.record import BEAT_TTL_S, Instance, beat_key
from actors.batch.tasks import TaskRecord
from actors.runtime.actor import FATAL
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.tracing import traces
from streams.buckets.bucket import Bucket
from streams.buckets.files import Files
from streams.clock import Clock
from streams.errors import Disconnected, NoStream, OutcomeUnknown, Refused, RevisionConflict, StoreFull, StreamError
from streams.topology.topology import is_passing

log = logging.getLogger(__name__)

BEAT_S = 3.0
STAGE_S = 0.5
"""How often the new chunks of a streaming split are released. Each time may cost a short chunk and a write."""
_PASSING = (*FATAL, Disconnected, OutcomeUnknown, RevisionConflict, StoreFull, NoStream)


class Steps:
    """The steps of one process. `node` names it in heartbeats. `chunk_items(record)`: the most items of a chunk."""

    def __init__(
        self,
        *,
        node: str,
        instances: Instances,
        items: BatchItems,
        files: Files,
        beats: Bucket[bytes],
        chunk_items: Callable[[TaskRecord], int],
        clock: Clock,
        chance: Callable[[], float],
    ) -> None:
        self._node = node
        self._instances = instances
        self._items = items
        self._files = files
        self._beats = beats
        self._chunk_items = chunk_items
        self._clock = clock
        self._chance = chance

    async def run(self, handler: TaskHandler, record: Instance, *, is_repeat: bool) -> None:
        """Run the current step of an instance, if it begins here. Raises the broker's errors. Then it comes again."""
        if is_repeat and record.begun_fence == record.step_fence:
            await self._renew(record)
        elif await self._begins(record):
            await self._step(handler, record)

    async def _renew(self, record: Instance) -> None:
        """Have the step begun under a new fence: the first holder of this pointer may have written some of it, or write
        on. A split that is not the same twice would be a mixture of two."""
        fence = record.step_fence
        await self._instances.move_own(record, lambda before: moves.renew_step(before, fence, self._clock.now_ms()))

    async def _begins(self, record: Instance) -> bool:
        """Record that the step is under way here. Return False if it is already: somebody removed its pointer from the
        queue, and it was offered again."""
        is_ours = False

        def begin(before: Instance) -> Instance:
            nonlocal is_ours
            after = moves.begin_step(before, record.step_fence, self._clock.now_ms())
            is_ours = after is not before
            return after

        await self._instances.move_own(record, begin)
        if is_ours:
            await self._beats.put(beat_key(record), self._heartbeat(0, None), ttl_s=BEAT_TTL_S)
        return is_ours

    async def _step(self, handler: TaskHandler, record: Instance) -> None:
        """Run a step while it sends heartbeats, within its time, and record how it ended."""
        context, body = self._opened(handler, record)
        limit_s = handler.record.step_timeout_ms / 1000
        failed: Exception | None = None
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope(deadline=anyio.current_time() + limit_s)
            tasks.start_soon(self._beat, record, context, scope)
            if handler.record.is_streaming and isinstance(context, SplitContext):
                tasks.start_soon(self._stream, record, context)
            try:
                with scope, self._span(record):
                    await body()
                if scope.cancelled_caught and not context.is_cancelled:
                    raise TimeoutError(f"took longer than {limit_s:g} s, its step_timeout_s")
            except Exception as error:  # the border to the user's code
                failed = error  # reported below: raised within the group it would become a group of its own
            tasks.cancel_scope.cancel()
        if (failed or context.is_cancelled) and await self._is_deleted(record):
            await self._items.drop_split(record.instance_id, record.step_fence)
            return
        if failed is None:
            return
        if _goes_round_again(failed):
            raise failed
        log.warning("step.failed", exc_info=failed, extra=fields(instance=record.instance_id))
        await self._fail(handler, record, failed)

    async def _is_deleted(self, own: Instance) -> bool:
        """Return whether the instance was deleted while a step ran, so that nothing removes what that stored last."""
        try:
            latest = await self._instances.get(own.instance_id)
        except UnknownInstance:
            return True
        return bool(latest.deleted_ms) or latest.created_ms != own.created_ms

    def _span(self, record: Instance) -> AbstractContextManager[object]:
        """Return the step's span, of the trace of whoever submitted the instance."""
        step = "reduce" if record.state == "reducing" else "split"
        facts = {"task": record.task, "batch": record.instance_id}
        return traces.span(f"{step} {record.task}", "consumer", facts, parent=record.traceparent)

    def _opened(
        self, handler: TaskHandler, record: Instance
    ) -> tuple[SplitContext | ReduceContext, Callable[[], Awaitable[None]]]:
        """Return the context of the step's code, and the function that runs it."""
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
        await self._instances.move_own(record, lambda before: moves.seal_split(before, seal, self._clock.now_ms()))

    async def _stream(self, record: Instance, context: SplitContext) -> None:
        """Release the new chunks of the split regularly."""
        chunks = 0
        while True:
            await anyio.sleep(STAGE_S)
            try:
                made = await context.made()
                if made.chunks > chunks:
                    await self._instances.move_own(record, partial(moves.stage, made=made))
                    chunks = made.chunks
                    reach("batch.stage")
            except FATAL:
                raise
            except (StreamError, UnknownInstance) as error:  # the split meets it too, if it stays
                log.warning("step.stage_failed", extra=fields(instance=record.instance_id, error=str(error)))

    async def _reduce(self, handler: TaskHandler, record: Instance, context: ReduceContext) -> None:
        answer = await handler.reduce(context)
        reach("batch.reduce")
        try:
            result = as_json(answer, "what reduce returned")
        except NotJson as error:
            result = Raw(msgspec.json.encode({"not_told": str(error)}))
        await self._instances.move_own(
            record,
            lambda before: moves.reduced(before, record.step_fence, result, self._clock.now_ms()),
        )

    async def _fail(self, handler: TaskHandler, record: Instance, error: Exception) -> None:
        """Have the step tried again after a wait, or end its instance. `Reject`: it would go the same way each time."""
        is_final, now_ms = isinstance(error, Reject), self._clock.now_ms()
        kind = "" if is_final else f"{type(error).__name__}: "
        fail = partial(
            moves.fail_step,
            fence=record.step_fence,
            reason=f"{record.state}: {kind}{text_of(error)}",
            policy=handler.record.retries,
            now_ms=now_ms,
            chance=self._chance(),
            is_final=is_final,
        )
        await self._instances.move_own(record, fail)

    async def _beat(self, record: Instance, context: SplitContext | ReduceContext, step: anyio.CancelScope) -> None:
        """Report every few seconds that the step is under way, and its progress. End a step that does not count any
        more and does not notice."""
        while True:
            was_cancelled = context.is_cancelled
            await anyio.sleep(BEAT_S)
            if was_cancelled and context.is_cancelled:
                step.cancel()
                return
            try:
                await self._beats.put(beat_key(record), self._heartbeat(context.done, context.total), ttl_s=BEAT_TTL_S)
            except FATAL:
                raise
            except StreamError as error:  # the step itself goes on: its writes have a fence, and retries of their own
                log.warning("step.beat_failed", extra=fields(instance=record.instance_id, error=str(error)))

    def _heartbeat(self, done: int, total: int | None) -> bytes:
        return msgspec.json.encode({"by": self._node, "done": done, "total": total})


def _goes_round_again(error: Exception) -> bool:
    """Return whether the step itself is not to blame: it met the link, a conflict, or a server that takes it later."""
    return isinstance(error, _PASSING) or (isinstance(error, Refused) and is_passing(error))
