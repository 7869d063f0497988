"""Sends requests to one source's platform for a person: as a fetcher does, but with longer waits.

Requests, pauses and credentials are the fetcher's own (actors/fetch/fetcher/session.py). Where a fetcher would give its
slice back, the client waits if the wait is short, and otherwise reports why there is no answer.
"""

import math
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from actors.fetch.budget import NO_SHARES, Budgets
from actors.fetch.fetcher.clocks import PlatformClocks
from actors.fetch.fetcher.decisions import Failed, NotNow, Outcome, ReadSlice, Throttled, TooWide
from actors.fetch.fetcher.logins import Logins
from actors.fetch.fetcher.session import AttemptTime, PlatformSession, Stopped
from actors.fetch.grants import Grants
from actors.fetch.rules.ledger import OpenSlice
from actors.fetch.sources import SourceKey, Sources, UnknownSource, UnusableSource
from actors.runtime.rates.client import LeasedRates
from actors.runtime.supervisor import one_error
from actors.runtime.transport import BadUrl, PlatformDown, open_transport
from penstock.admin.records import Records
from penstock.errors import PenstockError
from penstock.times import span_text
from platforms.adapter import Adapter, Row
from platforms.errors import PlatformError
from platforms.lists import WindowReading
from platforms.reading import Ask
from streams.backoff import Backoff, next_delay_ms

__all__ = ["SourceClient", "open_source_client", "wait_of"]

TRIES = 4
AGAIN = Backoff(growth="exponential", base_ms=500, cap_ms=60_000, spread=0.0)
LONGEST_WAIT_MS = 60_000
"""A person waits for the answer. A longer wait is reported instead."""


def wait_of(outcome: Outcome, tried: int) -> int | None:
    """Return how long to wait before the next request, after `tried` tries before this one. None: no further request
    helps."""
    match outcome:
        case NotNow(reason=reason) if NO_SHARES in reason and tried + 1 >= TRIES:
            return None
        case Throttled(wait_ms=wait_ms) | NotNow(wait_ms=wait_ms) if wait_ms <= LONGEST_WAIT_MS:
            return wait_ms
        case Failed(least_wait_ms=least_ms) if tried + 1 < TRIES and least_ms <= LONGEST_WAIT_MS:
            return max(least_ms, next_delay_ms(tried + 2, AGAIN, chance=0.0))
        case _:
            return None


class SourceClient:
    """The requests to one source. `open_source_client` makes it."""

    def __init__(self, source: SourceKey, adapter: Adapter, session: PlatformSession) -> None:
        self.adapter = adapter
        self._source = source
        self._session = session

    async def request(self, reading: WindowReading, ask: Ask) -> list[Row]:
        """Return the rows of the next answer, none if the window is cut instead. Raises PenstockError."""
        tried = 0
        while True:
            try:
                return await self._session.request(reading, ask)
            except Stopped as stopped:
                outcome = stopped.outcome
            except (PlatformError, PlatformDown, UnusableSource, BadUrl) as error:
                raise PenstockError(f"{self._source}: {error}") from error
            if isinstance(outcome, TooWide):
                reading.split()
                return []
            wait_ms = wait_of(outcome, tried)
            if wait_ms is None:
                raise PenstockError(f"{self._source}: {_said(outcome)}")
            await anyio.sleep(wait_ms / 1000)
            tried += 1


def _said(outcome: Outcome) -> str:
    reason = getattr(outcome, "reason", "no answer")
    wait_ms = getattr(outcome, "wait_ms", 0)
    return f"{reason}; not before {span_text(wait_ms)} from now" if wait_ms else str(reason)


@asynccontextmanager
async def open_source_client(records: Records, source: SourceKey) -> AsyncIterator[SourceClient]:
    """Open a client for a source's platform. The governor deals it a share of the source's rate, as it does to nodes.
    Where no node fetches, it has the whole rate. Raises PenstockError."""
    settings, is_alone = await records.settings_of(source), not await records.node_names("fetcher")
    sources = await _known_sources(records)
    work = ReadSlice(source, OpenSlice("b", 0, 0, 1), settings)
    time = AttemptTime(settings, anyio.CancelScope())
    time.left_ms = math.inf  # our own rate may take its time: nobody takes an audit away from us
    async with open_transport() as transport, _own_rates(records) as rates:
        grants, clocks = Grants(records.session.bucket("DIGESTS")), PlatformClocks()
        logins = Logins(sources, grants, transport, records.clock, clocks)
        try:
            adapter, account = sources.adapter(source), logins.account(source)
        except (UnknownSource, UnusableSource) as error:
            raise PenstockError(str(error)) from error
        session = PlatformSession(
            work,
            adapter,
            account,
            transport=transport,
            budgets=Budgets(None if is_alone else rates),
            logins=logins,
            time=time,
            clock=records.clock,
            clocks=clocks,
            stamp=records.clock.now_ms,
            learned=None,
        )
        yield SourceClient(source, adapter, session)


@asynccontextmanager
async def _own_rates(records: Records) -> AsyncIterator[LeasedRates]:
    """Ask the governor for shares until the block ends. Nothing is sent before a rate is wanted."""
    rates = LeasedRates(records.connection, f"command-{secrets.token_hex(4)}")
    async with anyio.create_task_group() as tasks:
        await tasks.start(rates.run)
        yield rates
        tasks.cancel_scope.cancel()


async def _known_sources(records: Records) -> Sources:
    """Read the source records as a node does, once."""
    sources = Sources(records.settings)
    with one_error():
        async with anyio.create_task_group() as tasks:
            await tasks.start(sources.run)
            tasks.cancel_scope.cancel()
    return sources
