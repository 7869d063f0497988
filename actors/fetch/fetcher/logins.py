"""Credentials that expire. They are renewed once for all slices of a source that detect it together.

First the account's references are read again, since a file may hold a new secret by now. If that changes nothing and
the adapter can renew credentials itself (`Refreshing`), one node of the cluster does so, and all nodes use the result
(actors/fetch/grants.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from actors.fetch.fetcher.calling import called
from actors.fetch.fetcher.clocks import PlatformClocks, date_of
from actors.fetch.grants import Grants
from actors.fetch.sources import SourceKey, Sources
from actors.runtime.secrets import Secret, quoted
from actors.runtime.transport import PlatformDown, TooMuch, Transport
from platforms.adapter import Account, Adapter, Later, Refreshing, SlowDown
from streams.clock import Clock

MOST_BYTES = 1 << 16
LOST = (
    "; a process was killed during the login before this one. If a refresh token works once, the platform's answer had "
    "the new one, and it is lost: get one from the platform, then penstock sources set {source} --account NAME=VALUE"
)


class LoginRefused(Exception):
    """The platform does not take the credentials, and there are no others."""


class LoginBusy(Exception):
    """The platform renews no credentials at the moment. `trouble`: what it answered, with the wait that it names."""

    def __init__(self, trouble: Later | SlowDown, status: int) -> None:
        super().__init__(trouble)
        self.trouble = trouble
        self.status = status


class _Grant(NamedTuple):
    """The renewed values of a source, and the values that its account had then."""

    account: Mapping[str, str]
    values: Mapping[str, str]


class Logins:
    """The renewed credentials of this node's sources."""

    def __init__(
        self, sources: Sources, grants: Grants, transport: Transport, clock: Clock, clocks: PlatformClocks
    ) -> None:
        self._sources = sources
        self._stored = grants
        self._transport = transport
        self._clock = clock
        self._clocks = clocks
        self._grants: dict[SourceKey, _Grant] = {}
        self._locks: dict[SourceKey, anyio.Lock] = {}
        self._in_vain: dict[SourceKey, int] = {}
        self._busy: dict[SourceKey, tuple[int, LoginBusy]] = {}
        """Until when the platform wants no login of a source, and its answer that said so."""

    def account(self, source: SourceKey) -> Account:
        """Return the source's account with its renewed credentials. Raises UnknownSource, UnusableSource."""
        account, grant = self._sources.account(source), self._grants.get(source)
        if grant is None or grant.account != account.values:
            return account
        return Account(account.name, {**account.values, **grant.values})

    def worked(self, source: SourceKey) -> None:
        """Note that the platform gave a good response to the source's credentials."""
        self._in_vain.pop(source, None)

    def in_vain(self, source: SourceKey) -> int:
        """Return how often this node has renewed the credentials since they worked last."""
        return self._in_vain.get(source, 0)

    async def renew(self, source: SourceKey, adapter: Adapter, refused: Account) -> Account:
        """Return an account with other credentials than the refused ones. If there are no others, return the same for
        one more try. Raises LoginRefused, LoginBusy, PlatformDown, UnknownSource, UnusableSource, PlatformError."""
        async with self._locks.setdefault(source, anyio.Lock()):
            now = self.account(source)
            if now.values != refused.values or not isinstance(adapter, Refreshing):
                return now  # a file was replaced, or another slice renewed before us
            self._check_busy(source)
            account = self._sources.account(source)

            def is_other(values: Mapping[str, str]) -> bool:
                return {**account.values, **values} != dict(refused.values)

            async def ask(was_left: bool, values: Mapping[str, str]) -> Mapping[str, str]:
                lost = LOST.format(source=source) if was_left else ""
                return await self._ask(source, adapter, Account(account.name, {**account.values, **values}), lost)

            timeout_s = adapter.declaration.timeout_s
            values = await self._stored.renewed(source, account, is_other, ask, timeout_s=timeout_s)
            for value in values.values():
                Secret(value)  # the log's redaction knows it from here on
            self._grants[source] = _Grant(account.values, values)
            self._in_vain[source] = self.in_vain(source) + 1
            return self.account(source)

    def _check_busy(self, source: SourceKey) -> None:
        """Raise LoginBusy, and ask nothing, while the wait lasts that the platform has named to another slice."""
        until_ms, busy = self._busy.get(source, (0, None))
        left_ms = until_ms - self._clock.now_ms()
        if busy is not None and left_ms > 0:
            raise LoginBusy(replace(busy.trouble, after_ms=left_ms), busy.status)

    async def _ask(self, source: SourceKey, adapter: Adapter, account: Account, lost: str) -> Mapping[str, str]:
        assert isinstance(adapter, Refreshing)
        asked_ms = self._clock.now_ms()
        sent_ms = self._clocks.time_for(source, asked_ms)
        request = called(adapter.refresh, account, sent_ms)
        timeout_s = adapter.declaration.timeout_s
        try:
            response = await self._transport.send(request, timeout_s=timeout_s, most_bytes=MOST_BYTES)
        except TooMuch as error:
            raise PlatformDown(str(error)) from error
        date_ms, now_ms = date_of(response), self._clock.now_ms()
        was_mistimed = self._clocks.was_mistimed(source, date_ms, asked_ms=asked_ms, sent_ms=sent_ms, now_ms=now_ms)
        match called(adapter.login_outcome, response):
            case None:
                granted = called(adapter.refreshed, response)
            case (Later() | SlowDown()) as trouble:
                busy = LoginBusy(trouble, response.status)
                self._busy[source] = now_ms + (trouble.after_ms or 0), busy
                raise busy
            case outcome:
                said = getattr(outcome, "reason", "")
                if was_mistimed:  # it may be refused for its wrong time alone
                    raise LoginBusy(Later(0, said), response.status)
                raise LoginRefused(
                    f"the platform refuses to renew the credentials (HTTP {response.status}){quoted(said)}{lost}"
                )
        return granted
