"""What flows use of the job engine. Their rows are jobs of one topic, their rounds recurring jobs of another."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from actors.flow.flows import rounds_topic, rows_topic
from actors.flow.handler import LoadedRow
from actors.jobs.desk import JobDesk
from actors.jobs.recurring import decode_recurring
from actors.jobs.row_adds import RowAdds, Since
from actors.jobs.rules.job_answers import NotAdded
from actors.jobs.rules.recurrence import Recurring, begun
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from streams.bucket import Bucket
from streams.clock import Clock
from streams.connection import Connection
from streams.entries import Entry
from streams.errors import StreamError
from streams.job_messages import NewJob

__all__ = ["ROUND", "FlowJobs"]

ROUND = "every"
"""The name of the schedule that fires a flow's rounds."""


class RoundRefused(StreamError):
    """The job of a round was not added. The text is the reason."""


class FlowJobs:
    """One node's. `clock` is the server's."""

    def __init__(
        self,
        connection: Connection,
        *,
        records: Bucket[bytes],
        store: JobStore,
        desk: JobDesk,
        topics: Topics,
        clock: Clock,
    ) -> None:
        self._records = records
        self._store = store
        self._desk = desk
        self._topics = topics
        self._clock = clock
        self._adds = RowAdds(
            connection=connection, store=store, topics=topics, clock=clock, admit=connection.store.admit
        )

    def since(self) -> Since:
        return self._adds.since()

    async def add_rows(self, flow: str, rows: Sequence[LoadedRow], since: Since) -> list[bool | StreamError]:
        return await self._adds.add(rows_topic(flow), [(row.id, row.body) for row in rows], since)

    def rate(self, flow: str) -> float:
        return self._topics.current(rows_topic(flow)).rate

    def is_paused(self, flow: str) -> bool:
        return self._topics.current(rows_topic(flow)).is_paused

    async def in_flight(self, flow: str) -> int:
        counts = await self._store.count(rows_topic(flow))
        return counts.ready + counts.reserved

    async def change(self, flow: str, **values: object) -> None:
        """Set the rate, or the pause, of a flow's rows. Raises BadSetting."""
        await self._topics.change(rows_topic(flow), values)

    async def begin(self, flow: str) -> str:
        """Have a round now. Return its id. Raises StreamError if it was not added."""
        [answer] = await self._desk.add([NewJob(topic=rounds_topic(flow))])
        if isinstance(answer, NotAdded):
            raise RoundRefused(f"flow {flow}: {answer.reason}")
        return answer.id

    async def follow(self, flow: str, every_ms: int) -> None:
        """Have a round at this interval. A schedule that is just so stays as it is."""
        await self._topics.use(rounds_topic(flow), "normal")

        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, None]:
            before = None if entry is None else decode_recurring(entry.raw)
            if before is not None and not before.is_removed and before.every_ms == every_ms:
                return None, None
            wanted = Recurring(every_ms=every_ms, overlap="allow", misfire="skip")
            if before is not None and not before.is_removed:
                wanted = replace(before, every_ms=every_ms)
            return msgspec.json.encode(begun(wanted, before, now_ms=self._clock.now_ms())), None

        await self._records.update(f"{rounds_topic(flow)}.{ROUND}", change)
