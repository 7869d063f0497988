"""HTTP to the URLs of submitters: the client of callbacks, which connects to no internal address.

The list says which hosts may be called (`check_callback`, at the door and before each call). Each call looks up its
host and checks the addresses. If one of them is internal, the call uses none of them. The client connects to the
checked addresses, follows no redirect, and uses no proxy.
"""

import errno
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

from actors.batch.rules.callbacks import LONGEST_URL, Allowed, may_connect, refusal_of
from actors.runtime.transport import BadUrl, Transport, check_url, open_transport, shown_url

PLACES = 64
"""Calls at once on one node. A receiver that answers nothing takes a place until its time is over."""


class BadCallback(ValueError):
    """A URL that must not be called. The message says why and what to do, without the URL's query."""


def check_callback(url: str, allowed: Allowed) -> None:
    """Raise BadCallback for a URL that must not be called."""
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise BadCallback(f"callback {url[:80]!a}: use up to {LONGEST_URL} printable ASCII characters, no blanks")
    try:
        parsed = check_url(url)
        why = refusal_of(parsed.scheme, parsed.raw_host or "", parsed.port or 0, allowed)
    except BadUrl as error:
        raise BadCallback(f"callback: {error}") from error
    if why:
        raise BadCallback(f"callback {shown_url(url)[:200]!a}: {why}")


def check_addresses(host: str, addresses: Iterable[str], allowed: Allowed) -> None:
    """Raise OSError if a host leads to an address that must not be connected to."""
    for address in addresses:
        if not may_connect(address, allowed):
            why = f"{host} leads to {address}, which is not public; list its network in callback_hosts"
            raise PermissionError(errno.EACCES, why)


class _CheckedResolver(AbstractResolver):
    """The system's resolver, without the addresses that may not be called."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        check_addresses(host, [each["host"] for each in found], self._allowed)
        return found

    async def close(self) -> None:
        await self._resolver.close()


@asynccontextmanager
async def open_callback_transport(allowed: Allowed) -> AsyncIterator[Transport]:
    """Open the client. It closes with the block."""
    async with open_transport(connections=PLACES, resolver=_CheckedResolver(allowed)) as transport:
        yield transport
