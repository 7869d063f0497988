"""Admits the items of a task in this process: in their turn, at its share of the task's rate, and each with a slot of
its key if the task has slots (ADR 43).

An item without a slot is parked or put off (actors/runtime/rates/keyed.py). While the items of a round all wait for
slots, the process takes one more chunk. If `MOST_STUCK` chunks wait, a round ends and leaves its items to the next
round. Each round waits longer, up to a minute. So items of a full key do not stand in the way of others, until a chunk
has used up the rounds of its pass, after half a day or more. An item that finds a full key is skipped, if the task says
so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import anyio

from actors.batch.executor.contexts import as_json
from actors.batch.executor.lanes import Admitted, Item, first
from actors.runtime.rates.keyed import KeyedCalls
from actors.runtime.rates.shares import LOOK_MS, SharedRates
from actors.runtime.rates.slot_client import NodeSlots
from actors.runtime.rules.slot_keys import Slots
from streams.clock import monotonic_s
from streams.messages.batch import Outcome

MOST_STUCK = 16
"""Chunks of a task that wait for slots in one process."""
HOLD_S = 2.0
"""How long a round goes on whose items have their turn soon, if more chunks wait."""


class KeyedItem:
    """An item that waits for a slot, in the round of this gate."""

    __slots__ = ("gate", "item")

    def __init__(self, item: Item, gate: TaskGate) -> None:
        self.item = item
        self.gate = gate


class TaskKeys:
    """The slots of one task in this process, for all rounds. `settings()`: those in force. `None`: no limit."""

    def __init__(
        self, slots: NodeSlots, task: str, settings: Callable[[], Slots | None], chance: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._current: Slots | None = None
        self._keyed = KeyedCalls[KeyedItem](
            slots,
            f"batch.{task}",
            body=lambda one: bytes(one.item[1]),
            wake=self.wake,
            put_off=lambda one, delay_s: one.gate.put_off(one, delay_s),
            drop=self._drop,
            chance=chance,
        )
        self.woken = anyio.Event()
        """Set when items may have got slots."""
        self.stuck: set[TaskGate] = set()
        """The gates whose items all wait for slots."""

    def current(self) -> KeyedCalls[KeyedItem] | None:
        """Return the calls under keys, by the settings in force. `None`: the task has no slots."""
        slots = self._settings()
        if slots != self._current:
            self._current = slots
            self._keyed.return_all()
            if slots is not None:
                self._keyed.limit(slots)
            self.wake()
        return self._keyed if slots is not None else None

    def room(self) -> int:
        """Return how many chunks more the process may take, because others wait for slots only."""
        return min(MOST_STUCK, len(self.stuck))

    def remove(self, items: Sequence[KeyedItem]) -> None:
        """Forget items."""
        self._keyed.remove(items)

    def wake(self) -> None:
        """Have all gates of the task look again."""
        self.woken.set()
        self.woken = anyio.Event()

    def _drop(self, items: Sequence[KeyedItem]) -> None:
        for one in items:
            one.gate.drop(one, self._keyed.key_of(one))
        self.wake()


class TaskGate:
    """The gate of one round, until the node stops or the instance is cancelled. `leave_ms`: how much
    later the next round runs what has no slot, at least. `None`: this round must run it. `open_s`: so long after its
    first item it shuts, so that the ends so far are stored and the next round runs the rest. `None`: never. It stays
    open once an item must run again, since the rest would wait with it."""

    def __init__(
        self,
        rates: SharedRates,
        task: str,
        keys: TaskKeys,
        is_over: Callable[[], bool],
        stop: anyio.Event,
        *,
        leave_ms: int | None,
        open_s: float | None = None,
    ) -> None:
        self._rates = rates
        self._task = task
        self._keys = keys
        self._is_over = is_over
        self._stop = stop
        self._leave_ms = leave_ms
        self._open_s = open_s
        self._shuts_s = math.inf
        self._queue: deque[KeyedItem] = deque()
        self._own: dict[KeyedItem, None] = {}
        """The items that have not begun: in the queue, parked or put off."""
        self._put_off: list[tuple[float, KeyedItem]] = []
        self._stuck_s: float | None = None
        self.dropped: list[Outcome] = []
        """The outcomes of items that found a full key."""
        self.left_ms: int | None = None
        """When the next round should run what this one left for want of slots. `None`: it left nothing."""

    def is_shut(self) -> bool:
        return self._stop.is_set() or monotonic_s() >= self._shuts_s or self._is_over()

    async def admit(self, waiting: deque[Item], most: int) -> Admitted:
        """Wait until some of the items may begin, and return them. What has no slot is out of `waiting` from then on,
        and is returned later, or dropped, or left to the next round."""
        while not self.is_shut():
            keys, woken = self._keys.current(), self._keys.woken
            if keys is None:
                found, wait_ms = self._admit(waiting, most)
            else:
                found, wait_ms = self._admit_keyed(keys, waiting, most)
            if found is not None:
                if self._open_s is not None:
                    self._shuts_s, self._open_s = monotonic_s() + self._open_s, None
                return found
            with anyio.move_on_after(min(LOOK_MS, wait_ms) / 1000):
                await woken.wait() if keys is not None else await self._stop.wait()
        return Admitted([])

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Hear how items ended."""
        if any(outcome.status == "again" for outcome in outcomes):
            self._shuts_s = math.inf

    def close(self) -> None:
        """Forget the items that have not begun."""
        self._keys.stuck.discard(self)
        self._keys.remove(list(self._own))
        self._own.clear()
        self._queue.clear()
        self._put_off.clear()

    # ---- for the keys

    def put_off(self, one: KeyedItem, delay_s: float) -> None:
        """Look at an item later: its key has no slot for it soon."""
        self._put_off.append((monotonic_s() + delay_s, one))

    def drop(self, one: KeyedItem, key: str) -> None:
        """Skip an item: its key is full."""
        self._own.pop(one, None)
        of = f" of key {key!r}" if key else ""
        self.dropped.append(Outcome(one.item[0], "skipped", as_json(f"dropped: no slot{of} was free", "")))

    # ---- admitting

    def _admit(self, waiting: deque[Item], most: int) -> tuple[Admitted | None, int]:
        """Return what may begin. `None`: look again after so many milliseconds."""
        if self._own:  # the task had slots until now
            waiting.extendleft(one.item for one in reversed(self._own))
            self.close()
        if not waiting:
            return Admitted([]), 0
        granted, wait_ms = self._rates.take(self._task, min(most, len(waiting)))
        return (Admitted(first(waiting, granted)) if granted else None), wait_ms

    def _admit_keyed(
        self, keyed: KeyedCalls[KeyedItem], waiting: deque[Item], most: int
    ) -> tuple[Admitted | None, int]:
        fresh = [KeyedItem(item, self) for item in first(waiting, len(waiting))]
        self._own.update(dict.fromkeys(fresh))
        self._queue += fresh
        keyed.tend()
        self._return_due()
        while self._queue:
            granted, wait_ms = self._rates.take(self._task, min(most, len(self._queue)))
            if not granted:
                return None, wait_ms
            found = keyed.take(self._queue, granted)
            self._rates.give_back(self._task, granted - len(found))
            if found:
                self._keys.stuck.discard(self)
                for one in found:
                    del self._own[one]
                keys = [keyed.key_of(one) for one in found]
                return Admitted([one.item for one in found], keys, keyed.claim(_ignore), keyed.leave), 0
        if self._own:
            self._keys.stuck.add(self)
            if not self._leaves():
                return None, LOOK_MS
        return Admitted([]), 0

    def _return_due(self) -> None:
        now_s = monotonic_s()
        self._queue += (one for due_s, one in self._put_off if due_s <= now_s)
        self._put_off = [(due_s, one) for due_s, one in self._put_off if due_s > now_s]

    def _leaves(self) -> bool:
        """Leave the items to the next round, if they have waited long enough or will have their turn much later. Return
        whether they are left."""
        now_s = monotonic_s()
        if self._stuck_s is None:
            self._stuck_s = now_s
        if self._leave_ms is None or len(self._keys.stuck) <= MOST_STUCK:
            return False
        are_parked = len(self._put_off) < len(self._own)
        if are_parked and now_s - self._stuck_s < HOLD_S:
            return False
        due_s = now_s if are_parked else min(due_s for due_s, _ in self._put_off)
        delay_ms = max(self._leave_ms, round(1000 * (due_s - now_s)))
        self.left_ms = delay_ms if self.left_ms is None else min(self.left_ms, delay_ms)
        self.close()
        return True


def _ignore(_why: object) -> None:
    """Admitted takes the slots over at once."""
