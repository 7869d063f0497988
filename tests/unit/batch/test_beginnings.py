"""When an instance may begin: at its time, and after the end of another one."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from actors.batch.rules import moves
from actors.batch.rules.obstacles import begins
from actors.batch.rules.record import FINAL, Instance, State
from actors.batch.rules.unfinished import Unfinished
from streams.messages.batch import AfterState, Counts

NOW_MS = 1_000_000
BEFORE = Instance(instance_id="b0", task="t", created_ms=7)
HELD = Instance(instance_id="b1", task="t", created_ms=8, after="b0", after_created_ms=7)


def test_an_instance_begins_at_its_time_and_not_before() -> None:
    record = Instance(instance_id="b1", task="t", created_ms=0, due_ms=NOW_MS)
    assert moves.start(record, NOW_MS - 1) is record
    assert moves.start(record, NOW_MS).state == "splitting"
    assert begins(record, NOW_MS - 1) == "begins at 1970-01-01T00:16:40Z"
    assert begins(record, NOW_MS) == ""


@pytest.mark.parametrize(
    ("wanted", "ended", "state"),
    [
        ("done", {"state": "done", "counts": Counts(failed=3)}, "pending"),
        ("done", {"state": "failed", "reason": "no file"}, "failed"),
        ("done", {"state": "cancelled"}, "failed"),
        ("clean", {"state": "done", "counts": Counts(succeeded=3, skipped=1)}, "pending"),
        ("clean", {"state": "done", "counts": Counts(succeeded=3, failed=1)}, "failed"),
        ("clean", {"state": "done", "counts": Counts(unknown=1)}, "failed"),
        ("not_done", {"state": "done"}, "failed"),
        ("not_done", {"state": "failed"}, "pending"),
        ("not_done", {"state": "cancelled"}, "pending"),
        ("over", {"state": "cancelled"}, "pending"),
    ],
)
def test_it_goes_on_or_fails_by_how_the_other_one_ended(wanted: AfterState, ended: Any, state: State) -> None:
    after = moves.follow(replace(HELD, after_state=wanted), replace(BEFORE, **ended), NOW_MS)
    assert after.state == state
    assert (moves.start(after, NOW_MS).state == "splitting") is (state == "pending")
    assert (f"after b0 {moves.AFTER[wanted]}, which is {ended['state']}" in after.reason) is (state == "failed")


def test_it_begins_no_earlier_than_the_other_one_ended_whatever_the_clocks_say() -> None:
    freed = moves.follow(HELD, replace(BEFORE, state="done", ended_ms=NOW_MS + 2), NOW_MS)
    assert moves.start(freed, NOW_MS).started_ms == NOW_MS + 2


def test_a_predecessor_that_is_gone_or_another_one_now_is_told() -> None:
    for before in (None, replace(BEFORE, created_ms=9, state="done")):
        after = moves.follow(HELD, before, NOW_MS)
        assert (after.state, "deleted before its end was seen" in after.reason) == ("failed", True)


def test_a_failed_one_that_is_retried_looks_again() -> None:
    failed = moves.follow(HELD, replace(BEFORE, state="cancelled"), NOW_MS)
    again = moves.retry(failed)
    assert moves.start(again, NOW_MS) is again
    assert moves.start(moves.follow(again, replace(BEFORE, state="done"), NOW_MS), NOW_MS).state == "splitting"


def test_a_person_lets_it_begin_at_once() -> None:
    held = replace(HELD, due_ms=NOW_MS + 5)
    assert moves.start(moves.begin_now(held, NOW_MS), NOW_MS).state == "splitting"
    for record in (moves.start(moves.begin_now(held, NOW_MS), NOW_MS), moves.cancel(held, NOW_MS), BEFORE):
        assert moves.begin_now(record, NOW_MS) is record


states = some.sampled_from(sorted(get_args(State)))
befores = some.none() | some.builds(
    replace,
    some.just(BEFORE),
    state=states,
    created_ms=some.sampled_from([7, 9]),
    counts=some.sampled_from([Counts(), Counts(failed=1)]),
)


@given(some.lists(befores, max_size=4), some.sampled_from(get_args(AfterState)), some.booleans())
def test_what_was_freed_or_has_ended_is_held_by_nothing_later(
    seen: list[Instance | None], wanted: AfterState, is_cancelled: bool
) -> None:
    record = replace(HELD, after_state=wanted)
    if is_cancelled:
        record = moves.cancel(record, NOW_MS)
    for before in seen:
        after = moves.follow(record, before, NOW_MS)
        if record.freed_ms or record.state in FINAL:
            assert after is record
        if before is not None and before.created_ms == 7 and before.state not in FINAL:
            assert after is record
        record = after
    assert moves.start(record, NOW_MS).state in ("pending", "splitting", *FINAL)


@pytest.mark.parametrize(
    ("record", "due_ms"),
    [
        (Instance(instance_id="b1", task="t", created_ms=0, due_ms=NOW_MS + 7), NOW_MS + 7),
        (Instance(instance_id="b1", task="t", created_ms=0), None),
        (HELD, None),
        (replace(HELD, due_ms=NOW_MS + 86_400_000), None),
        (replace(HELD, due_ms=NOW_MS + 7, freed_ms=5), NOW_MS + 7),
    ],
)
def test_what_waits_for_its_time_alone_is_looked_at_then(record: Instance, due_ms: int | None) -> None:
    unfinished = Unfinished()
    unfinished.put(record)
    assert unfinished.come_due(NOW_MS) == due_ms
