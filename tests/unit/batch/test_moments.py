"""What an instance has to tell: each moment once, owed until told, kept while its call is under way."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.batch.rules import moments, moves
from actors.batch.rules.moves import RoundEnded
from actors.batch.rules.record import Instance, Moment, OpenChunk, Seal
from streams.backoff import Backoff
from streams.messages.batch import Counts, encode_message

URL = "https://shop.example.com/told"
SEAL = Seal(fence=1, chunks=2, items=4, digest="d")


def running(**facts: object) -> Instance:
    record = Instance(instance_id="i", task="t", created_ms=7, state="running", step_fence=1, seal=SEAL, released=2)
    return replace(record, open=(OpenChunk(chunk=0, round=1), OpenChunk(chunk=1, round=1)), **facts)


def counted(record: Instance, seq: int, chunk: int, now_ms: int = 50, **counts: int) -> Instance:
    ended = RoundEnded(seq, chunk, 1, Counts(**counts), reasons=("no such shop",))
    return moves.count(record, [ended], Backoff(), now_ms, chance=0, upto_seq=seq)


def names(record: Instance) -> list[tuple[str, int, str]]:
    return [(moment.name, moment.pass_no, moment.state) for moment in record.moments]


@pytest.mark.parametrize("end", ["failed", "unknown"])
def test_the_first_failure_is_owed_once(end: str) -> None:
    record = counted(running(), 1, 0, succeeded=1, **{end: 1})
    assert names(record) == [("first_failure", 1, "owed")]
    assert record.moments[0].counts == Counts(succeeded=1, **{end: 1})
    assert record.moments[0].reason == "no such shop"
    again = counted(record, 2, 1, now_ms=60, **{end: 2})
    assert again.moments == record.moments


def test_without_a_failure_only_the_end_is_owed() -> None:
    record = counted(counted(running(), 1, 0, succeeded=2), 2, 1, skipped=2)
    assert record.moments == ()
    reducing = moves.end_running(record, 1, 60)
    done = moves.reduced(reducing, reducing.step_fence, msgspec.Raw(b"{}"), 70)
    assert names(done) == [("done", 1, "owed")]
    assert (done.moments[0].at_ms, done.moments[0].counts) == (70, Counts(succeeded=2, skipped=2))


def test_what_fails_too_often_and_what_is_cancelled_is_told_at_its_end() -> None:
    failed = moves.end_running(counted(replace(running(), open=(OpenChunk(chunk=0, round=1),)), 1, 0, failed=2), 0.1, 9)
    assert [name for name, *_ in names(failed)] == ["first_failure", "failed"]
    assert failed.moments[1].reason == "2 items failed"
    assert names(moves.cancel(Instance(instance_id="i", task="t", created_ms=7), 9)) == [("cancelled", 1, "owed")]
    begun = moves.start(Instance(instance_id="i", task="t", created_ms=7), 1)
    broken = moves.fail_step(begun, begun.step_fence, "no such column", Backoff(retries=0), 9)
    assert (names(broken), broken.moments[0].reason) == ([("failed", 1, "owed")], "no such column")


def test_a_retry_forgets_nothing_that_is_owed() -> None:
    done = replace(running(), state="done", open=(), counts=Counts(succeeded=3, failed=1))
    done = moments.reach(done, "done", 5)
    assert names(moves.retry(done)) == [("done", 1, "owed")]


def test_told_without_a_callback_it_leaves_the_record_and_with_one_it_waits() -> None:
    record = moments.reach(running(), "done", 5)
    assert moments.mark_reported(record, moments.owed(record)).moments == ()
    record = moments.reach(running(callback=URL), "done", 5)
    owed = moments.owed(record)
    waiting = moments.mark_reported(record, owed)
    assert names(waiting) == [("done", 1, "waiting")]
    assert moments.owed(waiting) == ()
    assert moments.mark_reported(waiting, owed) is waiting


def test_a_call_that_was_quicker_than_the_record_stays() -> None:
    record = moments.reach(running(callback=URL), "done", 5)
    owed = moments.owed(record)
    taken = moments.called(record, owed[0], "taken", tries=1)
    assert moments.mark_reported(taken, owed) is taken
    assert moments.called(taken, owed[0], "waiting", tries=2, info="late") is taken


def test_a_call_that_was_given_up_can_still_be_taken() -> None:
    record = moments.reach(running(callback=URL), "done", 5)
    given_up = moments.called(record, record.moments[0], "given_up", tries=12, info="503" * 200)
    assert (given_up.moments[0].tries, len(given_up.moments[0].info)) == (12, 300)
    assert names(moments.called(given_up, record.moments[0], "taken", tries=1)) == [("done", 1, "taken")]


def test_an_event_says_the_same_each_time() -> None:
    record = moments.reach(running(callback=URL, counts=Counts(succeeded=4)), "done", 5)
    event = moments.event_of(record, record.moments[0])
    assert (event.event_id, event.items, event.counts["succeeded"]) == ("i.7.1.done", 4, 4)
    assert event.counts["failed"] == 0  # all of them are there, for readers that know no defaults
    later = moments.called(replace(record, counts=Counts()), record.moments[0], "waiting", tries=3)
    assert moments.event_of(later, later.moments[0]) == event


def test_what_a_callback_says_keeps_its_form() -> None:
    """Others' programs read it; fields may come, and none may go."""
    record = moments.reach(running(callback=URL, counts=Counts(succeeded=3, failed=1)), "done", 50)
    assert encode_message(moments.event_of(record, record.moments[0])) == (
        b'{"event_id":"i.7.1.done","event":"done","instance_id":"i","task":"t","tenant":"","pass_no":1,"at_ms":50,"items":4,'
        b'"counts":{"succeeded":3,"failed":1,"unknown":0,"skipped":0,"cancelled":0},"reason":""}'
    )


@given(st.lists(st.sampled_from(["owed", "waiting", "taken", "given_up"]), max_size=60))
def test_what_is_not_settled_is_kept_whatever_else_goes(states: list[str]) -> None:
    held = tuple(
        Moment(name="done", pass_no=at, at_ms=at, counts=Counts(), state=state)  # type: ignore[arg-type]
        for at, state in enumerate(states, 1)
    )
    after = moments.reach(running(moments=held, passes=len(states) + 1), "done", 99).moments
    assert [each for each in held if each.state in ("owed", "waiting")] == [
        each for each in after[:-1] if each.state in ("owed", "waiting")
    ]
    assert len([each for each in after if each.state in ("taken", "given_up")]) <= 20
    assert after[-1].pass_no == len(states) + 1
    assert list(after) == sorted(after, key=lambda each: each.pass_no)
