"""The moves of an instance, each alone: what comes late or in the wrong state changes nothing, and waits are waited."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors.batch.rules import moves
from actors.batch.rules.moves import RoundEnded
from actors.batch.rules.record import ROUNDS, Instance, OpenChunk, Seal
from streams.backoff import Backoff, next_delay_ms
from streams.messages.batch import Counts

POLICY = Backoff(retries=5, growth="exponential", base_ms=100, cap_ms=10_000, spread=0.0)
FRESH = Instance(instance_id="i", task="t", created_ms=0)


def running(**facts: Any) -> Instance:
    """Return an instance of four items in two chunks, which have been let out."""
    seal = Seal(fence=1, chunks=2, items=4, digest="d")
    return replace(FRESH, **{"state": "running", "step_fence": 1, "seal": seal, "released": 2, **facts})


def streaming() -> Instance:
    """Return an instance that is being split, with one chunk of what there is so far at work."""
    made = Seal(fence=1, chunks=1, items=2, digest="d")
    return moves.release(moves.stage(moves.start(FRESH, 1), made), 1)


def after_its_chunk(record: Instance) -> Instance:
    """Return the instance after its open chunk has ended well."""
    [chunk] = record.open
    ended = RoundEnded(seq=1, chunk=chunk.chunk, round=chunk.round, counts=Counts(succeeded=2))
    return moves.end_running(moves.count(record, [ended], POLICY, 1, chance=0, upto_seq=1), 1, 1)


def test_a_paused_instance_does_not_begin() -> None:
    record = moves.pause(FRESH)
    assert moves.start(record, 1) is record
    assert moves.start(moves.resume(record), 1).state == "splitting"


def _sealed(record: Instance, fence: int) -> Instance:
    return moves.seal_split(record, Seal(fence=fence, chunks=2, items=4, digest="d"), 1)


def _reduced(record: Instance, fence: int) -> Instance:
    return moves.reduced(record, fence, Raw(b"1"), 1)


@pytest.mark.parametrize(
    ("record", "end", "state"),
    [
        (replace(FRESH, state="splitting", step_fence=3), _sealed, "running"),
        (running(state="reducing", step_fence=3, counts=Counts(succeeded=4)), _reduced, "done"),
    ],
    ids=["split", "reduce"],
)
def test_who_ends_a_step_late_changes_nothing(
    record: Instance, end: Callable[[Instance, int], Instance], state: str
) -> None:
    """Another had the step meanwhile, and has not ended it yet."""
    assert end(record, 2) is record
    assert end(record, 4) is record
    assert end(record, 3).state == state


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize(("tries", "wait_ms"), [(1, 100), (2, 200), (4, 800)])
def test_what_goes_round_again_waits_as_long_in_every_pass(passes: int, tries: int, wait_ms: int) -> None:
    number = (passes - 1) * ROUNDS + tries
    record = running(passes=passes, open=(OpenChunk(chunk=1, round=number),))
    ended = RoundEnded(seq=1, chunk=1, round=number, counts=Counts(), again=2)
    [chunk] = moves.count(record, [ended], POLICY, 5_000, chance=0, upto_seq=1).open
    assert chunk == OpenChunk(chunk=1, round=number + 1, not_before_ms=5_000 + wait_ms)


def test_what_a_stopping_node_has_left_does_not_wait() -> None:
    ended = RoundEnded(seq=1, chunk=1, round=1, counts=Counts(succeeded=1), left=1)
    record = running(open=(OpenChunk(chunk=1, round=1),))
    [chunk] = moves.count(record, [ended], POLICY, 5_000, chance=0, upto_seq=1).open
    assert chunk == OpenChunk(chunk=1, round=2, not_before_ms=5_000)


@pytest.mark.parametrize(
    ("attempt", "left_ms", "wait_ms"), [(1, 500, 500), (4, 500, 800), (4, 0, 800), (4, 3_000, 3_000)]
)
def test_what_failed_waits_its_time_though_others_of_its_chunk_are_left(
    attempt: int, left_ms: int, wait_ms: int
) -> None:
    ended = RoundEnded(seq=1, chunk=1, round=7, counts=Counts(), again=1, attempt=attempt, left=1, left_ms=left_ms)
    record = running(open=(OpenChunk(chunk=1, round=7),))
    [chunk] = moves.count(record, [ended], POLICY, 5_000, chance=0, upto_seq=1).open
    assert chunk == OpenChunk(chunk=1, round=8, not_before_ms=5_000 + wait_ms)


def test_a_wait_goes_by_the_attempts_of_the_item_and_not_by_the_rounds_of_its_chunk() -> None:
    ended = RoundEnded(seq=1, chunk=1, round=7, counts=Counts(), again=1, attempt=2)
    record = running(open=(OpenChunk(chunk=1, round=7),))
    [chunk] = moves.count(record, [ended], POLICY, 5_000, chance=0, upto_seq=1).open
    assert chunk == OpenChunk(chunk=1, round=8, not_before_ms=5_200)


def test_what_was_cancelled_ends_so_though_its_step_fails_meanwhile() -> None:
    record = moves.cancel(streaming(), 1)
    assert record.is_cancelling
    assert moves.fail_step(record, record.step_fence, "no link", Backoff(retries=0), 1) is record
    assert after_its_chunk(record).state == "cancelled"


def test_what_has_failed_ends_so_though_it_is_cancelled_meanwhile() -> None:
    record = streaming()
    record = moves.fail_step(record, record.step_fence, "no link", Backoff(retries=0), 1)
    assert moves.cancel(record, 1) is record
    ended = after_its_chunk(record)
    assert (ended.state, ended.reason) == ("failed", "no link")


def test_a_step_that_failed_is_offered_again_after_the_wait_of_its_policy() -> None:
    record, policy = moves.start(Instance(instance_id="i", task="t", created_ms=0), 1), Backoff(retries=3, base_ms=100)
    record = moves.fail_step(moves.begin_step(record, 1, 5), 1, "no link", policy, 1_000)
    assert (record.step_fence, record.step_not_before_ms) == (2, 1_100)
    record = moves.fail_step(moves.begin_step(record, 2, 1_200), 2, "no link", policy, 2_000)
    assert record.step_not_before_ms == 2_000 + next_delay_ms(3, policy, chance=0.0)
    sealed = moves.seal_split(moves.begin_step(record, 3, 3_000), Seal(fence=3, chunks=0, items=0, digest="d"), 3_000)
    assert moves.end_running(sealed, 1, 3_000).step_not_before_ms == 0


def test_a_step_that_rejects_its_batch_has_no_other_try() -> None:
    record = moves.start(Instance(instance_id="i", task="t", created_ms=0), 1)
    record = moves.fail_step(record, 1, "no column", Backoff(retries=9), 1_000, is_final=True)
    assert (record.state, record.reason) == ("failed", "no column")


def test_what_nobody_knows_is_no_failure_that_stops_an_instance() -> None:
    record = running(counts=Counts(succeeded=1, unknown=3))
    assert moves.end_running(record, 0.5, 1).state == "reducing"
