"""People who change one schedule at the same time: their answers are those of some order."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from itertools import permutations

import anyio
import pytest

from actors.jobs.schedule_desk import ScheduleRefused
from tests.support.schedule_ground import FAR, Ground, running

ROUNDS, CALLERS = 15, 3
GONE, RUNS, PAUSED = "gone", "runs", "paused"
Answer = tuple[bool, str]
"""Whether the schedule was changed, and its state after that."""
REFUSED: Answer = (False, GONE)

NEXT: Mapping[str, Mapping[str, Answer]] = {
    "pause": {GONE: REFUSED, RUNS: (True, PAUSED), PAUSED: (False, PAUSED)},
    "resume": {GONE: REFUSED, RUNS: (False, RUNS), PAUSED: (True, RUNS)},
    "remove": {GONE: REFUSED, RUNS: (True, GONE), PAUSED: (True, GONE)},
    "add": {GONE: (True, RUNS), RUNS: (False, RUNS), PAUSED: (False, PAUSED)},
    "trigger": {GONE: REFUSED, RUNS: (True, RUNS), PAUSED: (True, PAUSED)},
}


def in_order(state: str, acts: list[str], order: tuple[int, ...]) -> tuple[dict[int, Answer], str]:
    """Return what each caller is answered if they come in this order, and the state in the end."""
    answers: dict[int, Answer] = {}
    for caller in order:
        answers[caller] = NEXT[acts[caller]][state]
        state = answers[caller][1]
    return answers, state


async def state_of(ground: Ground) -> str:
    try:
        view = await ground.schedules.show("mail", "nightly")
    except ScheduleRefused:
        return GONE
    return PAUSED if view.state == "paused" else RUNS


async def answered(ground: Ground, act: str) -> tuple[bool, str | None]:
    """Return what one caller is answered. A trigger does not tell the state."""
    schedules = ground.schedules
    changes: Mapping[str, Callable[[], Awaitable[object]]] = {
        "pause": lambda: schedules.pause("mail", "nightly"),
        "resume": lambda: schedules.resume("mail", "nightly"),
        "add": lambda: schedules.add("mail", "nightly", FAR),
        "remove": lambda: schedules.remove("mail", "nightly"),
        "trigger": lambda: schedules.trigger("mail", "nightly"),
    }
    try:
        told = await changes[act]()
    except ScheduleRefused as refused:
        if refused.code != "not_found":
            raise
        return REFUSED
    if act == "remove":
        return True, GONE
    if act == "trigger":
        return True, None
    view = told.schedule  # type: ignore[attr-defined] # of a change
    return told.is_changed, PAUSED if view.state == "paused" else RUNS  # type: ignore[attr-defined] # of a change


@pytest.mark.parametrize("seed", range(3))
async def test_callers_at_once_are_answered_as_if_one_came_after_the_other(ground: Ground, seed: int) -> None:
    choose = random.Random(seed)  # a test prints its seed
    async with running(ground.actor()):
        state = GONE
        for _ in range(ROUNDS):
            acts = [choose.choice([*NEXT, "add"]) for _ in range(CALLERS)]
            answers: dict[int, tuple[bool, str | None]] = {}

            async def ask(caller: int, act: str, answers: dict[int, tuple[bool, str | None]] = answers) -> None:
                answers[caller] = await answered(ground, act)

            async with anyio.create_task_group() as tasks:
                for caller, act in enumerate(acts):
                    tasks.start_soon(ask, caller, act)
            after = await state_of(ground)
            fitting = [
                order
                for order in permutations(range(CALLERS))
                for would, end in [in_order(state, acts, order)]
                if end == after
                and all(told[0] == would[n][0] and told[1] in (None, would[n][1]) for n, told in answers.items())
            ]
            assert fitting, (seed, state, acts, answers, after)
            state = after
