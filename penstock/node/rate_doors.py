"""What the desk of rates uses of the engines: their keys, each with its rate, and how the rate is changed."""

from __future__ import annotations

from actors.batch.desk import BatchDesk
from actors.batch.tasks import Tasks, UnknownTask
from actors.fetch.learning import LearnedLimits
from actors.fetch.settings_desk import Desk, change_level
from actors.fetch.settings_levels import LevelName, UnknownLevel
from actors.fetch.settings_watch import LiveSettings
from actors.fetch.sources import SourceKey, Sources, UnknownSource, UnusableSource
from actors.flow.desk import FlowDesk
from actors.flow.flows import Flows, rows_topic
from actors.flow.rates_desk import BadRate, RateDoor, RatesDesk, UnknownRate
from actors.jobs.topics import Topics
from actors.runtime.membership import Members
from actors.runtime.rules.setting_values import BadSetting
from streams.bucket import Bucket
from streams.clock import Clock
from streams.connection import Connection

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
    learned: LearnedLimits | None = None,
) -> RatesDesk:
    """Return the desk of one node. `members`: the nodes to ask. `None`: there are none. `learned`: what platforms are
    known to allow."""

    def plain_topics() -> list[str]:
        of_flows = {rows_topic(flow) for flow in flows.known()}
        return [topic for topic in topics.known() if topic not in of_flows]

    def task_rate(task: str) -> float:
        try:
            return tasks.current(task).limits.item_rate
        except UnknownTask:
            return 0.0

    async def change_topic(topic: str, rate: float | None) -> float:
        return (await topics.change(topic, {"rate": rate})).rate

    async def change_flow(flow: str, rate: float | None) -> float:
        return (await flow_desk.set(flow, {"rate": rate})).rate

    async def change_task(task: str, rate: float | None) -> float:
        return (await batch_desk.limit(task, {"item_rate": rate})).limits.item_rate

    def platform_rate(platform: str) -> float:
        return settings.current(platform).platform_rate

    def source_rate(name: str) -> float:
        platform, _, source = name.partition("/")
        return settings.current(platform, source).rate

    def platform_now(platform: str) -> float:
        current = settings.current(platform)
        return learned.platform_rate(platform, current) if learned is not None else current.platform_rate

    def source_now(name: str) -> float:
        if learned is None:
            return source_rate(name)
        source = SourceKey(*name.split("/", 1))
        try:
            declared = sources.adapter(source).declaration.rate
        except (UnknownSource, UnusableSource):
            declared = ()
        return learned.within(source, settings.current(source.platform, source.source), declared).rate

    async def change_setting(level: LevelName, setting: str, rate: float | None, wider: float) -> float:
        values = {} if rate is None else {setting: rate}
        unset = [setting] if rate is None else []
        try:
            await change_level(settings_desk, level, values=values, unset=unset, now_ms=clock.now_ms())
        except UnknownLevel as error:
            raise UnknownRate(str(error)) from error
        except BadSetting as error:
            raise BadRate("rate", str(error)) from error
        return wider if rate is None else rate

    async def change_platform(platform: str, rate: float | None) -> float:
        wider = settings.current("").platform_rate
        return await change_setting(LevelName(platform, ""), "platform_rate", rate, wider)

    async def change_source(name: str, rate: float | None) -> float:
        platform, _, source = name.partition("/")
        return await change_setting(LevelName(platform, source), "rate", rate, settings.current(platform).rate)

    def living() -> set[str]:
        return {members.name, *members.live()} if members is not None else set()

    return RatesDesk(
        connection,
        doors={
            "topic": RateDoor(plain_topics, lambda topic: topics.current(topic).rate, change_topic),
            "flow": RateDoor(flows.known, lambda flow: topics.current(rows_topic(flow)).rate, change_flow),
            "task": RateDoor(tasks.known, task_rate, change_task),
            "platform": RateDoor(
                lambda: {each.platform for each in sources.known()}, platform_rate, change_platform, platform_now
            ),
            "source": RateDoor(lambda: [str(each) for each in sources.known()], source_rate, change_source, source_now),
        },
        leases=leases,
        living=living,
        clock=clock,
    )
