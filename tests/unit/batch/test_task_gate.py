"""A gate whose items all wait for slots, while many chunks wait, leaves them to the next round."""

from collections import deque
from typing import Any

import anyio
import pytest
from msgspec import Raw

from actors.batch.executor import task_gate
from actors.batch.executor.task_gate import TaskGate, TaskKeys
from actors.runtime.rates.shares import Shares
from actors.runtime.rates.slot_client import NodeSlots
from actors.runtime.rules.slot_keys import Slots
from streams.messages.batch import Outcome


@pytest.mark.parametrize("leave_ms", [500, 20_000])
async def test_a_gate_leaves_its_items_for_as_long_as_its_round_says(
    monkeypatch: pytest.MonkeyPatch, leave_ms: int
) -> None:
    monkeypatch.setattr(task_gate, "HOLD_S", 0.0)
    monkeypatch.setattr(task_gate, "MOST_STUCK", 0)
    slots: Any = NodeSlots(None, "n1")  # type: ignore[arg-type] # nothing is sent
    keys = TaskKeys(slots, "t", lambda: Slots(1), lambda: 0.0)
    gate = TaskGate(Shares(lambda _task: None), "t", keys, lambda: False, anyio.Event(), leave_ms=leave_ms)
    assert not await gate.admit(deque([(0, Raw(b"1")), (1, Raw(b"2"))]), 10)
    assert gate.left_ms == leave_ms


async def test_a_gate_shuts_a_while_after_its_first_item_unless_one_must_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(task_gate, "monotonic_s", lambda: clock[0])
    slots: Any = NodeSlots(None, "n1")  # type: ignore[arg-type] # nothing is sent

    def gate() -> TaskGate:
        keys = TaskKeys(slots, "t", lambda: None, lambda: 0.0)
        stop = anyio.Event()
        return TaskGate(Shares(lambda _task: None), "t", keys, lambda: False, stop, leave_ms=500, open_s=1.0)

    waiting, shuts, stays = deque((n, Raw(b"1")) for n in range(4)), gate(), gate()
    clock[0] += 50
    assert (await shuts.admit(waiting, 1)).items
    assert (await stays.admit(waiting, 1)).items
    stays.ended([Outcome(1, "again")])
    clock[0] += 0.9
    assert not shuts.is_shut()
    clock[0] += 0.2
    assert not await shuts.admit(waiting, 1)
    assert (await stays.admit(waiting, 1)).items
    assert shuts.left_ms is None
