"""Credentials that run out: renewed once for all slices of a source that find out together.

First the account's references are read again, since a file may hold a new secret by now. If that brings nothing new
and the adapter can renew credentials itself (`Refreshing`), it is asked to. What it got is kept in this process only:
another node renews for itself, and after a restart the first slice finds out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import anyio

from actors.fetch.fetcher.calling import called
from actors.fetch.sources import SourceKey, Sources
from actors.runtime.secrets import Secret
from actors.runtime.transport import PlatformDown, TooMuch, Transport
from platforms.adapter import Account, Adapter, Later, Refreshing, SlowDown
from streams.clock import Clock

MOST_BYTES = 1 << 16


class LoginRefused(Exception):
    """The platform does not take the credentials, and there are no others."""


class _Grant(NamedTuple):
    """What a source was granted, on top of the values that its account had then."""

    account: Mapping[str, str]
    values: Mapping[str, str]


class Logins:
    """What was granted to this node's sources."""

    def __init__(self, sources: Sources, transport: Transport, clock: Clock) -> None:
        self._sources = sources
        self._transport = transport
        self._clock = clock
        self._grants: dict[SourceKey, _Grant] = {}
        self._locks: dict[SourceKey, anyio.Lock] = {}

    def account(self, source: SourceKey) -> Account:
        """Return the source's account with what was granted to it. Raises UnknownSource, UnusableSource."""
        account, grant = self._sources.account(source), self._grants.get(source)
        if grant is None or grant.account != account.values:
            return account
        return Account(account.name, {**account.values, **grant.values})

    async def renew(self, source: SourceKey, adapter: Adapter, refused: Account) -> Account:
        """Return an account with other credentials than those that were refused, or the same to be tried once more
        where there are no others. Raises LoginRefused, PlatformDown, UnknownSource, UnusableSource, PlatformError."""
        async with self._locks.setdefault(source, anyio.Lock()):
            now = self.account(source)
            if now.values != refused.values or not isinstance(adapter, Refreshing):
                return now  # a file was replaced, or another slice was here before us
            account = self._sources.account(source)
            self._grants[source] = _Grant(account.values, await self._ask(adapter, account))
            return self.account(source)

    async def _ask(self, adapter: Adapter, account: Account) -> Mapping[str, str]:
        assert isinstance(adapter, Refreshing)
        request = called(adapter.refresh, account, self._clock.now_ms())
        timeout_s = adapter.declaration.timeout_s
        try:
            response = await self._transport.send(request, timeout_s=timeout_s, most_bytes=MOST_BYTES)
        except TooMuch as error:
            raise PlatformDown(str(error)) from error
        match called(adapter.outcome, response):
            case None:
                granted = called(adapter.refreshed, response)
            case Later() | SlowDown():
                raise PlatformDown("the platform renews no credentials at the moment")
            case _:
                raise LoginRefused("the platform refuses to renew the credentials")
        for value in granted.values():
            Secret(value)  # known to the log's redaction from here on
        return granted
