"""What follows an offer and an outcome, without server, platform or clock."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.fetch.fetcher.decisions import (
    Failed,
    Hopeless,
    Misread,
    Missed,
    NotNow,
    Outcome,
    PlatformRefused,
    ReadSlice,
    Throttled,
    TimedOut,
    TooWide,
    WindowStored,
    decide,
    label_of,
)
from actors.fetch.rules import holding, steering
from actors.fetch.rules.cutting import cut
from actors.fetch.rules.ledger import faults, find_open, first_ledger
from actors.runtime.actor import Ack, Forget, GiveBack, Work
from streams.messages.fetch import HoleMade, SliceFailed, SliceSplit, SourceParked, SourceThrottled
from tests.unit.fetch.decided import NOW, SETTINGS, SHOP, SHORT, ended, offer, opened, read_as, taken

NEVER_BLAMES: list[Outcome] = [
    Throttled("slow down", 700),
    NotNow("not yet", 700),
    PlatformRefused("no scope"),
    Missed("HTTP 503"),
    TimedOut("60 s", is_missed=True),
    TimedOut("60 s", goes_on=True),
]
ENDS: list[Outcome] = [
    *NEVER_BLAMES,
    WindowStored(),
    SHORT,
    Misread("9 of 9 rows", "{}"),
    Failed("500"),
    TimedOut("60 s"),
    TooWide("too wide"),
    Hopeless("404"),
]


def test_the_labels_of_outcomes_do_not_follow_the_class_names() -> None:
    labels = {label_of(end) for end in ENDS}
    assert labels >= {"stored", "short", "misread", "failed", "missed", "timedout", "throttled"}
    assert labels >= {"notnow", "toowide", "refused", "hopeless"}


def test_an_open_slice_is_taken_under_a_new_fence_and_read() -> None:
    before = opened()
    ledger, step = decide(before, offer(before.open[0].slice_id), NOW)
    assert step.then == Work(ReadSlice(SHOP, ledger.open[0], SETTINGS, is_trusted=False))
    _, step = decide(replace(before, trust=1), offer(before.open[0].slice_id), NOW)
    assert isinstance(step.then, Work)
    assert step.then.request.is_trusted
    assert (ledger.open[0].fence, ledger.open[0].holder, ledger.fence) == (1, "n1", 1)


@pytest.mark.parametrize("slice_id", ["t1-0-1", "t9-0-60000", "nonsense", "b1-0-60000"])
def test_an_offer_of_nothing_open_is_acknowledged(slice_id: str) -> None:
    before = opened()
    ledger, step = decide(before, offer(slice_id), NOW)
    assert ledger is before
    assert step.then == Ack()


@pytest.mark.parametrize("state", ["paused", "parked"])
def test_a_source_that_stands_still_hands_out_nothing(state: str) -> None:
    before = replace(opened(), state=state)
    ledger, step = decide(before, offer(before.open[0].slice_id), NOW)
    assert (ledger, step.then) == (before, Ack())


def test_an_unknown_source_is_waited_for_and_not_taken() -> None:
    before = opened()
    ledger, step = decide(before, offer(before.open[0].slice_id, "unknown"), NOW)
    assert ledger is before
    assert isinstance(step.then, GiveBack)


def test_a_slice_that_others_are_to_read_leaves_the_queue_untaken() -> None:
    before = opened()
    ledger, step = decide(before, offer(before.open[0].slice_id, "elsewhere"), NOW)
    assert ledger is before
    assert step.then == Ack()


@pytest.mark.parametrize(("wait_ms", "then"), [(1, GiveBack(0.001)), (5_000, GiveBack(5.0)), (5_001, Ack())])
def test_only_short_waits_are_spent_in_the_queue(wait_ms: int, then: Ack | GiveBack) -> None:
    for outcome in (NotNow("not yet", wait_ms), Throttled("slow down", wait_ms)):
        ledger, piece = taken(opened())
        assert decide(ledger, ended(piece, outcome), NOW)[1].then == then


def test_a_slice_that_is_due_by_another_clock_waits_in_the_queue() -> None:
    """The node that offered it may be ahead of us: acknowledged, it would come again only with the next offer."""
    ledger, piece = taken(opened())
    ledger, _ = decide(ledger, ended(piece, NotNow("not yet", 60_000)), NOW)
    assert decide(ledger, offer(piece.slice_id), NOW + 55_000)[1].then == GiveBack(5.0)
    assert decide(ledger, offer(piece.slice_id), NOW + 59_999)[1].then == GiveBack(0.001)
    assert decide(ledger, offer(piece.slice_id), NOW + 54_999)[1].then == Ack()


def test_a_throttled_source_is_not_taken_before_its_time() -> None:
    ledger, piece = taken(opened())
    ledger, step = decide(ledger, ended(piece, Throttled("slow down", 700)), NOW)
    assert step.then == GiveBack(0.7)
    assert [type(event) for event in step.events] == [SourceThrottled]
    assert decide(ledger, offer(ledger.open[1].slice_id), NOW + 699)[0] is ledger
    assert isinstance(decide(ledger, offer(ledger.open[1].slice_id), NOW + 700)[1].then, Work)


def test_a_slice_that_must_wait_holds_back_no_other() -> None:
    ledger, piece = taken(opened())
    ledger, step = decide(ledger, ended(piece, NotNow("not yet", 700)), NOW)
    assert step == (GiveBack(0.7), ())
    assert decide(ledger, offer(piece.slice_id), NOW + 699)[0] is ledger
    assert isinstance(decide(ledger, offer(piece.slice_id), NOW + 700)[1].then, Work)
    assert isinstance(decide(ledger, offer(ledger.open[1].slice_id), NOW)[1].then, Work)


def test_a_stored_slice_is_complete() -> None:
    ledger, piece = taken(opened())
    ledger, step = decide(ledger, ended(piece, WindowStored()), NOW)
    assert step == (Ack(), ())
    assert ledger.watermark_ms == piece.end_ms


def test_a_failure_raises_the_attempt_and_is_told() -> None:
    ledger, piece = taken(opened())
    ledger, step = decide(ledger, ended(piece, Failed("HTTP 500", least_wait_ms=99_000)), NOW)
    (event,) = step.events
    assert isinstance(event, SliceFailed)
    assert (event.attempt, event.reason, event.fence, event.node) == (1, "HTTP 500", piece.fence, "n1")
    assert (ledger.open[0].attempt, ledger.open[0].not_before_ms) == (2, NOW + 99_000)


def test_the_last_failure_makes_a_hole() -> None:
    ledger, piece = taken(opened(), attempt=3)
    ledger, step = decide(ledger, ended(piece, Failed("HTTP 500")), NOW)
    (event,) = step.events
    assert isinstance(event, HoleMade)
    assert [(hole.slice_id, hole.attempts, hole.reason) for hole in ledger.holes] == [(piece.slice_id, 3, "HTTP 500")]
    assert ledger.watermark_ms == piece.start_ms


def test_a_timeout_splits_only_after_the_first_try() -> None:
    ledger, piece = taken(opened())
    _, step = decide(ledger, ended(piece, TimedOut("60 s")), NOW)
    assert [type(event) for event in step.events] == [SliceFailed]
    ledger, piece = taken(opened(), attempt=2)
    ledger, step = decide(ledger, ended(piece, TimedOut("60 s")), NOW)
    (event,) = step.events
    assert isinstance(event, SliceSplit)
    assert event.parts == (ledger.open[0].slice_id, ledger.open[1].slice_id)
    assert [part.attempt for part in ledger.open[:2]] == [2, 2]


def test_a_platform_that_answers_nothing_is_asked_for_one_slice_at_a_time_and_by_whom_it_may() -> None:
    ledger, first = taken(opened())
    ledger, work = decide(ledger, offer(ledger.open[1].slice_id), NOW)
    assert isinstance(work.then, Work)
    ledger, step = decide(ledger, ended(first, Missed("HTTP 503")), NOW)
    assert ([type(event) for event in step.events], step.then) == ([SliceFailed], Ack())
    ledger, step = decide(ledger, ended(work.then.request.slice, Missed("HTTP 503")), NOW)
    assert step.then == Ack()  # its miss leaves the probe as it was
    assert ledger.outage is not None
    assert (ledger.outage.since_ms, ledger.outage.probes, ledger.outage.reason) == (NOW, 0, "HTTP 503")
    later_ms = ledger.outage.probe_ms
    assert later_ms > NOW
    assert [decide(ledger, offer(piece.slice_id), later_ms)[1].then == Ack() for piece in ledger.open] == [
        True,
        True,
        False,
    ]
    ledger, work = decide(ledger, offer(ledger.open[2].slice_id), later_ms)
    assert isinstance(work.then, Work)
    assert decide(ledger, offer(first.slice_id), later_ms)[1].then == Ack()
    ledger, _ = decide(ledger, ended(work.then.request.slice, WindowStored()), later_ms)
    assert ledger.outage is None
    assert all(isinstance(decide(ledger, offer(one.slice_id), later_ms + 1)[1].then, Work) for one in ledger.open)


@pytest.mark.parametrize(
    ("outcome", "is_over"),
    [
        (SHORT, True),
        (Misread("9 of 9 rows", "{}"), True),
        (Throttled("slow down", 700), True),
        (Failed("no order"), True),
        (TimedOut("60 s"), True),
        (PlatformRefused("no scope"), True),
        (Hopeless("404"), True),
        (Missed("HTTP 503"), False),
        (TimedOut("60 s", is_missed=True), False),
        (NotNow("our own server", 700), False),
        (TooWide("our own rate"), False),
    ],
)
def test_any_answer_ends_an_outage(outcome: Outcome, is_over: bool) -> None:
    ledger, first = taken(opened())
    ledger, _ = decide(ledger, ended(first, Missed("HTTP 503")), NOW)
    assert ledger.outage is not None
    later_ms = ledger.outage.probe_ms
    ledger, work = decide(ledger, offer(ledger.open[1].slice_id), later_ms)
    assert isinstance(work.then, Work)
    ledger, _ = decide(ledger, ended(work.then.request.slice, outcome), later_ms)
    assert (ledger.outage is None) == is_over


@pytest.mark.parametrize("outcome", [WindowStored(), SHORT])
def test_what_missed_fails_by_its_own_fault_once_another_window_was_read(outcome: Outcome) -> None:
    ledger, first = taken(opened())
    ledger, _ = decide(ledger, ended(first, Missed("HTTP 503")), NOW)
    assert ledger.outage is not None
    ledger, work = decide(ledger, offer(ledger.open[1].slice_id), ledger.outage.probe_ms)
    assert isinstance(work.then, Work)
    ledger, _ = decide(ledger, ended(work.then.request.slice, outcome), NOW)
    ledger, again = decide(ledger, offer(first.slice_id), NOW + 60_000)
    assert isinstance(again.then, Work)
    ledger, _ = decide(ledger, ended(again.then.request.slice, Missed("HTTP 503")), NOW + 60_000)
    assert (ledger.open[0].attempt, ledger.outage) == (2, None)


def test_a_window_that_times_out_though_nothing_answers_is_split_in_the_end() -> None:
    """It may be too much for the platform: where all windows are, nobody else could tell."""
    ledger, piece = taken(opened())
    ledger, step = decide(ledger, ended(piece, TimedOut("60 s", is_missed=True)), NOW)
    assert [type(event) for event in step.events] == [SliceFailed]
    again = replace(piece, misses=1)
    ledger = replace(ledger, open=(again, *ledger.open[1:]))
    ledger, step = decide(ledger, ended(again, TimedOut("60 s", is_missed=True)), NOW)
    assert [type(event) for event in step.events] == [SliceSplit]
    assert [(part.attempt, part.misses) for part in ledger.open[:2]] == [(1, 0), (1, 0)]


def test_a_timeout_never_splits_where_that_is_switched_off() -> None:
    ledger, piece = taken(opened(), attempt=2)
    _, step = decide(ledger, ended(piece, TimedOut("60 s"), replace(SETTINGS, split_after=0)), NOW)
    assert [type(event) for event in step.events] == [SliceFailed]


def test_a_window_of_one_step_fails_with_its_own_reason() -> None:
    ledger, piece = taken(opened())
    _, step = decide(ledger, replace(ended(piece, TooWide("10,000 rows")), step_ms=60_000), NOW)
    (event,) = step.events
    assert isinstance(event, SliceFailed)
    assert "10,000 rows" in event.reason


def test_a_refusal_parks_the_source_and_is_told_once() -> None:
    ledger, first = taken(opened())
    second = decide(ledger, offer(ledger.open[1].slice_id), NOW)
    ledger, work = second[0], second[1].then
    assert isinstance(work, Work)
    ledger, step = decide(ledger, ended(first, PlatformRefused("no scope")), NOW)
    assert [type(event) for event in step.events] == [SourceParked]
    ledger, step = decide(ledger, ended(work.request.slice, PlatformRefused("no scope")), NOW)
    assert step == (Ack(), ())
    assert (ledger.state, ledger.reason, [piece.is_taken for piece in ledger.open]) == (
        "parked",
        "no scope",
        [False] * 3,
    )


@pytest.mark.parametrize("good", [WindowStored(), SHORT])
def test_what_no_attempt_can_read_is_given_up_at_once(good: Outcome) -> None:
    ledger, _ = read_as(opened(), 1, good)
    ledger, piece = taken(ledger)
    ledger, _ = decide(ledger, ended(piece, Hopeless("404")), NOW)
    assert [hole.slice_id for hole in ledger.holes] == [piece.slice_id]


def test_a_source_that_never_answered_is_parked_by_the_second_refusal_with_what_the_platform_said() -> None:
    ledger, events = read_as(opened(), 0, Hopeless("404", "s" * 400))
    assert (ledger.state, [type(event) for event in events]) == ("running", [SliceFailed])
    ledger, events = read_as(ledger, 1, Hopeless("404", "s" * 400))
    assert (ledger.state, [type(event) for event in events]) == ("parked", [SourceParked])
    assert ledger.reason == "404; the platform said: " + "s" * 300
    assert ledger.holes == ()
    ledger = steering.resume(ledger, NOW)
    for refusals, state in ((1, "running"), (2, "parked")):
        ledger, _ = read_as(ledger, 2, Hopeless("404"))
        assert (refusals, ledger.state) == (refusals, state)


def test_windows_refused_one_after_the_other_park_a_source_that_once_answered() -> None:
    """After a path or an account has changed, each window is refused: three holes, and not hundreds."""
    ledger = cut(first_ledger(0), replace(SETTINGS, max_open=9), NOW)
    ledger, _ = read_as(ledger, 0, WindowStored())
    while ledger.state == "running":
        at = next(number for number, held in enumerate(ledger.open) if held.attempt == 1)
        ledger, _ = read_as(ledger, at, Hopeless("404"))
    assert len(ledger.holes) == holding.TRUST
    ledger = steering.resume(ledger, NOW)
    ledger, _ = read_as(ledger, 0, WindowStored())
    assert ledger.answers == holding.TRUST


@pytest.mark.parametrize("outcome", ENDS, ids=lambda outcome: type(outcome).__name__)
def test_an_old_holder_changes_nothing_and_leaves_the_message_alone(outcome: Outcome) -> None:
    ledger, old = taken(opened())
    ledger, mine = decide(ledger, offer(old.slice_id), NOW + 3_000)[0], ledger
    after, step = decide(ledger, ended(old, outcome), NOW + 4_000)
    assert mine is not ledger
    assert after is ledger
    assert step == (Forget(), ())


@pytest.mark.parametrize("outcome", ENDS, ids=lambda outcome: type(outcome).__name__)
def test_an_end_told_twice_changes_nothing_the_second_time(outcome: Outcome) -> None:
    ledger, piece = taken(opened())
    ledger, _ = decide(ledger, ended(piece, outcome), NOW)
    after, step = decide(ledger, ended(piece, outcome), NOW + 1)
    assert after is ledger
    assert step == (Forget() if find_open(ledger, piece) else Ack(), ())


def test_a_message_of_a_slice_that_is_gone_is_acknowledged() -> None:
    """Nobody can hold it; left alone, it would come round once more."""
    ledger, piece = taken(opened())
    rewound = steering.rewind(ledger, 0)
    assert decide(rewound, ended(piece, WindowStored()), NOW) == (rewound, (Ack(), ()))


@pytest.mark.parametrize("outcome", NEVER_BLAMES, ids=lambda outcome: type(outcome).__name__)
def test_what_is_nobodys_fault_spends_no_attempt(outcome: Outcome) -> None:
    ledger, piece = taken(opened(), attempt=3)
    ledger, _ = decide(ledger, ended(piece, outcome), NOW)
    assert (ledger.open[0].attempt, ledger.holes) == (3, ())


def test_every_outcome_is_tried_here() -> None:
    assert {type(outcome) for outcome in ENDS} == set(get_args(Outcome))


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(ENDS), st.integers(0, 100_000)), max_size=30))
def test_the_ledger_stays_sound_whatever_becomes_of_its_slices(steps: list[tuple[int, Outcome, int]]) -> None:
    ledger, now_ms = opened(), NOW
    for at, outcome, wait_ms in steps:
        now_ms += wait_ms
        if at >= len(ledger.open):
            break
        watermark_ms = ledger.watermark_ms
        ledger, step = decide(ledger, offer(ledger.open[at].slice_id), now_ms)
        if isinstance(step.then, Work):
            ledger, _ = decide(ledger, ended(step.then.request.slice, outcome), now_ms)
        assert faults(ledger) == []
        assert ledger.watermark_ms >= watermark_ms
