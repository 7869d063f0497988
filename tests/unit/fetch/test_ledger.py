"""What each move does to a ledger, by example."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from actors.fetch.rules.cutting import cut, next_due_ms, offer_key, offers_due
from actors.fetch.rules.holding import (
    Completed,
    GaveUp,
    Halved,
    Released,
    Retried,
    StaleFence,
    Taken,
    TooNarrow,
    Wait,
    complete,
    expire,
    fail,
    give_up,
    park,
    release,
    split,
    take,
)
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, Pass, faults, first_ledger
from actors.fetch.rules.steering import (
    accept_hole,
    pause,
    redrive_hole,
    resume,
)
from streams.backoff import Backoff
from tests.unit.fetch.ledgers import MINUTE, SETTINGS, cut_up_to, finished, hole_at, ids, taken

POLICY = Backoff(retries=1, base_ms=1000, spread=0)
GOLDEN = Path(__file__).parents[2] / "golden" / "ledger_v1.json"


def test_whole_slices_are_cut_in_time_order_up_to_the_settled_end() -> None:
    settings = replace(SETTINGS, settle_ms=10_000)
    ledger = cut(first_ledger(0), settings, 2 * MINUTE + 9_999)
    assert ids(ledger) == ["t1-0-60000"]
    ledger = cut(ledger, settings, 2 * MINUTE + 10_000)
    assert ids(ledger) == ["t1-0-60000", "t1-60000-120000"]
    assert (ledger.watermark_ms, ledger.frontier_ms) == (0, 2 * MINUTE)


def test_nothing_to_cut_gives_the_same_object() -> None:
    ledger = cut_up_to(2)
    assert cut(ledger, SETTINGS, 2 * MINUTE) is ledger


def test_no_more_than_max_open_are_open_at_once() -> None:
    ledger = cut_up_to(100)
    assert len(ledger.open) == 4
    ledger, _ = finished(ledger, "t1-60000-120000")
    assert len(cut(ledger, SETTINGS, 100 * MINUTE).open) == 4


def test_holes_do_not_count_as_open_until_there_are_too_many() -> None:
    settings = replace(SETTINGS, max_holes=2)
    ledger = hole_at(cut_up_to(100, settings), "t1-0-60000")
    ledger = cut(ledger, settings, 100 * MINUTE)
    assert len(ledger.open) == 4
    ledger = hole_at(ledger, "t1-60000-120000")
    assert cut(ledger, settings, 100 * MINUTE) is ledger
    assert next_due_ms(pause_offers(ledger), settings, 0) is None


def pause_offers(ledger: Ledger) -> Ledger:
    """The same with every slice held, so that only cutting is left to be due."""
    return replace(ledger, open=tuple(replace(held, fence=1) for held in ledger.open))


def test_a_changed_length_moves_the_grid_for_new_slices_only() -> None:
    ledger = cut(first_ledger(0), replace(SETTINGS, slice_ms=40_000), 80_000)
    ledger = cut(ledger, SETTINGS, 3 * MINUTE)
    assert ids(ledger) == ["t1-0-40000", "t1-40000-80000", "t1-80000-120000", "t1-120000-180000"]
    assert not faults(ledger)


def test_the_watermark_waits_for_the_earliest_open_slice() -> None:
    ledger, _ = finished(cut_up_to(3), "t1-60000-120000")
    assert ledger.watermark_ms == 0
    ledger, _ = finished(ledger, "t1-0-60000")
    assert ledger.watermark_ms == 2 * MINUTE
    ledger, _ = finished(ledger, "t1-120000-180000")
    assert ledger.watermark_ms == ledger.frontier_ms == 3 * MINUTE


def test_a_slice_taken_again_leaves_the_first_holder_with_a_void_fence() -> None:
    ledger, first = taken(cut_up_to(1), "t1-0-60000", holder="n1")
    ledger, second = taken(ledger, "t1-0-60000", holder="n2")
    assert (first.fence, second.fence, second.losses, second.attempt) == (1, 2, 1, 1)
    for after, result in (
        complete(ledger, "t1-0-60000", first.fence, 0),
        fail(ledger, "t1-0-60000", first.fence, "", POLICY, 0, chance=0),
        release(ledger, "t1-0-60000", first.fence, 0),
        give_up(ledger, "t1-0-60000", first.fence, "", 0),
        split(ledger, "t1-0-60000", first.fence, 0),
        park(ledger, "t1-0-60000", first.fence, "", 0),
    ):
        assert isinstance(result, StaleFence)
        assert after is ledger
    assert isinstance(complete(ledger, "t1-0-60000", second.fence, 0)[1], Completed)


@pytest.mark.parametrize("slice_id", ["t1-60000-120000", "t2-0-60000", "b1-0-60000", "nonsense", ""])
def test_what_the_ledger_does_not_know_is_stale(slice_id: str) -> None:
    ledger, held = taken(cut_up_to(1), "t1-0-60000")
    for after, result in (
        take(ledger, slice_id, "n2", 0),
        complete(ledger, slice_id, held.fence, 0),
        release(ledger, slice_id, held.fence, 0),
    ):
        assert isinstance(result, StaleFence)
        assert after is ledger


def test_a_slice_that_nobody_holds_cannot_be_completed_with_fence_zero() -> None:
    ledger = cut_up_to(1)
    assert isinstance(complete(ledger, "t1-0-60000", 0, 0)[1], StaleFence)


def test_a_second_completion_is_stale_and_changes_nothing() -> None:
    ledger, held = taken(cut_up_to(1), "t1-0-60000")
    ledger, _ = complete(ledger, "t1-0-60000", held.fence, 0)
    after, result = complete(ledger, "t1-0-60000", held.fence, 0)
    assert isinstance(result, StaleFence)
    assert after is ledger


def test_a_failure_raises_the_attempt_and_waits_and_the_last_one_makes_a_hole() -> None:
    ledger, held = taken(cut_up_to(1), "t1-0-60000", 5)
    ledger, retried = fail(ledger, "t1-0-60000", held.fence, "HTTP 500", POLICY, 5, chance=0)
    assert isinstance(retried, Retried)
    assert (retried.slice.attempt, retried.slice.not_before_ms, retried.slice.reason) == (2, 1005, "HTTP 500")
    assert take(ledger, "t1-0-60000", "n1", 1004) == (ledger, Wait(1005))
    assert offers_due(ledger, 1004) == []
    assert offers_due(ledger, 1005) == [retried.slice]
    ledger, held = taken(ledger, "t1-0-60000", 1005)
    ledger, gave_up = fail(ledger, "t1-0-60000", held.fence, "HTTP 500 again", POLICY, 1010, chance=0)
    expected = Hole("t", 1, 0, MINUTE, since_ms=1010, attempts=2, reason="HTTP 500 again")
    assert gave_up == GaveUp(expected)
    assert (ledger.open, ledger.holes, ledger.watermark_ms) == ((), (expected,), 0)


def test_a_failure_waits_no_less_than_the_platform_asked_for() -> None:
    ledger, held = taken(cut_up_to(1), "t1-0-60000")
    _, retried = fail(ledger, "t1-0-60000", held.fence, "later", POLICY, 0, chance=0, least_wait_ms=90_000)
    assert isinstance(retried, Retried)
    assert retried.slice.not_before_ms == 90_000


def test_throttling_keeps_the_attempt_and_holds_the_whole_source() -> None:
    ledger, held = taken(cut_up_to(2), "t1-0-60000")
    ledger, released = release(ledger, "t1-0-60000", held.fence, 100, hold_until_ms=5_000)
    assert isinstance(released, Released)
    assert (released.slice.attempt, released.slice.fence, released.slice.holder) == (1, 0, "")
    assert offers_due(ledger, 4_999) == []
    assert len(offers_due(ledger, 5_000)) == 2
    assert take(ledger, "t1-60000-120000", "n1", 4_999)[1] == Wait(5_000)
    shorter, held = taken(ledger, "t1-0-60000", 5_000)
    shorter, _ = release(replace(shorter, hold_until_ms=9_000), "t1-0-60000", held.fence, 5_000, hold_until_ms=6_000)
    assert shorter.hold_until_ms == 9_000


def test_a_slice_that_takes_its_holders_down_is_given_up() -> None:
    ledger = cut_up_to(1)
    for losses in range(3):
        ledger, taken_again = take(ledger, "t1-0-60000", "n1", 0, most_losses=2)
        assert isinstance(taken_again, Taken)
        assert taken_again.slice.losses == losses
    ledger, result = take(ledger, "t1-0-60000", "n1", 7, most_losses=2)
    assert isinstance(result, GaveUp)
    assert "3 holders vanished" in result.hole.reason
    assert ledger.holes == (result.hole,)


def test_a_slice_is_split_on_the_clock_and_the_halves_tile_it() -> None:
    ledger, held = taken(cut_up_to(2), "t1-0-60000")
    ledger, result = split(ledger, "t1-0-60000", held.fence, 9)
    assert isinstance(result, Halved)
    assert ids(ledger) == ["t1-0-30000", "t1-30000-60000", "t1-60000-120000"]
    assert not faults(ledger)
    assert {half.fence for half in result.slices} == {0}


def test_a_slice_of_one_step_cannot_be_split() -> None:
    ledger, held = taken(cut_up_to(1), "t1-0-60000")
    assert split(ledger, "t1-0-60000", held.fence, 0, step_ms=MINUTE) == (ledger, TooNarrow())


def test_the_monitor_takes_away_only_what_was_held_too_long() -> None:
    ledger, _ = taken(cut_up_to(3), "t1-0-60000", 0)
    ledger, _ = taken(ledger, "t1-60000-120000", 1_000)
    settings = replace(SETTINGS, stale_after_ms=10_000)
    assert expire(ledger, settings, 9_999, chance=0) == (ledger, ())
    after, results = expire(ledger, settings, 10_000, chance=0)
    assert [type(result) for result in results] == [Retried]
    assert [(held.attempt, held.is_taken) for held in after.open] == [(2, False), (1, True), (1, False)]
    after, results = expire(ledger, replace(settings, retries=0), 20_000, chance=0)
    assert [type(result) for result in results] == [GaveUp, GaveUp]
    assert not faults(after)


def test_a_paused_source_is_neither_cut_nor_offered_nor_taken_but_may_finish() -> None:
    ledger, held = taken(cut_up_to(2), "t1-0-60000")
    ledger = pause(ledger, "stocktaking")
    assert cut(ledger, SETTINGS, 100 * MINUTE) is ledger
    assert offers_due(ledger, 100 * MINUTE) == []
    assert next_due_ms(ledger, SETTINGS, 0) is None
    assert isinstance(take(ledger, "t1-60000-120000", "n1", 0)[1], StaleFence)
    ledger, done = complete(ledger, "t1-0-60000", held.fence, 0)
    assert isinstance(done, Completed)
    assert pause(ledger) is ledger
    running = resume(ledger, 500)
    assert (running.state, running.reason) == ("running", "")
    assert resume(running, 501) is running


def test_offers_from_before_a_pause_are_void_after_it() -> None:
    ledger = cut_up_to(1)
    offered = {offer_key(ledger, ledger.open[0]): 400}
    assert offers_due(ledger, 500, offered, 30_000) == []
    ledger = resume(pause(ledger), 500)
    assert len(offers_due(ledger, 501, offered, 30_000)) == 1


def test_a_parked_source_keeps_its_reason_and_gives_the_slice_back() -> None:
    ledger, held = taken(cut_up_to(1), "t1-0-60000")
    ledger, result = park(ledger, "t1-0-60000", held.fence, "token revoked", 5)
    assert isinstance(result, Released)
    assert (ledger.state, ledger.reason, ledger.open[0].attempt) == ("parked", "token revoked", 1)
    assert pause(ledger, "other") is ledger
    assert len(offers_due(resume(ledger, 10), 11)) == 1


def test_an_offer_from_before_a_slice_was_given_back_is_void_whatever_the_clocks_say() -> None:
    before = cut_up_to(1)
    offered = {offer_key(before, before.open[0]): 9_000}  # by a clock that is ahead of the holder's
    ledger, held = taken(before, "t1-0-60000", 5)
    ledger, released = release(ledger, "t1-0-60000", held.fence, 5)
    assert isinstance(released, Released)
    assert offers_due(ledger, 9_001, offered, 30_000) == [released.slice]
    assert offers_due(ledger, 9_001, {offer_key(ledger, released.slice): 9_000}, 30_000) == []


def test_an_untaken_slice_is_offered_again_after_a_while() -> None:
    ledger = cut_up_to(1)
    offered = {offer_key(ledger, ledger.open[0]): 100}
    settings = replace(SETTINGS, reoffer_ms=1_000)
    assert next_due_ms(ledger, settings, 200, offered) == 1_100
    assert offers_due(ledger, 1_099, offered, 1_000) == []
    assert offers_due(ledger, 1_100, offered, 1_000) == list(ledger.open)


def test_moves_fold_into_one_write_and_cost_little_to_store() -> None:
    ledger = cut_up_to(1000, replace(SETTINGS, max_open=64))
    text = msgspec.json.encode(ledger)
    assert msgspec.json.decode(text, type=Ledger) == ledger
    assert len(text) < 8_000
    assert b'"holder"' not in text, "what has its default is not written"


GOLDEN_LEDGER = Ledger(
    start_ms=1_700_000_000_000,
    frontier_ms=1_700_000_240_000,
    watermark_ms=1_700_000_060_000,
    epoch=3,
    fence=41,
    state="parked",
    reason="token revoked",
    hold_until_ms=1_700_000_300_000,
    open=(
        OpenSlice("t", 3, 1_700_000_060_000, 1_700_000_120_000, cut_ms=1_700_000_121_000),
        OpenSlice(
            "t",
            3,
            1_700_000_180_000,
            1_700_000_240_000,
            cut_ms=1_700_000_241_000,
            attempt=2,
            not_before_ms=1_700_000_250_000,
            fence=41,
            holder="node-1",
            taken_ms=1_700_000_251_000,
            losses=1,
            reason="HTTP 500",
        ),
        OpenSlice("b", 3, 1_600_000_000_000, 1_600_000_060_000, cut_ms=1_700_000_241_000, pass_name="march"),
    ),
    holes=(
        Hole("t", 3, 1_700_000_120_000, 1_700_000_180_000, since_ms=1_700_000_200_000, attempts=6, reason="HTTP 500"),
        Hole("a", 2, 1, 2, is_told=True, accepted_by="ann", pass_name="again-600000"),
    ),
    passes=(
        Pass("march", "b", 1_600_000_000_000, 1_600_000_060_000, 1_600_000_600_000),
        Pass("again-600000", "a", 1_700_000_000_000, 1_700_000_000_000, None, 600_000),
    ),
)


def test_the_first_released_form_decodes_for_good_and_unknown_fields_are_ignored() -> None:
    text = GOLDEN.read_bytes()
    assert msgspec.json.decode(text, type=Ledger) == GOLDEN_LEDGER
    assert b'"of_a_later_release"' in text


def test_an_unknown_name_for_a_hole_is_no_hole() -> None:
    ledger = first_ledger(0)
    assert accept_hole(ledger, "nonsense", "ann") == (ledger, False)
    assert redrive_hole(ledger, "nonsense", 0) == (ledger, None)


@pytest.mark.parametrize(
    ("ledger", "word"),
    [
        (Ledger(0, 20, 0, open=(OpenSlice("t", 1, 0, 11), OpenSlice("t", 1, 10, 20))), "overlap"),
        (Ledger(0, 20, 0, open=(OpenSlice("t", 1, 0, 30),)), "outside"),
        (Ledger(0, 20, 10, open=(OpenSlice("t", 1, 0, 10),)), "watermark"),
        (Ledger(0, 20, 20, open=(OpenSlice("b", 1, 0, 10), OpenSlice("b", 1, 0, 10))), "twice"),
        (Ledger(0, 20, 0, open=(OpenSlice("t", 2, 0, 10),)), "another epoch"),
        (Ledger(0, 20, 0, open=(OpenSlice("t", 1, 0, 10, fence=1),)), "never given"),
    ],
)
def test_a_broken_ledger_is_told_by_its_faults(ledger: Ledger, word: str) -> None:
    assert word in " ".join(faults(ledger))
