"""What flows use of the job engine. Their rows are jobs of one topic, their rounds those of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.flow.flows import BadFlow, rounds_topic, rows_topic
from actors.flow.handler import ROW_PATH, LoadedRow
from actors.flow.rules.obstacles import RowJob
from actors.jobs.deliveries import BURIED_S
from actors.jobs.desk import JobDesk
from actors.jobs.row_adds import RowAdds, Since
from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_record import Schedule
from actors.jobs.schedule_desk import ScheduleDesk, ScheduleRefused
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.rules.slot_keys import Slots
from penstock.node.jobs.handlers import declared_slots
from streams.clock import Clock
from streams.errors import StreamError
from streams.link.connection import Connection

__all__ = ["ROUND", "FlowJobs"]

ROUND = "every"
"""The name of the schedule that fires a flow's rounds."""
MOST_ROUNDS = 10
"""If so many rounds are due and not made, no node serves the flow, and no more are added."""


class FlowJobs:
    """One node's. `clock` is the server's."""

    def __init__(
        self,
        connection: Connection,
        *,
        store: JobStore,
        schedules: ScheduleDesk,
        topics: Topics,
        clock: Clock,
        desk: JobDesk,
    ) -> None:
        self._desk = desk
        self._store = store
        self._schedules = schedules
        self._topics = topics
        self._adds = RowAdds(connection=connection, store=store, topics=topics, clock=clock)

    def since(self) -> Since:
        return self._adds.since()

    async def add_rows(
        self, flow: str, rows: Sequence[LoadedRow], since: Since, epoch: int
    ) -> list[bool | StreamError]:
        return await self._adds.add(rows_topic(flow), [(row.id, row.body) for row in rows], since, epoch=epoch)

    async def refresh(self, flow: str) -> None:
        """Take the rate, the pause and the slots as they are stored now, and the pause of the rounds."""
        await self._topics.refresh(rows_topic(flow), rounds_topic(flow))

    def rate(self, flow: str) -> float:
        return self._topics.current(rows_topic(flow)).rate

    def is_paused(self, flow: str) -> bool:
        return self._topics.current(rows_topic(flow)).is_paused

    async def loaded_many(self, flows: Sequence[str]) -> list[tuple[int, int]]:
        counted = await self._store.count_many([rows_topic(flow) for flow in flows])
        return [(counts.ready + counts.reserved, counts.delayed) for counts in counted]

    async def loaded(self, flow: str) -> tuple[int, int]:
        [counts] = await self.loaded_many([flow])
        return counts

    async def change(self, flow: str, **values: object) -> None:
        """Set the rate, or the pause, of a flow's rows. Raises BadSetting."""
        await self._topics.change(rows_topic(flow), values)

    async def job(self, flow: str, shard: str, key: str) -> RowJob | None:
        """Return what is in the way of a row in flight, or that it ended. `None`: it is not in flight."""
        for found in await self._desk.why(rows_topic(flow), f"{shard}:{key}"):
            listed = await self._desk.peek(rows_topic(flow), f"{shard}:{key}") if found.state == "done" else None
            if listed is not None:
                return RowJob("done", found.code, found.reason, listed.finished_ms + BURIED_S * 1000, listed.outcome)
            return RowJob(found.state, found.code, found.reason, found.until_ms)
        return None

    def slots(self, flow: str) -> Slots | None:
        """Return how many rows of a key are executed at once. `None`: no limit."""
        settings = self._topics.current(rows_topic(flow))
        key = settings.slot_key.removeprefix(ROW_PATH)
        return Slots(settings.slots, key, settings.when_full) if settings.slots else None

    async def change_slots(self, flow: str, values: Mapping[str, object]) -> None:
        """Set some of `slots`, `slot_key`, `when_full`. `None` resets one to the value in the code. Raises
        BadSetting."""
        declared = declared_slots(self._topics.current(rows_topic(flow)).declared_slots)
        chosen = {name: declared.get(name) if value is None else value for name, value in values.items()}
        path = values.get("slot_key")
        if isinstance(path, str) and path:
            chosen["slot_key"] = f"{ROW_PATH}{path}"
        await self._topics.change(rows_topic(flow), chosen)

    async def begin(self, flow: str, nonce: str = "") -> str:
        """Have a round now, beside the schedule. Return its id. `nonce`: the same in each try of one call. Raises
        BadFlow if none can come."""
        topic = rounds_topic(flow)
        if self._topics.current(topic).is_paused:
            raise BadFlow(f"flow {flow}: {_paused(topic)}")
        try:
            return (await self._schedules.trigger(topic, ROUND, nonce=nonce)).id
        except (ScheduleRefused, BadRecurrence) as refused:
            is_away = isinstance(refused, ScheduleRefused) and refused.code == "not_found"
            raise BadFlow(f"flow {flow}: {_removed(topic) if is_away else refused}") from refused

    async def next_round(self, flow: str) -> tuple[int, str]:
        """Return when the next round is due, or 0 and why none comes."""
        topic = rounds_topic(flow)
        try:
            schedule = await self._schedules.show(topic, ROUND, most=1)
        except ScheduleRefused:
            return 0, _removed(topic)
        if schedule.state == "paused":
            on = f"`penstock schedules resume {topic}/{ROUND}`"
            return 0, f"the schedule of the flow's rounds is paused; go on with {on}"
        if self._topics.current(topic).is_paused:
            return 0, _paused(topic)
        return next(iter(schedule.next_ms), 0), schedule.fault

    async def bind(self, flow: str, bound: str, region_key: str) -> None:
        """Have rounds and rows where a bound says, and refuse rows of other zones by their region. Topics that are
        bound so stay as they are."""
        path = f"{ROW_PATH}{region_key}" if region_key else ""
        for topic, wanted in ((rows_topic(flow), (bound, path)), (rounds_topic(flow), (bound, ""))):
            settings = self._topics.current(topic)
            if (settings.zone, settings.region_key) != wanted:
                await self._topics.enlist(topic, "normal")
                await self._topics.change(topic, {"zone": wanted[0] or None, "region_key": wanted[1] or None})

    async def follow(self, flow: str, every_ms: int, *, is_only_changed: bool = False) -> None:
        """Have a round at this interval. A schedule that is just so stays as it is. `is_only_changed`: one that
        somebody has removed is not added."""
        await self._topics.enlist(rounds_topic(flow), "normal")
        wanted = Schedule(every_ms=every_ms, overlap="allow", misfire="skip", most_open=MOST_ROUNDS)
        await self._schedules.add(rounds_topic(flow), ROUND, wanted, is_replaced=True, is_only_changed=is_only_changed)


def _removed(topic: str) -> str:
    return (
        f"the schedule {topic}/{ROUND} of the flow's rounds was removed; a node that serves it adds it when it starts"
    )


def _paused(topic: str) -> str:
    return f"the topic of the flow's rounds is paused; go on with `penstock jobs topic {topic} --resume`"
