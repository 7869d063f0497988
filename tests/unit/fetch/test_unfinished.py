"""What an attempt at a window comes to, by how far it and the attempts before it came."""

from typing import Any, cast

import pytest

from actors.fetch.fetcher.decisions import (
    Ended,
    Failed,
    Hopeless,
    Missed,
    Offered,
    Outcome,
    ReadSlice,
    TimedOut,
    TooWide,
    decide,
)
from actors.fetch.fetcher.rows import NewVersions
from actors.fetch.fetcher.unfinished import MOST_ANEW, UnfinishedReading, UnfinishedReadings
from actors.fetch.rules.cutting import cut
from actors.fetch.rules.ledger import OpenSlice, first_ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey, SourceRecord
from actors.runtime.actor import Work
from platforms.adapter import Adapter, Page
from platforms.bounds import Window
from platforms.declared import declare
from platforms.reading import Reading
from streams.messages.fetch import SliceSplit
from tests.support.engine import adapter_table

WINDOW = Window(0, 600_000)
SHOP, SETTINGS, NOW = SourceKey("mall", "s1"), FetchSettings(slice_ms=600_000), 10_000_000
PIECE = OpenSlice("t", 1, 0, 600_000)
WORK = ReadSlice(SHOP, PIECE, SETTINGS)
RECORD = SourceRecord("own", {"shop": "s1"})
ADAPTER: Adapter = declare(adapter_table(pages={"style": "link", "size": 20, "total": "total", "next": "next"}))


def begun() -> UnfinishedReading:
    reading = Reading(ADAPTER.declaration, WINDOW)
    return UnfinishedReading(ADAPTER, WINDOW, reading, NewVersions(set()), fence=1, record=RECORD)


def move(progress: UnfinishedReading, number: int) -> None:
    progress.reading.next()
    progress.reading.feed(Page(rows=[], next=f"page{number}", total=100, has_more=True))


def resumed(progress: UnfinishedReading) -> UnfinishedReading:
    kept = UnfinishedReadings()
    kept.keep(WORK, progress, 0)
    again = kept.take(WORK, RECORD, ADAPTER, WINDOW, 1)
    assert again is progress
    return progress


@pytest.mark.parametrize("outcome", [TimedOut("60 s"), TooWide("100 orders may not enter at once")])
def test_an_attempt_that_moved_goes_on_and_tells_whether_it_began_anew(outcome: Outcome) -> None:
    progress = begun()
    move(progress, 1)
    first = cast(Any, progress.ended(PIECE, outcome))
    assert (first.goes_on, first.is_anew) == (True, True)
    assert resumed(progress).ended(PIECE, outcome) == outcome  # no request was answered
    move(progress, 2)
    second = cast(Any, progress.ended(PIECE, outcome))
    assert (second.goes_on, second.is_anew) == (True, False)


def test_a_window_that_each_attempt_begins_anew_is_split_in_the_end() -> None:
    """As on many nodes that take turns, or on one that holds too many unfinished readings to keep them all."""
    ledger = cut(first_ledger(0), SETTINGS, NOW)
    slice_id, split = ledger.open[0].slice_id, False
    for at in range(MOST_ANEW + 2):
        now_ms = NOW + at * 600_000
        ledger, step = decide(ledger, Offered(SHOP, slice_id, f"n{at}", SETTINGS), now_ms)
        assert isinstance(step.then, Work)
        progress, held = begun(), step.then.request.slice
        move(progress, 1)
        outcome = progress.ended(held, TimedOut("60 s"))
        ledger, step = decide(ledger, Ended(SHOP, held, outcome, SETTINGS, chance=0.5), now_ms)
        split = [type(event) for event in step.events] == [SliceSplit]
    assert split
    assert ledger.open[0].anew == 0


def test_a_refusal_met_by_a_later_attempt_drops_the_reading_and_is_no_end_of_the_slice() -> None:
    progress = begun()
    move(progress, 1)
    assert progress.ended(PIECE, Hopeless("400")) == Hopeless("400")
    assert isinstance(resumed(progress).ended(PIECE, Hopeless("400")), Failed)
    kept = UnfinishedReadings()
    kept.keep(WORK, progress, 0)
    assert kept.take(WORK, RECORD, ADAPTER, WINDOW, 1) is None


def test_a_reading_of_another_account_is_not_gone_on_with() -> None:
    progress, kept = begun(), UnfinishedReadings()
    move(progress, 1)
    kept.keep(WORK, progress, 0)
    assert kept.take(WORK, SourceRecord("own", {"shop": "s2"}), ADAPTER, WINDOW, 1) is None


@pytest.mark.parametrize("outcome", [Failed("HTTP 200"), Missed("HTTP 500"), TimedOut("60 s", is_missed=True)])
def test_an_attempt_that_got_nothing_under_the_name_of_a_page_is_the_last_one_with_it(outcome: Outcome) -> None:
    progress, kept = begun(), UnfinishedReadings()
    assert progress.ended(PIECE, outcome) == outcome
    move(progress, 1)
    assert progress.ended(PIECE, outcome) == outcome
    assert not resumed(progress).is_void
    assert progress.ended(PIECE, outcome) == outcome
    kept.keep(WORK, progress, 2)
    assert kept.take(WORK, RECORD, ADAPTER, WINDOW, 3) is None
