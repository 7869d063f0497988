"""Membership: which nodes live. Each node reports itself, and others believe the report for `TTL_S`.

In: the records of NODES, one a node under its name. Out: our own record, at least three times within the TTL,
NodeJoined and NodeLeft as events, and callbacks. State: the live view, in memory.

A node is live while its record keeps changing. Each heartbeat is a new revision. If a revision does not change for
`TTL_S` of our own monotonic clock, the node is dead. Neither wall clocks nor the server's expiry matter. The record's
own TTL only keeps the bucket clean, and not reliably: after its server was killed, expired records can be there again.
So a record that is there at the start, or after a reconnect, is a heartbeat only if the server stored it within the
TTL, by the server's clock as the heartbeats show it. A command that reads once compares with the server's clock
(`living`). A node that stops in order says so in its last record, and is gone at once.

While we are cut off from the server, or our own loop is blocked, we can hear nobody, so we drop nobody. A partitioned
node must not believe that it is alone and take every share for itself, and a server's restart must not look like the
death of all nodes.

Repeats and late records do no harm: only a higher revision counts. A record that does not decode is somebody's mistake.
It is logged and left alone. When two nodes have one name, the one that started later raises `NameTaken`.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Meta

from actors.runtime.actor import FATAL, ticks
from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.runtime.supervisor import ActorState
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.clock import Clock, monotonic_s, until_turn_s
from streams.errors import MalformedMessage, StreamError
from streams.messages.fetch import FetchEvent, NodeJoined, NodeLeft
from streams.subjects import TOKEN

log = logging.getLogger(__name__)

TTL_S = 5
BEATS = 0.3
"""Share of the TTL between two heartbeats. Three fit into the TTL, so two may be lost."""
SILENT_BEATS = 2
"""If we miss this many heartbeats of our own, we hear nobody's."""
ANEW_S, AGAIN_S = 2.5, 0.25
"""By then each live node has written again, once several servers have a leader. How often it is looked for."""
LOOK_S = 0.5
LATE_S = 1.0
"""If a look is this late, the event loop was blocked or the process stopped, and heartbeats wait unread."""
_BLOCKED = "find the code that does not await; leases and slices held here may have gone to others"
LEAVE_S = 1.0
PLACEMENT = 2
"""1: some of the nodes tend the sources, and not all (ADR 67). 2: fewer of them, if there are few sources (ADR 87)."""

Token = Annotated[str, Meta(pattern=rf"^{TOKEN.pattern}$")]


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a node reports about itself. `load`: the share of its slots in use. `run`: the identity of this start."""

    node: Token
    run: str
    zone: str = ""
    labels: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    started_ms: int = 0
    load: float = 0.0
    version: str = ""
    is_leaving: bool = False
    page_orders: float = 1.0
    """Orders in a page that this node publishes, on average."""
    taken: int = 0
    """The epoch of the newest shard map for which this node has given up what its zone lost."""
    settled: dict[str, int] = {}
    """Up to which revision of each kind of settings this node has given up what they bind to another zone."""
    actors: tuple[ActorState, ...] = ()
    unmade: dict[str, str] = {}
    """Why consumers that the node takes work from could not be made at the last try, by their names."""
    placement: int = 0
    """The newest rule of placement that this node follows, of those that `PLACEMENT` counts. Nodes that had none of
    them do not report it."""
    crowd: int = 0
    """How many times ten thousand sources this node knows."""
    leads: tuple[str, ...] = ()
    """The leases whose holder follows what its kind of work needs: `monitor`."""
    steady: tuple[str, ...] = ()
    """The actors that have run without a failure since the start, as ROLE/NAME. `actors` has the others, so that a
    heartbeat, which all nodes read, is small. `living` returns all of them in `actors`."""

    def has_role(self, role: str) -> bool:
        """Return whether the node runs actors of this role. A node that names no roles runs all."""
        return not self.roles or role in self.roles


class Status(msgspec.Struct, frozen=True):
    """The part of the record that changes while a node lives."""

    load: float = 0.0
    platforms: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    """Topics whose jobs this node's handlers take."""
    tasks: tuple[str, ...] = ()
    """Tasks whose items run on this node."""
    versions: tuple[tuple[str, str], ...] = ()
    """The code version of each of these tasks that names one."""
    page_orders: float = 1.0
    taken: int = 0
    settled: dict[str, int] = {}
    unmade: dict[str, str] = {}
    crowd: int = 0
    leads: tuple[str, ...] = ()
    actors: tuple[ActorState, ...] = ()


class NameTaken(Exception):
    """Another live node has our name, and had it first."""

    def __init__(self, record: NodeRecord) -> None:
        super().__init__(f"another node is called {record.node!r} and lives; give this one a --name of its own")
        self.record = record


class _Beat(NamedTuple):
    record: NodeRecord
    revision: int
    stored_ms: int


class _Seen(msgspec.Struct):
    record: NodeRecord
    revision: int
    at_s: float
    forgiven_s: float = -math.inf


class MembershipView:
    """The live nodes, from their heartbeats. Times are seconds of one monotonic clock. Pure but for its memory."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._seen: dict[str, _Seen] = {}

    def live(self) -> dict[str, NodeRecord]:
        return {name: seen.record for name, seen in self._seen.items()}

    def hear(self, record: NodeRecord, revision: int, at_s: float) -> bool:
        """Take a heartbeat. Return True if the node was not live before. A known revision is ignored."""
        seen = self._seen.get(record.node)
        if seen is None or revision > seen.revision:
            self._seen[record.node] = _Seen(record, revision, at_s)
        return seen is None

    def leave(self, name: str) -> NodeRecord | None:
        """Drop a node that reported its stop. Return its last record if it was live."""
        seen = self._seen.pop(name, None)
        return None if seen is None else seen.record

    def expire(self, at_s: float) -> list[NodeRecord]:
        """Drop the nodes that were silent for the whole TTL. Return their last records."""
        silent = [name for name, seen in self._seen.items() if at_s - max(seen.at_s, seen.forgiven_s) >= self._ttl_s]
        return [self._seen.pop(name).record for name in silent]

    def silent_s(self, name: str, at_s: float) -> float:
        """Return how many seconds ago the node was last heard. Infinite if it is not live."""
        seen = self._seen.get(name)
        return math.inf if seen is None else at_s - seen.at_s

    def forgive(self, at_s: float) -> None:
        """Start every node's TTL anew, because we could not listen."""
        for seen in self._seen.values():
            seen.forgiven_s = at_s


class Members:
    """This node's registration and its view of all nodes. `names()` and `live()` are cheap at any time."""

    def __init__(
        self,
        bucket: Bucket[bytes],
        own: NodeRecord,
        *,
        clock: Clock,
        is_connected: Callable[[], bool],
        status: Callable[[], Status] = Status,
        tell: Callable[[FetchEvent], None] = lambda _event: None,
        ttl_s: int = TTL_S,
    ) -> None:
        self.name = own.node
        self._bucket = bucket
        self._beats = Live(bucket, _beat_of, unreadable="node.bad_record")
        self._beats.on_change(self._hear)
        self._own = msgspec.structs.replace(own, placement=PLACEMENT)
        self._clock = clock
        self._is_connected = is_connected
        self._status = status
        self._tell = tell
        self._ttl_s = ttl_s
        self._beat_s = ttl_s * BEATS
        self._view = MembershipView(ttl_s)
        self._names: tuple[str, ...] = ()
        self._first_beat = 0
        self._ahead_ms = -math.inf  # the server's clock minus our monotonic one, at least
        self._highest = 0
        self._is_synced = False
        self._gives_way = False
        self._listeners: list[Callable[[], None]] = []
        self._beat_now = anyio.Event()
        self._heard_s = -math.inf
        self.lapses = 0
        """How often the others may have taken this node for dead, and heard it again."""

    def live(self) -> Mapping[str, NodeRecord]:
        """Return the records of the live nodes by name. Ours is among them once its first heartbeat was heard."""
        return self._view.live()

    def is_heard(self) -> bool:
        """Return whether the others still take us for live, as far as we can know. Once our last stored heartbeat is as
        old as the TTL, our shares belong to the other live nodes."""
        return monotonic_s() < self._heard_s + self._ttl_s

    def names(self) -> tuple[str, ...]:
        """Return the live nodes' names, sorted. It is the same object until they change."""
        return self._names

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when a node came, went, or started anew with other duties, and when the others hear this node
        again. It must be short."""
        self._listeners.append(listener)

    def beat_soon(self) -> None:
        """Send a heartbeat now instead of at the next turn: after a reconnect, or when our own state changed."""
        self._beat_now.set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Register, follow the others until cancelled, and report the stop. Started once all nodes are known. Raises
        NameTaken. No stop is reported then: the report would be taken for one of the node that keeps the name."""
        try:
            self._first_beat = await self._write()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_beating)
                tasks.start_soon(self._keep_looking)
                await self._learn_who_is_there(tasks)
                task_status.started()
        finally:
            if not self._gives_way:
                with anyio.move_on_after(LEAVE_S, shield=True):
                    await self._leave()

    async def _learn_who_is_there(self, tasks: TaskGroup) -> None:
        """Begin to follow. The records that are there at first are taken once all of them, and our own first heartbeat,
        are known."""
        self._is_synced = False
        await tasks.start(self._beats.run)
        self._take_all([beat for _, beat in self._beats.items()])
        self._is_synced = True

    def _hear(self, key: str) -> None:
        """Take a heartbeat. An expired or deleted record does not count: missing heartbeats do."""
        beat = self._beats.get(key)
        if beat is not None and self._is_synced:
            self._take_all([beat])

    def _take_all(self, beats: Sequence[_Beat]) -> None:
        """Take heartbeats, but not the records of dead nodes: those that are neither new nor fresh."""
        known = self._highest if self._is_synced else math.inf
        self._highest = max([self._highest, *(beat.revision for beat in beats)])
        at_ms = monotonic_s() * 1000
        self._ahead_ms = max([self._ahead_ms, *(beat.stored_ms - at_ms for beat in beats)])
        for beat in beats:
            if beat.revision > known or is_fresh(beat.stored_ms, at_ms + self._ahead_ms, self._ttl_s):
                self._take(beat.record, beat.revision)

    def _take(self, record: NodeRecord, revision: int) -> None:
        self._check_name(record, revision)
        if record.is_leaving:
            gone = self._view.leave(record.node)
            self._gone([] if gone is None else [gone])
            return
        before = self._view.live().get(record.node)
        if self._view.hear(record, revision, monotonic_s()):
            self._came(record)
        elif before is not None and _place(before) != _place(record):
            self._notify()

    def _check_name(self, record: NodeRecord, revision: int) -> None:
        """Of two live nodes with one name the later one gives way. A record stored before our first heartbeat is not
        live: it is from our own earlier start, which was killed."""
        if record.node != self.name or record.run == self._own.run or revision < self._first_beat:
            return
        if (record.started_ms, record.run) < (self._own.started_ms, self._own.run):
            self._gives_way = True
            raise NameTaken(record)

    def _came(self, record: NodeRecord) -> None:
        self._notify()
        log.info("node.joined", extra=fields(node=record.node, zone=record.zone))
        if self._is_synced and self._is_reporter(record.node):
            self._tell(NodeJoined(node=record.node, at_ms=self._clock.now_ms(), zone=record.zone))

    def _gone(self, records: list[NodeRecord]) -> None:
        if records:
            self._notify()
        for record in records:
            log.info("node.left", extra=fields(node=record.node, zone=record.zone))
            if self._is_reporter(record.node):
                self._tell(NodeLeft(node=record.node, at_ms=self._clock.now_ms(), zone=record.zone))

    def _is_reporter(self, about: str) -> bool:
        """Return whether this node publishes the event. The first other node by name does, and no other."""
        others = [name for name in self._names if name != about]
        return (others[0] if others else about) == self.name

    def _notify(self) -> None:
        self._names = tuple(sorted(self._view.live()))
        for listener in self._listeners:
            listener()

    async def _keep_looking(self) -> None:
        """Drop silent nodes, unless we could not listen: we were cut off or blocked, or we miss our own heartbeats too,
        because the link is silent or the store takes none."""
        looked_s = monotonic_s()
        async for _ in ticks(lambda: LOOK_S, anyio.Event()):
            last_s, looked_s = looked_s, monotonic_s()
            late_s = looked_s - last_s - LOOK_S
            if late_s > LATE_S:
                log.warning("node.was_blocked", extra=fields(blocked_s=round(late_s, 1), do=_BLOCKED))
            is_deaf = self._view.silent_s(self.name, looked_s) > SILENT_BEATS * self._beat_s
            if late_s > LATE_S or is_deaf or not self._is_connected():
                self._view.forgive(looked_s)
            else:
                self._gone(self._view.expire(looked_s))

    async def _keep_beating(self) -> None:
        while True:
            with anyio.move_on_after(until_turn_s(self._beat_s)):
                await self._beat_now.wait()
            self._beat_now = anyio.Event()
            await self._beat()

    async def _beat(self) -> None:
        """Write our record. If that fails, the next heartbeat is soon enough."""
        try:
            with anyio.fail_after(self._beat_s):
                await self._write()
        except FATAL:
            raise
        except (StreamError, TimeoutError) as error:
            log.debug("node.beat_lost", extra=fields(error=str(error)))

    async def _write(self, *, is_leaving: bool = False) -> int:
        now, began_s = self._status(), monotonic_s()
        record = msgspec.structs.replace(
            self._own,
            load=now.load,
            platforms=now.platforms,
            topics=now.topics,
            tasks=now.tasks,
            versions=now.versions,
            page_orders=now.page_orders,
            taken=now.taken,
            settled=now.settled,
            unmade=now.unmade,
            crowd=now.crowd,
            leads=now.leads,
            actors=tuple(actor for actor in now.actors if not _is_steady(actor)),
            steady=tuple(f"{actor.role}/{actor.name}" for actor in now.actors if _is_steady(actor)),
            is_leaving=is_leaving,
        )
        ttl_s = 1 if is_leaving else self._ttl_s
        revision = await self._bucket.put(self.name, msgspec.json.encode(record), ttl_s=ttl_s)
        is_back = self._heard_s > -math.inf and not self.is_heard()
        self._heard_s = began_s
        if is_back:
            self.lapses += 1
            self._notify()
        return revision

    async def _leave(self) -> None:
        try:
            await self._write(is_leaving=True)
        except StreamError as error:
            log.debug("node.left_unsaid", extra=fields(error=str(error)))


def is_fresh(stored_ms: int, now_ms: float, ttl_s: float = TTL_S) -> bool:
    """Return whether a record stored at that time is a live node's. Both times are of the server's clock."""
    return now_ms - stored_ms <= ttl_s * 1000


async def living(bucket: Bucket[bytes]) -> list[NodeRecord]:
    """Return the records of the live nodes, for a caller that reads once. Records that do not decode are left out. On
    several servers there may be none for a moment: nothing was written while they chose a leader, or a former one
    answers that has stood still. So it is read again until each live node has written anew. Raises NoStream,
    Disconnected (also if none is found because most of the servers are away), OutcomeUnknown."""
    deadline_s = monotonic_s() + (ANEW_S if bucket.is_clustered else 0)
    found = await _read_living(bucket)
    while not found and monotonic_s() < deadline_s:
        await anyio.sleep(AGAIN_S)
        found = await _read_living(bucket)
    if not found and bucket.is_clustered:
        await bucket.check_most()
    return found


async def _read_living(bucket: Bucket[bytes]) -> list[NodeRecord]:
    entries, now_ms = await bucket.entries(), await bucket.server_now_ms()
    found: list[NodeRecord] = []
    for entry in entries:
        with suppress(MalformedMessage):
            record = decode_node(entry.key, entry.value)
            if not record.is_leaving and is_fresh(entry.stored_ms, now_ms):
                found.append(_with_all_actors(record))
    return found


def _is_steady(actor: ActorState) -> bool:
    return actor.status == "running" and not actor.failures


def _with_all_actors(record: NodeRecord) -> NodeRecord:
    names = (each.partition("/") for each in record.steady)
    steady = (ActorState(name=name, role=role, status="running", since_ms=record.started_ms) for role, _, name in names)
    return msgspec.structs.replace(record, actors=(*record.actors, *steady), steady=())


def decode_node(key: str, value: bytes) -> NodeRecord:
    """Return the record under a key of NODES. Raises MalformedMessage if it is none, or another node's."""
    try:
        record = msgspec.json.decode(value, type=NodeRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"node {key}: {error}") from error
    if record.node != key:
        raise MalformedMessage(f"node {key}: the record says that it is {record.node!r}")
    return record


def _beat_of(entry: Entry[bytes]) -> _Beat:
    return _Beat(decode_node(entry.key, entry.raw), entry.revision, entry.stored_ms)


def _place(record: NodeRecord) -> tuple[object, ...]:
    """Return the fields by which other nodes place work."""
    return (
        record.zone,
        record.labels,
        record.roles,
        record.topics,
        record.tasks,
        record.versions,
        record.taken,
        record.crowd,
        record.leads,
        record.run,
    )
