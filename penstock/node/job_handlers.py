"""Puts the handlers of a node's app (`@penstock.job`) to work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.worker import JobWorker
from actors.runtime.measures import Measures
from actors.runtime.shares import Shares
from actors.runtime.supervisor import ActorSpec
from penstock.node.node import Node
from penstock.sdk.jobs import handlers
from streams.chance import chance
from streams.clock import Clock

__all__ = ["JobHandlers", "open_job_workers"]


@dataclass(frozen=True, slots=True)
class JobHandlers:
    """The node's handlers at work. `topics`: for the node's record (`Status.topics`)."""

    actors: tuple[ActorSpec, ...]
    topics: tuple[str, ...]


def open_job_workers(
    node: Node,
    *,
    store: JobStore,
    topics: Topics,
    rates: Shares,
    clock: Clock,
    measures: Measures,
    registered: Mapping[str, Handler] | None = None,
) -> JobHandlers:
    """Return the actor that runs the handlers that were registered; none, if there are none or the node has another
    role. `clock` is the server's."""
    found = tuple((handlers() if registered is None else registered).values())
    if not found or not node.config.has_role("worker"):
        return JobHandlers((), ())
    worker = JobWorker(
        found,
        node=node.members.name,
        connection=node.connection,
        store=store,
        topics=topics,
        rates=rates,
        clock=clock,
        chance=chance,
        measures=measures,
        stop=node.stop,
    )
    return JobHandlers((ActorSpec(name="handlers", role="worker", run=worker.run, drains=True),), worker.topics)
