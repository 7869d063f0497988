"""Offsets: who may claim and save, from where a run starts, and what a plan says of it."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.zone.rules.offsets import (
    OffsetRecord,
    claimed,
    freed,
    is_passed,
    refusal,
    runnable,
    saved,
    start_of,
    to_free,
)
from actors.zone.rules.plan import plan
from actors.zone.rules.routing import ShardMap, made, moved, next_map

MAP = next_map(None, made({"a": "0,1", "b": "2"}, count=3), at_ms=0, by="", why="")


def test_a_shard_at_3_that_moves_to_a_zone_at_7_does_not_lose_item_5() -> None:
    """The worked example: going on at 7 would lose item 5 of the shard that is at 3."""
    records = {
        "0": OffsetRecord(offset=3, epoch=1, zone="a", run=1, is_free=True),
        "2": OffsetRecord(offset=7, epoch=1, zone="b", run=1),
    }
    after = next_map(MAP, moved(MAP, {"0": "b"}), at_ms=0, by="", why="")
    shards = runnable(after, "b", records, dead=(), overdue=())
    assert shards == {"0", "2"}
    start = start_of(records, shards)
    assert start == 3
    handled = [item for item in range(start + 1, 9) if not is_passed(records, "0", item)]
    assert 5 in handled
    assert [item for item in range(start + 1, 9) if not is_passed(records, "2", item)] == [8]


def test_a_newer_claim_refuses_older_ones() -> None:
    record = OffsetRecord(offset=3, epoch=4, zone="a", run=9)
    assert refusal(record, epoch=3, zone="b", run=1, is_forced=True) == "old_map"
    assert refusal(record, epoch=4, zone="b", run=1, is_forced=True) == "old_map"
    assert refusal(record, epoch=4, zone="a", run=8, is_forced=True) == "other_run"
    assert refusal(record, epoch=5, zone="b", run=1, is_forced=False) == "held"
    assert refusal(record, epoch=5, zone="b", run=1, is_forced=True) is None
    assert refusal(freed(record), epoch=5, zone="b", run=1, is_forced=False) is None
    assert refusal(record, epoch=5, zone="a", run=10, is_forced=False) is None


def test_a_claim_says_how_the_shard_came() -> None:
    record = OffsetRecord(offset=7, epoch=1, zone="a", run=9)
    taken = claimed(record, epoch=2, zone="b", run=3, start=3, asked_ms=100, now_ms=150)
    assert (taken.offset, taken.epoch, taken.zone, taken.run) == (7, 2, "b", 3)
    assert taken.came is not None
    assert (taken.came.before, taken.came.offset, taken.came.start, taken.came.is_forced) == ("a", 7, 3, True)
    again = claimed(taken, epoch=2, zone="b", run=4, start=3, asked_ms=100, now_ms=200)
    assert again.came == taken.came
    assert claimed(None, epoch=2, zone="b", run=3, start=0, asked_ms=0, now_ms=0).came is None


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_shard_that_is_ahead_does_not_go_back(offset: int, scanned: int) -> None:
    assert saved(OffsetRecord(offset=offset), scanned).offset == max(offset, scanned)


def test_a_shard_waits_for_its_former_owner_until_that_is_dead_or_has_had_its_time() -> None:
    records = {"0": OffsetRecord(epoch=1, zone="a", run=1), "2": OffsetRecord(epoch=1, zone="b", run=1)}
    after = next_map(MAP, moved(MAP, {"0": "b"}), at_ms=0, by="", why="")
    assert runnable(after, "b", records, dead=(), overdue=()) == {"2"}
    assert runnable(after, "b", records, dead={"a"}, overdue=()) == {"0", "2"}
    assert runnable(after, "b", records, dead=(), overdue={"0"}) == {"0", "2"}
    assert to_free(after, "a", records) == ["0"]
    free = {**records, "0": freed(records["0"])}
    assert runnable(after, "b", free, dead=(), overdue=()) == {"0", "2"}
    assert to_free(after, "a", free) == []


def test_a_plan_says_who_restarts_from_where_and_how_much_is_repeated() -> None:
    after = moved(MAP, {"0": "b"})
    records = {"0": OffsetRecord(offset=3), "1": OffsetRecord(offset=5), "2": OffsetRecord(offset=7)}
    told = plan(MAP, after, {"sync": records})
    assert [(move.shard, move.before, move.after) for move in told.moves] == [("0", "a", "b")]
    assert told.restarts == ["a", "b"]
    assert [(each.job, each.zone, each.start, each.repeated) for each in told.starts] == [("sync", "b", 3, 4)]
    three = ShardMap(epoch=1, count=3, owners={"0": "a", "1": "b", "2": "c"})
    assert plan(three, moved(three, {"0": "b"}), {}).goes_on == ["c"]
    assert replace(three, epoch=2).shards_of("c") == {"2"}
