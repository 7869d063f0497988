"""Units that wait for slots of their keys, on a node that gets none."""

import sys
from collections import deque
from typing import Any

from msgspec.json import encode

from actors.runtime.rates.keyed import KeyedCalls
from actors.runtime.rates.slot_client import NodeSlots
from actors.runtime.rules.slot_keys import Slots


class _Unit:
    def __init__(self, key: str) -> None:
        self.key = key


def calls_of(put_off: list[_Unit]) -> KeyedCalls[_Unit]:
    calls = KeyedCalls[_Unit](
        NodeSlots(None, "n1"),  # type: ignore[arg-type] # nothing is sent
        "batch.t",
        body=lambda unit: encode({"m": unit.key}),
        wake=lambda: None,
        put_off=lambda unit, _delay_s: put_off.append(unit),
        drop=lambda _units: None,
        chance=lambda: 0.0,
    )
    calls.limit(Slots(1, "m"))
    return calls


def test_what_is_removed_waits_no_more_and_the_others_do() -> None:
    put_off: list[_Unit] = []
    calls, units = calls_of(put_off), [_Unit("aabbc"[at % 5]) for at in range(50)]
    assert calls.take(deque(units), 100) == []
    parked = list(calls.waiting())
    assert {unit.key for unit in parked} == {"a", "b", "c"}
    kept = [unit for unit in parked if unit.key != "c"][1::2]
    calls.remove([unit for unit in units if unit not in kept])
    assert (list(calls.waiting()), len(calls)) == (kept, len(kept))
    calls.return_all()
    assert len(calls) == 0


def test_to_remove_many_units_takes_one_pass_over_those_that_wait() -> None:
    put_off: list[_Unit] = []
    calls = calls_of(put_off)
    units = [_Unit(str(at % 50)) for at in range(4_000)]
    calls.take(deque(units), 1)
    parked = len(calls)
    assert parked > 500
    assert len(put_off) == 4_000 - parked
    steps = 0

    def count(*_event: Any) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        calls.remove(put_off)
    finally:
        sys.setprofile(before)
    assert len(calls) == parked
    assert steps < 10 * (parked + len(put_off))
