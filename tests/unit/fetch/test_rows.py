"""The rows of a reading: which contents are known and kept, whether it is known to be short, and by how much."""

import pytest

from actors.fetch.digests import Content
from actors.fetch.fetcher import rows
from actors.fetch.fetcher.rows import shortness
from actors.fetch.rules.ledger import Shortfall
from actors.fetch.sources import SourceKey, SourceRecord
from platforms.adapter import Row
from platforms.bounds import Window
from platforms.reading import ReadingResult, ShortPart

FROM, TO = 1_700_000_000_000, 1_700_000_001_000


def row(key: str) -> Row:
    return Row(key=key, version=1, modified_ms=None, body=b"{}")


def test_sources_read_longest_ago_leave_when_all_together_remember_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_RECENT_OF_ALL", 10)
    sources, shops = rows.RecentSources(), [SourceKey("mall", f"s{number}") for number in range(3)]
    for shop in shops:
        recent = sources.of(shop, (None, 1))
        for number in range(5):
            recent.add(f"{number}".encode(), Content(1, b"open    "))
    assert [len(sources.of(shop, (None, 1))) for shop in (shops[2], shops[1], shops[0])] == [5, 5, 0]


def test_contents_of_a_source_before_a_change_or_a_rewind_are_not_remembered() -> None:
    sources, shop, record = rows.RecentSources(), SourceKey("mall", "s1"), SourceRecord("mall", {"shop": "s1"})
    for life in ((record, 1), (record, 2), (SourceRecord("mall", {"shop": "s2"}), 2)):
        assert len(sources.of(shop, life)) == 0
        sources.of(shop, life).add(b"1", Content(1, b"open    "))
        assert len(sources.of(shop, life)) == 1


def test_contents_are_kept_again_only_if_a_reading_found_more() -> None:
    new = rows.NewContents({}, rows.RecentContents())
    new.confirm(new.take([row("a"), row("b")], 1), 1)
    assert (len(new.stored), new.has_more) == (2, True)
    new.has_more = False
    assert (new.take([row("a")], 2), new.has_more) == ([], False)
    new.confirm(new.take([row("c")], 3), 3)
    assert (len(new.stored), new.has_more) == (3, True)


def result(*short: ShortPart, is_proven: bool = False, is_counted: bool = True) -> ReadingResult:
    missing = sum(part.missing for part in short)
    return ReadingResult(40, is_proven, 3, 0, 0, missing, short, is_counted, ())


def test_a_whole_window_is_not_short() -> None:
    assert shortness(result(is_proven=True), None) is None
    assert shortness(result(), None) is None


def test_a_short_window_says_by_how_much_and_where() -> None:
    told = shortness(result(ShortPart(Window(FROM, TO), 12, 52)), None)
    assert told is not None
    assert told.short == Shortfall(12, 52)
    assert told.reason == (
        "short by 12 of 52: the platform counts 52 orders from 2023-11-14T22:13:20Z to 2023-11-14T22:13:21Z and hands "
        "out 40; nothing smaller can be asked for"
    )


def test_several_places_are_one_sum_and_the_worst_is_named() -> None:
    parts = (ShortPart(Window(5, 6), 1, 41), ShortPart(Window(FROM, TO), 12, 52), ShortPart(Window(8, 9), 0, 0))
    told = shortness(result(*parts), None)
    assert told is not None
    assert told.short == Shortfall(13, 93)
    assert "counts 52 orders" in told.reason
    assert "in 2 more places" in told.reason


def test_of_several_lists_the_short_one_is_named() -> None:
    told = shortness(result(ShortPart(Window(FROM, TO), 12, 52, "changed")), None)
    assert told is not None
    assert told.reason.startswith("short by 12 of 52: list 'changed': the platform counts 52 orders")


def test_a_list_that_breaks_off_is_short_by_a_number_that_nobody_tells() -> None:
    told = shortness(result(ShortPart(Window(FROM, TO), 0, 0), is_counted=False), None)
    assert told is not None
    assert told.short == Shortfall()
    assert told.reason.startswith("short by a number that nobody tells: the platform's list of orders from 2023")


def test_what_was_counted_short_is_cleared_by_another_count_only() -> None:
    before = Shortfall(12, 52)
    told = shortness(result(is_counted=False), before)
    assert told is not None
    assert told.short == before
    assert shortness(result(is_counted=True), before) is None
    assert shortness(result(is_counted=False), Shortfall()) is None


@pytest.mark.parametrize(
    ("version", "counts_as"),
    [
        (FROM, FROM - 1),
        (FROM + 1, FROM + 1),
        (FROM - 60_000, FROM - 60_000),
        (7_000, 7_000),
        (FROM // 1000, FROM // 1000 - 1),
        (FROM // 1000 - 60, FROM // 1000 - 60),
        (FROM // 1000 + 200_000, FROM // 1000 + 200_000),
    ],
    ids=[
        "a second",
        "a finer time",
        "a time that has settled",
        "a counter",
        "a number of seconds",
        "a number of seconds that has settled",
        "a large counter",
    ],
)
def test_what_may_change_again_in_its_second_counts_as_earlier(version: int, counts_as: int) -> None:
    found = rows.unsettled([row("a")._replace(version=version)], FROM - 10_000)
    assert [each.version for each in found] == [counts_as]
