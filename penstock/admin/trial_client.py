"""Sends the requests of a trial, and keeps them for a person to see, with their secrets hidden."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Generic, TypeVar
from urllib.parse import quote, quote_plus

import anyio
from msgspec import Struct

from actors.fetch.fetcher.calling import called, outcome_of
from actors.fetch.fetcher.session import IN_PLACE_TRIES, wait_of
from actors.fetch.grants import Ask
from actors.fetch.rules.settings import FetchSettings
from actors.runtime.secrets import is_reference, is_secret_name, quoted, without_secrets
from actors.runtime.transport import Transport, shown_url
from penstock.admin.platform_calls import LONGEST_WAIT_MS
from penstock.times import span_text
from platforms.adapter import (
    EMPTY_PAGE,
    Account,
    Adapter,
    Bug,
    Declaration,
    Detailing,
    Empty,
    Later,
    Login,
    Page,
    Park,
    Refreshing,
    Request,
    Response,
    Row,
    SlowDown,
    Split,
)
from platforms.bounds import Window
from platforms.declared import DeclaredAdapter
from platforms.details import without_details
from platforms.diagnosis import decoded, rows_hint
from platforms.errors import BrokenContract, Garbled
from platforms.page_check import PageSize
from platforms.told_limits import ToldLimit, told_by

__all__ = ["Renewing", "TrialClient", "TrialLog", "TrialRefused", "TrialRequest", "TrialTooLong"]

MOST_REQUESTS = 200
MOST_KEPT = 5
MOST_SHOWN = 1_000
MOST_DETAIL_TRIES = 3
"""Requests for details that may bring none."""
USUAL = FetchSettings()
RATE_HINT = "[[rate]]: the platform refuses requests that come too fast; say what it allows, or try again later"
"""A trial waits as a fetcher with the usual settings does. It has no slice to give back, so it also sits out waits for
which a person may be asked to wait."""


class TrialRequest(Struct, frozen=True):
    """A request as it was sent, secrets hidden, and its answer."""

    method: str
    url: str
    params: list[tuple[str, str]]
    headers: list[tuple[str, str]]
    body: str
    status: int
    size: int
    took_ms: int
    answer: str


class TrialLog(Struct):
    """How many requests were sent, and the first ones."""

    sent: int = 0
    requests: list[TrialRequest] = []


class TrialTooLong(Exception):
    """The trial has sent as many requests as it may."""


class TrialRefused(Exception):
    """No rows: the reason, and what in the file may be wrong. `may_pass`: the same request may succeed later."""

    def __init__(self, reason: str, hint: str = "", *, may_pass: bool = False) -> None:
        super().__init__(reason)
        self.may_pass = may_pass
        self.reason = reason
        self.hint = hint


LogT = TypeVar("LogT", bound=TrialLog)
Renewing = Callable[[Account, Ask], Awaitable[Mapping[str, str]]]
"""Returns credentials in place of those of a refused account: stored ones, or what a login brings."""


class TrialClient(Generic[LogT]):
    """Sends the trial's requests, and keeps the first ones in its `log`."""

    def __init__(
        self,
        adapter: Adapter,
        account: Account,
        stored: Mapping[str, str],
        transport: Transport,
        log: LogT,
        now_ms: int,
        renewing: Renewing | None = None,
    ) -> None:
        """`renewing`: how credentials are renewed that are kept. `None`: nobody else has them."""
        self.adapter = adapter
        self._renewing = renewing
        self.file = adapter.file if isinstance(adapter, DeclaredAdapter) else None
        self.log = log
        self.now_ms = now_ms
        self.account = account
        self._hidden = _hidden(account, stored)
        self._transport = transport
        self._has_renewed = self._has_details = False
        self.body = b""
        self.headers: Mapping[str, str] = {}
        self.limit = ToldLimit()
        self.longest_ms = 0
        self.page_sizes: dict[str, PageSize] = {}
        self.has_turned = False
        """Whether a page after the first was asked for."""

    @property
    def declared(self) -> Declaration:
        return self.adapter.declaration

    async def page(self, window: Window, page: str | int | None) -> Page | None:
        """Return the page, None if the platform finds the window too wide. Raises TrialRefused, PlatformError."""
        if any(name not in self.account.values for name in self.declared.granted):
            await self._renew()
        self.has_turned = self.has_turned or page not in (None, 0)
        for tried in range(IN_PLACE_TRIES + 1):
            request = called(self.adapter.request, window, page, self.account, self.now_ms)
            response = await self._send(request)
            self.body, self.headers = response.body, response.headers
            self.limit = called(told_by, self.adapter, response)
            trouble: Later | SlowDown
            match outcome_of(self.adapter, response, is_last=tried == IN_PLACE_TRIES):
                case None:
                    try:
                        return await self._with_details(called(self.adapter.page, response))
                    except Garbled as error:
                        trouble = Later(reason=error.reason)
                    except BrokenContract as error:
                        raise TrialRefused(error.reason, self._rows_hint()) from error
                case Empty():
                    return EMPTY_PAGE
                case Split():
                    return None
                case Login(reason=said):
                    await self._log_in(response, said)
                    continue
                case Park(reason=reason) | Bug(reason=reason):
                    raise TrialRefused(without_secrets(reason), self._refusal_hint(response, request))
                case (Later() | SlowDown()) as passing:
                    trouble = passing
            if tried == IN_PLACE_TRIES or wait_of(trouble, USUAL, tried) > LONGEST_WAIT_MS:
                hint = RATE_HINT if isinstance(trouble, SlowDown) else self._refusal_hint(response, request)
                raise TrialRefused(_later(response, trouble), hint, may_pass=True)
            await anyio.sleep(wait_of(trouble, USUAL, tried) / 1000)
        raise TrialRefused("the platform could not answer")

    async def _with_details(self, page: Page) -> Page:
        """Ask for the details of the first orders that have some, if the list is partial. The others stay as they are
        listed. A platform may list an order before it has its details."""
        batch, adapter = self.declared.detail_batch, self.adapter
        if not batch or not isinstance(adapter, Detailing) or not page.rows or self._has_details:
            return page
        self._has_details, body = True, self.body
        for at in range(0, min(len(page.rows), MOST_DETAIL_TRIES * batch), batch):
            listed = page.rows[at : at + batch]
            whole = await self._details_of(adapter, listed)
            bad = [row for row in whole.bad if row.listed is None] or ([] if whole.rows else whole.bad)
            if whole.rows:
                break
        self.body = body
        if bad:
            reason = without_secrets(bad[0].reason)
            raise TrialRefused(f"{len(bad)} of {len(listed)} details are missing: {reason}", "[detail] key or rows")
        found = {row.key: row for row in whole.rows}
        page.rows = [found.get(row.key, row) for row in page.rows]
        return page

    async def _details_of(self, adapter: Detailing, listed: Sequence[Row]) -> Page:
        keys = [row.key for row in listed]
        response = await self._send(called(adapter.detail_request, keys, self.account, self.now_ms))
        outcome = called(self.adapter.outcome, response)
        if isinstance(outcome, Empty):
            return Page([], bad=[without_details(row) for row in listed])
        if outcome is not None:
            said = without_secrets(getattr(outcome, "reason", ""))
            raise TrialRefused(f"no details (HTTP {response.status}): {said}", "[detail]: look at its request")
        try:
            return called(adapter.detail_page, response, listed)
        except BrokenContract as error:
            raise TrialRefused(error.reason, "[detail] rows: it is no path of the answer") from error

    async def _send(self, request: Request) -> Response:
        if self.log.sent >= MOST_REQUESTS:
            raise TrialTooLong
        self.log.sent += 1
        began_s = monotonic()
        declared = self.declared
        response = await self._transport.send(request, timeout_s=declared.timeout_s, most_bytes=declared.largest_answer)
        took_ms = int((monotonic() - began_s) * 1000)
        self.longest_ms = max(self.longest_ms, took_ms)
        if len(self.log.requests) < MOST_KEPT:
            self.log.requests.append(self._told(request, response, took_ms))
        return response

    def _told(self, request: Request, response: Response, took_ms: int) -> TrialRequest:
        headers = [(name, self._header(name, value)) for name, value in request.headers]
        return TrialRequest(
            method=request.method,
            url=self._hide(shown_url(request.url)),
            params=[(name, self._hide(value)) for name, value in request.params],
            headers=headers,
            body=self._hide(request.body.decode(errors="replace"))[:MOST_SHOWN],
            status=response.status,
            size=len(response.body),
            took_ms=took_ms,
            answer=without_secrets(self._hide(response.body[:300].decode(errors="replace"))),
        )

    def _header(self, name: str, value: str) -> str:
        hidden = self._hide(value)
        return hidden if hidden != value or not is_secret_name(name) else f"{value.partition(' ')[0]} <hidden>"

    def _hide(self, text: str) -> str:
        for value, name in self._hidden.items():
            text = text.replace(value, name)
        return text

    async def _log_in(self, response: Response, said: str) -> None:
        if self._has_renewed or not isinstance(self.adapter, Refreshing):
            raise TrialRefused(
                f"the platform refuses the credentials (HTTP {response.status}){quoted(said)}",
                "[auth]: look at its kind and names, and at the account's values",
            )
        await self._renew()

    async def _renew(self) -> None:
        if self._renewing is None:
            granted = await self._granted(False, {})
        else:
            granted = await self._renewing(self.account, self._granted)
        self._hidden |= {value: f"<{name}>" for name, value in granted.items() if value}
        self.account = Account(self.account.name, {**self.account.values, **granted})

    async def _granted(self, _was_left: bool, values: Mapping[str, str]) -> Mapping[str, str]:
        """Log in with the account and stored `values`."""
        assert isinstance(self.adapter, Refreshing)
        self._has_renewed = True
        account = Account(self.account.name, {**self.account.values, **values})
        renewed = await self._send(called(self.adapter.refresh, account, self.now_ms))
        refusal = called(self.adapter.login_outcome, renewed)
        if refusal is not None:
            said = getattr(refusal, "reason", "")
            raise TrialRefused(
                f"the platform refuses to log in (HTTP {renewed.status}){quoted(said)}",
                "[login]: look at its request, and at the account's values",
            )
        return called(self.adapter.refreshed, renewed)

    def _rows_hint(self) -> str:
        if self.file is None:
            return ""
        try:
            return (
                rows_hint(self.file, decoded(self.body))
                or "[record], [pages]: a declared path has another kind of value"
            )
        except ValueError as error:
            return f"[request] path or base_url: {error}"

    def _refusal_hint(self, response: Response, request: Request) -> str:
        """Return where to look, by the status."""
        where = f"{request.method} {shown_url(request.url)}"
        text = response.body[:1].strip()
        if response.status in (404, 405, 410) or 300 <= response.status < 400:
            return f"[request] path or method, or base_url: {where} does not exist there (HTTP {response.status})"
        if response.status in (401, 403):
            return "[auth]: look at its kind and names, and at the account's values"
        if response.status == 200 and text not in (b"{", b"["):
            return f"[request] path or base_url: {where} answers with no JSON; it is no API there"
        if 400 <= response.status < 500 or response.status == 200:
            return (
                "[request] and [window]: the platform does not take the request as it stands; compare names, and the "
                "format and zone of times, with the platform's page"
            )
        return ""


def _later(response: Response, trouble: Later | SlowDown) -> str:
    what = "asks us to slow down" if isinstance(trouble, SlowDown) else "could not answer and may later"
    wait = f", for {span_text(trouble.after_ms)}" if trouble.after_ms else ""
    return f"the platform {what} (HTTP {response.status}{wait}){quoted(trouble.reason)}"


def _hidden(account: Account, stored: Mapping[str, str]) -> dict[str, str]:
    """Return what to show in place of each secret value, also where it is encoded."""
    found: dict[str, str] = {}
    for name, value in account.values.items():
        if value and is_reference(stored.get(name, "env:")):
            found |= dict.fromkeys((value, quote(value, safe=""), quote_plus(value)), f"<{name}>")
    return found
