"""Which timer fires which jobs. Each partition has a lease, normally held by the live node that scores highest.

A partition's key in LEASES is `jobs.timer.<n>`. Without its holder it expires after three seconds. A watch sees that,
so another timer has it within four seconds of a holder's death. Rendezvous hashing over the live nodes that run timers
decides who takes it. The first takes it at once, each next one `STEP_S` later, in case the first does not. A holder
that is not the first hands over, once for each set of live nodes: the first may be unable to take it.

The lease saves work. The condition of the publish keeps a job from being fired twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus

from actors.jobs.rules.due_times import PARTITIONS
from actors.runtime.actor import FATAL
from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.runtime.membership import Members
from actors.runtime.rules.placement import ranking
from streams.bucket import Bucket
from streams.clock import monotonic_s
from streams.errors import StreamError
from streams.lease import Lease, acquire, hold

log = logging.getLogger(__name__)

ROLE = "timer"
TTL_S = 3
STEP_S = 0.5
AGAIN_S = 0.25
"""The wait after a failed try: the watch may be a moment behind."""
_KEY = "jobs.timer."


class Partitions:
    """This node's part of the partitions. It calls `on_change`, which must be short, when `held` or `wanted` has
    changed."""

    def __init__(self, leases: Bucket[bytes], members: Members, on_change: Callable[[], None]) -> None:
        self._leases = leases
        self._live = Live(leases, lambda entry: _number(entry.key), pattern=f"{_KEY}*")
        self._live.on_change(self._lease_changed)
        self._members = members
        self._on_change = on_change
        self._held: set[int] = set()
        self._free: dict[int, float] = {}
        self._handed_over: dict[int, tuple[str, ...]] = {}
        self._news = anyio.Event()
        self._ranks: dict[int, int] = {}
        members.on_change(self._members_changed)

    @property
    def held(self) -> frozenset[int]:
        """The partitions whose lease this node holds."""
        return frozenset(self._held)

    @property
    def wanted(self) -> frozenset[int]:
        """The held partitions, and those that this node will take when they are free: their due times are read
        ahead."""
        return frozenset(self._held | {n for n in range(PARTITIONS) if self._rank(n) == 0})

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Take, keep and hand over for ever. Started once the holders of all partitions are known."""
        self._held.clear()
        self._free.clear()
        self._handed_over.clear()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._live.run)
            for n in set(range(PARTITIONS)) - {n for _, n in self._live.items()}:
                self._free.setdefault(n, monotonic_s())
            for n in range(PARTITIONS):
                tasks.start_soon(self._campaign, n)
            task_status.started()

    def _lease_changed(self, key: str) -> None:
        n = _number(key)
        if n >= PARTITIONS:
            return
        if key in self._live:
            self._free.pop(n, None)
        else:
            self._free[n] = monotonic_s()
            self._wake()

    async def _campaign(self, n: int) -> None:
        while True:
            await self._our_turn(n)
            lease = await self._try_to_take(n)
            if lease is None:
                await anyio.sleep(AGAIN_S)
            else:
                await hold(lease, self._tend)

    async def _our_turn(self, n: int) -> None:
        """Wait until the partition is free, and the nodes that come before us have not taken it."""
        while True:
            news = self._news
            wait_s = None if n not in self._free else self._free[n] + self._rank(n) * STEP_S - monotonic_s()
            if wait_s is not None and wait_s <= 0:
                return
            with anyio.move_on_after(wait_s):
                await news.wait()

    async def _try_to_take(self, n: int) -> Lease | None:
        try:
            return await acquire(self._leases, f"{_KEY}{n}", self._members.name, ttl_s=TTL_S)
        except FATAL:
            raise
        except StreamError as error:
            log.debug("timer.partition_not_taken", extra=fields(partition=n, error=str(error)))
            return None

    async def _tend(self, lease: Lease) -> None:
        n = int(lease.key.removeprefix(_KEY))
        self._free.pop(n, None)
        self._held.add(n)
        self._on_change()
        try:
            await self._until_another_is_first(n)
        finally:
            self._held.discard(n)
            self._on_change()

    async def _until_another_is_first(self, n: int) -> None:
        while True:
            news, live = self._news, self._members.names()
            if self._rank(n) > 0 and self._handed_over.get(n) != live:
                self._handed_over[n] = live
                return
            await news.wait()

    def _rank(self, n: int) -> int:
        """Return how many live timers come before this node for the partition."""
        rank = self._ranks.get(n)
        if rank is None:
            nodes = {name for name, node in self._members.live().items() if node.has_role(ROLE)}
            rank = ranking(f"{_KEY}{n}", nodes | {self._members.name}).index(self._members.name)
            self._ranks[n] = rank
        return rank

    def _members_changed(self) -> None:
        self._ranks.clear()
        self._wake()
        self._on_change()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def _number(key: str) -> int:
    """Return the partition of a lease's key, or `PARTITIONS` if it names none."""
    number = key.removeprefix(_KEY)
    return int(number) if number.isdecimal() else PARTITIONS
