"""Runs the handlers of a node's app (`@penstock.job`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.worker import JobWorker
from actors.runtime.shares import SharedRates
from actors.runtime.supervisor import ActorSpec
from penstock.node.node import Node
from streams.chance import chance
from streams.clock import Clock

__all__ = ["JobHandlers", "open_job_workers"]


@dataclass(frozen=True, slots=True)
class JobHandlers:
    """The node's handlers at work. `topics()`: for the node's record (`Status.topics`)."""

    actors: tuple[ActorSpec, ...]
    topics: Callable[[], tuple[str, ...]]


def open_job_workers(
    node: Node, *, store: JobStore, topics: Topics, rates: SharedRates, clock: Clock, registered: Mapping[str, Handler]
) -> JobHandlers:
    """Return the actor that runs these handlers, by topic, or none if there are no handlers or the node has another
    role. `clock` is the server's."""
    if not registered or not node.config.has_role("worker"):
        return JobHandlers((), lambda: ())
    worker = JobWorker(
        tuple(registered.values()),
        node=node.members.name,
        connection=node.connection,
        store=store,
        topics=topics,
        rates=rates,
        clock=clock,
        chance=chance,
        measures=node.measures,
        stop=node.stop,
        is_heard=node.members.is_heard,
    )
    return JobHandlers((ActorSpec(name="handlers", role="worker", run=worker.run, drains=True),), lambda: worker.topics)
