"""The lanes of one topic: a puller each, and its consumer made again if it is missing."""

import math
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack

import anyio
from anyio.abc import TaskStatus

from actors.jobs.rules.job_handling import lane_capacities
from actors.jobs.rules.topic_settings import LANES, TopicSettings
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.shared import Shared
from streams.messages.jobs import Priority
from streams.pull.delivery import Delivery
from streams.pull.puller import Puller
from streams.topology.specs import ConsumerSpec, job_consumer

MISSING_S = 2.0
"""How often a consumer that does not answer is looked after: somebody may have deleted it."""


class Lanes:
    """The lanes of one topic. `deliver_to(priority)` returns what takes a lane's deliveries. `tune` is called when a
    lane was opened, and `stir` when a puller is in trouble."""

    def __init__(
        self,
        handler: Handler,
        shared: Shared,
        *,
        deliver_to: Callable[[Priority], Callable[[Delivery], None]],
        stir: Callable[[], None],
        tune: Callable[[], object],
    ) -> None:
        self._topic = handler.topic
        self._handler_lanes = handler.lanes
        self._shared = shared
        self._deliver_to = deliver_to
        self._stir = stir
        self._tune = tune
        self._wanted: Collection[Priority] = TopicSettings().lanes
        self._pullers: dict[Priority, Puller] = {}
        self._changed = anyio.Event()
        self._is_missing = False
        self._looked_s = 0.0

    @property
    def pullers(self) -> Collection[Puller]:
        """The pullers of the lanes that are open, also of those that open later."""
        return self._pullers.values()

    @property
    def held(self) -> int:
        """Jobs that are this node's at present."""
        return sum(puller.held for puller in self._pullers.values())

    def follow(self, lanes: Collection[Priority]) -> None:
        """Have these lanes open."""
        self._wanted = lanes
        self._changed.set()

    def limit(self, capacity: int) -> None:
        """Set how many jobs all lanes may hold."""
        pullers = list(self._pullers.values())
        owns = lane_capacities(capacity, tuple(puller.held for puller in pullers))
        for puller, own in zip(pullers, owns, strict=True):
            if puller.capacity != own:
                puller.set_capacity(own)

    def look_after(self, now_s: float) -> None:
        """Have the consumers made again if one may be missing."""
        if self._is_troubled and now_s - self._looked_s > MISSING_S:
            self._looked_s, self._is_missing = now_s, True
            self._changed.set()

    def are_watched(self, now_s: float) -> bool:
        """Return whether a consumer may be missing, or was looked after lately."""
        return self._is_troubled or self._looked_s > now_s - 2 * MISSING_S

    @property
    def _is_troubled(self) -> bool:
        return any(puller.is_troubled for puller in self._pullers.values())

    async def keep(self, *, task_status: TaskStatus[None]) -> None:
        """Pull from the lanes that there are, until cancelled."""
        for priority in self._shared.topics.current(self._topic).lanes:
            await self._shared.topics.enlist(self._topic, priority)
        async with AsyncExitStack() as stack:
            while True:
                wanted = [each for each in LANES if each in self._wanted and each in self._handler_lanes]
                are_open = all([await self._open(priority, stack) for priority in wanted])
                self._tune()
                task_status.started()
                task_status = anyio.TASK_STATUS_IGNORED
                with anyio.move_on_after(math.inf if are_open else MISSING_S):
                    await self._changed.wait()
                self._changed = anyio.Event()
                if self._is_missing:
                    self._is_missing = False
                    await self._make_again()

    async def _make_again(self) -> None:
        self._shared.topics.forget_consumer(self._topic)
        for priority in self._pullers:
            await self._make(self._consumer(priority), priority)

    def _consumer(self, priority: Priority) -> ConsumerSpec:
        return job_consumer(self._shared.connection.namespace, self._topic, priority)

    async def _make(self, spec: ConsumerSpec, priority: Priority) -> bool:
        return await self._shared.unmade.make(spec.name, self._shared.topics.use(self._topic, priority))

    async def _open(self, priority: Priority, stack: AsyncExitStack) -> bool:
        """Pull from a lane, if its consumer can be made. Return whether it is so."""
        if priority in self._pullers:
            return True
        spec = self._consumer(priority)
        if not await self._make(spec, priority):
            return False
        deliver, connection = self._deliver_to(priority), self._shared.connection
        puller = Puller(connection, spec.stream, spec.name, capacity=0, deliver=deliver, on_trouble=self._stir)
        self._pullers[priority] = await stack.enter_async_context(puller)
        return True
