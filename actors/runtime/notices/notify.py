"""Notifies an administrator: always in the log, by a webhook if one is set, and by mail if there is a server for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from actors.runtime.logs import fields
from actors.runtime.notices.mail import MailRefused, MailServer, send_mail
from actors.runtime.rules.notices import Notice
from actors.runtime.secrets import BadReference, is_reference, resolve_reference
from actors.runtime.transport import BadUrl, PlatformDown, TooMuch, Transport
from platforms.adapter import Request

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
MOST_BYTES = 65_536


class Notifier:
    """Delivers notices to the log, to the webhook, and by mail."""

    def __init__(self, transport: Transport, mail: MailServer | None = None) -> None:
        self._transport = transport
        self._mail = mail

    @property
    def has_mail(self) -> bool:
        """Return whether notices are mailed, too."""
        return self._mail is not None

    async def mail(self, notices: Sequence[Notice]) -> bool:
        """Send one mail with these notices. Return False if no server took it."""
        assert self._mail is not None
        try:
            await send_mail(self._mail, notices)
        except MailRefused as error:
            log.warning("notice.mail_failed", extra=fields(notices=len(notices), error=str(error)))
            return False
        return True

    def log(self, notice: Notice) -> None:
        """Write the notice to the log."""
        log.error("notice", extra=fields(notice=msgspec.to_builtins(notice)))

    async def send(self, notice: Notice, webhook: str) -> bool:
        """Send the notice to `webhook`, a URL or a reference to one. Return False if the webhook did not take it.
        Without a webhook only the log gets notices, and this returns True."""
        if not webhook:
            return True
        try:
            url = resolve_reference(webhook).reveal() if is_reference(webhook) else webhook
            headers = (("Content-Type", "application/json"),)
            request = Request("POST", url, headers=headers, body=msgspec.json.encode(notice))
            answer = await self._transport.send(request, timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES)
        except (BadReference, BadUrl, PlatformDown, TooMuch) as error:
            # At some services a webhook's path is its password. So a URL given by reference is logged by reference.
            why = f"{webhook}: {type(error).__name__}" if is_reference(webhook) else str(error)
            log.warning("notice.webhook_failed", extra=fields(source=notice.source, error=why))
            return False
        if answer.status >= 300:
            log.warning("notice.webhook_refused", extra=fields(source=notice.source, status=answer.status))
        return answer.status < 300
