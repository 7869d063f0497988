"""How many jobs a tenant has waiting, roughly: counted at the broker at most once a second, and what this node has let
in since added to it. So a tenant may get above its quota by what other nodes let in within a second, no further.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.gateway.callers import Caller
from penstock.gateway.problems import refused
from streams.clock import monotonic_s

if TYPE_CHECKING:
    from actors.job_desk import JobDesk

__all__ = ["Quotas"]

FRESH_S = 1.0
MOST_KNOWN = 10_000


class _Counted(NamedTuple):
    waiting: int
    at_s: float


class Quotas:
    """The waiting jobs of tenants, as this node knows them."""

    def __init__(self, desk: "JobDesk", monotonic: Callable[[], float] = monotonic_s) -> None:
        self._desk = desk
        self._monotonic = monotonic
        self._known: dict[str, _Counted] = {}

    async def check(self, caller: Caller, count: int) -> None:
        """Raise RefusedRequest if `count` more would take the caller above its quota; else count them in."""
        if not caller.most_waiting:
            return
        known = self._known.get(caller.key)
        if known is None or self._monotonic() - known.at_s > FRESH_S:
            known = _Counted(await self._count(caller), self._monotonic())
        if known.waiting + count > caller.most_waiting:
            self._keep(caller.key, known)
            raise refused(
                429,
                "quota",
                f"{known.waiting} jobs wait already; {caller.most_waiting} may",
                hint="wait until some are finished, or delete some",
                retry_after_s=2,
            )
        self._keep(caller.key, known._replace(waiting=known.waiting + count))

    async def _count(self, caller: Caller) -> int:
        waiting = 0
        for view in await self._desk.topics():
            if caller.is_own(view.topic):
                counts = await self._desk.count(view.topic)
                waiting += counts.delayed + counts.ready
        return waiting

    def _keep(self, key: str, counted: _Counted) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key] = counted
