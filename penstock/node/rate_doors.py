"""What the desk of rates uses of the engines: their keys, each with its rate, and how the rate is changed."""

from __future__ import annotations

from actors.batch.desk import BatchDesk
from actors.batch.tasks import Tasks, UnknownTask
from actors.flow.desk import FlowDesk
from actors.flow.flows import Flows, rows_topic
from actors.flow.rates_desk import RateDoor, RatesDesk
from actors.jobs.topics import Topics
from actors.runtime.membership import Members
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
    flow_desk: FlowDesk,
    batch_desk: BatchDesk,
    leases: Bucket[bytes],
    members: Members | None,
    clock: Clock,
) -> RatesDesk:
    """Return the desk of one node. `members`: the nodes to ask. `None`: there are none."""

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

    def living() -> set[str]:
        return {members.name, *members.live()} if members is not None else set()

    return RatesDesk(
        connection,
        doors={
            "topic": RateDoor(plain_topics, lambda topic: topics.current(topic).rate, change_topic),
            "flow": RateDoor(flows.known, lambda flow: topics.current(rows_topic(flow)).rate, change_flow),
            "task": RateDoor(tasks.known, task_rate, change_task),
        },
        leases=leases,
        living=living,
        clock=clock,
    )
