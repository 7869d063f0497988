"""Whatever two zones do, and whatever is late, lost or dead, no row is skipped and no old save is stored (I9, I10)."""

from collections.abc import Collection

import pytest

from actors.zone.rules.offsets import OffsetRecord, Records
from actors.zone.rules.routing import ShardMap
from tests.unit.zone.zone_search import Run, ZoneRules, ZoneSearch, search

BACK = (("bab",), ("aab",))
"""Shard 0 moves from a to b, and back."""


@pytest.mark.parametrize(("crashes", "forces", "worlds"), [(1, 0, 56_000), (0, 1, 7_000)])
def test_whatever_happens_over_two_changes_and_a_crash_or_a_takeover_no_row_is_skipped(
    crashes: int, forces: int, worlds: int
) -> None:
    found = search(ZoneSearch(ZoneRules(), "aab", BACK, (0, 0, 0), last=3, crashes=crashes, forces=forces))
    assert found.violation == []
    assert found.states > worlds


@pytest.mark.long
def test_whatever_happens_over_two_changes_a_crash_and_a_takeover_no_row_is_skipped() -> None:
    """All worlds."""
    found = search(ZoneSearch(ZoneRules(), "aab", BACK, (0, 0, 0), last=3))
    assert found.violation == []
    assert found.states > 95_000


@pytest.mark.parametrize("offsets", [(3, 1, 0), (0, 4, 2)])
def test_shards_that_were_at_different_offsets_lose_no_row(offsets: tuple[int, int, int]) -> None:
    """Here shards that are behind meet shards that are ahead: all of one zone's go to the other, and one comes back."""
    found = search(ZoneSearch(ZoneRules(), "aab", (("bbb",), ("bab", "aaa")), offsets, last=4, crashes=0))
    assert found.violation == []


class MaximumInsteadOfMinimum(ZoneRules):
    def start_of(self, records: Records, shards: Collection[str]) -> int:
        return max(records[shard].offset for shard in shards)


class SavesUnderTheNewMap(ZoneRules):
    """Saves in the shards that the zone has by its newest map, not in those of the run."""

    def shards_to_save(self, run: Run, shards: ShardMap) -> tuple[str, ...]:
        return tuple(sorted(shards.shards_of(run.records[0].zone)))


class WithoutEpochs(ZoneRules):
    """Claims under an old map what a newer one has."""

    def refusal(self, record: OffsetRecord | None, *, epoch: int, zone: str, run: int, is_forced: bool) -> str | None:
        return None

    def runnable(self, shards: ShardMap, zone: str, records: Records, *, is_overdue: bool) -> Collection[str]:
        return shards.shards_of(zone)


class AdvancesByFilteredRows(ZoneRules):
    def scanned(self, rows: Collection[int], kept: Collection[int], start: int) -> int:
        return max(kept, default=start)


class ChecksThenWrites(ZoneRules):
    """Saves without a condition: it looked at the record before."""

    is_conditional = False


class WithoutFence(ZoneRules):
    """Begins without a claim: nothing is written, so the former owner may still save."""

    has_fence = False


class SkipsByTheFurthestShard(ZoneRules):
    """Leaves out rows up to the furthest shard of the run, not up to their own."""

    def is_passed(self, records: Records, shard: str, offset: int) -> bool:
        return offset <= max(record.offset for record in records.values())


VARIANTS = {
    MaximumInsteadOfMinimum: "nobody handled",
    SavesUnderTheNewMap: "",
    WithoutEpochs: "of a newer one",
    AdvancesByFilteredRows: "does not advance",
    ChecksThenWrites: "of a newer one",
    WithoutFence: "of a newer one",
    SkipsByTheFurthestShard: "nobody handled",
}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_the_search_catches(variant: type[ZoneRules]) -> None:
    found = search(ZoneSearch(variant(), "aab", (("bab", "aaa"), ("aab", "bab")), (3, 1, 0), last=4))
    assert found.violation
    assert VARIANTS[variant] in found.violation[-1], found.violation
