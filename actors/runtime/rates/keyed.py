"""The jobs of a topic, or the items of a batch task, whose calls need a slot of their key, so that at most n run at
once in the cluster (ADR 43). Below, each is a unit.

A unit begins only with a slot of its key. A unit whose key has none is parked, and the units behind it have their turn.
A parked unit goes back to the front of its queue when there is a slot for it.

Few units are parked for a key: as many as will run in `PARK_S`, and `MOST_PARKED` for all keys together. The others are
put off: they become ready again when the units before them will have run, at the pace of the key. No attempt is
counted. So ten thousand units of one key do not stand in the way of the others, and are looked at about once a minute.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from actors.runtime.rates.slot_client import NodeSlots
from actors.runtime.rules.slot_keys import Slots, key_reader
from actors.runtime.rules.slots_held import SlotCall, SlotCut, SlotLimit
from streams.clock import monotonic_s
from streams.errors import MalformedMessage

PARK_S = 2.0
LEAST_PARKED, MOST_OF_KEY, MOST_PARKED = 2, 256, 1_024
SHORTEST_S, LONGEST_S = 0.5, 60.0
"""For how long a unit is put off."""
FIRST_S = 0.01
"""The time between two ends under a key, as long as it is not known. If it is longer, units come back early once."""
SMOOTH = 0.3
FEW = 256

Unit = TypeVar("Unit")


class _Parked(NamedTuple, Generic[Unit]):
    queue: deque[Unit]
    unit: Unit


class _KeyPace:
    """How fast the calls of a full key end on this node. `due_s`: when the unit that was put off last will have its
    turn."""

    __slots__ = ("due_s", "interval_s", "last_s", "running")

    def __init__(self, now_s: float, running: int) -> None:
        self.interval_s = FIRST_S
        self.last_s = self.due_s = now_s
        self.running = running

    def began(self, now_s: float) -> None:
        if not self.running:
            self.last_s = now_s
        self.running += 1

    def ended(self, now_s: float) -> None:
        self.running -= 1
        self.interval_s += SMOOTH * (now_s - self.last_s - self.interval_s)
        self.last_s = now_s

    def per_call_s(self, now_s: float) -> float:
        return max(self.interval_s, (now_s - self.last_s) / 2) if self.running else self.interval_s


class KeyedCalls(Generic[Unit]):
    """Used from one loop, by the owner of the keys, as `jobs.<topic>`. Units are told apart by identity. `body(unit)`:
    its JSON, in which the key is. It may raise MalformedMessage: whoever takes the unit finds out. `wake()` is called
    when a queue got units back, `put_off(unit, delay_s)` and `drop(units)` with units that are to leave. `chance`
    returns numbers in [0, 1)."""

    def __init__(
        self,
        slots: NodeSlots,
        owner: str,
        *,
        body: Callable[[Unit], bytes],
        wake: Callable[[], None],
        put_off: Callable[[Unit, float], None],
        drop: Callable[[Sequence[Unit]], None],
        chance: Callable[[], float],
    ) -> None:
        self._slots = slots.of(owner, self)
        self._body = body
        self._wake = wake
        self._put_off = put_off
        self._drop = drop
        self._chance = chance
        self._limit = SlotLimit(1)
        self._read = key_reader("")
        self._parked: dict[str, deque[_Parked[Unit]]] = {}
        self._count = 0
        self._called: dict[Unit, str] = {}
        """Units that are back in their queues because their keys have slots."""
        self._paces: dict[str, _KeyPace] = {}
        self._taken: list[SlotCall] = []
        self._running: dict[SlotCall, str] = {}

    def __len__(self) -> int:
        return self._count

    def limit(self, slots: Slots) -> None:
        """Follow the settings."""
        self._limit, self._read = SlotLimit(slots.most, slots.when_full), key_reader(slots.key)

    def key_of(self, unit: Unit) -> str:
        """Return the key of a unit."""
        try:
            return self._read(self._body(unit))
        except MalformedMessage:
            return ""

    # ---- for the calls

    def take(self, queue: deque[Unit], most: int) -> list[Unit]:
        """Return the next units of a queue that may begin, at most `most`, and park those before them. The units of one
        call that have the same key need one slot. `claim` returns the slots."""
        found: list[Unit] = []
        keys: set[str] = set()
        while queue and len(found) < most:
            unit = queue.popleft()
            key = self._called.pop(unit, None)
            if key is None:
                key = self.key_of(unit)
                was_called = False
            else:
                was_called = True
            call = None if key in keys else self._slots.begin(key, self._limit, _not_claimed)
            if call is not None:
                keys.add(key)
                self._taken.append(call)
                self._running[call] = key
                if key in self._paces:
                    self._paces[key].began(call.began_s)
            if key in keys:
                found.append(unit)
                if was_called:
                    self._tell(key)
            else:
                self._park(queue, unit, key, at_front=was_called)
        return found

    def claim(self, on_cut: Callable[[SlotCut], None]) -> list[SlotCall]:
        """Return the slots of the units that were taken last. `on_cut` is called when the call must end."""
        taken, self._taken = self._taken, []
        for call in taken:
            call.on_cut = on_cut
        return taken

    def leave(self, calls: Sequence[SlotCall]) -> None:
        """Free the slots of a call that has ended."""
        now_s = monotonic_s()
        for call in calls:
            self._slots.end(call)
            key = self._running.pop(call)
            if key in self._paces:
                self._paces[key].ended(now_s)
            self.may_begin(key)

    # ---- from the governor

    def may_begin(self, key: str) -> None:
        """Call parked units back for the free slots of their key."""
        parked = self._parked.get(key)
        if not parked:
            return
        room = self._slots.room(key) - sum(called == key for called in self._called.values())
        found = [parked.popleft() for _ in range(min(room, len(parked)))]
        for one in reversed(found):
            one.queue.appendleft(one.unit)
            self._called[one.unit] = key
        self._count -= len(found)
        if not parked:
            del self._parked[key]
        if found:
            self._wake()

    def is_full(self, key: str, count: int) -> None:
        """Drop parked units: their key is full."""
        parked = self._parked.get(key, deque())
        found = [parked.popleft().unit for _ in range(min(count, len(parked)))]
        self._count -= len(found)
        if not parked:
            self._parked.pop(key, None)
        self._tell(key)
        self._drop(found)

    # ---- for the owner

    def tend(self) -> None:
        """Put off what is parked and will not run soon. Forget what is over."""
        now_s = monotonic_s()
        for key in list(self._parked):
            while len(self._parked[key]) > self._room(key, now_s):
                self._count -= 1
                self._put_off(self._parked[key].pop().unit, self._delay_s(key, now_s))
                self._tell(key)
        if len(self._paces) > FEW:
            self._paces = {
                key: pace
                for key, pace in self._paces.items()
                if key in self._parked or pace.running or now_s < max(pace.due_s, pace.last_s + LONGEST_S)
            }

    def waiting(self) -> Iterator[Unit]:
        """Return the parked units."""
        for parked in self._parked.values():
            for one in parked:
                yield one.unit

    def return_all(self) -> None:
        """Put all parked units back into their queues."""
        for parked in self._parked.values():
            for one in reversed(parked):
                one.queue.appendleft(one.unit)
        self._forget({*self._parked, *self._called.values()})

    def clear(self) -> None:
        """Forget all units."""
        self._forget({*self._parked, *self._called.values()})

    def remove(self, units: Sequence[Unit]) -> None:
        """Forget these units."""
        keys = {key for unit in units if (key := self._called.pop(unit, None)) is not None}
        removed = {id(unit) for unit in units}
        for key, parked in self._parked.items() if removed else ():
            left = deque(one for one in parked if id(one.unit) not in removed)
            if len(left) < len(parked):
                self._parked[key] = left
                self._count -= len(parked) - len(left)
                keys.add(key)
        for key in keys:
            self._tell(key)

    def _forget(self, keys: Iterable[str]) -> None:
        self._parked, self._called, self._count = {}, {}, 0
        for key in keys:
            self._tell(key)

    # ---- parking

    def _park(self, queue: deque[Unit], unit: Unit, key: str, *, at_front: bool) -> None:
        now_s = monotonic_s()
        if key not in self._paces:
            self._paces[key] = _KeyPace(now_s, sum(running == key for running in self._running.values()))
        parked = self._parked.setdefault(key, deque())
        if at_front:
            parked.appendleft(_Parked(queue, unit))
        elif self._limit.when_full != "drop_newest" and (
            len(parked) >= self._room(key, now_s) or (parked and self._count >= MOST_PARKED)
        ):
            self._put_off(unit, self._delay_s(key, now_s))
            return
        else:
            parked.append(_Parked(queue, unit))
        self._count += 1
        self._tell(key)

    def _room(self, key: str, now_s: float) -> int:
        """Return how many units of a key are parked at most."""
        if self._limit.when_full == "drop_newest":
            return MOST_PARKED
        soon = int(PARK_S / max(PARK_S / MOST_OF_KEY, self._paces[key].per_call_s(now_s)))
        return max(LEAST_PARKED, soon)

    def _delay_s(self, key: str, now_s: float) -> float:
        """Return for how long to put off a unit: until those before it will have run."""
        pace = self._paces[key]
        per_call_s = pace.per_call_s(now_s)
        before_s = now_s + per_call_s * len(self._parked.get(key, ()))
        pace.due_s = min(now_s + LONGEST_S, max(pace.due_s, before_s) + per_call_s)
        delay_s = max(SHORTEST_S, pace.due_s - now_s)
        return delay_s if delay_s < LONGEST_S else LONGEST_S * (1 + self._chance()) / 2

    def _tell(self, key: str) -> None:
        """Have the governor know how many calls wait."""
        parked = self._parked.get(key)
        if parked is not None and not parked:
            del self._parked[key]
        count = len(parked or ()) + sum(called == key for called in self._called.values())
        self._slots.wait(key, self._limit, count)


def _not_claimed(_why: SlotCut) -> None:
    """Ignore it: nothing is awaited between taking a unit and claiming its slot."""
