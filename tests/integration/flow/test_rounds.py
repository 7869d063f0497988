"""What a round makes of nodes that are slower than it may wait."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from actors.flow.flows import FlowLimits, ShardState
from actors.flow.rounds import AT_ONCE, _Asking
from streams.clock import SYSTEM, monotonic_s
from streams.connection import Connection
from streams.flow_messages import ANY_GROUP, LoadShard, ShardLoaded, decode_flow
from streams.frames import Message
from streams.micro import Endpoint, Service

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
