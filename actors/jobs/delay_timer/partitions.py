"""Which timer fires which jobs. Each partition has a lease, normally held by the live node that scores highest.

A partition's key in LEASES is `jobs.timer.<n>`. Without its holder it expires after three seconds. A watch sees that,
so another timer has it within four seconds of a holder's death. Rendezvous hashing over the live nodes that run timers
decides who takes it. The first takes it at once, each next one `STEP_S` later, in case the first does not. One that
does not know the due times yet waits `UNREADY_S` longer. A holder that is not the first hands over when the first asks
for it, once for each set of live nodes: the first may be unable to take it. It names a moment `HAND_OVER_MS` ahead.
What is due before that the holder fires. The first has time to read what is due from then on, and fires it (ADR 74).

A killed holder's lease stands for up to three seconds. So the next two in line stand by (ADR 50). They know the due
times, and while something is due they ask the holder each `ASK_S`, for one of its partitions. The server replies at
once that nobody listens if the holder's link is gone. Then they ask for the others. The next in line fires, and replies
to the other one, until another holder's lease, or a renewal, is seen.

A node whose event loop is late, as while it starts on a busy machine, would let jobs wait that it is to fire. So it
claims nothing from a living holder, and comes after the others in line, until its loop has turned in time for a while.

The lease saves work. The condition of the publish keeps a job from being fired twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial

import anyio
from anyio.abc import TaskStatus

from actors.jobs.rules.due_times import PARTITIONS
from actors.runtime.actor import FATAL
from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.runtime.membership import Members
from actors.runtime.promptness import Promptness
from actors.runtime.rules.placement import ranking
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.buckets.lease import Lease, acquire, hold, read_record
from streams.clock import monotonic_s, until_turn_s
from streams.errors import ConnectionLost, Disconnected, StreamError
from streams.link.connection import Connection
from streams.link.frames import publish_frame, status_of
from streams.subjects import Namespace

log = logging.getLogger(__name__)

ROLE = "timer"
TTL_S = 3
STEP_S = 0.5
UNREADY_S = 2.0
ASK_S = 0.04
"""Together with the time to read the first jobs hardly more than the server's own firing leaves (`BACKSTOP_MS`)."""
REST_S = 0.5
"""The same, while nothing is due soon."""
JUDGE_S = 0.2
"""The same, until the loop turns in time again. If many nodes are busy at once, none does for long, and all would wake
25 times a second."""
HAND_OVER_MS = 500
"""How long before it fires the first in line has a partition: time enough to read the jobs that are due then."""
HAND_OVER_SPARE_S = 2.0
"""How much longer the lease may be the earlier holder's."""
CLAIM_S = 1.0
"""How often the first in line asks a holder to hand over."""
STANDBYS = 2
"""So many nodes beside the holder know the due times of a partition: one of them may have just started, too."""
AGAIN_S = 0.25
"""The wait after a failed try: the watch may be a moment behind."""
_KEY = "jobs.timer."
NOBODY = 503
_HELD, _HANDED_OVER = b"held", b"handed over"


class Partitions:
    """This node's part of the partitions. It calls `on_change`, which must be short, when `held`, `fired` or `wanted`
    has changed. `is_ready(n)`: whether the due times of a partition are known. `is_due(n, within_s)`: whether some job
    of it is due by then. `pass_over(n, until_ms)`: another one fires what is due before that. `now_ms()`: the server's
    clock."""

    def __init__(
        self,
        connection: Connection,
        namespace: Namespace,
        leases: Bucket[bytes],
        members: Members,
        on_change: Callable[[], None],
        *,
        is_ready: Callable[[int], bool],
        is_due: Callable[[int, float], bool],
        pass_over: Callable[[int, int], object],
        now_ms: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._leases = leases
        self._live = Live(leases, _holder_of, pattern=f"{_KEY}*")
        self._live.on_change(self._lease_changed)
        self._members = members
        self._on_change = on_change
        self._is_ready = is_ready
        self._is_due = is_due
        self._pass_over = pass_over
        self._now_ms = now_ms
        self._held: set[int] = set()
        self._stands_in: dict[int, int] = {}
        """With the subscriptions to the requests."""
        self._alone: Counter[int] = Counter()
        """How often in a row nobody listened."""
        self._asked: dict[int, tuple[tuple[str, ...], int]] = {}
        """For which set of live nodes the first asked, and until when this node fires for it (`now_ms`)."""
        self._given_ms: dict[int, int] = {}
        """Before which due time this node fires yet, of what it handed over."""
        self._taken_from: dict[int, tuple[str | None, float]] = {}
        """Who hands a partition over to this node, and until when its lease does not mean that it fires."""
        self._claimed_s: dict[int, float] = {}
        self._free: dict[int, float] = {}
        self._handed_over: dict[int, tuple[str, ...]] = {}
        self._news = anyio.Event()
        self._ranks: dict[int, int] = {}
        self._promptness = Promptness()
        members.on_change(self._members_changed)

    @property
    def held(self) -> frozenset[int]:
        """The partitions whose lease this node holds."""
        return frozenset(self._held)

    @property
    def fired(self) -> frozenset[int]:
        """The partitions whose jobs this node fires: those that it holds, or whose holder's link is gone."""
        return frozenset(self._held | self._stands_in.keys())

    def fires(self, n: int, due_ms: int) -> bool:
        """Return whether this node fires the jobs of a partition that are due then."""
        return n in self._held or n in self._stands_in or due_ms < self._given_ms.get(n, 0)

    @property
    def wanted(self) -> frozenset[int]:
        """The held partitions, and those that this node will take when they are free, as the first or the next: their
        due times are read ahead."""
        return frozenset(self._held | {n for n in range(PARTITIONS) if self._rank(n) <= STANDBYS})

    @property
    def is_alone(self) -> bool:
        """Whether no other live node runs a timer."""
        return not any(node.has_role(ROLE) for name, node in self._members.live().items() if name != self._members.name)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Take, keep and hand over for ever. Started once the holders of all partitions are known."""
        for n in tuple(self._stands_in):
            self._fire_no_more(n)
        for memory in (
            self._held,
            self._free,
            self._handed_over,
            self._asked,
            self._claimed_s,
            self._alone,
            self._taken_from,
            self._given_ms,
        ):
            memory.clear()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._live.run)
            for n in set(range(PARTITIONS)) - {_number(key) for key, _ in self._live.items()}:
                self._free.setdefault(n, monotonic_s())
            for n in range(PARTITIONS):
                tasks.start_soon(self._campaign, n)
            tasks.start_soon(self._keep_asking)
            task_status.started()

    def wake(self) -> None:
        """Look again: a partition may have become ready."""
        self._news.set()
        self._news = anyio.Event()

    def _lease_changed(self, key: str) -> None:
        n = _number(key)
        if n >= PARTITIONS:
            return
        if key in self._live:
            self._free.pop(n, None)
            holder, (earlier, until_s) = self._live.get(key), self._taken_from.get(n, (None, 0.0))
            if holder != self._members.name and (holder != earlier or monotonic_s() >= until_s):
                self._fire_no_more(n)
        else:
            self._free[n] = monotonic_s()
            self.wake()

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
            may_fire = self._promptness.is_prompt or self.is_alone or n in self._stands_in
            is_ready = self._is_ready(n) and may_fire
            pause_s = self._rank(n) * STEP_S + (0.0 if is_ready else UNREADY_S)
            wait_s = None if n not in self._free else self._free[n] + pause_s - monotonic_s()
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
        self._given_ms.pop(n, None)
        self._held.add(n)
        self._fire_no_more(n)
        self._on_change()
        try:
            with ExitStack() as listening:
                sid = self._connection.listen(self._namespace.due_holder(n), partial(self._answer, n))
                listening.callback(self._connection.unlisten, sid)
                await self._until_another_is_first(n)
        finally:
            self._held.discard(n)
            self._on_change()

    async def _until_another_is_first(self, n: int) -> None:
        while True:
            news, live = self._news, self._members.names()
            asked, until_ms = self._asked.get(n, ((), 0))
            wait_s = None
            if asked == live and self._may_hand_over(n):
                wait_s = (until_ms - self._now_ms()) / 1000
                if wait_s <= 0:
                    self._handed_over[n], self._given_ms[n] = live, until_ms
                    return
            with anyio.move_on_after(wait_s):
                await news.wait()

    def _may_hand_over(self, n: int) -> bool:
        return self._rank(n) > 0 and self._handed_over.get(n) != self._members.names()

    # ---- holder and standby

    def _answer(self, n: int, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        """Reply that this node holds the partition, or hands it over to the first in line, whose name is the
        payload."""
        answer = _HELD
        if payload != b"" and self._may_hand_over(n) and self._line(n)[0].encode() == payload:
            asked, until_ms = self._asked.get(n, ((), 0))
            if asked != self._members.names():
                until_ms = self._now_ms() + HAND_OVER_MS
                self._asked[n] = self._members.names(), until_ms
                self.wake()
            answer = _HANDED_OVER + b" %d" % until_ms
        if reply:
            self._send(reply.decode(), "", answer)

    async def _keep_asking(self) -> None:
        """Ask the holders of the partitions that this node stands by for, while jobs of them are due, and claim those
        that should be its own."""
        inbox = f"{self._connection.new_inbox()}."
        sid = self._connection.listen(f"{inbox}*", partial(self._heard, inbox))
        try:
            while True:
                standing_by = self._standing_by()
                self._claim(standing_by, inbox)
                near = [n for n in standing_by if self._is_due(n, REST_S + 2 * ASK_S)]
                for n in self._one_of_each(n for n in near if self._is_due(n, 2 * ASK_S)):
                    self._ask(n, f"{inbox}{n}")
                if await self._promptness.sleep(self._until_next_s(is_near=bool(near))):
                    self.wake()
        finally:
            self._connection.unlisten(sid)

    def _until_next_s(self, *, is_near: bool) -> float:
        """Return how long to sleep. `is_near`: something is due before a rest would be over. One that has just started
        is judged as fast as it can be, since it takes nothing until then."""
        if is_near or not self._promptness.was_prompt:
            return ASK_S
        return until_turn_s(REST_S) if self._promptness.is_prompt else JUDGE_S

    def _standing_by(self) -> list[int]:
        return [n for n in sorted(self.wanted - self.fired) if self._is_ready(n) and n not in self._free]

    def _one_of_each(self, partitions: Iterable[int]) -> list[int]:
        """Return one of the partitions of each holder: all end with its link."""
        return list({self._live.get(f"{_KEY}{n}"): n for n in partitions}.values())

    def _claim(self, standing_by: Iterable[int], inbox: str) -> None:
        """Ask the holders of those partitions to hand over in which this node is first."""
        now_s = monotonic_s()
        for n in standing_by if self._promptness.is_prompt else ():
            if self._rank(n) == 0 and now_s >= self._claimed_s.get(n, 0.0) + CLAIM_S:
                self._claimed_s[n] = now_s
                self._ask(n, f"{inbox}{n}", self._members.name.encode())

    def _ask(self, n: int, inbox: str, payload: bytes = b"") -> None:
        self._send(self._namespace.due_holder(n), inbox, payload)

    def _heard(self, inbox: str, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        number = int(subject[len(inbox) :])
        n, holder = number % PARTITIONS, self._live.get(f"{_KEY}{number % PARTITIONS}")
        is_alone, hands_over = status_of(block)[0] == NOBODY, payload.startswith(_HANDED_OVER)
        self._alone[n] = self._alone[n] + 1 if is_alone else 0
        for m in self._standing_by() if is_alone and number < PARTITIONS else ():
            if m != n and self._live.get(f"{_KEY}{m}") == holder:
                self._ask(m, f"{inbox}{m + PARTITIONS}")
        is_our_turn = is_alone and self._alone[n] > self._before(n)
        if not (hands_over or is_our_turn) or n not in self.wanted - self.fired:
            return
        if hands_over:
            self._pass_over(n, int(payload[len(_HANDED_OVER) :] or 0))
            self._taken_from[n] = holder, monotonic_s() + HAND_OVER_MS / 1000 + HAND_OVER_SPARE_S
        self._stand_in(n)

    def _stand_in(self, n: int) -> None:
        log.info("timer.stands_in", extra=fields(partition=n, holder=self._live.get(f"{_KEY}{n}")))
        self._alone[n] = 0
        self._stands_in[n] = self._connection.listen(self._namespace.due_holder(n), partial(self._answer, n))
        self._on_change()

    def _fire_no_more(self, n: int) -> None:
        self._taken_from.pop(n, None)
        if n in self._stands_in:
            self._connection.unlisten(self._stands_in.pop(n))
            self._on_change()

    def _before(self, n: int) -> int:
        """Return how many others come before this node beside the holder: they stand in first. All, if its loop is
        late."""
        if not self._promptness.is_prompt:
            return STANDBYS
        line = self._line(n)
        return sum(name != self._live.get(f"{_KEY}{n}") for name in line[: line.index(self._members.name)])

    def _send(self, subject: str, reply: str, payload: bytes) -> None:
        with suppress(Disconnected, ConnectionLost):
            if self._connection.is_connected:
                self._connection.client.send(publish_frame(subject, reply, b"", payload))

    def _line(self, n: int) -> list[str]:
        nodes = {name for name, node in self._members.live().items() if node.has_role(ROLE)}
        return ranking(f"{_KEY}{n}", nodes | {self._members.name})

    def _rank(self, n: int) -> int:
        """Return how many live timers come before this node for the partition."""
        rank = self._ranks.get(n)
        if rank is None:
            self._ranks[n] = rank = self._line(n).index(self._members.name)
        return rank

    def _members_changed(self) -> None:
        self._ranks.clear()
        for n in self._stands_in.keys() - self.wanted:
            self._fire_no_more(n)
        self.wake()
        self._on_change()


def _holder_of(entry: Entry[bytes]) -> str:
    record = read_record(entry.raw)
    return "" if record is None else record.holder


def _number(key: str) -> int:
    """Return the partition of a lease's key, or `PARTITIONS` if it names none."""
    number = key.removeprefix(_KEY)
    return int(number) if number.isdecimal() else PARTITIONS
