"""What the desk of rates uses of the engines: their keys, each with its rate, and how the rate is changed."""

from __future__ import annotations

from typing import NamedTuple

from actors.batch.desk import BatchDesk
from actors.batch.tasks import Tasks, UnknownTask
from actors.fetch.learning import LearnedLimits
from actors.fetch.settings.desk import Desk, change_level
from actors.fetch.settings.levels import LevelName, UnknownLevel
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.sources import SourceKey, Sources, UnknownSource, UnusableSource
from actors.flow.desk import FlowDesk
from actors.flow.flows import Flows, rows_topic
from actors.flow.rates_desk import BadRate, Kind, RateDoor, RatesDesk, UnknownRate
from actors.jobs.topics import Topics
from actors.runtime.membership import Members
from actors.runtime.rules.setting_values import BadSetting, read_number
from streams.buckets.bucket import Bucket
from streams.clock import Clock
from streams.link.connection import Connection

__all__ = ["open_rates_desk"]


def open_rates_desk(
    connection: Connection,
    *,
    topics: Topics,
    flows: Flows,
    tasks: Tasks,
    sources: Sources,
    settings: LiveSettings,
    settings_desk: Desk,
    flow_desk: FlowDesk,
    batch_desk: BatchDesk,
    leases: Bucket[bytes],
    members: Members | None,
    clock: Clock,
    learned: LearnedLimits,
) -> RatesDesk:
    """Return the desk of one node. `members`: the nodes to ask. `None`: there are none. `learned`: what platforms are
    known to allow."""

    def living() -> set[str]:
        return {members.name, *members.live()} if members is not None else set()

    return RatesDesk(
        connection,
        doors={
            "topic": _topic_door(topics, flows),
            "flow": _flow_door(topics, flows, flow_desk),
            "task": _task_door(tasks, batch_desk),
            **_SettingDoors(settings, settings_desk, sources, learned, clock).doors(),
        },
        leases=leases,
        living=living,
        clock=clock,
    )


def _topic_door(topics: Topics, flows: Flows) -> RateDoor:
    """Return the door to the topics, without those of rows."""

    def names() -> list[str]:
        of_flows = {rows_topic(flow) for flow in flows.known()}
        return [topic for topic in topics.known() if topic not in of_flows]

    async def change(topic: str, rate: float | None) -> float:
        return (await topics.change(topic, {"rate": rate})).rate

    return RateDoor(names, lambda topic: topics.current(topic).rate, change, refresh=topics.refresh)


def _flow_door(topics: Topics, flows: Flows, desk: FlowDesk) -> RateDoor:
    async def change(flow: str, rate: float | None) -> float:
        return (await desk.set(flow, {"rate": rate})).rate

    async def refresh(flow: str) -> None:
        await flows.refresh(flow)
        await topics.refresh(rows_topic(flow))

    return RateDoor(flows.known, lambda flow: topics.current(rows_topic(flow)).rate, change, refresh=refresh)


def _task_door(tasks: Tasks, desk: BatchDesk) -> RateDoor:
    def rate_of(task: str) -> float:
        try:
            return tasks.current(task).limits.item_rate
        except UnknownTask:
            return 0.0

    async def change(task: str, rate: float | None) -> float:
        return (await desk.limit(task, {"item_rate": rate})).limits.item_rate

    return RateDoor(tasks.known, rate_of, change, refresh=tasks.refresh)


class _SettingDoors(NamedTuple):
    """The doors to what settings of fetching say: the rates of platforms and sources."""

    settings: LiveSettings
    desk: Desk
    sources: Sources
    learned: LearnedLimits
    clock: Clock

    def doors(self) -> dict[Kind, RateDoor]:
        return {
            "platform": RateDoor(
                lambda: {each.platform for each in self.sources.known()},
                lambda platform: self.settings.current(platform).platform_rate,
                self._change_platform,
                self._platform_now,
            ),
            "source": RateDoor(
                lambda: [str(each) for each in self.sources.known()],
                self._source_rate,
                self._change_source,
                self._source_now,
            ),
        }

    def _platform_now(self, platform: str) -> float:
        return self.learned.platform_rate(platform, self.settings.current(platform))

    def _source_rate(self, name: str) -> float:
        platform, _, source = name.partition("/")
        return self.settings.current(platform, source).rate

    def _source_now(self, name: str) -> float:
        source = SourceKey(*name.split("/", 1))
        try:
            declared = self.sources.adapter(source).declaration.rate
        except (UnknownSource, UnusableSource):
            declared = ()
        return self.learned.within(source, self.settings.current(source.platform, source.source), declared).rate

    async def _change_platform(self, platform: str, rate: float | None) -> float:
        wider = self.settings.current("").platform_rate
        return await self._change(LevelName(platform, ""), "platform_rate", rate, wider)

    async def _change_source(self, name: str, rate: float | None) -> float:
        platform, _, source = name.partition("/")
        return await self._change(LevelName(platform, source), "rate", rate, self.settings.current(platform).rate)

    async def _change(self, level: LevelName, setting: str, rate: float | None, wider: float) -> float:
        values = {} if rate is None else {setting: rate}
        unset = [setting] if rate is None else []
        try:
            changed = await change_level(self.desk, level, values=values, unset=unset, now_ms=self.clock.now_ms())
            return read_number(setting, changed.after.get(setting, wider))
        except UnknownLevel as error:
            raise UnknownRate(str(error)) from error
        except BadSetting as error:
            raise BadRate("rate", str(error)) from error
