"""What a reading says of itself: whether it is known to be short, and by how much."""

from actors.fetch.fetcher.rows import shortness
from actors.fetch.rules.ledger import Shortfall
from platforms.bounds import Window
from platforms.reading import ReadingResult, ShortPart

FROM, TO = 1_700_000_000_000, 1_700_000_001_000


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
