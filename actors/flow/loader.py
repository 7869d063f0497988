"""The loader: reads rows of one shard by the user's code, and puts those in flight that are not.

In: requests of rounds (`LoadShard`), one a shard, to any node of the group. Out: a word at once that a request is here,
then rows, each a job under its shard and key, and the reply. State: none. A row that is in flight, or ended since the
read began, is not loaded again, whoever loads at the same time (`RowDoor.add_rows`).

A row that cannot be in flight (its key, its size) is left out, and the reply says why. The others are loaded.

If a load lasts longer than its round, the round leaves the shard alone. The node says in the flow's progress that the
load has ended, so the next round asks the shard again.

Under repeats: rows that were stored are known. When it cannot go on (the code fails, takes too long, or the store takes
nothing) the reply says why, and a later round makes up for it.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from actors.flow.flows import FlowLimits, ShardState
from actors.flow.handler import (
    ROW_PATH,
    BadRows,
    FlowContext,
    FlowHandler,
    Loaded,
    LoadedRow,
    StillRunning,
    reason_of,
    rows_apart,
)
from actors.runtime.bounds import Anywhere, WorkBounds
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.rules.bounds import bound_text
from actors.runtime.rules.slot_keys import key_reader
from actors.runtime.rules.traceparents import traceparent_of
from actors.runtime.tracing import traces
from streams.clock import monotonic_s
from streams.errors import MalformedMessage, StreamError
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.flow import ANY_GROUP, LoadShard, ShardLoaded, decode_flow
from streams.micro import Endpoint, RequestRefused, Service, is_inbox

log = logging.getLogger(__name__)

MOST_LOADS = 256
"""Requests that one node has in hand. More are refused, and asked again."""
READS = 4
"""Reads of one request at most: more than one only if rows were read that are in flight already."""
LONGEST_ERROR = 200
LATE_S = 0.8
"""A round waits for its shards as long at least (`rounds.LEAST_S`). So a quicker load is in time."""
LATE_LOOKS, LOOK_S = 4, 0.5
"""How often, and how soon, the node looks whether the round has given up on the load: it may do so a moment later."""


class RowDoor(Protocol):
    """The part of the job engine that is needed here."""

    def since(self) -> tuple[float, str]:
        """Return the present moment, for `add_rows`."""
        ...

    async def add_rows(
        self, flow: str, rows: Sequence[LoadedRow], since: tuple[float, str], epoch: int
    ) -> Sequence[bool | StreamError]:
        """Put rows in flight that were read after `since`. False: it is in flight, or ended since. `epoch`: since which
        the shard is the zone's, 0 if the flow is not one in each zone."""
        ...


class Loader:
    """A node's part of this. `labels`: the groups to which the node belongs. `zone`: its zone. `limits(flow)`: the
    settings in force. `late(flow, {shard: state})` says that loads have ended, and returns the shards on which their
    round had given up. `version`: of the service, `1.2.3`."""

    def __init__(
        self,
        handlers: Sequence[FlowHandler],
        *,
        connection: Connection,
        door: RowDoor,
        limits: Callable[[str], FlowLimits],
        late: Callable[[str, Mapping[str, ShardState]], Awaitable[Collection[str]]],
        labels: Sequence[str],
        version: str,
        stop: anyio.Event,
        zone: str = "",
        bounds: WorkBounds | None = None,
    ) -> None:
        self._handlers = {handler.flow: handler for handler in handlers}
        self._places = {flow: anyio.Semaphore(handler.loads_at_once) for flow, handler in self._handlers.items()}
        self._connection = connection
        self._door = door
        self._limits = limits
        self._late = late
        self._ended: defaultdict[str, dict[str, tuple[ShardState, int]]] = defaultdict(dict)
        """The loads that ended late, by flow and shard: how each ended, and how often it is still told."""
        self._tasks: TaskGroup | None = None
        self._stop = stop
        self._bounds = bounds or Anywhere()
        self._loading: Counter[str] = Counter()
        self._bounds.watch(lambda: [self._limits(flow).zone for flow, count in self._loading.items() if count])
        flow_loads = connection.namespace.flow_loads
        endpoints = [
            Endpoint(f"{flow}-{group}"[:64], flow_loads(flow, group, where), self._answer, most=MOST_LOADS)
            for flow in self._handlers
            for group in (ANY_GROUP, *labels)
            for where in ("", *([zone] if zone else []))
        ]
        self._service = Service(
            connection, name="penstock-flows", version=version, about="loads rows of flows", endpoints=endpoints
        )

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Answer until the node stops."""
        async with anyio.create_task_group() as self._tasks:
            await self._service.serve(self._stop, task_status=task_status)

    async def _answer(self, message: Message) -> bytes:
        try:
            ask = decode_flow(message.payload, LoadShard)
            handler = self._handlers[ask.flow]
        except (MalformedMessage, KeyError) as error:
            raise RequestRefused(400, f"no request to load a shard: {error}") from error
        if is_inbox(ask.taken.encode()):
            await self._connection.publish_core(ask.taken)
        bound = self._limits(ask.flow).zone
        if not self._bounds.may_run(bound, "flows", ask.flow):
            raise RequestRefused(503, f"flow {ask.flow} is {bound_text(bound, self._bounds.zone_of(bound))}")
        self._loading[ask.flow] += 1
        began_s = monotonic_s()
        try:
            parent = traceparent_of(message.headers) if traces.is_on else ""
            with traces.span(f"load {ask.flow}", "server", {"flow": ask.flow, "shard": ask.shard}, parent=parent):
                loaded = await self._load_in_zone(handler, ask)
        finally:
            self._loading[ask.flow] -= 1
        if monotonic_s() - began_s >= LATE_S and self._tasks is not None:
            ended = self._ended[ask.flow]
            if not ended:
                self._tasks.start_soon(self._tell_late, ask.flow)
            ended[ask.shard] = (ShardState(after=loaded.after, has_failed=bool(loaded.error)), LATE_LOOKS)
        return msgspec.json.encode(loaded)

    async def _tell_late(self, flow: str) -> None:
        """Say which loads of a flow have ended, if their round does not wait for them any more: all of them in one
        change of its progress, which may be long."""
        ended = self._ended[flow]
        while ended:
            told, left = dict(ended), list[str]()
            with suppress(StreamError):  # if all looks fail, a shard is asked again when the load's time is over
                left += await self._late(flow, {shard: state for shard, (state, _) in told.items()})
            for shard, (state, looks) in told.items():
                if ended[shard] != (state, looks):
                    continue  # it was loaded once more meanwhile
                if shard in left or looks == 1:
                    del ended[shard]
                else:
                    ended[shard] = (state, looks - 1)
            if ended:
                await anyio.sleep(LOOK_S)

    async def _load_in_zone(self, handler: FlowHandler, ask: LoadShard) -> ShardLoaded:
        if handler.scope is None:
            return await self.load(handler, ask)
        with handler.scope.hold(ask.shard) as since:
            if since is None:
                return ShardLoaded(after="", error=f"the shard is no longer of zone {handler.scope.zone}")
            return await self.load(handler, ask, since)

    async def load(self, handler: FlowHandler, ask: LoadShard, since: int = 0) -> ShardLoaded:
        """Load rows of a shard until `ask.limit` are new, or there are no more. `since`: for the rows."""
        done = ShardLoaded(after=ask.after)
        limit, read, left_out = ask.limit, 0, ""
        while read < READS and done.new < ask.limit and not done.error:
            begun_after = done.after
            done, count, refused = await self._read(handler, ask, done, limit, since)
            left_out = left_out or refused
            read += 1
            done = msgspec.structs.replace(done, is_short=count < limit)
            if count < limit and not done.error:
                done = msgspec.structs.replace(done, after="")
                if not begun_after:
                    break  # that was the whole shard
            limit += ask.limit - done.new
        return done if done.error else msgspec.structs.replace(done, error=left_out[:LONGEST_ERROR])

    def _in_region(self, flow: str, loaded: Loaded) -> Loaded:
        """Leave out rows whose region belongs to another zone."""
        limits = self._limits(flow)
        if not limits.region_key:
            return loaded
        read, kept, refused = key_reader(f"{ROW_PATH}{limits.region_key}"), list[LoadedRow](), list(loaded.refused)
        for row in loaded.rows:
            why = self._bounds.stray(f"flow {flow}", read(bytes(row.body)), limits.zone)
            if why:
                refused.append(f"row {row.key!r} may not be here: {why}")
            else:
                kept.append(row)
        return loaded._replace(rows=kept, refused=tuple(refused))

    async def _read(
        self, handler: FlowHandler, ask: LoadShard, done: ShardLoaded, limit: int, epoch: int
    ) -> tuple[ShardLoaded, int, str]:
        """Read once, and put in flight what is new. Return the reply so far, how many rows were read, and why some are
        left out."""
        count, refused = 0, ""
        limit_ms = self._limits(ask.flow).load_timeout_ms
        try:
            async with self._places[ask.flow]:  # of calls, and not of adds: those wait for the server, not for a core
                since = self._door.since()
                with anyio.fail_after(limit_ms / 1000):
                    zone = "" if handler.scope is None else handler.scope.zone
                    context = FlowContext(flow=handler.key, shard=ask.shard, after=done.after, zone=zone)
                    loaded = await rows_apart(await handler.load(context, ask.shard, limit), ask.shard, epoch)
            loaded = self._in_region(ask.flow, loaded)
            rows, count, refused = loaded.rows, loaded.read, loaded.error
            if refused:
                log.warning("flow.rows_left_out", extra=fields(flow=ask.flow, shard=ask.shard, error=refused))
            reach("flow.loaded")
            while rows and done.new < ask.limit and not done.error:
                some, rows = rows[: ask.limit - done.new], rows[ask.limit - done.new :]
                done = _counted(done, some, await self._door.add_rows(ask.flow, some, since, epoch))
            if not rows and not done.error and loaded.last:
                done = msgspec.structs.replace(done, after=loaded.last)  # behind rows that are left out, too
        except Exception as error:  # the border to the user's code
            is_foreseen = isinstance(error, BadRows | StillRunning | StreamError | TimeoutError)
            reason = reason_of(error, f"`load` took more than {limit_ms} ms")
            told = fields(flow=ask.flow, shard=ask.shard, error=reason)
            log.warning("flow.load_failed", exc_info=None if is_foreseen else error, extra=told)
            done = msgspec.structs.replace(done, error=reason[:LONGEST_ERROR])
        return done, count, refused


def _counted(done: ShardLoaded, rows: Sequence[LoadedRow], answers: Sequence[bool | StreamError]) -> ShardLoaded:
    """Return the reply with these rows in it. `after` stands before the first row that was not taken."""
    upto = next((at for at, answer in enumerate(answers) if isinstance(answer, StreamError)), len(rows))
    errors = [str(answer) for answer in answers if isinstance(answer, StreamError)]
    return msgspec.structs.replace(
        done,
        new=done.new + sum(answer is True for answer in answers),
        known=done.known + sum(answer is False for answer in answers),
        after=rows[upto - 1].key if upto else done.after,
        error=errors[0][:LONGEST_ERROR] if errors else "",
    )
