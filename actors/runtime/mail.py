"""Mails notices over SMTP with TLS: all that wait, in one mail.

The standard library's client blocks, so each mail is sent in a thread, within `TIMEOUT_S` for each step. On port 465
TLS comes first, elsewhere the client asks for it (STARTTLS). Without TLS nothing is sent, and no password is told.
"""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from functools import partial
from typing import NamedTuple

import anyio.to_thread

from actors.runtime.logs import fields
from actors.runtime.rules.notices import Notice
from actors.runtime.rules.texts import printable, some_of
from actors.runtime.secrets import BadReference, resolve_reference, without_secrets

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
TLS_PORT = 465
"""Of SMTP with TLS from the first byte (RFC 8314)."""
LONGEST_ABOUT = 100
MOST_KINDS = 5


class MailRefused(Exception):
    """The server took no mail. The message says which server, and why."""


class MailServer(NamedTuple):
    """A server that takes mail. `password`: a reference, which is read anew for each mail. `ca`: a file with the
    authorities to trust, empty for the system's."""

    host: str
    port: int
    sender: str
    to: tuple[str, ...]
    user: str = ""
    password: str = ""
    ca: str = ""


async def send_mail(server: MailServer, notices: Sequence[Notice]) -> None:
    """Send one mail with these notices. Raises MailRefused."""
    await anyio.to_thread.run_sync(partial(_talk, server, mail_of(server, notices, at=datetime.now(UTC))))


async def check_mail(server: MailServer) -> None:
    """Connect and log in, and send nothing. Raises MailRefused."""
    await anyio.to_thread.run_sync(partial(_talk, server, None))


def mail_of(server: MailServer, notices: Sequence[Notice], *, at: datetime) -> EmailMessage:
    """Return the mail. Its subject names one notice, or counts them by kind."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Date"] = server.sender, ", ".join(server.to), format_datetime(at)
    mail["Message-ID"] = make_msgid(domain=server.sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"  # no answering machine answers it (RFC 3834)
    mail["Subject"] = f"[penstock] {_about(notices)}"
    mail.set_content("\n".join(map(_paragraph, notices)))
    return mail


def _about(notices: Sequence[Notice]) -> str:
    if len(notices) == 1:
        return _one_line(f"{notices[0].kind}: {notices[0].source}")[:LONGEST_ABOUT]
    kinds = Counter(notice.kind for notice in notices)
    return f"{len(notices)} notices: {some_of([f'{count} {kind}' for kind, count in kinds.items()], MOST_KINDS)}"


def _paragraph(notice: Notice) -> str:
    do = f"  what to do: {_one_line(notice.what_to_do)}\n" if notice.what_to_do else ""
    return f"{_one_line(notice.source)} ({notice.kind})\n  {_one_line(notice.text)}\n{do}"


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _talk(server: MailServer, mail: EmailMessage | None) -> None:
    where = f"{server.host}:{server.port}"
    try:
        context = ssl.create_default_context(cafile=server.ca or None)
        with _connected(server, context) as client:
            if server.user:
                client.login(server.user, resolve_reference(server.password).reveal())
            refused = client.send_message(mail) if mail is not None else {}
    except smtplib.SMTPAuthenticationError as error:
        raise MailRefused(f"{where}: the login of {server.user} was refused: {_said(error.smtp_error)}") from None
    except smtplib.SMTPRecipientsRefused as error:
        raise MailRefused(f"{where}: no recipient was accepted: {_refused(error.recipients)}") from None
    except smtplib.SMTPNotSupportedError as error:
        raise MailRefused(f"{where}: {error} Mail is sent with TLS only; port 465 has it from the start") from None
    except (OSError, smtplib.SMTPException, ValueError, BadReference) as error:
        raise MailRefused(f"{where}: {type(error).__name__}: {without_secrets(str(error))}") from None
    if refused:
        log.warning("notice.mail_recipients_refused", extra=fields(server=where, refused=_refused(refused)))


def _connected(server: MailServer, context: ssl.SSLContext) -> smtplib.SMTP:
    if server.port == TLS_PORT:
        return smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=context)
    client = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
    try:
        client.starttls(context=context)
    except BaseException:
        client.close()
        raise
    return client


def _said(answer: bytes | str) -> str:
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    return without_secrets(_one_line(text))


def _refused(recipients: dict[str, tuple[int, bytes]]) -> str:
    return "; ".join(f"{name}: {code} {_said(answer)}" for name, (code, answer) in recipients.items())
