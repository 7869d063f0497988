"""Nothing that can befall an instance loses an item, counts one twice, or leaves it in the middle for good."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors.batch.rules import moves
from actors.batch.rules.moves import RoundEnded
from actors.batch.rules.record import Instance, Seal, faults, fence_of, is_superseded, known_items
from streams.backoff import Backoff
from streams.messages.batch import Counts
from tests.unit.batch.batch_search import ENDS, ODD_ENDS, Rules, search

STREAMING = Rules(most_splits=1, ends=ENDS[:1], staging=moves.stage)


@pytest.mark.parametrize(
    ("rules", "most"),
    [
        (Rules(most_retries=0), 200_000),
        (Rules(most_splits=1, ends=ENDS[:2]), 200_000),
        (Rules(most_splits=1, ends=ENDS[1:]), 200_000),
        (Rules(most_retries=0, most_splits=1, has_alerts=True), 200_000),
        (Rules(most_retries=0, most_splits=1, odd_ends=ODD_ENDS), 200_000),
        (STREAMING._replace(most_splits=2, most_retries=0, most_hands=1), 200_000),
        (STREAMING._replace(most_hands=1), 20_000),
        pytest.param(Rules(most_splits=1), 200_000, marks=pytest.mark.long),
        pytest.param(STREAMING._replace(most_splits=2, most_retries=0), 200_000, marks=pytest.mark.long),
        pytest.param(STREAMING, 200_000, marks=pytest.mark.long),
    ],
    ids=[
        "steps begun twice",
        "failed items again",
        "failed items again, in rounds",
        "told at any time",
        "told to stop, or robbed of a chunk",
        "streaming, begun twice, one executor",
        "streaming, failed, again, one executor, the nearest",
        "failed items again, with every end",
        "streaming, begun twice",
        "streaming, failed, again",
    ],
)
def test_whatever_dies_and_whenever_every_item_counts_once_and_every_instance_ends(rules: Rules, most: int) -> None:
    """Every known bad rule below is caught among the first seven as well, within 10,000 states. All at once,
    `search(Rules(has_alerts=True), most=9_000_000)`, takes more than a quarter of an hour and 12 GB; what of it has
    been searched holds."""
    found = search(rules, most=most)
    assert (found.violations, found.stuck) == ([], 0)
    assert 1_000 < found.states < 200_000  # else the search was cut off, and what it left counts as good


def _counts_every_round(record: Instance, results: Any, *rest: Any, **named: Any) -> Instance:
    """Counts whatever is in the log, without looking whether the chunk waits for that round."""
    counts = record.counts
    for each in results:
        if each.seq > record.counted_seq:
            counts = replace(
                counts,
                succeeded=counts.succeeded + each.counts.succeeded,
                failed=counts.failed + each.counts.failed,
            )
    moved = moves.count(record, results, *rest, **named)
    return moved if moved is record else replace(moved, counts=counts)


def _seals_unfenced(record: Instance, seal: Seal, now_ms: int) -> Instance:
    return moves.seal_split(replace(record, step_fence=seal.fence), seal, now_ms)


def _stages_unfenced(record: Instance, made: Seal) -> Instance:
    return moves.stage(replace(record, step_fence=made.fence), made)


def _stages_anew(record: Instance, made: Seal) -> Instance:
    """What another fence had staged gives way to what a new one has made."""
    return moves.stage(replace(record, staged=()), made)


def _forgets_lost_items(record: Instance, most_failures: float, now_ms: int) -> Instance:
    ended = moves.end_running(replace(record, gone=0), most_failures, now_ms)
    return record if ended.state == record.state else ended


def _ends_with_open_chunks(record: Instance, most_failures: float, now_ms: int) -> Instance:
    ended = moves.end_running(replace(record, open=()), most_failures, now_ms)
    return record if ended.state == record.state else replace(ended, open=record.open)


def _forgets_the_rest(record: Instance, most_failures: float, now_ms: int) -> Instance:
    ended = moves.end_running(record, most_failures, now_ms)
    return replace(ended, counts=record.counts) if ended.state in ("cancelled", "failed") else ended


def _judges_earlier_passes(record: Instance, most_failures: float, now_ms: int) -> Instance:
    return moves.end_running(replace(record, failed_now=record.counts.failed), most_failures, now_ms)


def _sweeps_what_is_written(record: Instance, fence: int) -> bool:
    return fence <= record.step_fence and fence != record.result_fence


def _ends_untold(record: Instance, most_failures: float, now_ms: int) -> Instance:
    return replace(moves.end_running(record, most_failures, now_ms), moments=record.moments)


def _fails_untold(record: Instance, *rest: Any, **named: Any) -> Instance:
    return replace(moves.count(record, *rest, **named), moments=record.moments)


def _fails_each_time(record: Instance, *rest: Any, **named: Any) -> Instance:
    """Owes the first failure anew with each failure."""
    moved = moves.count(replace(record, counts=replace(record.counts, failed=0)), *rest, **named)
    return replace(moved, counts=moves.count(record, *rest, **named).counts) if moved.moments else moved


@pytest.mark.parametrize(
    "rules",
    [
        Rules(counting=_counts_every_round, is_first_writer=False),
        Rules(sealing=_seals_unfenced),
        Rules(ending=_ends_with_open_chunks),
        Rules(ending=_forgets_lost_items, most_retries=0, most_splits=1, odd_ends=ODD_ENDS),
        Rules(ending=_forgets_the_rest),
        Rules(ending=_judges_earlier_passes, most_splits=1),
        Rules(sweeping=_sweeps_what_is_written),
        Rules(ending=_ends_untold),
        Rules(counting=_fails_untold),
        Rules(counting=_fails_each_time),
        Rules(ends=ENDS[:1], staging=_stages_unfenced),
        Rules(ends=ENDS[:1], staging=_stages_anew),
    ],
    ids=[
        "counts every round",
        "seals without a fence",
        "ends with open chunks",
        "forgets lost items",
        "forgets the rest",
        "judges earlier passes",
        "sweeps what is written",
        "ends untold",
        "fails untold",
        "fails each time",
        "stages without a fence",
        "stages anew",
    ],
)
def test_a_known_bad_rule_is_caught(rules: Rules) -> None:
    assert search(rules).violations


def test_the_files_of_a_result_stand_until_there_is_another() -> None:
    record = moves.end_running(run_of(released=2, counts=Counts(failed=4)), 1, 1)
    assert (record.state, record.step_fence) == ("reducing", 2)
    record = renewed(record)
    assert left(record) == {1, 2}
    assert moves.reduced(record, 2, Raw(b"{}"), 1) is record
    record = moves.reduced(record, 3, Raw(b"{}"), 1)
    assert (record.state, record.result_fence, left(record)) == ("done", 3, {1, 2})
    record = replace(moves.retry(record), released=2)
    assert left(record) == {1, 2}
    record = moves.end_running(record, 1, 1)
    assert (record.step_fence, left(record)) == (4, {1, 2})
    assert left(moves.reduced(record, 4, Raw(b"{}"), 1)) == {1, 2, 3}


def left(record: Instance) -> set[int]:
    """Return under which fences files may go."""
    return {fence for fence in range(1, 10) if is_superseded(record, fence)}


def run_of(items: int = 4, chunks: int = 2, **facts: Any) -> Instance:
    seal = Seal(fence=1, chunks=chunks, items=items, digest="d")
    record = Instance(instance_id="i", task="t", created_ms=0, state="running", step_fence=1, seal=seal)
    return replace(record, **facts)


def test_paused_nothing_is_released_and_the_end_waits() -> None:
    record = moves.pause(run_of())
    assert moves.release(record, 10) is record
    done = replace(record, released=2, counts=Counts(succeeded=4))
    assert moves.end_running(done, 1, 1) is done
    assert moves.end_running(moves.resume(done), 1, 1).state == "reducing"


def test_more_failures_than_allowed_end_it_and_the_rest_is_cancelled() -> None:
    record = run_of(released=1, counts=Counts(failed=2), failed_now=2)
    ended = moves.end_running(record, 0.4, 1)
    assert (ended.state, ended.counts, ended.reason) == ("failed", Counts(failed=2, cancelled=2), "2 items failed")
    again = moves.retry(ended)
    assert moves.end_running(again, 0.4, 1) is again
    over = replace(again, released=2, counts=Counts(failed=2, succeeded=2))
    assert moves.end_running(over, 0.4, 1).reason == "2 items failed"


def test_a_split_that_fails_too_often_fails_the_instance_and_can_be_begun_again() -> None:
    record = moves.start(Instance(instance_id="i", task="t", created_ms=0), 1)
    for _ in range(2):
        assert record.state == "splitting"
        record = moves.fail_step(record, record.step_fence, "no such column", Backoff(retries=1), 1)
    assert (record.state, record.reason) == ("failed", "no such column")
    assert moves.retry(record).state == "pending"


@pytest.mark.parametrize("act", [moves.pause, lambda record: moves.cancel(record, 1)])
def test_what_is_done_stays_done(act: Callable[[Instance], Instance]) -> None:
    record = run_of(state="done", counts=Counts(succeeded=4), released=2)
    assert act(record) is record
    assert moves.retry(record) is record


def renewed(record: Instance) -> Instance:
    """Begin the step at work, and renew it."""
    return moves.renew_step(moves.begin_step(record, record.step_fence, 1), record.step_fence, 1)


def streaming(chunks: int, **facts: Any) -> Instance:
    """Return an instance whose first split has made so many chunks of two items."""
    made = (Seal(fence=1, chunks=chunks, items=2 * chunks, digest="d", version="2"),)
    record = Instance(instance_id="i", task="t", created_ms=0, state="splitting", step_fence=1, step_attempts=1)
    return replace(record, staged=made, **facts)


def test_what_a_streaming_split_has_made_stands_under_its_fence_whoever_goes_on() -> None:
    record = moves.release(streaming(2), 10)
    assert [each.chunk for each in record.open] == [0, 1]
    record = renewed(record)
    assert moves.stage(record, Seal(fence=1, chunks=3, items=6, digest="d")) is record
    record = moves.stage(record, Seal(fence=2, chunks=4, items=8, digest="d"))
    assert moves.stage(record, Seal(fence=2, chunks=4, items=8, digest="d")) is record
    record = moves.seal_split(record, Seal(fence=2, chunks=5, items=9, digest="d"), 1)
    assert [fence_of(record, chunk) for chunk in range(5)] == [1, 1, 2, 2, 2]
    assert (known_items(record), faults(record)) == (9, [])


def test_a_step_that_takes_its_processes_down_fails_its_instance_in_the_end() -> None:
    record = moves.start(Instance(instance_id="i", task="t", created_ms=0), 1)
    for fence in range(1, moves.MOST_STARTS):
        record = renewed(record)
        assert (record.state, record.step_fence) == ("splitting", fence + 1)
    assert moves.renew_step(record, 1, 1) is record
    record = renewed(record)
    assert record.state == "failed"
    assert record.reason.startswith("splitting: begun 30 times; ")
    assert moves.start(moves.retry(record), 1).step_attempts == 0


def test_a_step_begins_once_under_a_fence_and_what_nobody_began_waits_for_its_turn() -> None:
    record = moves.start(Instance(instance_id="i", task="t", created_ms=0), 1)
    assert moves.renew_step(record, 1, 60_000) is record
    paused = moves.pause(record)
    assert moves.begin_step(paused, 1, 2) is paused
    begun = moves.begin_step(record, 1, 2)
    assert (begun.begun_fence, begun.step_attempts, begun.step_since_ms) == (1, 1, 2)
    assert moves.begin_step(begun, 1, 3) is begun
    again = moves.renew_step(begun, 1, 4)
    assert moves.begin_step(again, 1, 5) is again
    assert moves.begin_step(again, 2, 5).step_attempts == 2


def test_processes_that_died_use_up_no_attempt_of_a_step_that_fails() -> None:
    record, policy = moves.start(Instance(instance_id="i", task="t", created_ms=0), 1), Backoff(retries=2)
    for _ in range(3):
        record = renewed(record)
    for _ in range(2):
        record = moves.fail_step(record, record.step_fence, "no link", policy, 1)
        assert record.state == "splitting"
    assert moves.fail_step(record, record.step_fence, "no link", policy, 1).state == "failed"


def test_attempts_that_failed_do_not_count_as_processes_that_died() -> None:
    record, policy = moves.start(Instance(instance_id="i", task="t", created_ms=0), 1), Backoff(retries=99)
    for _ in range(moves.MOST_STARTS):
        record = moves.fail_step(
            moves.begin_step(record, record.step_fence, 1), record.step_fence, "no link", policy, 1
        )
    assert renewed(record).state == "splitting"


def test_a_streaming_split_that_failed_waits_for_what_runs_and_counts_the_rest() -> None:
    record = moves.release(streaming(2, is_paused=False), 1)
    record = moves.fail_step(record, 1, "no link", Backoff(retries=0), 1)
    assert (record.state, record.is_cancelling, len(record.open)) == ("splitting", True, 1)
    assert moves.seal_split(record, Seal(fence=1, chunks=3, items=6, digest="d"), 1) is record
    ended = RoundEnded(seq=1, chunk=0, round=1, counts=Counts(succeeded=1, failed=1))
    record = moves.count(record, [ended], Backoff(), 1, chance=0, upto_seq=1)
    record = moves.end_running(record, 1, 1)
    assert (record.state, record.reason, known_items(record)) == ("failed", "no link", 4)
    assert record.counts == Counts(succeeded=1, failed=1, cancelled=2)
    again = moves.stage(moves.start(moves.retry(record), 1), Seal(fence=2, chunks=3, items=6, digest="d"))
    again = moves.release(again, 10)
    assert [(each.chunk, each.round) for each in again.open] == [(0, 1001), (1, 1001), (2, 1)]
