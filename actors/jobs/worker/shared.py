"""What the topics of one node share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from actors.jobs.topics import Topics
from actors.jobs.worker.hold import Hold
from actors.jobs.worker.restarts import Restarts
from actors.jobs.worker.settling import Settling
from actors.jobs.worker.slices import Slices
from actors.runtime.bounds import WorkBounds
from actors.runtime.broker.unmade import Unmade
from actors.runtime.measures import Measures
from actors.runtime.rates.shares import SharedRates
from actors.runtime.rates.slot_client import NodeSlots
from streams.clock import Clock
from streams.link.connection import Connection

TEND_S = 0.1
"""Between two looks at the topics that are not quiet."""


@dataclass(slots=True, kw_only=True)
class Shared:
    """`chance`: a new number in [0, 1) with each call. `stirred`: the topics that must be tended. A topic without jobs
    costs nothing, so a node may serve thousands. `has_stirred`: set soon after the first of them was stirred."""

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
    unmade: Unmade
    stirred: set[str] = field(default_factory=set)
    has_stirred: asyncio.Event = field(default_factory=asyncio.Event)

    def stir(self, topic: str) -> None:
        """Have a topic tended."""
        if not self.stirred:  # a moment later, not to delay its first job
            asyncio.get_running_loop().call_later(TEND_S, self.has_stirred.set)
        self.stirred.add(topic)
