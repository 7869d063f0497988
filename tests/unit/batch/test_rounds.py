"""Whatever rounds and passes a chunk goes through, each of its items is counted once, as it ended last."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from actors.batch.rules.moves import RoundEnded, count, end_running, reduced, release, retry
from actors.batch.rules.record import Instance, Seal, earlier_rounds, faults, first_round, round_of_pass
from actors.batch.rules.rounds import (
    attempts_of,
    items_to_run,
    leave_ms,
    may_leave,
    missing_round,
    result_of,
    shortened,
)
from streams.backoff import Backoff
from streams.messages.batch import Chunk, ChunkResult, Counts, Outcome, Status, last_outcomes

ITEMS = 5
CHUNK = Chunk(first=10, items=(Raw(b"{}"),) * ITEMS)
POLICY = Backoff(retries=2)
ENDS: list[Status] = ["ok", "failed", "unknown", "skipped", "cancelled"]
REDO: list[tuple[int, ...]] = [(), (10,), (11, 14)]


@given(st.data())
def test_each_item_counts_once_as_it_ended_last(data: st.DataObject) -> None:
    seal = Seal(fence=1, chunks=1, items=ITEMS, digest="d")
    record = Instance(instance_id="i", task="t", created_ms=0, state="running", seal=seal)
    results: list[ChunkResult] = []
    for redo in data.draw(st.lists(st.sampled_from(REDO), min_size=1, max_size=3)):
        record = release(record, 1)
        while record.open:
            number = record.open[0].round
            may_repeat = round_of_pass(number) <= POLICY.retries + 10
            ends = st.sampled_from([*ENDS, "again"] if may_repeat else ENDS)
            run = items_to_run(CHUNK, results, number, record.redo)
            begun = run if len(results) > 20 else run[: data.draw(st.integers(0, len(run)))]
            outcomes = [Outcome(index, data.draw(ends)) for index in begun]
            left = len(run) - len(begun)
            result = result_of(CHUNK, 0, number, outcomes, results, "me", left=left)
            results.append(result)
            ended = RoundEnded(
                len(results), 0, number, result.counts, result.again, result.redone, result.reasons, left
            )
            record = count(record, [ended], POLICY, 0, chance=0, upto_seq=len(results))
        record = end_running(record, 1, 0)
        stands = Counter(end.status if end else None for end in last_outcomes(CHUNK, results))
        told = record.counts
        assert (told.succeeded, told.failed, told.unknown) == (stands["ok"], stands["failed"], stands["unknown"])
        assert (told.skipped, told.cancelled) == (stands["skipped"], stands["cancelled"])
        assert not faults(record)
        again = retry(_done(record), redo)
        if again.state != "running":
            return
        assert first_round(again, 0) % 1000 == 1
        record = again


def _done(record: Instance) -> Instance:
    assert record.state == "reducing"
    return reduced(record, record.step_fence, Raw(b"{}"), 0)


def test_what_an_item_tells_too_much_of_is_left_out_and_its_end_stays() -> None:
    long = Raw(b'"' + b"x" * 5_000 + b'"')
    result = result_of(CHUNK, 0, 1, [Outcome(10, "failed", long), Outcome(11, "ok", Raw(b"1"))], [], "me")
    assert result.others == (Outcome(10, "failed"), Outcome(11, "ok", Raw(b"1")))
    assert (result.ran, result.counts.failed, result.counts.succeeded) == (((10, 12),), 1, 1)
    assert result.reasons[0].startswith('item 10: "xxx')
    assert len(result.reasons[0]) < 400


def test_what_was_never_run_is_run_by_the_next_pass() -> None:
    first = result_of(CHUNK, 0, 1, [Outcome(10, "ok"), Outcome(11, "failed")], [], "me")
    assert items_to_run(CHUNK, [first], 1001) == [11, 12, 13, 14]
    again = result_of(CHUNK, 0, 1001, [Outcome(index, "ok") for index in range(11, 15)], [first], "me")
    assert (again.redone.failed, again.redone.cancelled) == (1, 3)


def test_a_round_that_has_not_begun_an_item_is_none_of_its_tries() -> None:
    first = result_of(CHUNK, 0, 1, [Outcome(10, "again"), Outcome(11, "ok")], [], "me", left=3)
    assert items_to_run(CHUNK, [first], 2) == [10, 12, 13, 14]
    assert attempts_of([10, 12, 13, 14], [first], 2) == {10: 2, 12: 1, 13: 1, 14: 1}
    second = result_of(CHUNK, 0, 2, [Outcome(index, "again") for index in (10, 12, 13, 14)], [first], "me")
    assert attempts_of([10, 12], [first, second], 3) == {10: 3, 12: 2}
    assert (first.left, first.again, second.left) == (3, 1, 0)
    third = result_of(CHUNK, 0, 3, [Outcome(12, "again")], [first, second], "me", left=1)
    assert [each.attempt for each in (first, second, third)] == [1, 2, 2]
    assert result_of(CHUNK, 0, 3, [Outcome(12, "ok")], [first, second], "me", left=1).attempt == 0


def test_what_a_later_pass_left_over_is_run_by_its_next_round_alone() -> None:
    first = result_of(CHUNK, 0, 1, [Outcome(index, "failed") for index in range(10, 15)], [], "me")
    again = result_of(CHUNK, 0, 1001, [Outcome(10, "ok"), Outcome(11, "failed")], [first], "me", left=3)
    assert items_to_run(CHUNK, [first, again], 1002) == [12, 13, 14]
    assert items_to_run(CHUNK, [first, again], 1002, redo=(10, 11, 14)) == [14]
    assert attempts_of([12], [first, again], 1002) == {12: 1}


def test_a_round_waits_for_all_results_that_it_goes_by() -> None:
    results = {number: ChunkResult(chunk=0, round=number) for number in (1, 2, 1001, 1002, 2001)}
    results[1] = replace(results[1], again=1)
    results[1001] = replace(results[1001], left=2)
    for gone in (1, 2, 1001, 1002, 2001):
        known = [each for number, each in results.items() if number != gone]
        assert missing_round(known, 2002, [1, 1001]) == gone
    assert missing_round(list(results.values()), 2002, [1, 1001]) is None
    assert missing_round([], 1, []) is None


def test_a_round_that_comes_again_needs_none_of_the_rounds_behind_it() -> None:
    known = [result_of(CHUNK, 0, number, [], [], "me", left=1) for number in (1, 2, 3)]
    assert [missing_round(known, number, []) for number in (1, 2, 3)] == [None] * 3


def test_each_pass_knows_which_chunks_the_earlier_ones_let_out() -> None:
    record = Instance(instance_id="i", task="t", created_ms=0, state="cancelled", released=2)
    again = replace(retry(record), state="cancelled", released=5, first_new=3)
    third = retry(again)
    assert [earlier_rounds(third, chunk) for chunk in (0, 2, 3, 5)] == [[1, 1001], [1001], [1], []]
    assert earlier_rounds(replace(third, past=third.past[1:]), 0) == [1001]  # of a record from before this was kept


def test_what_is_too_long_loses_its_longest_parts_until_nothing_is_told() -> None:
    infos = [Raw(b"%d" % 10**size) for size in (10, 500, 300, 1_000)]
    outcomes = [Outcome(10 + at, "failed", info) for at, info in enumerate(infos)]
    result: ChunkResult | None = result_of(CHUNK, 0, 1, outcomes, [], "me")
    lengths, short = [], [True]
    while result is not None:
        lengths.append(sum(len(bytes(each.info)) for each in result.others))
        short.append(result.others[0].info == infos[0])
        assert [(each.index, each.status) for each in result.others] == [(10 + at, "failed") for at in range(4)]
        assert (result.ran, result.counts.failed) == (((10, 14),), 4)
        result = shortened(result)
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == len(lengths)
    assert short == sorted(short, reverse=True)


def test_a_pass_keeps_rounds_for_what_goes_round_again() -> None:
    assert may_leave(1)
    assert may_leave(1001)
    assert not may_leave(990)
    assert not may_leave(1990)


@pytest.mark.parametrize("first", [1, 1001])
def test_a_pass_has_rounds_enough_for_half_a_day_without_slots(first: int) -> None:
    waits = [leave_ms(number) for number in range(first, first + 1000)]
    known = [wait for wait in waits if wait is not None]
    assert waits == known + [None] * (1000 - len(known))
    assert (known[0], known[-1]) == (500, 60_000)
    assert known == sorted(known)
    assert sum(known) > 12 * 3_600_000


def test_left_over_items_wait_for_nothing_and_lost_ones_have_failed_when_all_others_are_over() -> None:
    seal = Seal(fence=1, chunks=2, items=10, digest="d")
    record = release(Instance(instance_id="i", task="t", created_ms=0, state="running", seal=seal), 2)
    left = RoundEnded(1, 0, 1, Counts(succeeded=2), left=3)
    record = count(record, [left], POLICY, 50, chance=0, upto_seq=1)
    assert [(each.chunk, each.round, each.not_before_ms) for each in record.open] == [(0, 2, 50), (1, 1, 0)]
    record = count(record, [RoundEnded(2, 1, 1, Counts(), is_gone=True)], POLICY, 50, chance=0, upto_seq=2)
    assert [each.chunk for each in record.open] == [0]
    assert end_running(record, 1, 60) is record
    record = count(record, [RoundEnded(3, 0, 2, Counts(succeeded=2, failed=1))], POLICY, 70, chance=0, upto_seq=3)
    record = end_running(record, 1, 80)
    assert (record.state, record.counts) == ("reducing", Counts(succeeded=4, failed=6))
    assert record.reasons == ("5 items: its chunk is gone: somebody removed it from the stream",)
    assert not faults(record)
