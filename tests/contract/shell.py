"""The smallest engine that can drive an adapter: real HTTP, outcomes obeyed, nothing waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import aiohttp
import msgspec
from yarl import URL

from platforms.adapter import (
    EMPTY_PAGE,
    Account,
    Adapter,
    Bug,
    Empty,
    Outcome,
    Park,
    Refreshing,
    Request,
    Response,
    Row,
)
from platforms.adapter import Login as NeedsLogin
from platforms.adapter import Split as TooWide
from platforms.bounds import Window
from platforms.errors import Garbled
from platforms.reading import Reading, ReadingResult

_ANSWER_S = 0.25  # a hanging answer is given up after this; honest ones take some milliseconds
_MOST_TRIES = 500  # of one window


class Ended(Exception):
    """The adapter said that this cannot go on: a `Park` or `Bug`."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(repr(outcome))


class Shell:
    """Reads windows. `before_each` runs ahead of every request, so that a test may move the platform's clock."""

    def __init__(self, session: aiohttp.ClientSession, adapter: Adapter, account: Account) -> None:
        self._session = session
        self._adapter = adapter
        self.account = account
        self._tries = 0
        self.outcomes: Counter[str] = Counter()
        self.before_each: Callable[[], None] = lambda: None

    async def read(self, window: Window) -> tuple[list[Row], ReadingResult]:
        """Return all rows handed out, in order, and what became of the window. Trouble that passes is tried again at
        once. Raises Ended, and BrokenContract as the reading does."""
        reading = Reading(self._adapter.declaration, window)
        rows: list[Row] = []
        self._tries = 0
        while (ask := reading.next()) is not None:
            response = await self._ask(self._adapter.request(ask.window, ask.page, self.account, 0))
            outcome = None if response is None else self._adapter.outcome(response)
            if response is None:
                self.outcomes["no answer"] += 1
            elif outcome is None:
                rows += self._feed(reading, response)
            else:
                await self._obey(outcome, reading)
        return rows, reading.result

    def _feed(self, reading: Reading, response: Response) -> list[Row]:
        try:
            page = self._adapter.page(response)
        except Garbled:
            self.outcomes["garbled"] += 1
            return []
        return reading.feed(page)

    async def _obey(self, outcome: Outcome, reading: Reading) -> None:
        self.outcomes[type(outcome).__name__] += 1
        self._tries += 1
        if self._tries > _MOST_TRIES:
            raise Ended(outcome)
        match outcome:
            case Park() | Bug():
                raise Ended(outcome)
            case TooWide():
                reading.split()
            case Empty():
                reading.feed(EMPTY_PAGE)
            case NeedsLogin():
                await self._log_in(outcome)

    async def _log_in(self, outcome: Outcome) -> None:
        if not isinstance(self._adapter, Refreshing):
            raise Ended(outcome)
        response = await self._ask(self._adapter.refresh(self.account, 0))
        assert response is not None
        values = {**self.account.values, **self._adapter.refreshed(response)}
        self.account = msgspec.structs.replace(self.account, values=values)

    async def _ask(self, request: Request) -> Response | None:
        """Return the answer, None where there was none or only a part of one."""
        self.before_each()
        url = URL(request.url, encoded=not request.params)
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        try:
            async with self._session.request(
                request.method, url, params=request.params or None, headers=request.headers,
                data=request.body or None, allow_redirects=False, timeout=timeout,
            ) as answer:  # fmt: skip
                headers = {name.lower(): value for name, value in answer.headers.items()}
                return Response(answer.status, headers, await answer.read())
        except (aiohttp.ClientError, TimeoutError):
            return None
