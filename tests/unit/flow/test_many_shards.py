"""A round of ten thousand shards asks some at a time, and leaves the event loop its turns."""

import asyncio
from typing import cast

import anyio
import pytest

from actors.flow.flows import FlowLimits, ShardState
from actors.flow.rounds import AT_ONCE, NOT_ASKED, _Asking
from actors.flow.rules.quotas import MOST_SHARDS
from streams.clock import SYSTEM, monotonic_s
from streams.link.connection import Connection
from streams.messages.flow import ShardLoaded
from tests.support.loop_turns import longest_turn_ms


async def test_ten_thousand_shards_are_asked_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shards, tasks = [f"s{at}" for at in range(MOST_SHARDS)], set[int]()

    async def answer(_asking: _Asking, _shard: str, quota: int, _deadline_s: float) -> ShardLoaded:
        tasks.add(len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        return ShardLoaded(new=quota)

    monkeypatch.setattr(_Asking, "_answer", answer)
    asking = _Asking(cast(Connection, None), "pay", {}, dict.fromkeys(shards, ShardState()), SYSTEM)
    async with longest_turn_ms() as longest_ms:
        await asking.ask(shards, 400_000, 7, spread_s=0, deadline_s=monotonic_s() + 60, limits=FlowLimits())
        assert longest_ms() < 50
    assert (asking.new, asking.silent, len(asking.short), max(tasks) < AT_ONCE + 10) == (400_000, 0, 0, True)


async def test_a_round_whose_time_is_over_begins_nothing_for_the_shards_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards, stop, calls = [f"s{at}" for at in range(MOST_SHARDS)], anyio.Event(), list[str]()

    async def answer(_asking: _Asking, shard: str, _quota: int, _deadline_s: float) -> ShardLoaded:
        calls.append(shard)
        stop.set()
        return NOT_ASKED

    monkeypatch.setattr(_Asking, "_answer", answer)
    states = dict.fromkeys(shards, ShardState())
    asking = _Asking(cast(Connection, None), "pay", {}, states, SYSTEM, stop=stop)
    await asking.ask(shards, 400_000, 0, spread_s=0, deadline_s=monotonic_s() + 60, limits=FlowLimits())
    assert len(calls) <= AT_ONCE
    assert asking.not_asked == "s0"
