"""Rounds: each one asks the shards of a flow for as many rows as are missing from its target.

A round is a job, fired by the flow's schedule, on any node that serves the flow. In: the flow's settings, its shards
(by the user's `split`), how many rows are in flight. Out: requests to load (`LoadShard`), and the progress in FLOWS.
State: the progress says what the shards gave last. Rows that a round could not get are missing in the next one.

Under redelivery: a round that comes late does nothing, since the next ones have been. Two rounds at a time load too
much between them at most once. The rate of the executors stays what it is, and the rounds after load less. When `split`
fails, the round is noted with the reason, and the next one tries again. A shard whose load lasts longer than its round
is left alone until the load has ended (actors/flow/loader.py), or its time is over.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio
import msgspec

from actors.flow.flows import MOST_PAST, FlowLimits, FlowProgress, Flows, RoundReport, ShardState, interval_ms
from actors.flow.handler import FlowContext, FlowHandler, StillRunning, reason_of
from actors.flow.rules.groups import split_shards
from actors.flow.rules.quotas import deal, missing, next_every_ms, next_first, next_least, shards_of, spread_s, target
from actors.runtime.bounds import Anywhere, WorkBounds
from actors.runtime.logs import fields
from actors.runtime.measures import Measures
from actors.runtime.tracing import traces
from streams.clock import Clock, monotonic_s
from streams.errors import MalformedMessage, NoStream, OutcomeUnknown, StreamError, no_responders
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.flow import ANY_GROUP, LoadShard, ShardLoaded, decode_flow

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Shards that are asked at the same time."""
BUSY_S = 0.05
"""Before a shard is asked again whose nodes have enough in hand."""
TAKEN_S = 0.3
"""How soon a node says that it has a request. One that stands still does not, and another one is asked."""
NOT_ASKED = ShardLoaded()
"""In place of a reply: the time of the round was over, or the nodes had enough in hand until then."""
MOST_ERRORS = 3
MOST_NAMES = 20_000
"""Characters of the names of shards that are stored, so that one can ask about a shard that is not among them."""
LONGEST_ERROR = 200
AT_LEAST_S = 0.005
"""Shards that are due within less are asked together."""
PAUSED_S = 0.5
"""Before a round looks again whether its flow is still paused."""
LEAST_S = 0.8
"""A round has at least so long to hear from its shards."""


class RowCounter(Protocol):
    """The part of the job engine that is needed here."""

    def rate(self, flow: str) -> float:
        """Return the rate of a flow's rows, per second. 0: no limit."""
        ...

    def is_paused(self, flow: str) -> bool: ...

    async def loaded(self, flow: str) -> tuple[int, int]:
        """Return how many rows are loaded and not executed: without those that wait for another attempt or a free slot,
        and those alone."""
        ...


class Tempo(Protocol):
    """The flow's schedule."""

    async def follow(self, flow: str, every_ms: int, *, is_only_changed: bool = False) -> None:
        """Have rounds at this interval. `is_only_changed`: not if somebody has removed the schedule."""
        ...


class Rounds:
    """A node's part of this. `living(flow)`: the labels of live nodes that serve a flow."""

    def __init__(
        self,
        *,
        connection: Connection,
        flows: Flows,
        rows: RowCounter,
        tempo: Tempo,
        living: Callable[[str], frozenset[str]],
        clock: Clock,
        measures: Measures | None = None,
        bounds: WorkBounds | None = None,
        stop: anyio.Event | None = None,
    ) -> None:
        self._stop = stop or anyio.Event()
        self._connection = connection
        self._flows = flows
        self._rows = rows
        self._tempo = tempo
        self._living = living
        self._clock = clock
        self._measures = measures
        self._bounds = bounds or Anywhere()

    async def run(self, handler: FlowHandler, due_ms: int) -> RoundReport | None:
        """Make the round that was due at `due_ms`. Return what it did. None: nothing, because the flow is paused or the
        round is too late."""
        flow, began_ms = handler.flow, self._clock.now_ms()
        limits, progress = self._flows.current(flow).limits, self._flows.progress(flow)
        every_ms = interval_ms(limits, progress.every_ms)
        if self._rows.is_paused(flow) or began_ms - due_ms > every_ms:
            return None
        busy = {shard for shard, state in progress.shards.items() if state.busy_ms > began_ms}
        made = await self._made(handler, limits, progress, every_ms, began_ms, busy)
        await self._flows.note(flow, made, busy)
        if made.every_ms != every_ms:
            log.info("flow.tempo", extra=fields(flow=flow, before_ms=every_ms, every_ms=made.every_ms))
        limits = self._flows.current(flow).limits  # a person may have changed them meanwhile
        await self._tempo.follow(flow, interval_ms(limits, made.every_ms), is_only_changed=True)
        report = made.rounds[-1]
        if self._measures is not None:
            failed = report.failed + report.silent or bool(report.errors)
            self._measures.flow_round(flow, loaded=report.new, failed=failed)
        return report

    def is_left(self, report: RoundReport) -> bool:
        """Return whether another node has to go on with a round, since this one stops."""
        return self._stop.is_set() and report.new < report.asked

    async def _made(
        self,
        handler: FlowHandler,
        limits: FlowLimits,
        progress: FlowProgress,
        every_ms: int,
        began_ms: int,
        busy: Collection[str],
    ) -> FlowProgress:
        began_s = monotonic_s()
        shards = await self._split(handler, limits.load_timeout_ms)
        if isinstance(shards, str):
            failed = RoundReport(began_ms=began_ms, every_ms=every_ms, errors=(shards,))
            return _noted(progress, failed, every_ms=every_ms)
        flow, rate = handler.flow, self._rows.rate(handler.flow)
        in_flight, waiting = await self._rows.loaded(flow)
        wanted = target(rate, every_ms, limits.lead_ms, most=limits.most_in_flight)
        groups = split_shards(shards, limits.groups, self._living(flow)) if limits.groups else {}
        states = {shard: progress.shards.get(shard, ShardState()) for shard in shards}
        mine = [shard for shard in shards if (not limits.groups or shard in groups) and shard not in busy]
        asked = missing(wanted, in_flight, waiting, most=limits.most_in_flight)
        zone, is_paused = self._bounds.zone_of(limits.zone) or "", partial(self._rows.is_paused, flow)
        least = progress.least
        asking = _Asking(self._connection, flow, groups, states, self._clock, zone, is_paused, self._stop, least=least)
        spread = spread_s(rate, every_ms, in_flight)
        deadline_s = began_s + max(LEAST_S, every_ms / 1000)
        await asking.ask(mine, asked, progress.first, spread_s=spread, deadline_s=deadline_s, limits=limits)
        made = RoundReport(
            began_ms=began_ms,
            took_ms=round((monotonic_s() - began_s) * 1000),
            every_ms=every_ms,
            in_flight=in_flight,
            target=wanted,
            asked=asked,
            new=asking.new,
            known=asking.known,
            shards=len(shards),
            short=len(asking.short),
            failed=len(asking.failed),
            silent=asking.silent,
            alone=len([shard for shard in shards if shard not in groups]) if limits.groups else 0,
            errors=tuple(asking.failed.values())[:MOST_ERRORS],
        )
        return _after(progress, made, asking, mine, shards, limits)

    async def _split(self, handler: FlowHandler, limit_ms: int) -> list[str] | str:
        """Return the shards, or why the user's code has returned none that can be used."""
        scope = handler.scope
        try:
            with anyio.fail_after(limit_ms / 1000):
                context = FlowContext(flow=handler.key) if scope is None else scope.split_context(handler.key)
                shards = shards_of(await handler.split(context))
                return shards if scope is None else [shard for shard in shards if scope.since(shard) is not None]
        except Exception as error:  # the border to the user's code
            reason = reason_of(error, f"took more than {limit_ms} ms")
            reason = f"split: {reason.removeprefix('split: ')}"[:LONGEST_ERROR]
            is_foreseen = isinstance(error, StillRunning | TimeoutError)
            told = fields(flow=handler.flow, error=reason)
            log.warning("flow.split_failed", exc_info=None if is_foreseen else error, extra=told)
            return reason


def _after(
    progress: FlowProgress,
    made: RoundReport,
    asking: "_Asking",
    mine: Sequence[str],
    shards: Sequence[str],
    limits: FlowLimits,
) -> FlowProgress:
    """Return the progress after a round: when the next one is, and where it begins."""
    every_ms = next_every_ms(
        made.every_ms, limits.every_ms, limits.longest_ms, asked=made.asked, new=made.new, was_empty=made.in_flight == 0
    )
    kept = {shard: state for shard, state in asking.states.items() if state != ShardState()}
    first = next_first(made.asked, len(mine), progress.first, progress.least)
    least = next_least(progress.least, is_cut=bool(asking.not_asked))
    if asking.not_asked:  # else the same shards would be left out each time
        first = mine.index(asking.not_asked)
    names = tuple(shards) if sum(map(len, shards)) <= MOST_NAMES else ()
    return _noted(progress, made, first=first, least=least, every_ms=every_ms, shards=kept, names=names)


def _noted(progress: FlowProgress, made: RoundReport, **changes: object) -> FlowProgress:
    return msgspec.structs.replace(progress, rounds=(*progress.rounds, made)[-MOST_PAST:], **changes)


class _Asking:
    """One round's requests. What some shards do not have is asked of the others, until all are short or have failed."""

    def __init__(
        self,
        connection: Connection,
        flow: str,
        groups: Mapping[str, str],
        states: Mapping[str, ShardState],
        clock: Clock,
        zone: str = "",
        is_paused: Callable[[], bool] = lambda: False,
        stop: anyio.Event | None = None,
        *,
        least: int = 1,
    ) -> None:
        self._stop = stop or anyio.Event()
        self._least = least
        self._connection = connection
        self._flow = flow
        self._groups = groups
        self._zone = zone
        self._is_paused = is_paused
        self._clock = clock
        self.states = dict(states)
        self.new = self.known = self.silent = 0
        self.not_asked = ""
        self.short: set[str] = set()
        self.failed: dict[str, str] = {}

    async def ask(
        self, shards: Sequence[str], total: int, first: int, *, spread_s: float, deadline_s: float, limits: FlowLimits
    ) -> None:
        """Ask for `total` rows, evenly over `spread_s`, and for what is missing then at once, until the deadline.
        Nothing more is asked once the node stops."""
        open_shards, left = list(shards), total
        while open_shards and left > 0 and self._goes_on(deadline_s):
            quotas = deal(left, open_shards, first, self._least)
            before = self.new
            await self._ask_all(quotas, spread_s, deadline_s, limits)
            spread_s = 0.0
            left -= self.new - before
            over = self.short | self.failed.keys()
            open_shards = [one for one in open_shards if one not in over and not self.states[one].busy_ms]
            first += len(quotas)

    def _goes_on(self, deadline_s: float) -> bool:
        return monotonic_s() < deadline_s and not self._stop.is_set()

    async def _ask_all(self, quotas: Mapping[str, int], spread_s: float, deadline_s: float, limits: FlowLimits) -> None:
        """Ask each shard for its quota. A shard that does not answer is left alone for as long as its load may take.
        Its rows may come or not. The next round sees what came, and asks other shards for the rest."""
        places = anyio.Semaphore(AT_ONCE)

        async def ask(shard: str, quota: int) -> None:
            try:
                loaded = await self._answer(shard, quota, deadline_s)
            finally:
                places.release()
            if loaded is NOT_ASKED:
                self.not_asked = self.not_asked or shard
                return
            if loaded is None:
                self.silent += 1
                busy_ms = self._clock.now_ms() + limits.load_timeout_ms
                self.states[shard] = msgspec.structs.replace(self.states[shard], busy_ms=busy_ms)
                return
            self.new += loaded.new
            self.known += loaded.known
            self.states[shard] = ShardState(after=loaded.after, has_failed=bool(loaded.error))
            if loaded.error:
                self.failed[shard] = f"{shard}: {loaded.error}"
            elif loaded.is_short or loaded.new < quota:
                self.short.add(shard)

        began_s, left = monotonic_s(), ""
        async with anyio.create_task_group() as tasks:
            for number, (shard, quota) in enumerate(quotas.items()):
                wait_s = began_s + spread_s * number / len(quotas) - monotonic_s()
                if wait_s > AT_LEAST_S:
                    with anyio.move_on_after(wait_s):
                        await self._stop.wait()
                await places.acquire()  # before the task is made: ten thousand at once hold up the loop
                if not self._goes_on(deadline_s):  # a task for each of ten thousand takes as long as some rounds
                    left = shard
                    break
                tasks.start_soon(ask, shard, quota)
        self.not_asked = self.not_asked or left

    async def _answer(self, shard: str, quota: int, deadline_s: float) -> ShardLoaded | None:
        """Return the reply of a node of the shard's group. While the flow is paused, none is asked. None: there was no
        reply in time. NOT_ASKED: no node has a request, so nothing will come of it."""
        subject = self._connection.namespace.flow_loads(self._flow, self._groups.get(shard, ANY_GROUP), self._zone)
        ask = LoadShard(flow=self._flow, shard=shard, limit=quota, after=self.states[shard].after)
        may_come = False
        while self._goes_on(deadline_s):
            if self._is_paused():
                await anyio.sleep(PAUSED_S)
                continue
            try:
                message = await self._asked(subject, ask, deadline_s)
                if message is None:
                    may_come = True
                    continue
                if "Nats-Service-Error" not in message.headers:
                    return decode_flow(message.payload, ShardLoaded)
                if message.headers.get("Nats-Service-Error-Code") != "503":
                    return ShardLoaded(after=ask.after, error=message.headers["Nats-Service-Error"][:LONGEST_ERROR])
            except (NoStream, MalformedMessage) as error:
                return ShardLoaded(after=ask.after, error=str(error)[:LONGEST_ERROR])
            except StreamError:
                return None
            await anyio.sleep(BUSY_S)
        return None if may_come else NOT_ASKED

    async def _asked(self, subject: str, ask: LoadShard, deadline_s: float) -> Message | None:
        """Return the reply to one request. None: no node took it, since the one that got it stands still. Raises what
        a request raises."""
        told_at, taken = self._connection.expect_reply(subject)
        payload = msgspec.json.encode(msgspec.structs.replace(ask, taken=told_at))
        try:
            headers = traces.headers() or None
            answer = await self._connection.send_request(subject, payload, deadline_s=deadline_s, headers=headers)
            try:
                done, _ = await asyncio.wait({taken, answer}, timeout=TAKEN_S, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    return None
                async with asyncio.timeout(max(0.0, deadline_s - monotonic_s())):
                    message = await answer
            except TimeoutError:
                raise OutcomeUnknown("no answer in time", subject=subject) from None
            finally:
                answer.cancel()
        finally:
            taken.cancel()
        if message.status == 503:
            raise no_responders(subject)
        return message
