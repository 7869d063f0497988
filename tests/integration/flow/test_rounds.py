"""What a round makes of nodes that are slower than it may wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import msgspec
import pytest

from actors.flow.desk import FlowDesk
from actors.flow.flows import FlowLimits, FlowRecord, Flows, RoundReport, ShardState, checked_limits
from actors.flow.handler import FlowContext, FlowHandler
from actors.flow.rounds import AT_ONCE, MOST_ERRORS, Rounds, _Asking
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM, monotonic_s
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.flow import ANY_GROUP, LoadShard, ShardLoaded, decode_flow
from streams.micro import Endpoint, Service
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.server import make_topology

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


async def test_a_shard_that_no_node_was_asked_for_is_not_counted_as_loading(connection: Connection) -> None:
    """So the next round asks for its rows, and does not wait for them until the load's timeout."""
    stop = anyio.Event()

    async def never(message: Message) -> bytes:
        await stop.wait()
        return b""

    subject = connection.namespace.flow_loads("pay", ANY_GROUP)
    service = Service(
        connection,
        name="slow",
        version="1.0.0",
        about="loads nothing",
        endpoints=[Endpoint("pay", subject, never, most=10_000)],
    )
    shards = [str(number) for number in range(3 * AT_ONCE)]
    asking = _Asking(connection, "pay", {}, dict.fromkeys(shards, ShardState()), SYSTEM)
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: service.serve(stop, task_status=task_status))
        with anyio.fail_after(30):
            await asking.ask(shards, 3 * AT_ONCE, 0, spread_s=0.0, deadline_s=monotonic_s() + 3, limits=FlowLimits())
        stop.set()
    busy = [shard for shard, state in asking.states.items() if state.busy_ms]
    assert (asking.silent, len(busy), asking.short, asking.failed) == (AT_ONCE, AT_ONCE, set(), {})
    assert asking.not_asked == str(AT_ONCE), "the next round begins there"


async def test_what_a_shard_does_not_have_is_asked_of_the_others(connection: Connection) -> None:
    stop, has, asked = anyio.Event(), {"empty": 0, "little": 5, "full": 1_000}, list[tuple[str, int]]()

    async def load(message: Message) -> bytes:
        ask = decode_flow(message.payload, LoadShard)
        asked.append((ask.shard, ask.limit))
        new = min(ask.limit, has[ask.shard])
        has[ask.shard] -= new
        return msgspec.json.encode(ShardLoaded(new=new, is_short=new < ask.limit))

    subject = connection.namespace.flow_loads("give", ANY_GROUP)
    service = Service(
        connection,
        name="uneven",
        version="1.0.0",
        about="loads what there is",
        endpoints=[Endpoint("give", subject, load, most=256)],
    )
    asking = _Asking(connection, "give", {}, dict.fromkeys(has, ShardState()), SYSTEM)
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: service.serve(stop, task_status=task_status))
        with anyio.fail_after(30):
            await asking.ask(list(has), 60, 0, spread_s=0.0, deadline_s=monotonic_s() + 20, limits=FlowLimits())
        stop.set()
    assert (asking.new, asking.short) == (60, {"empty", "little"})
    assert sorted(asked) == [("empty", 20), ("full", 20), ("full", 35), ("little", 20)]


class NoRows:
    """A job engine without any rows."""

    def rate(self, flow: str) -> float:
        return 0.0

    def is_paused(self, flow: str) -> bool:
        return False

    async def loaded(self, flow: str) -> tuple[int, int]:
        return 0, 0


class Followed:
    """The intervals that were asked for. `first` is called before the first of them is."""

    def __init__(self, first: Callable[[], Awaitable[object]] | None = None) -> None:
        self.every_ms: list[int] = []
        self._first = first

    async def follow(self, flow: str, every_ms: int, *, is_only_changed: bool = False) -> None:
        first, self._first = self._first, None
        if first is not None:
            await first()
        self.every_ms.append(every_ms)


async def declared_flow(connection: Connection, publisher: Publisher, limits: FlowLimits) -> Flows:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    flows = Flows(Bucket(connection, publisher, connection.namespace.bucket("FLOWS"), bytes))
    await flows.declare(FlowRecord(flow="pay", limits=limits))
    return flows


def rounds_of(connection: Connection, flows: Flows, tempo: Followed, rows: NoRows | None = None) -> Rounds:
    return Rounds(
        connection=connection,
        flows=flows,
        rows=rows or NoRows(),
        tempo=tempo,
        living=lambda _flow: frozenset(),
        clock=SYSTEM,
    )


def handler_of(flows: Flows, split: Callable[[FlowContext], Awaitable[Any]]) -> FlowHandler:
    async def load(context: FlowContext, shard: str, limit: int) -> Any:
        return []

    limits = flows.current("pay").limits
    return FlowHandler(flow="pay", key="pay", limits=limits, rate=0.0, attempts=1, split=split, load=load)


async def test_an_interval_that_is_set_during_a_long_round_is_not_undone_at_its_end(
    connection: Connection, publisher: Publisher
) -> None:
    flows = await declared_flow(connection, publisher, FlowLimits(every_ms=3_600_000, longest_ms=3_600_000))

    async def split(context: FlowContext) -> Any:
        await flows.limit("pay", lambda limits: checked_limits({"every_ms": 1_000, "longest_ms": 1_000}, limits))
        return []

    tempo = Followed()
    await rounds_of(connection, flows, tempo).run(handler_of(flows, split), SYSTEM.now_ms())
    assert tempo.every_ms == [1_000]


async def test_each_shard_whose_load_failed_is_known(connection: Connection, publisher: Publisher) -> None:
    """The report of the round names some of them only."""
    stop, shards = anyio.Event(), [str(number) for number in range(6)]
    flows = await declared_flow(connection, publisher, FlowLimits())

    async def split(context: FlowContext) -> Any:
        return shards

    async def fail(message: Message) -> bytes:
        ask = decode_flow(message.payload, LoadShard)
        return msgspec.json.encode(ShardLoaded(error="locked" if ask.shard != "0" else ""))

    service = Service(
        connection,
        name="failing",
        version="1.0.0",
        about="loads nothing",
        endpoints=[Endpoint("pay", connection.namespace.flow_loads("pay", ANY_GROUP), fail, most=256)],
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: service.serve(stop, task_status=task_status))
        await rounds_of(connection, flows, Followed()).run(handler_of(flows, split), SYSTEM.now_ms())
        stop.set()
    progress = flows.progress("pay")
    assert (progress.rounds[-1].failed, len(progress.rounds[-1].errors)) == (5, MOST_ERRORS)
    assert {shard for shard, state in progress.shards.items() if state.has_failed} == set(shards[1:])


class Topics(NoRows, Followed):
    """A job engine as a desk of flows sees it. It has no rows and no slots."""

    async def refresh(self, flow: str) -> None:
        pass

    def __init__(self, first: Callable[[], Awaitable[object]] | None = None) -> None:
        super().__init__(first)
        self.counted: list[list[str]] = []

    async def loaded_many(self, flows: Sequence[str]) -> list[tuple[int, int]]:
        self.counted.append(list(flows))
        return [(int(flow.removeprefix("pay") or 0), 5) for flow in flows]

    async def change(self, flow: str, **values: object) -> None:
        pass

    def slots(self, flow: str) -> None:
        return None

    async def change_slots(self, flow: str, values: Mapping[str, object]) -> None:
        pass

    async def bind(self, flow: str, bound: str, region_key: str) -> None:
        pass

    async def job(self, flow: str, shard: str, key: str) -> None:
        return None

    async def begin(self, flow: str, nonce: str = "") -> str:
        return ""

    async def next_round(self, flow: str) -> tuple[int, str]:
        return 0, ""


async def test_a_desk_that_stood_still_does_not_put_an_older_interval_back(
    connection: Connection, publisher: Publisher
) -> None:
    """It has stored an hour, and another desk a second since then. Each has its own view."""
    flows = await declared_flow(connection, publisher, FlowLimits())
    later = Flows(Bucket(connection, publisher, connection.namespace.bucket("FLOWS"), bytes))
    await later.refresh()
    topics = Topics(lambda: FlowDesk(later, topics, clock=SYSTEM).set("pay", {"every": "1s"}))
    await FlowDesk(flows, topics, clock=SYSTEM).set("pay", {"every": "1h"})
    assert topics.every_ms[-1] == 1_000
    assert (await FlowDesk(flows, topics, clock=SYSTEM).show("pay")).every == "1s"


async def test_a_flow_is_shown_as_another_desk_has_set_it(connection: Connection, publisher: Publisher) -> None:
    flows = await declared_flow(connection, publisher, FlowLimits())
    later = Flows(Bucket(connection, publisher, connection.namespace.bucket("FLOWS"), bytes))
    topics = Topics()
    await FlowDesk(flows, topics, clock=SYSTEM).set("pay", {"every": "1h"})
    assert (await FlowDesk(later, topics, clock=SYSTEM).show("pay")).every == "1h"
    await FlowDesk(flows, topics, clock=SYSTEM).set("pay", {"every": "1m"})
    assert (await FlowDesk(later, topics, clock=SYSTEM).show("pay")).every == "1m"


async def test_the_rows_of_all_flows_of_a_page_are_counted_at_once(
    connection: Connection, publisher: Publisher
) -> None:
    flows, topics = await declared_flow(connection, publisher, FlowLimits()), Topics()
    for number in range(3):
        await flows.declare(FlowRecord(flow=f"pay{number}"))
    desk = FlowDesk(flows, topics, clock=SYSTEM)
    page, behind = await desk.list(after="pay", limit=2)
    assert [(view.flow, view.in_flight) for view in page] == [("pay0", 5), ("pay1", 6)]
    assert (behind, topics.counted) == ("pay1", [["pay0", "pay1", "pay2"]])


async def test_a_round_that_ends_late_keeps_the_reports_of_those_that_were_made_meanwhile(
    connection: Connection, publisher: Publisher
) -> None:
    flows = await declared_flow(connection, publisher, FlowLimits(every_ms=60_000, longest_ms=60_000))
    rounds, tempo, others = rounds_of(connection, flows, Followed()), Followed(), list[RoundReport | None]()

    async def nothing(context: FlowContext) -> Any:
        return []

    async def split(context: FlowContext) -> Any:
        others.extend([await rounds.run(handler_of(flows, nothing), SYSTEM.now_ms()) for _ in range(2)])
        return ["one"]

    late = await rounds_of(connection, flows, tempo).run(handler_of(flows, split), SYSTEM.now_ms())
    assert set(flows.progress("pay").rounds) == {late, *others}
    assert flows.progress("pay").names == ("one",), "beside the reports, the later one counts"


class Pausable(NoRows):
    """A job engine whose flow is paused when its first shard is asked, until a round has looked at that often.
    `asked`: the shards that were asked, some of them twice if the machine is slow. `before_resume`: how many of them by
    then."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.before_resume = 0
        self._looks = 0

    def is_paused(self, flow: str) -> bool:
        if not self.asked or self.before_resume:
            return False
        self._looks += 1
        if self._looks > 3 * AT_ONCE:
            self.before_resume = len(self.asked)
        return True


async def test_a_flow_that_is_paused_during_a_round_loads_nothing_more_until_it_goes_on(
    connection: Connection, publisher: Publisher
) -> None:
    """A round may last as long as its interval, which may be a day."""
    flows = await declared_flow(connection, publisher, FlowLimits(every_ms=60_000, longest_ms=60_000))
    rows, stop = Pausable(), anyio.Event()

    async def split(context: FlowContext) -> Any:
        return [str(number) for number in range(3 * AT_ONCE)]

    async def load(message: Message) -> bytes:
        ask = decode_flow(message.payload, LoadShard)
        rows.asked.add(ask.shard)
        return msgspec.json.encode(ShardLoaded(new=ask.limit))

    service = Service(
        connection,
        name="one",
        version="1.0.0",
        about="loads what is asked",
        endpoints=[Endpoint("pay", connection.namespace.flow_loads("pay", ANY_GROUP), load, most=256)],
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: service.serve(stop, task_status=task_status))
        with anyio.fail_after(30):
            await rounds_of(connection, flows, Followed(), rows).run(handler_of(flows, split), SYSTEM.now_ms())
        stop.set()
    assert 0 < rows.before_resume <= AT_ONCE, "what was asked before the pause comes to its end"
    assert len(rows.asked) == 3 * AT_ONCE
