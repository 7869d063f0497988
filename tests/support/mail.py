"""A mail server: a real one, with TLS and logins, that keeps what it takes."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import anyio
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

from tests.support.tls import make_certificates

USER, PASSWORD = "penstock", "a-password-of-mail"
UNKNOWN = "nobody@example.com"


class Post:
    """What was taken. `is_shut`: every mail is put off."""

    def __init__(self, port: int, ca: str) -> None:
        self.port = port
        self.ca = ca
        self.is_shut = False
        self.put_off = 0
        self.mails: list[EmailMessage] = []
        self._news = anyio.Event()

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address == UNKNOWN:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.is_shut:
            self.put_off += 1
            self._wake()
            return "451 come again later"
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        self._wake()
        return "250 OK"

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def until(self, mails: int, put_off: int = 0) -> list[EmailMessage]:
        """Wait until so many mails were taken, and put off."""
        with anyio.fail_after(30):
            while len(self.mails) < mails or self.put_off < put_off:
                await self._news.wait()
        return self.mails


def _login(_server: Any, _session: Any, _envelope: Any, _mechanism: str, given: Any) -> AuthResult:
    is_right = isinstance(given, LoginPassword) and (given.login, given.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=is_right, handled=False)


@asynccontextmanager
async def a_post(folder: Path, *, has_tls: bool = True, is_tls_first: bool = False) -> AsyncIterator[Post]:
    """Run one, at a free port. It takes mail after STARTTLS and a login alone."""
    files = make_certificates(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["PENSTOCK_TLS_CERT"], files["PENSTOCK_TLS_KEY"])
    post = Post(0, files["PENSTOCK_TLS_CA"])

    def talk() -> SMTP:
        tls: dict[str, Any] = (
            {"tls_context": context, "require_starttls": True, "auth_required": True} if has_tls else {}
        )
        return SMTP(post, authenticator=_login, hostname="post", **tls)

    server = await asyncio.get_running_loop().create_server(talk, "127.0.0.1", 0, ssl=context if is_tls_first else None)
    post.port = server.sockets[0].getsockname()[1]
    try:
        yield post
    finally:
        server.close()
        await server.wait_closed()
