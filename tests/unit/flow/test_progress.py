"""What is stored of a flow's progress."""

import msgspec
import pytest

from actors.flow.flows import (
    LONGEST_LOAD_MS,
    MOST_PROGRESS,
    BadFlow,
    FlowLimits,
    FlowProgress,
    FlowRecord,
    ShardState,
    _record_of,
    checked_limits,
    fitting,
)
from actors.flow.rules.quotas import LONGEST_SHARD, MOST_SHARDS
from streams.buckets.entries import Entry


def test_the_progress_of_the_most_and_longest_shards_can_be_stored() -> None:
    shards = {f"{number:0{LONGEST_SHARD}}": ShardState("k" * 180, 1) for number in range(MOST_SHARDS)}
    long = FlowProgress(first=3, every_ms=1_000, shards=shards)
    stored = fitting(long)
    assert len(msgspec.json.encode(stored)) <= MOST_PROGRESS < len(msgspec.json.encode(long))
    assert len(stored.shards) > 3_000
    assert all(state == shards[shard] for shard, state in stored.shards.items())


def test_what_is_short_enough_stays() -> None:
    short = FlowProgress(shards={"1": ShardState("long", 0), "2": ShardState("k", 5)})
    assert fitting(short) is short
    fits = fitting(short, len(msgspec.json.encode(short)) - 1)
    assert fits.shards == {"2": ShardState("k", 5)}


def test_a_flow_of_an_earlier_version_that_could_load_for_longer_is_read() -> None:
    limits = FlowLimits(every_ms=7_000, longest_ms=7_000, load_timeout_ms=60_000)
    raw = msgspec.json.encode(FlowRecord(flow="pay", limits=limits, declared=limits))
    record = _record_of(Entry("pay", raw, 1, bytes))
    assert isinstance(record, FlowRecord)
    assert record.declared == record.limits == msgspec.structs.replace(limits, load_timeout_ms=LONGEST_LOAD_MS)


def test_a_flow_cannot_be_set_to_load_for_longer_than_a_row_is_known() -> None:
    with pytest.raises(BadFlow, match="load_timeout: 30001 ms is too long; use at most 30000 ms"):
        checked_limits({"load_timeout_ms": LONGEST_LOAD_MS + 1}, FlowLimits())
