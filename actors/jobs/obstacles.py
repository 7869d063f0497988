"""Finds what keeps a job from running.

In: a job's id. Out: one reason for each job of that id. State: none. A look, so nothing is changed by it. When it
cannot go on: the caller gets the broker's errors.
"""

from collections.abc import Callable, Collection, Sequence

from actors.jobs.reads import Found
from actors.jobs.replies import listed_of
from actors.jobs.rules.obstacles import JobWhy, Queue, why
from actors.jobs.topics import Topics
from actors.runtime.rules.slot_keys import key_reader
from actors.runtime.slot_look import SlotLook
from streams.clock import Clock
from streams.connection import Connection
from streams.errors import Refused
from streams.job_messages import JobRecord
from streams.specs import job_consumer

NO_CONSUMER = 10014
NOT_READY = Queue(is_delivered=False, waiting=0)


class Obstacles:
    """`serving(topic)`: the live nodes with handlers of it. `clock` is the server's."""

    def __init__(
        self, connection: Connection, topics: Topics, serving: Callable[[str], Collection[str]], clock: Clock
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._serving = serving
        self._clock = clock
        self._slots = SlotLook(connection)

    async def of(self, found: Sequence[Found]) -> list[JobWhy]:
        """Return the reason for each of these jobs. Raises as `Connection.api`."""
        return [
            why(
                listed_of(each),
                self._topics.current(each.topic),
                await self._queue(each, each.job) if each.job is not None else NOT_READY,
                self._serving(each.topic),
                self._clock.now_ms(),
            )
            for each in found
        ]

    async def _queue(self, found: Found, job: JobRecord) -> Queue:
        is_put_off = found.state == "delayed" and job.put_off > 0
        settings = self._topics.current(found.topic)
        full = ""
        if settings.slots and (found.state == "ready" or is_put_off):
            key = key_reader(settings.slot_key)(bytes(job.body))
            full = await self._slots.full(f"jobs.{found.topic}", key, settings.slots)
        queue = await self._waiting(found, job) if found.state == "ready" else NOT_READY
        return queue._replace(full=full, is_put_off=is_put_off)

    async def _waiting(self, found: Found, job: JobRecord) -> Queue:
        spec = job_consumer(self._connection.namespace, found.topic, job.priority)
        try:
            info = await self._connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}")
        except Refused as refused:
            if refused.err_code != NO_CONSUMER:
                raise
            return NOT_READY._replace(waiting=1)
        return Queue(found.seq <= info["delivered"]["stream_seq"], info["num_pending"], held=info["num_ack_pending"])
