"""Runs the handlers of a node's app (`@penstock.job`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from anyio.abc import TaskStatus

from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.worker import JobWorker
from actors.runtime.crowd import for_each
from actors.runtime.logs import fields
from actors.runtime.rates.shares import SharedRates
from actors.runtime.rules.slot_keys import Slots
from actors.runtime.supervisor import ActorSpec
from penstock.node.node import Node
from streams.chance import chance
from streams.clock import Clock

__all__ = ["JobHandlers", "open_job_workers"]

log = logging.getLogger(__name__)

_ROLE, _NAME = "worker", "handlers"
_AT_WORK = f"{_ROLE}/{_NAME}"
"""In a node's record once its handlers have started."""


@dataclass(frozen=True, slots=True)
class JobHandlers:
    """The node's handlers at work. `topics()`, `unmade()`: for the node's record, as in `Status`."""

    actors: tuple[ActorSpec, ...]
    topics: Callable[[], tuple[str, ...]]
    unmade: Callable[[], dict[str, str]] = dict


def open_job_workers(
    node: Node, *, store: JobStore, topics: Topics, rates: SharedRates, clock: Clock, registered: Mapping[str, Handler]
) -> JobHandlers:
    """Return the actor that runs these handlers, by topic, or none if there are no handlers or the node has another
    role. `clock` is the server's."""
    if not registered or not node.config.has_role(_ROLE):
        return JobHandlers((), lambda: ())

    def has_others() -> bool:
        """Return whether another live node runs all of these handlers by now."""
        others = (each for name, each in node.members.live().items() if name != node.members.name)
        return any(_AT_WORK in each.steady and registered.keys() <= set(each.topics) for each in others)

    worker = JobWorker(
        tuple(registered.values()),
        node=node.members.name,
        connection=node.connection,
        store=store,
        topics=topics,
        rates=rates,
        slots=node.slots,
        clock=clock,
        chance=chance,
        measures=node.measures,
        stop=node.stop,
        is_heard=node.members.is_heard,
        bounds=node.bounds,
        others=has_others,
    )

    async def run(*, task_status: TaskStatus[None]) -> None:
        await for_each(registered.values(), partial(_declare_slots, topics))
        await worker.run(task_status=task_status)

    spec = ActorSpec(name=_NAME, role=_ROLE, run=run, drains=True)
    return JobHandlers((spec,), lambda: worker.topics, lambda: worker.unmade)


async def _declare_slots(topics: Topics, handler: Handler) -> None:
    """Make what the code says about slots the topic's settings, if the code has changed. So a restart does not undo
    what a person has set since."""
    slots, before = handler.slots, topics.current(handler.topic)
    declared = _declaration(slots)
    if declared == before.declared_slots:
        return
    names = ("slots", "slot_key", "when_full", "declared_slots")
    values: dict[str, object] = dict.fromkeys(names) | declared_slots(declared)
    if declared:
        values["declared_slots"] = declared
    log.info("job.slots", extra=fields(topic=handler.topic, before=before.declared_slots, slots=declared))
    await topics.enlist(handler.topic, "normal")
    await topics.change(handler.topic, values)


def _declaration(slots: Slots | None) -> str:
    """Return what the code says about slots, as one text."""
    return "" if slots is None else f"{slots.most} {slots.when_full} {slots.key}".rstrip()


def declared_slots(declaration: str) -> dict[str, object]:
    """Return the settings of a topic that a declaration stands for. Empty: none."""
    if not declaration:
        return {}
    most, when_full, *key = declaration.split(" ", 2)
    return {"slots": int(most), "when_full": when_full, "slot_key": key[0] if key else ""}
