"""Holes that are accepted or read again, backfills, second looks and rewinds."""

import msgspec
import pytest
from msgspec.structs import replace

from actors.fetch.rules.cutting import cut, next_due_ms
from actors.fetch.rules.holding import (
    GaveUp,
    StaleFence,
    complete,
    give_up,
)
from actors.fetch.rules.ledger import Ledger, Pass, faults, first_ledger
from actors.fetch.rules.steering import (
    MOST_BACKFILLS,
    NotPossible,
    TooManyBackfills,
    accept_hole,
    add_backfill,
    forget_hole,
    mark_ended,
    mark_reported,
    owe_end,
    redrive_hole,
    remove_backfill,
    rewind,
)
from tests.unit.fetch.ledgers import MINUTE, SETTINGS, cut_up_to, finished, hole_at, ids, taken


def pass_names(ledger: Ledger) -> list[str]:
    return [each.name for each in ledger.passes]


def test_an_unaccepted_hole_holds_the_watermark_and_an_accepted_one_lets_it_pass() -> None:
    ledger = hole_at(cut_up_to(2), "t1-0-60000")
    ledger, _ = finished(ledger, "t1-60000-120000")
    assert ledger.watermark_ms == 0
    ledger, is_known = accept_hole(ledger, "t1-0-60000", "ann")
    assert is_known
    assert ledger.watermark_ms == 2 * MINUTE
    assert ledger.holes[0].accepted_by == "ann"
    assert accept_hole(ledger, "t1-0-60000", "bob") == (ledger, True)
    assert accept_hole(ledger, "t1-60000-120000", "bob") == (ledger, False)


def test_a_redriven_hole_is_open_again_with_its_first_attempt() -> None:
    ledger = hole_at(cut_up_to(2), "t1-0-60000")
    ledger, again = redrive_hole(ledger, "t1-0-60000", 70)
    assert again is not None
    assert (again.slice_id, again.attempt, again.not_before_ms) == ("t1-0-60000", 1, 71)
    assert (ledger.holes, ids(ledger), ledger.watermark_ms) == ((), ["t1-0-60000", "t1-60000-120000"], 0)
    assert redrive_hole(ledger, "t1-0-60000", 70) == (ledger, None)


def test_a_hole_that_the_watermark_has_passed_is_read_again_behind_it() -> None:
    ledger = hole_at(cut_up_to(2), "t1-0-60000")
    ledger, _ = accept_hole(ledger, "t1-0-60000", "ann")
    assert ledger.watermark_ms == MINUTE
    ledger, again = redrive_hole(ledger, "t1-0-60000", 0)
    assert again is not None
    assert again.slice_id == "b1-0-60000"
    assert (ledger.watermark_ms, ledger.holes) == (MINUTE, ())
    assert not faults(ledger)
    ledger, _ = finished(ledger, "b1-0-60000", 1)
    assert ids(ledger) == ["t1-60000-120000"]


def test_an_accepted_hole_that_was_not_passed_yet_comes_back_as_itself() -> None:
    ledger = hole_at(cut_up_to(2), "t1-60000-120000")
    ledger, _ = accept_hole(ledger, "t1-60000-120000", "ann")
    ledger, again = redrive_hole(ledger, "t1-60000-120000", 0)
    assert again is not None
    assert again.slice_id == "t1-60000-120000"


def test_holes_are_told_once_and_forgotten_only_when_accepted() -> None:
    ledger = hole_at(cut_up_to(1), "t1-0-60000")
    ledger, _ = mark_reported(ledger, "t1-0-60000")
    assert ledger.holes[0].is_told
    assert mark_reported(ledger, "t1-0-60000") == (ledger, True)
    assert mark_reported(ledger, "t1-60000-120000") == (ledger, False)
    assert forget_hole(ledger, "t1-0-60000") == (ledger, False)
    ledger, _ = accept_hole(ledger, "t1-0-60000", "ann")
    ledger, is_gone = forget_hole(ledger, "t1-0-60000")
    assert is_gone
    assert ledger.holes == ()


def test_that_no_hole_is_left_is_owed_until_it_was_told() -> None:
    ledger = hole_at(cut_up_to(1), "t1-0-60000")
    assert not ledger.owes_end
    ledger, _ = mark_reported(ledger, "t1-0-60000")
    assert ledger.owes_end
    assert mark_ended(ledger) is ledger  # there is one again
    ledger, _ = accept_hole(ledger, "t1-0-60000", "ann")
    assert ledger.owes_end
    ended = mark_ended(ledger)
    assert not ended.owes_end
    assert owe_end(ended).owes_end


def test_a_backfill_runs_beside_the_tail_until_it_is_through() -> None:
    settings = replace(SETTINGS, back_open=2)
    ledger = add_backfill(replace(first_ledger(10 * MINUTE)), "march", 0, 150_000)
    ledger = cut(ledger, settings, 10 * MINUTE)
    assert ids(ledger) == ["b1-0-60000", "b1-60000-120000"]
    assert (ledger.watermark_ms, ledger.frontier_ms) == (10 * MINUTE, 10 * MINUTE)
    ledger, _ = finished(ledger, "b1-60000-120000")
    ledger = cut(ledger, settings, 10 * MINUTE)
    assert ids(ledger) == ["b1-0-60000", "b1-120000-150000"]
    ledger, _ = finished(ledger, "b1-120000-150000")
    assert pass_names(ledger) == ["march"]
    ledger, _ = finished(ledger, "b1-0-60000")
    assert ledger.passes == ()


def test_a_ledger_takes_as_many_backfills_as_fit_into_one_message() -> None:
    ledger = first_ledger(10 * MINUTE)
    for number in range(MOST_BACKFILLS):
        ledger = add_backfill(ledger, f"{number:064}", number, 10**14)
    assert len(msgspec.json.encode(ledger)) < 300_000
    with pytest.raises(TooManyBackfills, match="1000 others have not ended; wait for them or remove some"):
        add_backfill(ledger, "more", 0, MINUTE)
    assert add_backfill(ledger, f"{7:064}", 7, 10**14) is ledger, "a repeat changes nothing"
    again = replace(ledger, passes=(*ledger.passes[1:], Pass("a1", "a", 0, 0, None, delay_ms=1)))
    assert add_backfill(again, "more", 0, MINUTE).passes[-1].name == "more", "second looks are not counted"


def test_a_backfill_over_a_hole_of_the_tail_leaves_the_hole_as_it_is() -> None:
    """They are two slices, though their window is the same: only a redrive or a person takes a hole away."""
    ledger, mine = taken(cut_up_to(1), f"t1-0-{MINUTE}")
    ledger, _ = give_up(ledger, mine.slice_id, mine.fence, "no", MINUTE)
    after = cut(add_backfill(ledger, "march", 0, MINUTE), SETTINGS, MINUTE)
    assert ids(after) == [f"b1-0-{MINUTE}"]
    assert (after.holes, after.watermark_ms) == (ledger.holes, 0)


def test_a_backfill_whose_last_slice_is_given_up_is_through_too() -> None:
    ledger = cut(add_backfill(first_ledger(MINUTE), "march", 0, MINUTE), SETTINGS, MINUTE)
    ledger, held = taken(ledger, "b1-0-60000")
    ledger, result = give_up(ledger, "b1-0-60000", held.fence, "gone", 0)
    assert isinstance(result, GaveUp)
    assert (ledger.passes, ledger.watermark_ms) == ((), MINUTE)


def test_a_hole_of_a_backfill_belongs_to_it_until_it_is_through() -> None:
    settings = replace(SETTINGS, back_open=1)
    ledger = cut(add_backfill(first_ledger(5 * MINUTE), "march", 0, 2 * MINUTE), settings, 5 * MINUTE)
    ledger = hole_at(ledger, "b1-0-60000")
    ledger = cut(ledger, settings, 5 * MINUTE)
    ledger, again = redrive_hole(ledger, "b1-0-60000", 0)
    assert again is not None
    assert again.pass_name == "march"
    ledger, _ = finished(ledger, "b1-60000-120000")
    assert pass_names(ledger) == ["march"]
    ledger, _ = finished(ledger, "b1-0-60000", 1)
    assert ledger.passes == ()


def test_cutting_a_window_again_takes_it_off_the_holes() -> None:
    ledger = cut(add_backfill(first_ledger(MINUTE), "one", 0, MINUTE), SETTINGS, MINUTE)
    ledger = hole_at(ledger, "b1-0-60000")
    ledger = cut(add_backfill(ledger, "two", 0, MINUTE), SETTINGS, MINUTE)
    assert (ids(ledger), ledger.holes) == (["b1-0-60000"], ())


def test_the_tail_is_handed_out_before_all_else_and_in_time_order() -> None:
    ledger = cut(add_backfill(first_ledger(10 * MINUTE), "march", 0, MINUTE), SETTINGS, 10 * MINUTE)
    ledger = cut(ledger, SETTINGS, 12 * MINUTE)
    assert ids(ledger) == ["t1-600000-660000", "t1-660000-720000", "b1-0-60000"]


def test_backfills_are_added_once_and_taken_away_with_their_slices() -> None:
    ledger = add_backfill(first_ledger(MINUTE), "march", 0, MINUTE)
    assert add_backfill(ledger, "march", 0, MINUTE) is ledger
    with pytest.raises(NotPossible, match="another window"):
        add_backfill(ledger, "march", 0, 2 * MINUTE)
    with pytest.raises(NotPossible, match="start 1970-01-01T00:01:00Z must lie before the end 1970-01-01T00:01:00Z"):
        add_backfill(ledger, "april", MINUTE, MINUTE)
    ledger = remove_backfill(cut(ledger, SETTINGS, MINUTE), "march")
    assert (ledger.open, ledger.passes) == ((), ())
    assert remove_backfill(ledger, "march") is ledger


def test_two_backfills_of_one_window_read_it_one_after_the_other() -> None:
    ledger = add_backfill(add_backfill(first_ledger(MINUTE), "one", 0, MINUTE), "two", 0, MINUTE)
    ledger = cut(ledger, SETTINGS, MINUTE)
    assert ids(ledger) == ["b1-0-60000"]
    assert cut(ledger, SETTINGS, MINUTE) is ledger
    ledger, _ = finished(ledger, "b1-0-60000")
    assert pass_names(ledger) == ["two"]
    ledger = cut(ledger, SETTINGS, MINUTE)
    ledger, _ = finished(ledger, "b1-0-60000")
    assert ledger.passes == ()


def test_a_second_look_follows_the_watermark_by_its_delay() -> None:
    settings = replace(SETTINGS, again_ms=(10 * MINUTE,), again_slice_ms=2 * MINUTE)
    ledger = first_ledger(0)
    for minute in range(1, 12):
        ledger = cut(ledger, settings, minute * MINUTE)
        ledger, _ = finished(ledger, f"t1-{(minute - 1) * MINUTE}-{minute * MINUTE}")
    assert ledger.open == ()
    assert next_due_ms(ledger, settings, 11 * MINUTE) == 12 * MINUTE
    ledger = cut(ledger, settings, 12 * MINUTE)
    assert ids(ledger) == ["t1-660000-720000", "a1-0-120000"]
    ledger, _ = finished(ledger, "t1-660000-720000")
    ledger, _ = finished(ledger, "a1-0-120000")
    assert ledger.watermark_ms == 12 * MINUTE


def test_a_second_look_waits_for_a_hole() -> None:
    settings = replace(SETTINGS, again_ms=(MINUTE,), again_slice_ms=MINUTE)
    ledger = hole_at(cut(first_ledger(0), settings, MINUTE), "t1-0-60000")
    assert cut(ledger, settings, 2 * MINUTE).open[-1].kind == "t"
    ledger, _ = accept_hole(ledger, "t1-0-60000", "ann")
    assert [held.kind for held in cut(ledger, settings, 2 * MINUTE).open] == ["t", "a"]


def test_what_is_read_long_after_its_time_needs_no_second_look() -> None:
    settings = replace(SETTINGS, again_ms=(10 * MINUTE,), again_slice_ms=MINUTE, max_open=1000)
    ledger = cut(first_ledger(0), settings, 30 * MINUTE)
    assert [each.cursor_ms for each in ledger.passes] == [20 * MINUTE]


def test_a_second_look_that_fails_for_good_is_a_hole_that_holds_nothing_back() -> None:
    settings = replace(SETTINGS, again_ms=(MINUTE,), again_slice_ms=MINUTE)
    ledger, _ = finished(cut(first_ledger(0), settings, MINUTE), "t1-0-60000")
    ledger = hole_at(cut(ledger, settings, 2 * MINUTE), "a1-0-60000")
    assert ledger.watermark_ms == MINUTE
    ledger, again = redrive_hole(ledger, "a1-0-60000", 0)
    assert again is not None
    assert again.slice_id == "a1-0-60000"


def test_a_rewind_begins_a_new_epoch_and_voids_what_was_open() -> None:
    ledger, held = taken(cut_up_to(4), "t1-0-60000")
    ledger, _ = complete(ledger, "t1-0-60000", held.fence, 0)
    ledger, held = taken(ledger, "t1-60000-120000")
    ledger = rewind(ledger, 30_000)
    assert (ledger.epoch, ledger.frontier_ms, ledger.watermark_ms, ledger.open) == (2, 30_000, 30_000, ())
    assert isinstance(complete(ledger, "t1-60000-120000", held.fence, 0)[1], StaleFence)
    ledger = cut(ledger, SETTINGS, 2 * MINUTE)
    assert ids(ledger) == ["t2-30000-60000", "t2-60000-120000"]
    _, again = taken(ledger, "t2-60000-120000")
    assert again.fence > held.fence


def test_a_rewind_may_go_behind_the_start_but_not_past_the_watermark() -> None:
    ledger = cut(first_ledger(10 * MINUTE), SETTINGS, 12 * MINUTE)
    assert rewind(ledger, 5 * MINUTE).start_ms == 5 * MINUTE
    with pytest.raises(
        NotPossible, match=r"to 1970-01-01T00:10:00.001Z: it lies beyond the watermark 1970-01-01T00:10:00Z"
    ):
        rewind(ledger, 10 * MINUTE + 1)
    with pytest.raises(NotPossible, match="time begins with 1970"):
        rewind(ledger, -1)


def test_a_rewind_keeps_earlier_holes_listed_and_drops_those_that_are_read_again() -> None:
    ledger = hole_at(hole_at(cut_up_to(3), "t1-0-60000"), "t1-60000-120000")
    ledger, _ = accept_hole(ledger, "t1-0-60000", "ann")
    ledger = rewind(ledger, MINUTE)
    assert [hole.slice_id for hole in ledger.holes] == ["t1-0-60000"]
    ledger, again = redrive_hole(ledger, "t1-0-60000", 0)
    assert again is not None
    assert again.slice_id == "b2-0-60000"
    ledger = rewind(ledger, MINUTE)
    assert [(hole.slice_id, hole.reason) for hole in ledger.holes] == [("b2-0-60000", "rewound while it was open")]


def test_a_rewind_takes_passes_back_to_what_they_had_open() -> None:
    settings = replace(SETTINGS, back_open=3, again_ms=(MINUTE,), again_slice_ms=MINUTE)
    ledger = add_backfill(first_ledger(10 * MINUTE), "march", 0, 5 * MINUTE)
    ledger = cut(ledger, settings, 11 * MINUTE)
    ledger, _ = finished(ledger, "t1-600000-660000")
    ledger, _ = finished(ledger, "b1-0-60000")
    ledger = cut(ledger, settings, 20 * MINUTE)
    cursors = {each.name: each.cursor_ms for each in rewind(ledger, 10 * MINUTE + 30_000).passes}
    assert cursors == {"march": MINUTE, "again-60000": 10 * MINUTE}
