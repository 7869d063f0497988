"""The requests of one reading: paced, repeated in place while the wait is short, with the current credentials.

If a reading ends without its rows, `Stopped` is raised with the outcome. Waits for our own rates do not count as the
platform's time. They move the attempt's deadline, as far as the monitor allows for a holder.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from actors.fetch.budget import Budgets, TooSlow
from actors.fetch.fetcher.calling import called, outcome_of
from actors.fetch.fetcher.clocks import PlatformClocks, date_of
from actors.fetch.fetcher.decisions import (
    Failed,
    Hopeless,
    Missed,
    NotNow,
    Outcome,
    PlatformRefused,
    ReadSlice,
    Throttled,
    TooWide,
    WindowStored,
)
from actors.fetch.fetcher.logins import LoginBusy, LoginRefused, Logins
from actors.fetch.learning import LearnedLimits
from actors.fetch.rules.settings import FetchSettings
from actors.runtime.logs import fields
from actors.runtime.rules.texts import printable
from actors.runtime.secrets import quoted, without_secrets
from actors.runtime.transport import PlatformDown, TooMuch, Transport
from platforms.adapter import (
    EMPTY_PAGE,
    Account,
    Adapter,
    Bug,
    Detailing,
    Empty,
    Later,
    Login,
    Page,
    Park,
    Request,
    Response,
    Row,
    SlowDown,
    Split,
)
from platforms.adapter import (
    Outcome as AdapterOutcome,
)
from platforms.details import without_details
from platforms.errors import BrokenContract, Garbled
from platforms.lists import WindowReading, lists_of
from platforms.reading import Ask
from platforms.told_limits import told_by
from streams.backoff import Backoff, next_delay_ms
from streams.clock import Clock

log = logging.getLogger(__name__)

IN_PLACE_MS = 5_000
"""A wait up to this is spent in place. For a longer one the slice is given back, so that no worker sleeps for long."""
IN_PLACE_TRIES = 3
AGAIN = Backoff(growth="exponential", base_ms=200, cap_ms=IN_PLACE_MS, spread=0.0)
MOST_RENEWALS = 3
"""Renewals between two good responses. A token may be void again at once, if another node has renewed it."""
ENDED_AGAIN_MS = 1_000
"""When a slice is read again whose sessions others have used up. They worked for these, so that spends no attempt."""
REFUSED_ATTEMPTS = 3
"""Attempts that must all end so before renewable credentials count as refused, and need a person."""

NOT_FOUND = frozenset({404, 410})
MOST_SHOWN = 4096
MOST_DETAILS = 2_000
"""Whole orders that a session keeps."""


class Renewed(NamedTuple):
    """The platform refused the credentials, and there are others now."""


Trouble = Later | SlowDown | PlatformDown | Renewed


class Stopped(Exception):
    """The reading ended with an outcome other than its rows."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


async def sleep_ms(wait_ms: float) -> None:
    """Wait."""
    await anyio.sleep(wait_ms / 1000)


class AttemptTime:
    """One attempt's time: its deadline, and how long it may wait for our own rates beside that. The sum stays below the
    age at which the monitor takes a held slice away. `was_answered`: the platform gave a usable response in this
    attempt."""

    def __init__(self, settings: FetchSettings, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self.left_ms = longest_wait_ms(settings)
        self.was_answered = False

    async def wait(self, wait_ms: float, wait: Callable[[float], Awaitable[None]] = sleep_ms) -> float:
        """Wait by `wait`, for `wait_ms` at most. Move the deadline by the time that it took, and return that. Meanwhile
        there is none: each deadline is a timer, and every request to a platform waits here."""
        if wait_ms <= 0:
            return 0.0
        began_s, deadline_s, self._scope.deadline = anyio.current_time(), self._scope.deadline, math.inf
        await wait(wait_ms)
        took_ms = min(wait_ms, (anyio.current_time() - began_s) * 1000)
        self._scope.deadline = deadline_s + took_ms / 1000
        self.left_ms -= took_ms
        return took_ms


def longest_wait_ms(settings: FetchSettings) -> float:
    """Return how many ms an attempt may wait for our own rates, all waits together."""
    return float(max(IN_PLACE_MS, settings.stale_after_ms - settings.timeout_ms - IN_PLACE_MS))


class PlatformSession:
    """Sends requests to one source's platform for one slice. `stamp`: gives the time of a request that is sent."""

    def __init__(
        self,
        work: ReadSlice,
        adapter: Adapter,
        account: Account,
        *,
        transport: Transport,
        budgets: Budgets,
        logins: Logins,
        time: AttemptTime,
        clock: Clock,
        clocks: PlatformClocks,
        stamp: Callable[[], int],
        learned: LearnedLimits | None,
    ) -> None:
        self.sent_ms = 0
        """When the last request was sent."""
        self.said_ms: int | None = None
        """The platform's own time in the last response to a request for a list."""
        self._was_mistimed = False
        self._stamp = stamp
        self._learned = learned
        self._work = work
        self._adapter = adapter
        self._account = account
        self._transport = transport
        self._budgets = budgets
        self._logins = logins
        self._time = time
        self._clock = clock
        self._clocks = clocks
        self._has_asked = False
        self._trouble: Trouble | None = None
        """What the request met that is to be sent again."""
        self._renewals = 0
        self._has_others = True
        self._status = 0
        self._details: dict[str, tuple[int, Row]] = {}
        """Whole orders by key, with the version that the list gave them: a window that is cut lists them again."""

    async def request(self, reading: WindowReading, ask: Ask) -> list[Row]:
        """Return the rows of the next response. Raises Stopped with the outcome that ends the reading."""
        if not reading.list_name:
            return await self._request(reading, ask)
        with _in_list(reading.list_name):
            return await self._request(reading, ask)

    async def _request(self, reading: WindowReading, ask: Ask) -> list[Row]:
        for tried in count():
            answer = await self._once(reading, ask, is_last=tried == IN_PLACE_TRIES)
            if isinstance(answer, list):
                return answer
            await self._wait_in_place(answer, tried)
        raise AssertionError("count() does not end")

    async def _once(self, reading: WindowReading, ask: Ask, *, is_last: bool) -> list[Row] | Trouble:
        """Send one request. A response that is cut off or too long says nothing about the rest of the window."""
        platform = self._work.source.platform
        if any(name not in self._account.values for name in self._adapter.declaration.granted):
            await self._log_in("")  # the first login of all
        adapter = lists_of(self._adapter)[reading.list_name]
        try:
            response = await self._send(lambda now_ms: adapter.request(ask.window, ask.page, self._account, now_ms))
        except PlatformDown as error:
            self._budgets.timed_out(platform)
            return error
        except TooMuch as error:
            reading.split(str(error))
            return []
        try:
            return await self._judge(adapter, reading, ask, response, is_last=is_last)
        except Garbled as error:
            return Later(reason=error.reason)
        except BrokenContract as error:
            error.said = error.said or response.body
            raise

    async def _judge(
        self, adapter: Adapter, reading: WindowReading, ask: Ask, response: Response, *, is_last: bool
    ) -> list[Row] | Trouble:
        budgets, work = self._budgets, self._work
        self.said_ms = date_of(response)
        match self._meaning(outcome_of(adapter, response, is_last=is_last), response):
            case (None | Empty()) as fine:
                page = EMPTY_PAGE if isinstance(fine, Empty) else called(adapter.page, response)
                self.said_ms = self.said_ms if isinstance(fine, Empty) else page.server_time_ms
                page = await self._with_details(adapter, page)
                budgets.went_well(work.source.platform)
                await self._learn(adapter, response)
                self._renewals = 0
                self._logins.worked(work.source)
                self._time.was_answered = True
                return reading.feed(page)
            case Split():
                self._time.was_answered = True
                reading.split()
                return []
            case Login(reason=reason):
                return await self._log_in(without_secrets(reason))
            case Park(reason=reason):
                raise Stopped(PlatformRefused(without_secrets(reason)))
            case Bug(reason=reason):
                reason = without_secrets(reason)
                if ask.page is None or not self._cut(reading, reason):
                    raise Stopped(Hopeless(reason, shown(response.body)))
                self._time.was_answered = True
                return []
            case SlowDown() as passing:
                return await self._slowed(passing)
            case Later() as passing:
                return passing

    def _meaning(self, outcome: AdapterOutcome | None, response: Response) -> AdapterOutcome | None:
        """Return the outcome of a response. A request that had a wrong time may be refused for that alone, so it is
        sent again with the platform's."""
        self._status = response.status
        if self._was_mistimed and isinstance(outcome, Login | Park | Bug):
            return Later(0, outcome.reason)
        return outcome

    def _cut(self, reading: WindowReading, reason: str) -> bool:
        """Cut the part of which the platform has refused a further page: the name of the page may have expired, or the
        page may lie too deep. Smaller parts need fewer pages. False: there are none."""
        try:
            reading.split(reason)
        except BrokenContract:
            return False
        log.warning("fetcher.page_refused", extra=fields(source=str(self._work.source), reason=reason))
        return True

    async def _learn(self, adapter: Adapter, response: Response, *, is_detail: bool = False) -> None:
        if self._learned is not None:
            rates, said = self._adapter.declaration.rate, called(told_by, adapter, response, is_detail=is_detail)
            await self._learned.answered(self._work.source, self._work.settings, rates, said)

    async def _slowed(self, passing: SlowDown) -> SlowDown:
        """Slow down as far as the refusal shows that we were too fast. Return it with the wait before the next try."""
        budgets, work, is_pace = self._budgets, self._work, True
        if self._learned is not None and passing.after_ms != 0:
            rates = self._adapter.declaration.rate
            verdict = await self._learned.refused(work.source, work.settings, rates, passing.after_ms)
            is_pace, is_named = not verdict.is_chance, passing.after_ms is not None
            passing = SlowDown(verdict.wait_ms, passing.reason)
            if is_named and not is_pace:
                budgets.hold(work.source, verdict.wait_ms)
        if is_pace:
            budgets.was_throttled(work.source.platform)
            budgets.hold(work.source, wait_of(passing, work.settings, 0))
        return passing

    async def _with_details(self, adapter: Adapter, page: Page) -> Page:
        """Return the page with whole orders, if its platform lists only parts of them. This comes before the reading
        gets the page: a reading that goes on later must not take orders for read that nobody has."""
        batch = adapter.declaration.detail_batch
        if not batch or not isinstance(adapter, Detailing) or not page.rows:
            return page
        new = [row for row in page.rows if self._details.get(row.key, (None, None))[0] != row.version]
        for at in range(0, len(new), batch):
            listed = new[at : at + batch]
            whole = await self._detail_page(adapter, listed)
            versions = {row.key: row.version for row in listed}
            if len(self._details) > MOST_DETAILS:
                self._details = {row.key: self._details[row.key] for row in page.rows if row.key in self._details}
            self._details |= {row.key: (versions[row.key], row) for row in whole.rows}
            page.bad += whole.bad
        page.rows = [self._details[row.key][1] for row in page.rows if row.key in self._details]
        return page

    async def details_of(self, listed: Sequence[Row]) -> Page:
        """Return the whole orders of those listed before, as far as the platform has them by now."""
        adapter, batch = self._adapter, self._adapter.declaration.detail_batch
        assert isinstance(adapter, Detailing)
        pages = [await self._detail_page(adapter, listed[at : at + batch]) for at in range(0, len(listed), batch)]
        self._time.was_answered = True
        return Page([row for page in pages for row in page.rows], bad=[row for page in pages for row in page.bad])

    async def _detail_page(self, adapter: Detailing, listed: Sequence[Row]) -> Page:
        """Return the whole orders of the listed ones. Raises Stopped if there is no answer."""
        keys = tuple(row.key for row in listed)
        for tried in count():
            trouble: Trouble
            try:
                response = await self._send(
                    lambda now_ms: adapter.detail_request(keys, self._account, now_ms), is_detail=True
                )
                match self._meaning(called(self._adapter.outcome, response), response):
                    case None:
                        page = called(adapter.detail_page, response, listed)
                        await self._learn(self._adapter, response, is_detail=True)
                        return page
                    case Empty():
                        return Page([], bad=[without_details(row) for row in listed])
                    case Later() | SlowDown() as trouble:
                        pass
                    case Login(reason=said):
                        trouble = await self._log_in(without_secrets(said))
                    case Park(reason=reason):
                        raise Stopped(PlatformRefused(without_secrets(reason)))
                    case Split():
                        raise Stopped(
                            Hopeless(f"the platform finds {len(keys)} details too many; lower [detail] batch")
                        )
                    case Bug(reason=reason):
                        raise Stopped(self._refused_details(without_secrets(reason), response))
            except Garbled as error:
                trouble = Later(reason=error.reason)
            except (PlatformDown, TooMuch) as error:
                trouble = PlatformDown(str(error))
            if isinstance(trouble, SlowDown):
                trouble = await self._slowed(trouble)
            await self._wait_in_place(trouble, tried)
        raise AssertionError("count() does not end")

    async def _wait_in_place(self, trouble: Trouble, tried: int) -> None:
        """Wait before the request is sent again. Raises Stopped if the wait is long, or no other try is left."""
        wait_ms = wait_of(trouble, self._work.settings, tried)
        if wait_ms > IN_PLACE_MS or tried == IN_PLACE_TRIES:
            raise Stopped(self._ending(trouble))
        self._trouble = trouble
        await anyio.sleep(wait_ms / 1000)

    def _refused_details(self, reason: str, response: Response) -> Failed | Hopeless:
        """Return the outcome of refused details. Those that are not found may come after their list, once the source
        has been read before: if not, the path may be wrong. After the last attempt the refusal is final."""
        work = self._work
        may_come = work.is_trusted and response.status in NOT_FOUND and work.slice.attempt <= work.settings.retries
        return Failed(reason) if may_come else Hopeless(reason, shown(response.body))

    async def _send(self, make: Callable[[int], Request], *, is_detail: bool = False) -> Response:
        settings, declared, platform = self._work.settings, self._adapter.declaration, self._work.source.platform
        await self._pace(is_detail=is_detail)
        try:
            source, asked_ms = self._work.source, self._clock.now_ms()
            named_ms = self._clocks.time_for(source, asked_ms)
            request, self.sent_ms = called(make, named_ms), self._stamp()
            timeout_s = min(declared.timeout_s, settings.request_timeout_ms / 1000)
            response = await self._transport.send(request, timeout_s=timeout_s, most_bytes=declared.largest_answer)
            date_ms, now_ms = date_of(response), self._clock.now_ms()
            self._was_mistimed = self._clocks.was_mistimed(
                source, date_ms, asked_ms=asked_ms, sent_ms=named_ms, now_ms=now_ms
            )
            return response
        finally:
            self._budgets.leave(platform)

    async def _pace(self, *, is_detail: bool) -> None:
        """Wait for a place and our own rate, and take both at once: requests that had the rate and then waited for a
        place would go together. Before the first request a long wait gives the slice back, so that other sources can
        use the place. A request that is sent again ends with what it met, and after a renewed login gives the slice
        back. In place of any other only a narrower window would need fewer requests."""
        left_ms = self._time.left_ms if self._has_asked else min(IN_PLACE_MS, self._time.left_ms)
        source, settings, rates = self._work.source, self._work.settings, self._adapter.declaration.rate
        most = settings.concurrency
        if self._learned is not None:
            settings, held_ms = self._learned.within(source, settings, rates), self._learned.held_ms(source)
            if held_ms:
                self._budgets.hold(source, held_ms)
        try:
            with self._budgets.request(source, settings, rates, is_detail=is_detail) as spending:
                await self._budgets.free_place(source.platform, most)
                while (wait_ms := spending.take(most_ms=left_ms)) > 0:
                    left_ms -= await self._time.wait(wait_ms, spending.wait)
                    await self._budgets.free_place(source.platform, most)
                self._budgets.enter(source.platform)
        except TooSlow as error:
            if self._trouble is not None and not isinstance(self._trouble, Renewed):
                raise Stopped(self._ending(self._trouble)) from None
            is_wide = self._has_asked and error.is_known and self._trouble is None
            raise Stopped(TooWide(str(error)) if is_wide else NotNow(str(error), error.wait_ms)) from None
        self._has_asked, self._trouble = True, None

    async def _log_in(self, said: str) -> Later | Renewed:
        """Get new credentials, a few times between two good responses. `said`: why the old ones are refused. New
        ones are tried at once."""
        if not self._has_others or self._renewals == MOST_RENEWALS:
            raise Stopped(self._refusal(said))
        refused, self._renewals = self._account, self._renewals + 1
        try:
            self._account = await self._logins.renew(self._work.source, self._adapter, refused)
        except LoginRefused as error:
            raise Stopped(PlatformRefused(str(error))) from error
        except LoginBusy as busy:
            self._status = busy.status
            ending = self._ending(busy.trouble)
            reason = f"the platform renews no credentials at the moment: {ending.reason}"
            raise Stopped(replace(ending, reason=reason)) from busy
        except PlatformDown as error:
            raise Stopped(self._ending(error)) from error
        self._has_others = self._account.values != refused.values
        return Renewed() if self._has_others else Later(AGAIN.base_ms)

    def _ending(self, trouble: Trouble) -> Throttled | Failed | Missed:
        return ending(trouble, self._work.settings, self._status, was_answered=self._time.was_answered)

    def _refusal(self, said: str) -> Outcome:
        if self._has_others and self._logins.in_vain(self._work.source) < MOST_RENEWALS:
            return NotNow("the platform ends each session after few requests" + quoted(said), ENDED_AGAIN_MS)
        reason = "the platform refuses the credentials, also after they were renewed" + quoted(said)
        is_sure = not self._has_others or self._work.slice.attempt >= REFUSED_ATTEMPTS
        return PlatformRefused(reason) if is_sure else Failed(reason)


@contextmanager
def _in_list(name: str) -> Iterator[None]:
    """Name the list in what goes wrong, for a source that has several."""
    try:
        yield
    except Stopped as stopped:
        if isinstance(stopped.outcome, WindowStored):
            raise
        raise Stopped(replace(stopped.outcome, reason=f"list {name!r}: {stopped.outcome.reason}")) from stopped
    except BrokenContract as error:
        error.reason = f"list {name!r}: {error.reason}"
        raise


def shown(said: bytes) -> str:
    """Return the beginning of a response as a person may read it: printable, and without secrets."""
    return without_secrets(printable(said[:MOST_SHOWN].decode(errors="replace")))


def wait_of(trouble: Trouble, settings: FetchSettings, tried: int) -> int:
    """Return how many ms to wait before the next request: the platform's own wait, else our doubling wait."""
    again_ms = next_delay_ms(tried + 2, AGAIN, chance=0.0)
    match trouble:
        case Later(after_ms=int(after_ms)) | SlowDown(after_ms=int(after_ms)):
            return min(max(after_ms, again_ms), settings.throttle_cap_ms)
        case SlowDown():
            return settings.throttle_wait_ms
        case Renewed():
            return 0
        case _:
            return again_ms


def ending(
    trouble: Trouble, settings: FetchSettings, status: int, *, was_answered: bool
) -> Throttled | Failed | Missed:
    """Return the outcome of a trouble that did not pass in place. `status` is the last response's. If the platform gave
    a usable response before in this attempt (`was_answered`), it is up, and this window fails."""
    bad = Failed if was_answered else Missed
    match trouble:
        case SlowDown(after_ms=after_ms, reason=said):
            wait_ms = min(after_ms or 0, settings.throttle_cap_ms)
            # It throttled again and again in spite of its own short waits, so they cannot be right.
            wait_ms = wait_ms if wait_ms > IN_PLACE_MS else max(wait_ms, settings.throttle_wait_ms)
            return Throttled(f"the platform asks us to slow down (HTTP {status}){quoted(said)}", wait_ms)
        case Later(after_ms=after_ms, reason=said):
            reason = f"the platform could not answer and may later (HTTP {status}){quoted(said)}"
            return bad(reason, min(after_ms or 0, settings.throttle_cap_ms))
        case Renewed():
            return bad(f"the platform refuses the credentials (HTTP {status}), and they were renewed", 0)
        case PlatformDown():
            return bad(str(trouble))
