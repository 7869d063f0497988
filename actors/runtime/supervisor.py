"""Starts a node's actors, keeps them running, and stops them in two steps. The one place for `except*`.

- **Start** in the order of the list: consumers come before the producers for them. An actor has started when it calls
  `task_status.started()`. An actor that fails or is slow does not delay the rest. It is tried again.
- **Failure**: an actor raises, and its policy decides. It is restarted after a growing, spread delay. After too many
  failures within a period it is parked: the node goes on without it, and reports so. Or the process ends. Trouble with
  the broker that a reconnect mends never parks an actor. An error that no restart mends (FATAL) ends the process at
  once.
- **Stop**: `stop` is set. Actors with work in hand (`drains`) take nothing new and finish it. The others serve them
  until then. Past the drain deadline everything is cancelled, and unfinished work is redelivered to other nodes.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL
from actors.runtime.logs import acting_as, fields
from streams.backoff import Backoff, next_delay_ms
from streams.clock import monotonic_s, now_ms
from streams.errors import Disconnected, OutcomeUnknown

log = logging.getLogger(__name__)

START_S = 10.0
"""How long the start of the next actor waits for one that does not report its start."""
PASSING = (Disconnected, OutcomeUnknown)
"""Trouble that a reconnect mends. The actor is restarted for ever, never parked."""

Status = Literal["starting", "running", "restarting", "parked", "ended"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about failures: up to `most` of them within `period_s` lead to a restart."""

    most: int = 8
    period_s: float = 300.0
    then: Literal["park", "stop"] = "park"
    delays: Backoff = Backoff(growth="exponential", base_ms=200, cap_ms=30_000, spread=0.5)


class Run(Protocol):
    """An actor's life. It calls `started()` when it can really receive, and raises when it cannot go on."""

    async def __call__(self, *, task_status: TaskStatus[None]) -> None: ...


class ActorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An actor to run. `drains`: it ends by itself, its work finished, once the node's stop is set. Any other actor is
    cancelled after those. An actor with another role than the node's is not started."""

    name: str
    role: str
    run: Run
    drains: bool = False
    policy: Policy = Policy()


class ActorState(msgspec.Struct, frozen=True, kw_only=True):
    """An actor's state, for people: `penstock nodes` shows it. `failures` counts those since the node's start.
    It travels in the node's record, so a status of a later release must decode as well."""

    name: str
    role: str
    status: Status | str
    since_ms: int
    failures: int = 0
    last_error: str = ""


class RestartActor(msgspec.Struct, frozen=True):
    delay_s: float


class ParkActor(msgspec.Struct, frozen=True):
    pass


class StopNode(msgspec.Struct, frozen=True):
    pass


def after_failure(
    failed_s: Sequence[float], error: Exception, policy: Policy, *, chance: float
) -> RestartActor | ParkActor | StopNode:
    """Return what follows the last of the failures at `failed_s` (seconds of one clock, oldest first)."""
    if isinstance(error, FATAL):
        return StopNode()
    recent = [at for at in failed_s if failed_s[-1] - at < policy.period_s]
    if len(recent) > policy.most and not isinstance(error, PASSING):
        return StopNode() if policy.then == "stop" else ParkActor()
    return RestartActor(next_delay_ms(len(recent) + 1, policy.delays, chance=chance) / 1000)


class _Kept:
    """One actor under supervision."""

    def __init__(self, spec: ActorSpec) -> None:
        self.spec = spec
        self.state = ActorState(name=spec.name, role=spec.role, status="starting", since_ms=now_ms())
        self.failed_s: list[float] = []
        self.is_known = anyio.Event()  # it has started, or has failed to start
        self.has_ended = anyio.Event()


class Supervisor:
    """Runs actors. Call `run` once, in the node's task group. Set `stop` to end it."""

    def __init__(
        self,
        specs: Sequence[ActorSpec],
        *,
        stop: anyio.Event,
        drain_s: float,
        chance: Callable[[], float],
        on_change: Callable[[ActorState], None] = lambda _state: None,
    ) -> None:
        self._kept = [_Kept(spec) for spec in specs]
        self._stop = stop
        self._drain_s = drain_s
        self._chance = chance
        self._on_change = on_change
        self._fatal: Exception | None = None

    def states(self) -> tuple[ActorState, ...]:
        """Return the state of each actor, in start order."""
        return tuple(kept.state for kept in self._kept)

    def is_ready(self) -> bool:
        """True while every actor runs."""
        return all(kept.state.status == "running" for kept in self._kept)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until stopped. Started once every actor has started or has failed to.
        Raises the error that ended the node, if one did."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_on_stop, tasks.cancel_scope)
            for kept in self._kept:
                tasks.start_soon(self._keep, kept, tasks.cancel_scope)
                with anyio.move_on_after(START_S) as waited:
                    await kept.is_known.wait()
                if waited.cancelled_caught:
                    log.warning("actor.slow_start", extra=fields(actor=kept.spec.name, waited_s=START_S))
                if self._stop.is_set():
                    break
            task_status.started()
        if self._fatal is not None:
            raise self._fatal

    async def _end_on_stop(self, everything: anyio.CancelScope) -> None:
        await self._stop.wait()
        draining = [kept for kept in self._kept if kept.spec.drains and kept.state.status != "starting"]
        with anyio.move_on_after(self._drain_s) as drain:
            for kept in draining:
                await kept.has_ended.wait()
        if drain.cancelled_caught:
            late = [kept.spec.name for kept in draining if not kept.has_ended.is_set()]
            log.warning("node.drain_cut_short", extra=fields(drain_s=self._drain_s, actors=late))
        everything.cancel()

    async def _keep(self, kept: _Kept, everything: anyio.CancelScope) -> None:
        """Run one actor again and again, as its policy says."""
        try:
            while True:
                error = await self._attempt(kept)
                if self._stop.is_set() and error is None:
                    return
                step = self._judge(kept, error or RuntimeError("ended, though nobody stopped it"))
                kept.is_known.set()
                if not isinstance(step, RestartActor):
                    break
                if await self._stopped_within(step.delay_s):
                    return
            if isinstance(step, StopNode):
                everything.cancel()
        finally:
            self._report(kept, "parked" if kept.state.status == "parked" else "ended")
            kept.is_known.set()
            kept.has_ended.set()

    async def _attempt(self, kept: _Kept) -> Exception | None:
        """Run the actor once, to its end. Return the error that ended it."""
        failed: list[Exception] = []
        self._report(kept, "starting")
        try:
            with acting_as(kept.spec.name):
                async with anyio.create_task_group() as tasks:
                    await tasks.start(self._live, kept.spec)
                    self._report(kept, "running")
                    kept.is_known.set()
        except* Exception as group:
            failed += _leaves(group)
        return next((error for error in failed if isinstance(error, FATAL)), failed[0] if failed else None)

    async def _live(self, spec: ActorSpec, *, task_status: TaskStatus[None]) -> None:
        await spec.run(task_status=task_status)

    def _judge(self, kept: _Kept, error: Exception) -> RestartActor | ParkActor | StopNode:
        kept.failed_s = [*kept.failed_s[-100:], monotonic_s()]
        step = after_failure(kept.failed_s, error, kept.spec.policy, chance=self._chance())
        text, failures = f"{type(error).__name__}: {error}", kept.state.failures + 1
        facts = fields(actor=kept.spec.name, error=text, failures=failures)
        match step:
            case RestartActor():
                trace = None if isinstance(error, PASSING) else error
                log.warning("actor.restarts", exc_info=trace, extra=facts)
                self._report(kept, "restarting", failures=failures, last_error=text)
            case ParkActor():
                log.error("actor.parked", exc_info=error, extra=facts)
                self._report(kept, "parked", failures=failures, last_error=text)
            case StopNode():
                self._fatal = self._fatal or error
                self._report(kept, "ended", failures=failures, last_error=text)
        return step

    def _report(
        self, kept: _Kept, status: Status, *, failures: int | None = None, last_error: str | None = None
    ) -> None:
        before = kept.state
        kept.state = ActorState(
            name=before.name,
            role=before.role,
            status=status,
            since_ms=before.since_ms if before.status == status else now_ms(),
            failures=before.failures if failures is None else failures,
            last_error=before.last_error if last_error is None else last_error,
        )
        if kept.state != before:
            self._on_change(kept.state)

    async def _stopped_within(self, delay_s: float) -> bool:
        with anyio.move_on_after(delay_s):
            await self._stop.wait()
        return self._stop.is_set()


@contextmanager
def one_error() -> Iterator[None]:
    """Raise the error that ended the block, without the groups in which task groups wrapped it: the fatal one if there
    is one, else the first."""
    try:
        yield
    except ExceptionGroup as group:
        errors = _leaves(group)
        raise next((error for error in errors if isinstance(error, FATAL)), errors[0]) from None


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """Return the errors themselves, however deeply task groups have wrapped them."""
    found: list[Exception] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found += _leaves(error)
        else:
            found.append(error)
    return found
