"""Conductor: takes instances from one state to the next, and releases their work at a bounded pace.

In: a look at an instance when its record changed, when an executor reported that something is done, or when time alone
makes one due. Out: pointers in WORK for a split, for chunks, for a reduce, the next state of the record, and the
moments that it owes. State: none that must not be lost. The record and the log of results are the state. The times of
the last offers are a cache that saves repeats. Whose turn it is begins anew where another node admits.

Rendezvous hashing over the live nodes of the role decides who tends an instance, and who admits a task's waiting
instances, all of them in one look. While that moves from one node to another each may count without the other's last
starts. For a moment twice as many may be at work as the task allows.

Under redelivery: two nodes that both believe they tend an instance meet at compare-and-set. A pointer's subject must
not exist, so the server refuses a second offer. A result counts at its place in the log. When it cannot go on: an
instance that fails is looked at again later, alone. The others go on.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import islice

from anyio.abc import TaskStatus

from actors.batch.instances import Instances, UnknownInstance
from actors.batch.items import BatchItems
from actors.batch.offers import REOFFER_MS, Offers
from actors.batch.removal import Removal
from actors.batch.rules import moves
from actors.batch.rules.admission import TenantTurns, admit, part_of, starts, window
from actors.batch.rules.moments import owed
from actors.batch.rules.moves import RoundEnded
from actors.batch.rules.record import (
    BEAT_TTL_S,
    FINAL,
    HELD_LOOK_MS,
    Instance,
    OpenChunk,
    beat_key,
    is_held,
    made_so_far,
    tries_at_ms,
)
from actors.batch.rules.rounds import cancelled, gone, items_to_run, result_of
from actors.batch.tasks import TaskRecord, Tasks, UnknownTask
from actors.batch.versions import is_too_new
from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from actors.runtime.membership import Members
from actors.runtime.pieces import in_pieces
from actors.runtime.tending import AGAIN_MS, Failures, Tending, tended_by
from streams.buckets.bucket import Bucket
from streams.buckets.files import Files
from streams.clock import Clock
from streams.errors import MalformedMessage, StreamError
from streams.link.connection import Connection
from streams.messages.batch import ChunkResult
from streams.publish.publisher import Publisher

log = logging.getLogger(__name__)

ROLE = "conductor"
WINDOW = 64
"""Chunks of one instance that are released at a time: enough to keep a dozen executors busy, few enough that the chunks
of another instance do not wait behind a long row. With a rate they are fewer."""
LOOK_MS = 1_000
"""How soon an instance at work is looked at without any other cause: news may be lost."""
AT_ONCE = 32
WAITING_OF = "*"
"""Prefix of a task: all of its waiting instances, as one thing to look at. No id begins so."""
ALL = "**"
"""All instances, as one thing to look at: each of them is looked at soon."""
COUNTED = 256
"""Results that one change of the record counts."""
BEGUN = 256
"""Instances of a task that begin in one look."""
GONE = (UnknownInstance, UnknownTask)
DAY_MS = 86_400_000
ARCHIVE_AGAIN_MS = 60_000
HALF_DELETED_MS = 60_000
"""How long after a person's delete the conductor removes what the desk left, which may have died meanwhile."""


class Conductor:
    """One node's conductor."""

    def __init__(
        self,
        *,
        connection: Connection,
        publisher: Publisher,
        members: Members,
        instances: Instances,
        tasks: Tasks,
        items: BatchItems,
        files: Files,
        beats: Bucket[bytes],
        clock: Clock,
        chance: Callable[[], float],
        tell: Callable[[Instance], Awaitable[None]],
        archive: Callable[[str], Awaitable[bool]] | None,
    ) -> None:
        """`archive` keeps an instance elsewhere before it is removed, and returns whether it could."""
        self._connection = connection
        self._members = members
        self._instances = instances
        self._tasks = tasks
        self._items = items
        self._removal = Removal(instances, items, files)
        self._beats = beats
        self._clock = clock
        self._chance = chance
        self._report_moments = tell
        self._archive = archive
        failures: Failures[str] = Failures(log, "conductor.look_failed", "instance", (StreamError, *GONE))
        self._tending = Tending(clock, failures, at_once=AT_ONCE, final=GONE)
        self._report_failures: Failures[str] = Failures(log, "conductor.look_failed", "instance", (StreamError,))
        self._tends = tended_by(members, ROLE)
        self._offers = Offers(publisher, members, connection.namespace, clock)
        self._last_starts_ms: dict[str, int] = {}
        self._turns: defaultdict[str, TenantTurns] = defaultdict(TenantTurns)
        self._cancelled: dict[str, int] = {}
        instances.on_change(self.look_soon)
        tasks.on_change(lambda _task: self._look_at_all())
        members.on_change(self._look_at_all)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Tend instances for ever."""
        namespace = self._connection.namespace
        self._tending.clear()
        self._look_at_all()
        news = await self._connection.subscribe(
            namespace.pattern("batch", "news", "*"), lambda message: self.look_soon(message.subject.rpartition(".")[2])
        )
        task_status.started()
        try:
            await self._tending.run(self._look)
        finally:
            await news.unsubscribe()

    def look_soon(self, instance_id: str) -> None:
        """Look at an instance as soon as the look under way is over, if this node tends it. Look also at the waiting
        ones of its task, if it is one of them or may have left its place to one."""
        record = self._instances.seen(instance_id)
        if record is None or record.state in FINAL:
            for held in self._instances.followers(instance_id):
                self._look_at_waiting(held.task)
        if record is None:
            self._offers.forget(instance_id)
            self._tending.failures.over(instance_id)
            return
        if self._tends(instance_id):
            self._tending.put(instance_id)
        if record.state in ("pending", *FINAL) or record.is_paused:
            waits = record.state == "pending" and not is_held(record)
            self._look_at_waiting(record.task, record.due_ms if waits else 0)

    def _look_at_waiting(self, task: str, due_ms: int = 0) -> None:
        """Look at `due_ms`: a look costs as much as instances wait, and before that time this one changes nothing."""
        if self._tends(task):
            self._tending.put(f"{WAITING_OF}{task}", due_ms)

    def _look_at_all(self) -> None:
        self._tending.put(ALL)

    async def _look(self, key: str) -> int | None:
        if key == ALL:
            async for record in in_pieces(self._instances.known()):
                self.look_soon(record.instance_id)
            return None
        if key.startswith(WAITING_OF):
            return await self._admit(key.removeprefix(WAITING_OF))
        return await self._tend(key) if self._tends(key) else None

    # ---- one look

    async def _tend(self, instance_id: str) -> int | None:
        """Do what the instance's state needs. Return when to look again."""
        record = self._instances.seen(instance_id)
        if record is None:
            self._offers.forget(instance_id)
            return None
        is_reported = await self._report_owed(record)
        task = self._tasks.of_any(record.task)
        if record.state in FINAL:
            self._offers.forget(instance_id)
            until_ms = await self._keep_or_drop(record, task)
            return until_ms if is_reported else min(until_ms, self._clock.now_ms() + AGAIN_MS)
        if record.state == "pending" and not record.is_cancelling:
            return None if is_reported else self._clock.now_ms() + AGAIN_MS
        results = [pair async for pair in self._results(record)]
        record = await self._instances.move_own(record, lambda before: self._next(before, task, results))
        if record.state in FINAL:
            log.info("instance.ended", extra=fields(instance=instance_id, task=record.task, state=record.state))
            return self._clock.now_ms()
        if record.is_cancelling:
            await self._answer_for_nobody(record, task)
        elif record.state in ("splitting", "reducing"):
            record = await self._keep_step(record)
        now_ms = self._clock.now_ms()  # what is due a moment later is not offered now
        await self._offers.offer(record)
        is_more = len(results) == COUNTED
        return now_ms if is_more else min([now_ms + LOOK_MS, *tries_at_ms(record, now_ms)])

    async def _report_owed(self, record: Instance) -> bool:
        """Report what the record owes. Return False if that failed, which delays nothing else of the instance."""
        try:
            if owed(record):
                await self._report_moments(record)
        except FATAL:
            raise
        except StreamError as error:
            self._report_failures.tell(record.instance_id, error)
            return False
        self._report_failures.over(record.instance_id)
        return True

    async def _admit(self, name: str) -> int | None:
        """Let waiting instances of a task begin, and return when to look again. One node does it for all of a task, in
        one look at a time, so that its limits hold. An instance that waits for newer code holds no place."""
        task, now_ms = self._tasks.current(name), self._clock.now_ms()
        if not self._tends(name):
            return None
        await self._free_held(name, now_ms)
        unfinished = self._instances.unfinished(name)
        if len(unfinished) == len(unfinished.at_work):
            return None
        due_ms, held_ms = unfinished.come_due(now_ms), now_ms + HELD_LOOK_MS
        look_ms = held_ms if due_ms is None else min(due_ms, held_ms)
        if not unfinished.rows:
            return look_ms
        at_work = (each for each in unfinished.at_work.values() if not is_too_new(self._members, each))
        most, next_ms = BEGUN, now_ms
        if task.limits.main_rate:
            last_ms = max(self._last_starts_ms.get(name, 0), self._instances.last_start_ms(name))
            most, next_ms = starts(task.limits.main_rate, last_ms, now_ms)
        most = min(most, BEGUN)
        in_order = admit(unfinished.rows, at_work, task.limits.main_concurrency, self._turns[name])
        first = [unfinished[each] for each in islice(in_order, most + 1)]
        if first[:most]:
            self._last_starts_ms[name] = now_ms  # before the watch reports it
        for each in first[:most]:
            try:
                begun = await self._instances.move_own(each, lambda record: moves.start(record, now_ms))
                self._turns[name].take(begun.tenant, begun.weight)
            except (UnknownInstance, MalformedMessage) as error:  # the watch reports it too
                self._tending.failures.tell(each.instance_id, error)
        return min(look_ms, next_ms if len(first) > most else look_ms, now_ms + LOOK_MS)

    async def _free_held(self, name: str, now_ms: int) -> None:
        """Let go on, or fail, those of a task's instances whose predecessors are over."""
        async for held in in_pieces(list(self._instances.unfinished(name).held.values())):
            before = self._instances.seen(held.after)
            if before is not None and before.created_ms == held.after_created_ms and before.state not in FINAL:
                continue
            try:
                await self._instances.follow(held, now_ms)
            except (UnknownInstance, MalformedMessage) as error:
                self._tending.failures.tell(held.instance_id, error)

    async def _results(self, record: Instance) -> AsyncIterator[tuple[int, ChunkResult]]:
        count = 0
        if record.open:
            async for seq, result in self._items.results_after(record, record.counted_seq):
                yield seq, result
                count += 1
                if count == COUNTED:
                    return

    def _next(self, record: Instance, task: TaskRecord, results: list[tuple[int, ChunkResult]]) -> Instance:
        """Count new results, release what may run, and go on to the next state if it is time."""
        now_ms = self._clock.now_ms()
        ended = [_ended(seq, result) for seq, result in results]
        upto = results[-1][0] if results else record.counted_seq
        counted = moves.count(record, ended, task.retries, now_ms, chance=self._chance(), upto_seq=upto)
        return moves.release(moves.end_running(counted, task.most_failures, now_ms), self._window(counted, task))

    def _window(self, record: Instance, task: TaskRecord) -> int:
        """Return how many chunks of an instance may be released at a time."""
        rate, made = task.limits.item_rate, made_so_far(record)
        if not rate or made is None:
            return WINDOW
        workers = sum(task.task in node.tasks for node in self._members.live().values())
        unfinished = self._instances.unfinished(task.task)
        running = (each for each in unfinished.at_work.values() if not each.is_paused)
        part, smallest = part_of(record, running)
        of_chunk = made.items / max(1, made.chunks)
        return window(rate, of_chunk, workers=workers, part=part, smallest=smallest, most=WINDOW)

    async def _keep_step(self, record: Instance) -> Instance:
        """Offer a split or a reduce anew if its executor is silent."""
        now_ms, fence = self._clock.now_ms(), record.step_fence
        if record.begun_fence != fence or now_ms < record.step_since_ms + BEAT_TTL_S * 1000 or record.is_paused:
            return record
        if await self._beats.get(beat_key(record)) is not None or not self._offers.has_worker(record):
            return record
        log.warning("step.silent", extra=fields(instance=record.instance_id, state=record.state, fence=fence))
        return await self._instances.move_own(
            record, lambda before: moves.renew_step(before, fence, self._clock.now_ms())
        )

    async def _answer_for_nobody(self, record: Instance, task: TaskRecord) -> None:
        """End the chunks of a cancelled instance that no executor has ended: perhaps no process serves its task any
        more. If an executor still runs such a chunk, its result comes second. It begins no more items that may not run
        twice. Those that it had begun end as `unknown`."""
        for each in record.open:
            if self._clock.now_ms() < self._cancelled_since(record) + REOFFER_MS:
                return
            chunk = await self._items.chunk(record, each.chunk)
            earlier = await self._items.rounds(record, each.chunk, each.round)
            if chunk is None or earlier is None:
                result = gone(each.chunk, each.round, self._members.name)
            else:
                indexes = items_to_run(chunk, earlier, each.round, record.redo)
                begun = [] if task.is_idempotent else await self._closed(record, each, indexes)
                ends = cancelled(indexes, begun)
                place, by = (each.chunk, each.round), self._members.name
                result = result_of(chunk, *place, ends, earlier, by, is_rows=task.is_sheet)
            await self._items.add_result(record, result)

    async def _closed(self, record: Instance, each: OpenChunk, indexes: Sequence[int]) -> list[int]:
        """Return the indexes of a round that were begun. Its executor begins no others from now on."""
        place = record.instance_id, each.chunk, each.round
        begun, seq = await self._items.begun(*place, if_unreadable=indexes)
        await self._items.begin(*place, begun, expected_seq=seq)
        return begun

    def _cancelled_since(self, record: Instance) -> int:
        """Return when this node learned that the instance is cancelled."""
        return self._cancelled.setdefault(record.instance_id, self._clock.now_ms())

    async def _keep_or_drop(self, record: Instance, task: TaskRecord) -> int:
        """Remove everything of an instance after its time. Return when that is."""
        self._cancelled.pop(record.instance_id, None)
        if record.deleted_ms:
            until_ms = record.deleted_ms + HALF_DELETED_MS
        else:
            until_ms = record.ended_ms + task.keep_days * DAY_MS
        now_ms = self._clock.now_ms()
        if now_ms >= until_ms:
            is_kept = record.deleted_ms or self._archive is None or await self._archive(record.instance_id)
            if not is_kept:
                return now_ms + ARCHIVE_AGAIN_MS

            def delete(before: Instance) -> Instance:
                """A person may have retried it meanwhile, and it may have ended again."""
                return moves.delete(before, now_ms) if before.ended_ms == record.ended_ms else before

            marked = await self._instances.move_own(record, delete)
            if marked.deleted_ms:
                await self._removal.remove(marked)
        return until_ms


def _ended(seq: int, result: ChunkResult) -> RoundEnded:
    return RoundEnded(
        seq=seq,
        chunk=result.chunk,
        round=result.round,
        counts=result.counts,
        again=result.again,
        redone=result.redone,
        reasons=result.reasons,
        left=result.left,
        left_ms=result.left_ms,
        is_gone=result.is_gone,
        attempt=result.attempt,
    )
