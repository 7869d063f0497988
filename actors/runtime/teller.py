"""Tells notices in the background, each until it was taken: a webhook that hangs must not hold up who has to watch.

State: memory only. What was told is remembered as long as it is kept; whoever starts anew tells it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

import anyio

from actors.runtime.notify import Notice, Notifier
from streams.backoff import Backoff
from streams.clock import monotonic_s

__all__ = ["Teller"]

AT_ONCE = 8
AGAIN = Backoff(growth="exponential", base_ms=1_000, cap_ms=60_000, spread=0.0)


class _Asked:
    __slots__ = ("due_s", "failures", "is_told", "notice", "webhook")

    def __init__(self, notice: Notice, webhook: Callable[[], str]) -> None:
        self.notice = notice
        self.webhook = webhook
        self.failures = 0
        self.due_s = 0.0
        self.is_told = False


class Teller:
    """Notices by key. At most `AT_ONCE` are on their way, and one of each source: a webhook that hangs, and is asked
    for many notices, leaves room for the others'. Bounded by its caller, who says what is still worth telling."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._asked: dict[Hashable, _Asked] = {}
        self._under_way: set[str] = set()
        self._news = anyio.Event()

    def ask(self, key: Hashable, notice: Notice, webhook: Callable[[], str]) -> None:
        """Have a notice told, once for its key; `webhook` is asked at each try, since it may have been mended."""
        if key not in self._asked:
            self._notifier.log(notice)
            self._asked[key] = _Asked(notice, webhook)
            self._news.set()

    def has_told(self, key: Hashable) -> bool:
        """True once the notice of this key was taken."""
        asked = self._asked.get(key)
        return asked is not None and asked.is_told

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Forget all but these: what is asked again after that is told again."""
        for key in [key for key in self._asked if key not in keys]:
            del self._asked[key]

    def forget(self) -> None:
        """Forget all: what was told may be long ago."""
        self.keep_only(())

    async def run(self) -> None:
        """Tell for ever, also what was asked for before."""
        async with anyio.create_task_group() as tasks:
            while True:
                for asked in self._next():
                    self._under_way.add(asked.notice.source)
                    tasks.start_soon(self._tell, asked)
                with anyio.move_on_after(self._pause_s()):
                    await self._news.wait()
                self._news = anyio.Event()

    def _waiting(self) -> list[_Asked]:
        """Return what could go now or later, the first due first; new ones are due at once."""
        free = (one for one in self._asked.values() if not one.is_told and one.notice.source not in self._under_way)
        return sorted(free, key=lambda one: one.due_s)

    def _next(self) -> list[_Asked]:
        """Return what goes now: one of each source."""
        now_s = monotonic_s()
        first_of = {one.notice.source: one for one in reversed(self._waiting()) if one.due_s <= now_s}
        return list(first_of.values())[: max(0, AT_ONCE - len(self._under_way))]

    def _pause_s(self) -> float | None:
        """Return how long nothing is due; None while only news, or one that comes back, can change that."""
        waiting = self._waiting()
        if not waiting or len(self._under_way) >= AT_ONCE:
            return None
        return max(0.0, waiting[0].due_s - monotonic_s())

    async def _tell(self, asked: _Asked) -> None:
        try:
            if await self._notifier.send(asked.notice, asked.webhook()):
                asked.is_told = True
            else:
                asked.failures += 1
                asked.due_s = monotonic_s() + AGAIN.wait_s(asked.failures)
        finally:
            self._under_way.discard(asked.notice.source)
            self._news.set()
