"""What becomes of windows whose rows cannot be read, or are fewer than the platform counts."""

import pytest
from msgspec.structs import replace

from actors.fetch.fetcher.decisions import (
    Failed,
    Hopeless,
    Misread,
    Outcome,
    Short,
    Throttled,
    TimedOut,
    TooWide,
    WindowStored,
    decide,
)
from actors.fetch.rules import holding, steering
from actors.fetch.rules.cutting import cut
from actors.fetch.rules.holding import had_readable
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, Pass, Shortfall, first_ledger
from actors.fetch.rules.slices import Kind
from actors.runtime.actor import Work
from streams.messages.fetch import HoleMade, SliceFailed, SourceParked
from tests.unit.fetch.decided import NOW, SETTINGS, SHORT, ended, offer, opened, read_as, taken

MISREAD = Misread("52 of 52 rows of an answer cannot be read", '{"id": 7}')


@pytest.mark.parametrize("at", [0, 1], ids=["the same slice", "another slice"])
def test_a_source_of_which_no_row_was_ever_read_is_parked_by_the_second_answer_that_cannot_be(at: int) -> None:
    ledger, events = read_as(opened(), 0, MISREAD)
    assert [type(event) for event in events] == [SliceFailed]
    assert ledger.state == "running"
    ledger, events = read_as(ledger, at, MISREAD)
    assert [type(event) for event in events] == [SourceParked]
    assert ledger.state == "parked"
    assert ledger.reason == f"{MISREAD.reason}; the platform said: {MISREAD.said}"
    assert ledger.holes == ()


def test_a_parked_source_quotes_300_characters_of_what_the_platform_said() -> None:
    ledger = opened()
    for _ in range(2):
        ledger, _ = read_as(ledger, 0, Misread("r" * 400, "s" * 400))
    assert ledger.reason == "r" * 300 + "; the platform said: " + "s" * 300


def test_what_comes_back_after_the_parking_spends_no_attempt_and_changes_no_reason() -> None:
    ledger = opened()
    pieces: list[OpenSlice] = []
    for _ in range(3):
        ledger, step = decide(ledger, offer(ledger.open[len(pieces)].slice_id), NOW)
        assert isinstance(step.then, Work)
        pieces.append(step.then.request.slice)
    for piece in pieces[:2]:
        ledger, _ = decide(ledger, ended(piece, MISREAD), NOW)
    reason = ledger.reason
    ledger, step = decide(ledger, ended(pieces[2], Misread("another", "other")), NOW)
    assert (step.events, ledger.reason, ledger.open[2].attempt) == ((), reason, 1)


def test_after_a_person_resumed_it_two_failures_park_it_again() -> None:
    ledger = opened()
    for _ in range(2):
        ledger, _ = read_as(ledger, 0, MISREAD)
    ledger = steering.resume(ledger, NOW)
    ledger, _ = read_as(ledger, 0, MISREAD)
    assert ledger.state == "running"
    ledger, _ = read_as(ledger, 0, MISREAD)
    assert ledger.state == "parked"


def test_a_source_of_which_rows_were_read_is_not_parked_for_a_window_that_cannot_be() -> None:
    ledger, _ = read_as(opened(), 0, WindowStored(is_readable=True))
    for _ in range(3):
        ledger, _ = read_as(ledger, 0, MISREAD)
    assert (ledger.state, [hole.reason for hole in ledger.holes]) == ("running", [MISREAD.reason])


def test_a_source_with_one_readable_answer_is_not_parked_for_rows_of_other_windows() -> None:
    """A long slice is far from its end when two others meet rows that cannot be read."""
    unreadable, ignored = replace(MISREAD, of_rows=True), replace(MISREAD, reason="the platform ignores the window")
    ledger, _ = read_as(opened(), 1, unreadable)
    ledger = had_readable(ledger)
    assert had_readable(ledger) is ledger
    for _ in range(2):
        ledger, _ = read_as(ledger, 0, unreadable)
    assert (ledger.state, len(ledger.holes)) == ("running", 0)
    assert read_as(ledger, 0, ignored)[0].state == "parked"


def test_after_windows_that_were_given_up_an_earlier_answer_counts_no_more() -> None:
    ledger, _ = read_as(had_readable(cut(first_ledger(0), replace(SETTINGS, max_open=9), NOW)), 0, WindowStored(True))
    for _ in range(3):
        ledger, _ = read_as(ledger, 0, WindowStored(is_readable=False))
    assert (ledger.trust, ledger.has_readable) == (0, False)


def test_windows_without_rows_say_nothing_of_whether_rows_can_be_read() -> None:
    ledger, _ = read_as(opened(), 0, MISREAD)
    ledger, _ = read_as(ledger, 1, WindowStored())
    assert read_as(ledger, 0, MISREAD)[0].state == "parked"
    ledger, _ = read_as(ledger, 0, WindowStored(is_readable=True))
    assert read_as(ledger, 0, MISREAD)[0].state == "running"


@pytest.mark.parametrize("odd", [WindowStored(is_readable=False), Short("short", Shortfall(1, 2), is_readable=False)])
def test_trust_is_used_up_by_windows_of_odd_rows_alone(odd: Outcome) -> None:
    ledger, _ = read_as(cut(first_ledger(0), replace(SETTINGS, max_open=9), NOW), 0, WindowStored(is_readable=True))
    trust = [ledger.trust]
    for _ in range(4):
        at = next(number for number, held in enumerate(ledger.open) if held.attempt == 1)
        ledger, _ = read_as(ledger, at, odd)
        trust.append(ledger.trust)
    assert trust == [3, 2, 1, 0, 0]


def test_what_is_short_is_read_once_more_and_then_a_hole_that_holds_the_watermark() -> None:
    ledger, piece = taken(opened())
    ledger, step = decide(ledger, ended(piece, SHORT), NOW)
    assert [type(event) for event in step.events] == [SliceFailed]
    assert (ledger.open[0].attempt, ledger.open[0].short) == (2, SHORT.short)
    later_ms = ledger.open[0].not_before_ms
    ledger, step = decide(ledger, offer(piece.slice_id), later_ms)
    assert isinstance(step.then, Work)
    ledger, step = decide(ledger, ended(step.then.request.slice, SHORT), later_ms)
    (event,) = step.events
    assert isinstance(event, HoleMade)
    assert (event.missing, event.reason) == (12, SHORT.reason)
    assert [(hole.slice_id, hole.short) for hole in ledger.holes] == [(piece.slice_id, SHORT.short)]
    assert ledger.watermark_ms == piece.start_ms


def known_short(kind: Kind = "t") -> tuple[Ledger, Hole]:
    """Return a ledger whose only tail slice is read, and a hole of that window, found by a look of this kind."""
    hole = Hole(kind, 1, 0, 60_000, since_ms=5, reason=SHORT.reason, short=SHORT.short)
    return Ledger(0, 60_000, 0 if kind == "t" else 60_000, holes=(hole,)), hole


@pytest.mark.parametrize(
    "outcome", [Failed("500"), TimedOut("60 s"), Hopeless("404"), TooWide("too wide"), Throttled("", 1)]
)
def test_what_is_known_to_be_short_stays_so_whatever_befalls_the_next_reading(outcome: Outcome) -> None:
    ledger, hole = known_short()
    ledger, _ = steering.redrive_hole(ledger, hole.slice_id, NOW)
    assert [held.short for held in ledger.open] == [SHORT.short]
    ledger, step = decide(ledger, offer(hole.slice_id), NOW + 1)
    assert isinstance(step.then, Work)
    ledger, _ = decide(ledger, ended(step.then.request.slice, outcome), NOW + 1)
    assert {held.short for held in ledger.open} | {left.short for left in ledger.holes} == {SHORT.short}


def test_a_vanished_holder_does_not_take_the_shortfall_along() -> None:
    ledger, hole = known_short()
    ledger, _ = steering.redrive_hole(ledger, hole.slice_id, NOW)
    ledger, _ = decide(ledger, offer(hole.slice_id), NOW + 1)
    ledger, _ = holding.expire(ledger, SETTINGS, NOW + 10**6, chance=0.5)
    assert [held.short for held in ledger.open] == [SHORT.short]


def test_a_reading_that_is_not_short_makes_up_for_one_that_was() -> None:
    ledger, hole = known_short()
    ledger, _ = steering.redrive_hole(ledger, hole.slice_id, NOW)
    ledger, step = decide(ledger, offer(hole.slice_id), NOW + 1)
    assert isinstance(step.then, Work)
    ledger, _ = decide(ledger, ended(step.then.request.slice, WindowStored()), NOW + 1)
    assert (ledger.open, ledger.holes, ledger.watermark_ms) == ((), (), 60_000)


def test_a_second_look_at_a_window_that_is_short_does_not_forget_it() -> None:
    ledger, _ = known_short("a")
    look = Pass("again-100000", "a", 0, 0, None, 100_000)
    settings = replace(SETTINGS, again_ms=(100_000,), again_slice_ms=60_000)
    ledger = cut(replace(ledger, passes=(look,)), settings, NOW)
    assert ledger.holes == ()
    assert [held.short for held in ledger.open if held.kind == "a"] == [SHORT.short]


def test_a_backfill_that_is_cancelled_leaves_what_it_found_to_be_short() -> None:
    ledger, hole = known_short("b")
    ledger, _ = steering.redrive_hole(ledger, hole.slice_id, NOW)
    open_ = replace(ledger.open[0], pass_name="old")
    ledger = replace(ledger, open=(open_,), passes=(Pass("old", "b", 0, 60_000, 60_000),))
    ledger = steering.remove_backfill(ledger, "old")
    assert [(left.slice_id, left.short, left.since_ms) for left in ledger.holes] == [(hole.slice_id, SHORT.short, NOW)]


def test_a_rewind_leaves_what_was_short_before_it() -> None:
    ledger, hole = known_short("b")
    ledger, _ = steering.redrive_hole(replace(ledger, frontier_ms=120_000, watermark_ms=120_000), hole.slice_id, NOW)
    rewound = steering.rewind(ledger, 60_000)
    assert [(left.short, left.since_ms) for left in rewound.holes] == [(SHORT.short, NOW)]
