"""A gate whose items all wait for slots, while many chunks wait, leaves them to the next round."""

from collections import deque
from typing import Any

import anyio
import pytest
from msgspec import Raw

from actors.batch.executor import task_gate
from actors.batch.executor.task_gate import TaskGate, TaskKeys
from actors.runtime.rules.slot_keys import Slots
from actors.runtime.shares import Shares
from actors.runtime.slot_client import NodeSlots


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
