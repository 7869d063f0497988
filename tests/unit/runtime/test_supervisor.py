"""Actors are started in order, restarted by policy, parked, and stopped in two steps."""

from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.abc import TaskStatus
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.supervisor import (
    ActorSpec,
    ActorState,
    ParkActor,
    Policy,
    RestartActor,
    StopNode,
    Supervisor,
    after_failure,
)
from streams.errors import ConnectionLost, Disconnected, PermissionDenied, TopologyMismatch

QUICK = Policy(most=2, period_s=60, delays=Policy().delays.__class__(growth="exponential", base_ms=1, cap_ms=5))
FATAL = [ConnectionLost("closed"), PermissionDenied("no"), TopologyMismatch(["x"])]


class Stage:
    """Runs a supervisor and writes down what happens."""

    def __init__(self, *specs: ActorSpec, drain_s: float = 5.0) -> None:
        self.stop = anyio.Event()
        self.told: list[tuple[str, str]] = []
        self.changed = anyio.Event()
        self.supervisor = Supervisor(
            specs, stop=self.stop, drain_s=drain_s, chance=lambda: 0.0, on_change=self._on_change
        )

    def _on_change(self, state: ActorState) -> None:
        self.told.append((state.name, state.status))
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, name: str, status: str) -> None:
        with anyio.fail_after(20):
            while (name, status) not in self.told:
                await self.changed.wait()

    async def run(self, script: Callable[[], Awaitable[None]]) -> None:
        """Start, follow the script, and wait for the end; raises what the supervisor raises."""
        failed: list[Exception] = []

        async def play() -> None:
            await script()

        async def supervise(*, task_status: TaskStatus[None]) -> None:
            try:
                await self.supervisor.run(task_status=task_status)
            except Exception as error:
                failed.append(error)
                tasks.cancel_scope.cancel()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                await tasks.start(supervise)
                tasks.start_soon(play)
        if failed:
            raise failed[0]

    def state(self, name: str) -> ActorState:
        return next(state for state in self.supervisor.states() if state.name == name)


async def steady(*, task_status: TaskStatus[None]) -> None:
    task_status.started()
    await anyio.sleep_forever()


def failing(error: Exception, *, is_started: bool = True) -> Callable[..., Awaitable[None]]:
    async def run(*, task_status: TaskStatus[None]) -> None:
        if is_started:
            task_status.started()
        raise error

    return run


def spec(name: str, run: object, *, drains: bool = False, policy: Policy = QUICK) -> ActorSpec:
    return ActorSpec(name=name, role="any", run=run, drains=drains, policy=policy)  # type: ignore[arg-type]


async def test_actors_start_one_after_the_other_in_the_order_of_the_list() -> None:
    order: list[str] = []

    def tracing(name: str) -> Callable[..., Awaitable[None]]:
        async def run(*, task_status: TaskStatus[None]) -> None:
            order.append(f"{name} begins")
            await anyio.lowlevel.checkpoint()
            order.append(f"{name} is ready")
            await steady(task_status=task_status)

        return run

    stage = Stage(spec("sink", tracing("sink")), spec("fetcher", tracing("fetcher")))

    async def script() -> None:
        assert stage.supervisor.is_ready()
        stage.stop.set()

    await stage.run(script)
    assert order == ["sink begins", "sink is ready", "fetcher begins", "fetcher is ready"]
    assert [state.status for state in stage.supervisor.states()] == ["ended", "ended"]


async def test_one_that_cannot_start_does_not_hold_up_the_rest() -> None:
    stage = Stage(spec("sink", failing(RuntimeError("no database"), is_started=False)), spec("fetcher", steady))

    async def script() -> None:
        assert not stage.supervisor.is_ready()
        assert stage.state("fetcher").status == "running"
        await stage.until("sink", "parked")
        stage.stop.set()

    await stage.run(script)
    assert stage.state("sink").last_error == "RuntimeError: no database"


async def test_a_failed_actor_runs_again_and_says_why_it_failed() -> None:
    lives = iter([failing(ValueError("once"))])
    stage = Stage(spec("fetcher", lambda *, task_status: next(lives, steady)(task_status=task_status)))

    async def script() -> None:
        await stage.until("fetcher", "restarting")
        while stage.state("fetcher").status != "running":
            await stage.changed.wait()
        stage.stop.set()

    await stage.run(script)
    assert (stage.state("fetcher").failures, stage.state("fetcher").last_error) == (1, "ValueError: once")


async def test_one_that_keeps_failing_is_parked_and_the_others_go_on() -> None:
    stage = Stage(spec("fetcher", failing(ValueError("again"))), spec("sink", steady))

    async def script() -> None:
        await stage.until("fetcher", "parked")
        assert stage.state("sink").status == "running"
        stage.stop.set()

    await stage.run(script)
    assert stage.state("fetcher").status == "parked"
    assert stage.state("fetcher").failures == QUICK.most + 1


async def test_one_that_ends_without_being_stopped_has_failed() -> None:
    async def short(*, task_status: TaskStatus[None]) -> None:
        task_status.started()

    stage = Stage(spec("fetcher", short))

    async def script() -> None:
        await stage.until("fetcher", "parked")
        stage.stop.set()

    await stage.run(script)
    assert "nobody stopped it" in stage.state("fetcher").last_error


async def test_an_error_deep_in_task_groups_is_told_by_its_own_name() -> None:
    async def nested(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        async with anyio.create_task_group() as outer:
            async with anyio.create_task_group() as inner:
                inner.start_soon(failing_alone)
                outer.start_soon(anyio.sleep_forever)

    async def failing_alone() -> None:
        raise LookupError("deep")

    stage = Stage(spec("fetcher", nested))

    async def script() -> None:
        await stage.until("fetcher", "parked")
        stage.stop.set()

    await stage.run(script)
    assert stage.state("fetcher").last_error == "LookupError: deep"


@pytest.mark.parametrize("error", FATAL)
async def test_what_no_restart_mends_ends_the_node_at_once_and_as_it_is(error: Exception) -> None:
    stage = Stage(spec("sink", steady, drains=True), spec("fetcher", failing(error)))
    with pytest.raises(type(error)) as raised:
        await stage.run(anyio.sleep_forever)
    assert raised.value is error


async def test_a_policy_may_end_the_node() -> None:
    policy = Policy(most=0, then="stop")
    stage = Stage(spec("fetcher", failing(ValueError("enough")), policy=policy))
    with pytest.raises(ValueError, match="enough"):
        await stage.run(anyio.sleep_forever)


def draining(stage: list[Stage], finish: anyio.Event, trace: list[str]) -> Callable[..., Awaitable[None]]:
    async def run(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        try:
            await stage[0].stop.wait()
            trace.append("takes nothing more")
            await finish.wait()
            trace.append("finished")
        except anyio.get_cancelled_exc_class():
            trace.append("cancelled")
            raise

    return run


async def test_stop_lets_work_in_hand_finish_before_what_it_stands_on_ends() -> None:
    trace: list[str] = []
    finish = anyio.Event()
    stages: list[Stage] = []

    async def ground(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            trace.append("ground ends")

    stages.append(Stage(spec("settings", ground), spec("fetcher", draining(stages, finish, trace), drains=True)))

    async def script() -> None:
        stages[0].stop.set()
        while not trace:
            await anyio.lowlevel.checkpoint()
        finish.set()

    await stages[0].run(script)
    assert trace == ["takes nothing more", "finished", "ground ends"]


async def test_past_the_drain_deadline_everything_is_cancelled() -> None:
    trace: list[str] = []
    stages: list[Stage] = []
    never = anyio.Event()
    stages.append(Stage(spec("fetcher", draining(stages, never, trace), drains=True), drain_s=0.05))

    async def script() -> None:
        stages[0].stop.set()

    await stages[0].run(script)
    assert trace == ["takes nothing more", "cancelled"]


async def test_a_stop_does_not_wait_for_an_actor_that_is_waiting_to_be_restarted() -> None:
    slow = Policy(delays=Policy().delays.__class__(base_ms=60_000, cap_ms=60_000))
    stage = Stage(spec("fetcher", failing(ValueError("x")), drains=True, policy=slow), drain_s=60)

    async def script() -> None:
        await stage.until("fetcher", "restarting")
        stage.stop.set()

    await stage.run(script)
    assert stage.state("fetcher").status == "ended"


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=50).map(sorted), st.floats(0, 0.99))
def test_delays_grow_up_to_a_cap_and_parking_counts_the_period_only(failed_s: list[float], chance: float) -> None:
    policy = Policy()
    step = after_failure(failed_s, ValueError(), policy, chance=chance)
    recent = sum(failed_s[-1] - at < policy.period_s for at in failed_s)
    if recent > policy.most:
        assert step == ParkActor()
    else:
        assert isinstance(step, RestartActor)
        assert 0 < step.delay_s <= policy.delays.cap_ms / 1000


def test_trouble_that_a_reconnect_mends_never_parks() -> None:
    step = after_failure([float(at) for at in range(100)], Disconnected("down"), Policy(), chance=0.5)
    assert isinstance(step, RestartActor)
    assert 10 < step.delay_s <= 30


@pytest.mark.parametrize("error", FATAL)
def test_what_no_restart_mends_stops_at_the_first_failure(error: Exception) -> None:
    assert after_failure([0.0], error, Policy(), chance=0) == StopNode()
