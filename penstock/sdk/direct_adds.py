"""Adds of a client that stores jobs by itself, without a desk: `penstock.connect(…, direct=True)`.

It follows the settings of the topics and the server's clock, watches whether the server's store is full, and adds by
the code of the desk (actors/jobs/adding.py). What only nodes can judge goes to a desk all the same: a job that replaces
another, which a node may have fetched ahead, and a job of a topic with a limit of waiting jobs or with a region. A
topic that gets a region just after `takes` has looked raises JudgedByDesk, before anything is stored. While the
settings cannot be followed, everything goes to a desk.

It needs the rights of a node (docs/operations.md).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import anyio

from actors.jobs.adding import Adding
from actors.jobs.copies import Copies
from actors.jobs.rules.job_answers import Added, NotAdded
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.bounds import Anywhere
from actors.runtime.broker.cluster_watch import ClusterWatch
from actors.runtime.broker.store_watch import HealthWatch
from actors.runtime.logs import fields
from actors.runtime.supervisor import one_error
from penstock.sdk.calls import JudgedByDesk, client_error
from penstock.sdk.direct_takes import DirectTakes, open_takes
from streams.backoff import Backoff
from streams.buckets.bucket import Bucket
from streams.chance import chance
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.link.server_clock import ServerClock
from streams.link.store_health import StoreHealth, account_health, monitor_health
from streams.messages.jobs import NewJob
from streams.publish.publisher import Publisher
from streams.topology.topology import learn_job_streams

__all__ = ["DirectAdds"]

log = logging.getLogger(__name__)

AGAIN = Backoff(growth="exponential", base_ms=200, cap_ms=10_000, spread=2.0)
"""The waits before what has failed is opened again."""


class _DeskJudges(Anywhere):
    """The bounds of a client: it does not know who owns a region."""

    def stray(self, what: str, key: str, bound: str) -> str:
        raise JudgedByDesk(f"{what}: a desk knows where {key!r} belongs")


class DirectAdds:
    """Adds by the job store. `run` opens it, in a task of the client. `monitor`: the server's monitoring address.
    Empty: only the account's own limit is known."""

    def __init__(self, connection: Connection, monitor: str) -> None:
        self._connection = connection
        self._monitor = monitor
        self._topics: Topics | None = None
        self._adding: Adding | None = None
        self.taking: DirectTakes | None = None
        """Set while this client can take jobs by itself."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def takes(self, job: NewJob) -> bool:
        """Return whether the job can be added from here. Else a desk adds it."""
        if self._topics is None or job.on_same == "replace":
            return False
        settings = self._topics.current(str(job.topic))
        return not settings.most_waiting and not settings.region_key

    async def add(self, jobs: Sequence[NewJob]) -> list[Added | NotAdded]:
        """Add up to 1,000 jobs that it takes. Return the result of each, in order. Raises the client's errors, and
        JudgedByDesk."""
        assert self._adding is not None
        try:
            return await self._adding.add(jobs)
        except StreamError as error:
            raise client_error(error) from error

    def add_one(self, job: NewJob) -> Awaitable[Added | NotAdded]:
        """Add a job that it takes, together with others of the same turn of the loop. Raises StreamError and
        JudgedByDesk."""
        assert self._adding is not None
        return self._adding.add_one(job)

    async def run(self) -> None:
        """Open it, and again when it fails. The first failure ends it, and is raised by `opened`."""
        failures = 0
        while True:
            try:
                with one_error():
                    await self._follow()
            except StreamError as error:
                self._topics = self.taking = None
                if not self.opened.done():
                    self.opened.set_exception(client_error(error))
                    return
                failures += 1
                log.warning("client.not_direct", extra=fields(error=str(error)))
                await anyio.sleep(AGAIN.wait_s(failures, chance=chance()))

    async def _follow(self) -> None:
        connection = self._connection
        await learn_job_streams(connection)
        namespace = connection.namespace
        async with Publisher(connection) as publisher, anyio.create_task_group() as tasks:
            topics = Topics(Bucket(connection, publisher, namespace.bucket("TOPICS"), bytes), connection, namespace)
            clock = ServerClock(connection, namespace.jobs_streams())
            await tasks.start(ClusterWatch(connection).run)
            await tasks.start(HealthWatch(connection, health=self._health).run)
            await tasks.start(clock.run)
            await tasks.start(topics.run)
            store = JobStore(connection, publisher, namespace, clock)
            adding = self._adding = Adding(
                store=store,
                topics=topics,
                copies=Copies(connection, lambda _topic: ()),
                clock=clock,
                admit=connection.store.admit,
                bounds=_DeskJudges(),
            )
            self._topics = topics
            try:
                async with open_takes(connection, store=store, topics=topics, clock=clock) as self.taking:
                    if not self.opened.done():
                        self.opened.set_result(None)
                    await anyio.sleep_forever()
            finally:
                self.taking = None
                with anyio.CancelScope(shield=True):
                    await adding.close()

    @property
    def _health(self) -> Callable[[], Awaitable[StoreHealth | None]]:
        if self._monitor:
            return lambda: monitor_health(self._monitor)
        return lambda: account_health(self._connection.api)
