"""What a run keeps of a batch, and what it refuses."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from actors.zone.offsets import Offsets, StoredOffset
from actors.zone.rules.offsets import OffsetRecord
from actors.zone.rules.routing import ShardMap, made, next_map
from actors.zone.run import RunEnded, ShardElsewhere, ShardRun, read

NUMBERS = next_map(None, made({"a": "0,1", "b": "2"}, count=3), at_ms=0, by="", why="")
REGIONS = next_map(None, made({"eu": "DE,FR", "us": "US"}, function="region"), at_ms=0, by="", why="")


def run_over(shards: ShardMap, zone: str, offsets: dict[str, int]) -> ShardRun:
    stored = {shard: StoredOffset(OffsetRecord(offset=offset, zone=zone), 1) for shard, offset in offsets.items()}
    nothing: Any = None
    unused: Offsets = nothing
    return ShardRun(
        job="sync",
        zone=zone,
        number=1,
        shards=shards,
        stored=stored,
        start=min(offsets.values()),
        offsets=unused,
        may_run=lambda: True,
    )


def test_rows_of_other_shards_are_left_out_and_rows_that_their_shard_has_passed() -> None:
    run = run_over(NUMBERS, "a", {"0": 3, "1": 7})
    rows = [{"id": number} for number in range(4, 10)]
    assert [row["id"] for row in run.mine(rows, "id", None)] == [4, 6, 7, 9]
    assert [row["id"] for row in run.mine(rows, "id", "id")] == [6, 9]
    assert (run.at, run.ahead) == (3, 7)


def test_a_run_that_is_to_end_begins_no_batch() -> None:
    run = run_over(NUMBERS, "a", {"0": 0})
    run.stop("the map has changed")
    assert run.is_stopped()
    with pytest.raises(RunEnded, match="nothing of this batch was handled"):
        run.mine([3], int, None)


def test_a_record_of_another_region_is_refused_with_a_line_for_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    run = run_over(REGIONS, "eu", {"DE": 0, "FR": 0})
    run.require("DE")
    with caplog.at_level(logging.WARNING), pytest.raises(ShardElsewhere, match="belongs to zone us"):
        run.require("US")
    with pytest.raises(ShardElsewhere, match="belongs to no zone"):
        run.require("JP")
    assert [record.message for record in caplog.records][:1] == ["zone.record_refused"]
    assert run.mine(["DE", "JP", "US"], str, None) == ["DE"]
    assert "zone.region_unknown" in [record.message for record in caplog.records]
    caplog.clear()
    assert run.mine(["DE", "US", "US"], str, None, refuse=True) == ["DE"]
    assert [record.message for record in caplog.records] == ["zone.record_refused"] * 2
    assert run.owns("FR")
    assert not run.owns("US")


def test_a_value_of_a_row_is_found_by_name_place_or_function() -> None:
    assert read({"id": 1}, "id") == 1
    assert read((1, 2), 1) == 2
    assert read(SimpleNamespace(id=3), "id") == 3
    assert read(4, lambda row: row + 1) == 5
    with pytest.raises(KeyError):
        read({}, 0)
