"""What the topics of one node share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from actors.jobs.topics import Topics
from actors.jobs.worker.hold import Hold
from actors.jobs.worker.restarts import Restarts
from actors.jobs.worker.settling import Settling
from actors.jobs.worker.slices import Slices
from actors.runtime.bounds import WorkBounds
from actors.runtime.measures import Measures
from actors.runtime.shares import SharedRates
from actors.runtime.slot_client import NodeSlots
from streams.clock import Clock
from streams.connection import Connection


@dataclass(slots=True, kw_only=True)
class Shared:
    """`chance`: a new number in [0, 1) with each call. `stirred`: the topics that must be tended. A topic without jobs
    costs nothing, so a node may serve thousands."""

    connection: Connection
    hold: Hold
    restarts: Restarts
    slices: Slices
    settling: Settling
    topics: Topics
    rates: SharedRates
    slots: NodeSlots
    clock: Clock
    chance: Callable[[], float]
    measures: Measures
    bounds: WorkBounds
    stirred: set[str] = field(default_factory=set)
