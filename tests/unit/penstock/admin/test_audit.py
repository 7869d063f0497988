"""What became of a row that a platform lists and the stream does not hold."""

import pytest

from actors.fetch.rules.ledger import Ledger, OpenSlice
from actors.fetch.rules.settings import FetchSettings
from penstock.admin.audit import Fate, Known, dropped_before_ms, fate_of, horizon_ms
from penstock.admin.coverage import cover
from platforms.adapter import Row
from streams.reads.log import Extent
from tests.unit.penstock.admin.test_coverage import event

H = 3_600_000
LEDGER = Ledger(0, 4 * H, 3 * H, open=(OpenSlice("t", 1, 3 * H, 4 * H),))
"""Read: 0 to 3 h (the first hour by the ledger's word alone), open: 3 to 4 h, beyond it nothing was cut."""
COVERAGE = cover(LEDGER, [event(f"t1-{H}-{2 * H}", at_ms=20 * H), event(f"t1-{2 * H}-{3 * H}", at_ms=30 * H)], 0, 5 * H)


def row(modified_ms: int | None) -> Row:
    return Row("o1", 1, modified_ms, b"")


@pytest.mark.parametrize(
    ("modified_ms", "dropped_before", "now_ms", "fate"),
    [
        (2 * H, 0, 99 * H, "missed"),
        (2 * H, 0, 25 * H, "late"),
        (2 * H, 0, 26 * H, "missed"),
        (3 * H, 0, 99 * H, "unread"),
        (4 * H, 0, 99 * H, "unread"),
        (H, 25 * H, 99 * H, "aged"),
        (2 * H, 25 * H, 99 * H, "missed"),
        (0, 25 * H, 99 * H, "aged"),
        (0, 0, 99 * H, "missed"),
        (None, 0, 99 * H, "unread"),
        (9 * H, 0, 99 * H, "unread"),
    ],
)
def test_the_coverage_says_why_a_row_is_not_stored(
    modified_ms: int | None, dropped_before: int, now_ms: int, fate: Fate
) -> None:
    known = Known(COVERAGE, horizon_ms=24 * H, dropped_before_ms=dropped_before, now_ms=now_ms)
    assert fate_of(row(modified_ms), known) == fate


def test_a_row_without_a_time_counts_as_missed_where_everything_was_read() -> None:
    whole = cover(Ledger(0, H, H), [event(f"t1-0-{H}")], 0, H)
    assert fate_of(row(None), Known(whole, 0, 0, 9 * H)) == "missed"


@pytest.mark.parametrize(
    ("extent", "wanted"),
    [
        (Extent(0, 0, 0, 0), 0),
        (Extent(10, 1, 10, 77), 0),
        (Extent(10, 5, 14, 77), 77),
        (Extent(0, 15, 14, 0), 1000),
    ],
)
def test_what_the_stream_has_dropped_is_known_by_its_first_message(extent: Extent, wanted: int) -> None:
    assert dropped_before_ms(extent, 1000) == wanted


def test_the_horizon_is_the_last_second_look() -> None:
    assert horizon_ms(FetchSettings(again_ms=(60_000, 3 * H), again_slice_ms=1000)) == 3 * H + 1000
    assert horizon_ms(FetchSettings(again_ms=())) == 0
