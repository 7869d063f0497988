"""Notices reach the webhook, whenever they were asked for."""

import aiohttp
import anyio

from actors.runtime.notices.alerts import Alerts
from actors.runtime.notices.notify import Notifier
from actors.runtime.rules.notices import Notice
from actors.runtime.transport import Transport
from tests.support.office import an_office


async def test_what_is_asked_for_before_it_runs_is_told_once_it_does() -> None:
    """A store that is full when its node starts, and what a new leader finds at its first look."""
    notice = Notice(kind="store_full", source="store", text="full", what_to_do="make room")
    async with an_office() as office, aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
        alerts = Alerts(Notifier(Transport(session)))
        alerts.submit("store_full", notice, lambda: office.url)
        tasks.start_soon(alerts.run)
        assert await office.until(1) == [notice]
        tasks.cancel_scope.cancel()
