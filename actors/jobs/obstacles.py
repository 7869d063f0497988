"""Finds what keeps a job from running.

In: a job's id. Out: one reason for each job of that id. State: none. A look, so nothing is changed by it. When it
cannot go on: the caller gets the broker's errors.
"""

from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from actors.jobs.reads import Found
from actors.jobs.replies import listed_of
from actors.jobs.rules.obstacles import NOBODY, JobWhy, Queue, why
from actors.jobs.topics import Topics
from actors.runtime.bounds import WorkBounds
from actors.runtime.rates.counts import is_waited_for
from actors.runtime.rates.slot_look import SlotLook
from actors.runtime.rules.bounds import nobody_text
from actors.runtime.rules.slot_keys import key_reader
from streams.clock import Clock
from streams.errors import Refused
from streams.link.connection import Connection
from streams.messages.jobs import JobRecord
from streams.topology.specs import ConsumerSpec, job_consumer

NO_CONSUMER = 10014
NOT_READY = Queue(is_delivered=False, waiting=0)


class Obstacles:
    """`serving(topic)`: the live nodes with handlers of it. `unmade(topic, consumer)`: why none of them could make that
    consumer, empty if one could. `clock` is the server's."""

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        serving: Callable[[str], Collection[str]],
        clock: Clock,
        bounds: WorkBounds,
        unmade: Callable[[str, str], str],
    ) -> None:
        self._connection = connection
        self._unmade = unmade
        self._topics = topics
        self._serving = serving
        self._clock = clock
        self._bounds = bounds
        self._slots = SlotLook(connection)

    async def of(self, found: Sequence[Found]) -> list[JobWhy]:
        """Return the reason for each of these jobs. Raises as `Connection.api`."""
        return [await self._why(each) for each in found]

    async def _why(self, found: Found) -> JobWhy:
        settings, nodes = self._topics.current(found.topic), self._serving(found.topic)
        nobody = NOBODY
        if nodes and settings.zone:
            nobody = nobody_text(settings.zone, self._bounds.zone_of(settings.zone))
            nodes = self._bounds.among(settings.zone, nodes)
        queue = await self._queue(found, found.job) if found.job is not None else NOT_READY
        now_ms = self._clock.now_ms()
        is_limited = bool(settings.rate and nodes) and found.state == "ready"
        if is_limited and not await is_waited_for(self._connection, set(nodes), f"jobs.{found.topic}", now_ms):
            settings = replace(settings, rate=0.0)  # the nodes' places are in the way, and not the rate
        return why(listed_of(found), settings, queue, nodes, now_ms, nobody=nobody)

    async def _queue(self, found: Found, job: JobRecord) -> Queue:
        is_put_off = found.state == "delayed" and job.put_off > 0
        settings = self._topics.current(found.topic)
        full = ""
        if settings.slots and (found.state == "ready" or is_put_off):
            key = key_reader(settings.slot_key)(bytes(job.body))
            full = await self._slots.full(f"jobs.{found.topic}", key, settings.slots)
        queue = NOT_READY
        if found.state == "ready":
            spec = job_consumer(self._connection.namespace, found.topic, job.priority)
            queue = (await self._waiting(found, spec))._replace(unmade=self._unmade(found.topic, spec.name))
        return queue._replace(full=full, is_put_off=is_put_off)

    async def _waiting(self, found: Found, spec: ConsumerSpec) -> Queue:
        try:
            info = await self._connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}")
        except Refused as refused:
            if refused.err_code != NO_CONSUMER:
                raise
            return NOT_READY._replace(waiting=1)
        ahead = found.seq - info["delivered"]["stream_seq"]  # no more than these have been stored since
        return Queue(ahead <= 0, info["num_pending"], held=info["num_ack_pending"], ahead=ahead)
