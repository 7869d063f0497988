"""Job worker: runs this node's handlers on the ready jobs of their topics.

In: ready jobs, by the consumers `jobs_<topic>` (one a lane), shared with all nodes and desks, and requests on `gone`.
Out: the handlers' effects, acks, failed jobs back to `delayed`, dead letters on `dead.jobs.<topic>.<key>`. State: in
memory only. Deliveries hold the node's jobs, and the node extends them while it lives (hold.py).

Under redelivery: if a node died, was cut off or could not acknowledge in time, the job comes again, and the handler
runs again: at least once. A job that was deleted, or moved on by another client, is left as it is. When it cannot go
on: without a link nothing new begins. Past the ack wait the running jobs are lost, and their handlers are informed and
cancelled. It ends with the node: begun jobs are finished, the others given back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.hold import Hold
from actors.jobs.worker.leaders import Leaders
from actors.jobs.worker.restarts import Restarts
from actors.jobs.worker.settling import Settling
from actors.jobs.worker.shared import TEND_S, Shared
from actors.jobs.worker.slices import Slices
from actors.jobs.worker.topic import TopicWorker
from actors.jobs.worker.watchdog import Watchdog
from actors.runtime.bounds import WorkBounds
from actors.runtime.broker.unmade import Unmade
from actors.runtime.crowd import for_each
from actors.runtime.logs import fields
from actors.runtime.measures import Measures
from actors.runtime.promptness import until_prompt
from actors.runtime.rates.shares import SharedRates
from actors.runtime.rates.slot_client import NodeSlots
from streams.clock import Clock, monotonic_s, until_turn_s
from streams.errors import Disconnected
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.pull.delivery import Delivery
from streams.pull.puller import Puller
from streams.topology.specs import job_consumer

log = logging.getLogger(__name__)

REST_S = 0.5
"""Between two looks, while all topics are quiet."""
PROMPT_S = 30.0
"""For how long, after its start, a node whose event loop is late leaves all jobs to others."""


class _Gone(msgspec.Struct):
    """A job that was deleted."""

    topic: str
    key: str


_decode_gone = msgspec.json.Decoder(_Gone).decode


class JobWorker:
    """All of a node's handlers. Call `run` once at a time."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        node: str,
        connection: Connection,
        store: JobStore,
        topics: Topics,
        rates: SharedRates,
        slots: NodeSlots,
        clock: Clock,
        chance: Callable[[], float],
        measures: Measures,
        stop: anyio.Event,
        is_heard: Callable[[], bool] = lambda: True,
        bounds: WorkBounds,
        others: Callable[[], bool] = lambda: False,
    ) -> None:
        """`others`: whether other live nodes serve the same topics."""
        self._handlers = handlers
        self._node = node
        self._connection = connection
        self._settling = Settling(store, node=node)
        self._store_mark = store.store_mark
        self._settings = topics
        self._rates = rates
        self._slots = slots
        self._clock = clock
        self._chance = chance
        self._measures = measures
        self._stop = stop
        self._is_heard = is_heard
        self._bounds = bounds
        self._others = others
        self._has_ended = False
        self._unmade = Unmade("job_worker")
        self._topics: dict[str, TopicWorker] = {}
        self._requests: deque[Message] = deque()
        self._has_requests = anyio.Event()

    def _may_leave_jobs(self) -> bool:
        """Return whether jobs would wait here, while this node's loop is late, that others begin at once."""
        return self._others() and not self._stop.is_set()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are handled here, for the node's record. None once the running jobs have ended: nobody
        replies then to who deletes a job."""
        return () if self._has_ended else tuple(handler.topic for handler in self._handlers)

    @property
    def unmade(self) -> dict[str, str]:
        """Why consumers could not be made at the last try, by their names."""
        return self._unmade.reasons

    def topic(self, name: str) -> TopicWorker:
        """Return a topic at work."""
        return self._topics[name]

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Run handlers until the node stops and the running jobs have ended. Started once all topics are served.
        Raises FATAL errors."""
        self._has_ended = False
        restarts = Restarts(self._connection, self._clock, wait_s=self._ack_wait_s, held=self._held)
        hold = self._hold(restarts)
        shared = self._shared(hold, restarts)
        self._topics = {handler.topic: TopicWorker(handler, shared) for handler in self._handlers}
        for name in self._topics:
            self._follow(name)
        removers = (
            self._settings.on_change(self._follow),
            self._bounds.on_change(self._follow_bounds),
            self._bounds.watch(lambda: [topic.bound for topic in self._topics.values() if topic.is_running]),
        )
        subscription = await self._connection.subscribe(self._connection.namespace.gone(), self._hear_gone)
        try:
            async with restarts.watching():
                with Watchdog() as watchdog:
                    async with anyio.create_task_group() as keeping:
                        await keeping.start(hold.keep)
                        await until_prompt(PROMPT_S, self._may_leave_jobs)
                        keeping.start_soon(self._tend, watchdog, shared)
                        keeping.start_soon(self._answer_gone)
                        async with anyio.create_task_group() as topics:
                            await for_each(self._topics.values(), lambda topic: topics.start(topic.serve, self._stop))
                            task_status.started()
                        keeping.cancel_scope.cancel()
            self._has_ended = True
        finally:
            for remove in removers:
                remove()
            await subscription.unsubscribe()

    @property
    def _ack_wait_s(self) -> float:
        namespace, is_clustered = self._connection.namespace, self._connection.is_clustered
        return min(job_consumer(namespace, name, is_clustered=is_clustered).ack_wait_s for name in self.topics)

    def _hold(self, restarts: Restarts) -> Hold:
        leaders = Leaders(
            self._connection, restarts, store=partial(self._store_mark, self.topics), pullers=self._pullers
        )
        return Hold(
            self._connection,
            ack_wait_s=self._ack_wait_s,
            pullers=self._pullers,
            doubt=self._doubt,
            lose=partial(self._lose, restarts),
            resume=self._resume,
            confirm=leaders.confirm,
            is_heard=self._is_heard,
            confirmed=restarts.confirmed,
            reconnected=restarts.reconnected,
        )

    def _held(self) -> Iterable[Delivery]:
        for puller in self._pullers():
            yield from puller.unsettled

    def _shared(self, hold: Hold, restarts: Restarts) -> Shared:
        return Shared(
            connection=self._connection,
            hold=hold,
            restarts=restarts,
            slices=Slices(),
            settling=self._settling,
            topics=self._settings,
            rates=self._rates,
            slots=self._slots,
            clock=self._clock,
            chance=self._chance,
            measures=self._measures,
            bounds=self._bounds,
            unmade=self._unmade,
        )

    def _pullers(self) -> Iterable[Puller]:
        for topic in self._topics.values():
            yield from topic.pullers

    def _doubt(self) -> None:
        for topic in self._topics.values():
            topic.doubt()

    def _lose(self, restarts: Restarts) -> int:
        restarts.hold_lost()
        return sum(topic.lose() for topic in self._topics.values())

    def _resume(self) -> None:
        for topic in self._topics.values():
            topic.resume()

    def _follow(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is not None:
            topic.take_settings(self._settings.current(name))

    def _follow_bounds(self) -> None:
        for topic in self._topics.values():
            if topic.bound:
                self._follow(topic.topic)

    async def _tend(self, watchdog: Watchdog, shared: Shared) -> None:
        while True:
            watchdog.beat(is_resting=not shared.stirred)
            shared.hold.look(monotonic_s())  # it is noticed here that the others do not hear us
            for name in tuple(shared.stirred):
                self._topics[name].tend()
            if shared.stirred:
                await anyio.sleep(TEND_S)
            else:
                shared.has_stirred.clear()
                with anyio.move_on_after(until_turn_s(REST_S)):
                    await shared.has_stirred.wait()

    # ---- jobs that were deleted while they waited here

    def _hear_gone(self, message: Message) -> None:
        self._requests.append(message)
        self._has_requests.set()

    async def _answer_gone(self) -> None:
        """Drop the named job, then reply: once every node has replied, no node begins the job any more."""
        answer = msgspec.json.encode({"node": self._node})
        while True:
            await self._has_requests.wait()
            self._has_requests = anyio.Event()
            while self._requests:
                message = self._requests.popleft()
                self._drop(message.payload)
                if message.reply:
                    await self._reply(message.reply, answer)

    def _drop(self, payload: bytes) -> None:
        try:
            gone = _decode_gone(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("job_worker.bad_request", extra=fields(error=str(error)))
            return
        topic = self._topics.get(gone.topic)
        if topic is not None:
            topic.drop(gone.key)

    async def _reply(self, subject: str, answer: bytes) -> None:
        try:
            await self._connection.publish_core(subject, answer)
        except Disconnected:  # the client is cut off too, or sends its request again
            log.debug("job_worker.not_answered", extra=fields(subject=subject))
