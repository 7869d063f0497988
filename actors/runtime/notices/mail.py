"""Mails notices over SMTP with TLS: all that wait, in one mail.

The standard library's client blocks, so each mail is sent in a thread, within `TIMEOUT_S` for each step and `LONGEST_S`
for all. Whoever is cancelled does not wait for the thread. On port 465
TLS comes first, elsewhere the client asks for it (STARTTLS). Without TLS nothing is sent, and no password is told.
"""

from __future__ import annotations

import logging
import smtplib
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from functools import partial
from typing import Any, NamedTuple

import anyio.to_thread

from actors.runtime.logs import fields
from actors.runtime.rules.notices import Notice
from actors.runtime.rules.texts import printable, some_of
from actors.runtime.secrets import BadReference, resolve_reference, without_secrets

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
LONGEST_S = 60.0
"""For a mail in all. A server that sends a line every few seconds never runs into `TIMEOUT_S`."""
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
    await _bounded(server, mail_of(server, notices, at=datetime.now(UTC)))


async def check_mail(server: MailServer) -> None:
    """Connect and log in, and send nothing. Raises MailRefused."""
    await _bounded(server, None)


async def _bounded(server: MailServer, mail: EmailMessage | None) -> None:
    """Talk in a thread for at most `LONGEST_S`. Neither a server that hangs nor one that answers for ever keeps whoever
    waits, or is cancelled, any longer: the connection is cut, which ends the thread."""
    under_way: list[smtplib.SMTP] = []
    try:
        with anyio.fail_after(LONGEST_S):
            await anyio.to_thread.run_sync(partial(_talk, server, mail, under_way), abandon_on_cancel=True)
    except TimeoutError:
        raise MailRefused(f"{server.host}:{server.port}: no end within {LONGEST_S:g} s") from None
    finally:
        for client in under_way:
            _cut(client)


def _cut(client: smtplib.SMTP) -> None:
    if client.sock is not None:
        with suppress(OSError):  # it has ended by itself
            client.sock.shutdown(socket.SHUT_RDWR)


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


def _talk(server: MailServer, mail: EmailMessage | None, under_way: list[smtplib.SMTP]) -> None:
    where = f"{server.host}:{server.port}"
    try:
        context = ssl.create_default_context(cafile=server.ca or None)
        with _connected(server, context, under_way) as client:
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


class _Noting(smtplib.SMTP):
    """A client that is in `under_way` from its first byte on, so that another thread can cut it."""

    def __init__(self, *arguments: Any, under_way: list[smtplib.SMTP], **options: Any) -> None:
        self._under_way = under_way
        super().__init__(*arguments, **options)

    def connect(self, *arguments: Any, **options: Any) -> tuple[int, bytes]:
        """Connect. Called by the constructor."""
        self._under_way.append(self)
        return super().connect(*arguments, **options)


class _NotingTls(_Noting, smtplib.SMTP_SSL):
    """The same with TLS from the start."""


def _connected(server: MailServer, context: ssl.SSLContext, under_way: list[smtplib.SMTP]) -> smtplib.SMTP:
    if server.port == TLS_PORT:
        return _NotingTls(server.host, server.port, timeout=TIMEOUT_S, context=context, under_way=under_way)
    client = _Noting(server.host, server.port, timeout=TIMEOUT_S, under_way=under_way)
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
