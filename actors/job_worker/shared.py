"""What the topics of one node share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actors.job_worker.hold import Hold
from actors.job_worker.restarts import Restarts
from actors.job_worker.settling import Settling
from actors.job_worker.slices import Slices
from actors.measures import Measures
from actors.release import ReleaseRates
from actors.topics import Topics
from streams.clock import Clock
from streams.connection import Connection

__all__ = ["Shared"]


@dataclass(slots=True, kw_only=True)
class Shared:
    """`chance`: in [0, 1), anew with each call."""

    connection: Connection
    hold: Hold
    restarts: Restarts
    slices: Slices
    settling: Settling
    topics: Topics
    rates: ReleaseRates
    clock: Clock
    chance: Callable[[], float]
    measures: Measures
