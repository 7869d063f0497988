"""Limits the waiting jobs and the topics of a tenant: roughly, so that no add waits for a count.

**Jobs.** The node decides by the last count and the jobs that it has admitted since. A count looks into each of the
tenant's topics. So one task counts beside the adds, the less often the longer a count takes: it takes a twentieth of
the time. Only a tenant that was never counted waits. So a tenant may exceed its quota by the jobs that other nodes
admit between two counts. For as long it may be refused although jobs were finished.

**Topics.** A new topic costs the server a consumer, and every node a record. Above the limit no new ones are made.
Existing ones stay in use.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from actors.runtime.logs import fields
from penstock.api.http.callers import Caller
from penstock.api.http.problems import RefusedRequest, refused
from streams.clock import monotonic_s
from streams.errors import StreamError
from streams.messages.jobs import NewJob

if TYPE_CHECKING:
    from actors.jobs.desk import JobDesk

log = logging.getLogger(__name__)

__all__ = ["Quotas"]

FRESH_S = 1.0
PART = 20
"""A count is renewed after this many times the time it took."""
MOST_KNOWN = 10_000


class _Tenant:
    """The counts of one tenant. `since`: the jobs admitted since its last count began."""

    __slots__ = ("at_s", "counted", "first", "since", "took_s")

    def __init__(self) -> None:
        self.counted: int | None = None
        self.since = 0
        self.at_s = 0.0
        self.took_s = 0.0
        self.first = anyio.Lock()


class Quotas:
    """The tenants, as this node knows them. `run` counts. It must run as long as there are adds."""

    def __init__(self, desk: "JobDesk") -> None:
        self._desk = desk
        self._known: dict[str, _Tenant] = {}
        self._due: dict[str, Caller] = {}
        self._is_due = anyio.Event()

    async def check(self, caller: Caller, topic: str, jobs: Sequence[NewJob]) -> None:
        """Raise RefusedRequest if the topic would be one too many, or the jobs exceed the caller's quota. Else count
        them. Above the quota a job with a nonce is looked up: a repeat that adds no job is admitted."""
        if caller.most_topics and topic not in (known := self._desk.known_topics()):
            own = sum(map(caller.is_own, known))
            if own >= caller.most_topics:
                raise _refused(f"{own} topics are there already; {caller.most_topics} may", "use one of them")
        if not caller.most_waiting:
            return
        tenant = await self._tenant(caller)
        waiting = (tenant.counted or 0) + tenant.since
        count, room = len(jobs), max(0, caller.most_waiting - waiting)
        if count > room:
            count = 0
            for job in jobs:
                count += not (job.nonce and await self._desk.adds_none(job))
                if count > room:
                    raise _refused(
                        f"{waiting} jobs wait already; {caller.most_waiting} may",
                        "wait until some are finished, or delete some",
                    )
        tenant.since += count

    async def run(self) -> None:
        """Renew the counts of the tenants that add, until cancelled."""
        while True:
            await self._is_due.wait()
            self._is_due = anyio.Event()
            while self._due:
                key = next(iter(self._due))
                caller = self._due[key]
                try:
                    await self._count(caller, self._known.get(key) or _Tenant())
                except StreamError as error:  # the last count holds
                    log.warning("gateway.not_counted", extra=fields(token=caller.name, error=str(error)))
                del self._due[key]

    async def _tenant(self, caller: Caller) -> _Tenant:
        tenant = self._known.get(caller.key)
        if tenant is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            tenant = self._known[caller.key] = _Tenant()
        if tenant.counted is None:
            async with tenant.first:
                if tenant.counted is None:
                    await self._count(caller, tenant)
        elif monotonic_s() - tenant.at_s > max(FRESH_S, PART * tenant.took_s) and caller.key not in self._due:
            self._due[caller.key] = caller
            self._is_due.set()
        return tenant

    async def _count(self, caller: Caller, tenant: _Tenant) -> None:
        before, began_s = tenant.since, monotonic_s()
        counted = await self._desk.count_many(list(filter(caller.is_own, self._desk.known_topics())))
        waiting = sum(each.delayed + each.ready for each in counted)
        tenant.counted, tenant.since = waiting, tenant.since - before
        tenant.at_s = monotonic_s()
        tenant.took_s = tenant.at_s - began_s


def _refused(detail: str, hint: str) -> RefusedRequest:
    return refused(429, "quota", detail, hint=hint, retry_after_s=2)
