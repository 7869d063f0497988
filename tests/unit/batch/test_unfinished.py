"""The unfinished instances of a task, sorted as they come, are the same as if all were looked at."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.batch.rules.record import FINAL, TRANSITIONS, Instance, is_at_work, is_held, may_begin
from actors.batch.rules.unfinished import Unfinished

NOW_MS = 1_000
STATES = st.sampled_from(sorted(TRANSITIONS))
CHANGES = st.fixed_dictionaries(
    {
        "created_ms": st.integers(0, 3),
        "state": STATES | st.just("pending"),
        "is_paused": st.booleans(),
        "is_cancelling": st.booleans(),
        "tenant": st.sampled_from("ab"),
        "priority": st.integers(0, 1),
        "due_ms": st.sampled_from([0, 1, NOW_MS, NOW_MS + 1, NOW_MS + 2]),
        "after": st.sampled_from(["", "another"]),
        "freed_ms": st.sampled_from([0, 5]),
    }
)


@given(st.lists(st.tuples(st.sampled_from("pqrs"), CHANGES | st.none(), st.booleans()), max_size=20))
def test_what_is_sorted_is_what_a_look_at_all_would_find(steps: list[tuple[str, dict[str, Any] | None, bool]]) -> None:
    unfinished, there = Unfinished(), dict[str, Instance]()
    for name, facts, is_looked_at in steps:
        there.pop(name, None)
        if facts is None:
            unfinished.drop(name)
        else:
            record = Instance(instance_id=name, task="t", **facts)
            unfinished.put(record)
            there |= {} if record.state in FINAL else {name: record}
        if is_looked_at:
            unfinished.come_due(NOW_MS - 1)
    due_ms = unfinished.come_due(NOW_MS)
    waiting = [each for each in there.values() if each.state == "pending"]
    counted = [each for each in waiting if not is_held(each) and not each.is_paused and not each.is_cancelling]
    ready = [each for each in counted if may_begin(each, NOW_MS)]
    assert {each.instance_id: each for each in unfinished} == there
    assert unfinished.at_work == {name: each for name, each in there.items() if is_at_work(each)}
    assert unfinished.held == {each.instance_id: each for each in waiting if is_held(each)}
    assert due_ms == min((each.due_ms for each in counted if each not in ready), default=None)
    rows = {(-each.priority, each.weight, each.tenant) for each in ready}
    assert dict(unfinished.rows) == {
        row: sorted((each.created_ms, each.instance_id) for each in ready if (-each.priority, 1, each.tenant) == row)
        for row in rows
    }


def test_one_whose_weight_changes_waits_in_one_row_alone() -> None:
    unfinished, record = Unfinished(), Instance(instance_id="i", task="t", created_ms=1)
    unfinished.put(record)
    unfinished.put(replace(record, weight=2))
    assert dict(unfinished.rows) == {(0, 2, ""): [(1, "i")]}
