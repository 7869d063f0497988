"""What is stored of a flow's progress."""

import msgspec

from actors.flow.flows import MOST_PROGRESS, FlowProgress, ShardState, fitting
from actors.flow.rules.quotas import LONGEST_SHARD, MOST_SHARDS


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
