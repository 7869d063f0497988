"""The report of a change of the map, from what is stored."""

from msgspec.structs import replace

from actors.zone.rules.offsets import Handover, OffsetRecord
from actors.zone.rules.report import report_of
from actors.zone.rules.routing import made, moved, next_map

FIRST = next_map(None, made({"a": "0-1", "b": "2"}, count=3), at_ms=100, by="", why="")
SECOND = next_map(FIRST, moved(FIRST, {"0": "b"}), at_ms=500, by="ann", why="canary")
OWN = OffsetRecord(offset=9, epoch=1, zone="b", run=1)
CAME = Handover(before="a", after="b", epoch=2, offset=7, start=4, repeated=1, passed=2, asked_ms=500, taken_ms=620)
TAKEN = OffsetRecord(offset=7, epoch=2, zone="b", run=2, came=CAME)


def test_a_shard_is_waited_for_until_a_run_of_its_new_owner_has_claimed_it() -> None:
    told = report_of(FIRST, SECOND, SECOND, {"sync": {"0": OffsetRecord(offset=7, epoch=1, zone="a"), "2": OWN}})
    [taken] = told.taken
    assert (taken.waiting, taken.taken, told.is_over, told.shards) == ("0", 0, False, 1)


def test_a_move_is_over_when_the_rows_that_come_again_are_over() -> None:
    behind = {"sync": {"0": TAKEN, "2": replace(OWN, offset=4, epoch=2)}}
    told = report_of(FIRST, SECOND, SECOND, behind)
    assert (told.took_ms, told.repeated, told.passed, told.skipped, told.is_over) == (120, 1, 2, 0, False)
    assert report_of(FIRST, SECOND, SECOND, {"sync": {"0": TAKEN, "2": replace(OWN, epoch=2)}}).is_over


def test_a_start_beyond_the_offset_is_told_as_skipped() -> None:
    wrong = {"sync": {"0": replace(TAKEN, came=replace(CAME, start=9)), "2": OWN}}
    assert report_of(FIRST, SECOND, SECOND, wrong).skipped == 2


def test_a_shard_that_a_later_change_has_moved_again_is_not_waited_for() -> None:
    third = next_map(SECOND, moved(SECOND, {"0": "a"}), at_ms=900, by="", why="")
    [taken] = report_of(
        FIRST, SECOND, third, {"sync": {"0": OffsetRecord(offset=8, epoch=3, zone="a"), "2": OWN}}
    ).taken
    assert (taken.moved_on, taken.waiting, taken.is_caught_up) == (1, "", True)
