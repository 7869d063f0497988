"""Sends notices in the background and repeats each until the webhook and the mail server take it. Neither blocks an
actor.

State: memory only. A notice that was sent is remembered until its caller drops it. After a restart it is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

import anyio

from actors.runtime.notices.notify import Notifier
from actors.runtime.rules.notices import Notice
from streams.backoff import Backoff
from streams.clock import monotonic_s

AT_ONCE = 8
GROUP_S = 5.0
"""How long a mail waits for more notices. Those of a kind and platform are one notice already."""
MOST_IN_MAIL = 100
AGAIN = Backoff(growth="exponential", base_ms=1_000, cap_ms=60_000, spread=0.0)


class _Alert:
    __slots__ = ("due_s", "failures", "is_mailed", "is_posted", "notice", "webhook")

    def __init__(self, notice: Notice, webhook: Callable[[], str], *, has_mail: bool) -> None:
        self.notice = notice
        self.webhook = webhook
        self.failures = 0
        self.due_s = 0.0
        self.is_posted = False
        self.is_mailed = not has_mail


class Alerts:
    """Notices by key. At most `AT_ONCE` are sent at the same time, and one of each source. So a webhook that hangs with
    many notices leaves room for the others. Mails go one after the other, each with all that waits. The caller bounds
    the notices: it drops the keys that are no longer needed."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._alerts: dict[Hashable, _Alert] = {}
        self._under_way: set[str] = set()
        self._news = anyio.Event()
        self._to_mail = anyio.Event()

    def submit(self, key: Hashable, notice: Notice, webhook: Callable[[], str]) -> None:
        """Send a notice, once for its key. Each try calls `webhook` for the URL, since a person may have changed it."""
        if key not in self._alerts:
            self._notifier.log(notice)
            self._alerts[key] = _Alert(notice, webhook, has_mail=self._notifier.has_mail)
            self._news.set()
            self._to_mail.set()

    def is_sent(self, key: Hashable) -> bool:
        """True once the webhook and the mail server took the notice of this key."""
        alert = self._alerts.get(key)
        return alert is not None and alert.is_posted and alert.is_mailed

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Forget all other keys. A notice of a forgotten key is sent again when it is submitted again."""
        for key in [key for key in self._alerts if key not in keys]:
            del self._alerts[key]

    def forget(self) -> None:
        """Forget all keys."""
        self.keep_only(())

    async def run(self) -> None:
        """Send for ever, also what was submitted before."""
        async with anyio.create_task_group() as tasks:
            if self._notifier.has_mail:
                tasks.start_soon(self._keep_mailing)
            while True:
                for alert in self._next():
                    self._under_way.add(alert.notice.source)
                    tasks.start_soon(self._send, alert)
                with anyio.move_on_after(self._pause_s()):
                    await self._news.wait()
                self._news = anyio.Event()

    def _waiting(self) -> list[_Alert]:
        """Return what is not posted and not on its way, the first due first. New alerts are due at once."""
        free = (one for one in self._alerts.values() if not one.is_posted and one.notice.source not in self._under_way)
        return sorted(free, key=lambda one: one.due_s)

    def _next(self) -> list[_Alert]:
        """Return what to send now: one alert of each source."""
        now_s = monotonic_s()
        first_of = {one.notice.source: one for one in reversed(self._waiting()) if one.due_s <= now_s}
        return list(first_of.values())[: max(0, AT_ONCE - len(self._under_way))]

    def _pause_s(self) -> float | None:
        """Return the time until the next alert is due. `None`: a new alert, or the end of a send, comes first."""
        waiting = self._waiting()
        if not waiting or len(self._under_way) >= AT_ONCE:
            return None
        return max(0.0, waiting[0].due_s - monotonic_s())

    async def _send(self, alert: _Alert) -> None:
        try:
            if await self._notifier.send(alert.notice, alert.webhook()):
                alert.is_posted = True
            else:
                alert.failures += 1
                alert.due_s = monotonic_s() + AGAIN.wait_s(alert.failures)
        finally:
            self._under_way.discard(alert.notice.source)
            self._news.set()

    async def _keep_mailing(self) -> None:
        failures = 0
        while True:
            await self._to_mail.wait()
            await anyio.sleep(AGAIN.wait_s(failures) if failures else GROUP_S)
            self._to_mail = anyio.Event()
            waiting = [alert for alert in self._alerts.values() if not alert.is_mailed]
            some = waiting[:MOST_IN_MAIL]
            is_taken = not some or await self._notifier.mail([alert.notice for alert in some])
            failures = 0 if is_taken else failures + 1
            for alert in some if is_taken else ():
                alert.is_mailed = True
            if not is_taken or len(waiting) > len(some):
                self._to_mail.set()
