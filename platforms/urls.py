"""The addresses to which a request may go: the account's own platform only."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import SplitResult, urljoin, urlsplit

from platforms.errors import BadDeclaration, BrokenContract

_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=1024)
def check_base_url(where: str, text: str) -> str:
    """Return the URL without a slash at its end. BadDeclaration unless it is plain http(s) to a host, without user,
    query or fragment."""
    parts = _split(text)
    if parts is None or parts.scheme not in _PORTS or not parts.hostname:
        raise BadDeclaration(where, f"{_shown(text)} is no http or https address")
    if parts.username is not None or parts.password is not None:
        raise BadDeclaration(where, f"the address of {parts.hostname} holds a user; put it among the account's values")
    if parts.query or parts.fragment:
        raise BadDeclaration(where, f"{_shown(text)} has a query or fragment; parameters belong to the request")
    return text.rstrip("/")


def next_url(link: str, base_url: str) -> str:
    """Return a link from an answer as an absolute URL. BrokenContract when it leaves the platform's own origin, since
    our credentials would go with it. A shop behind a proxy that ends TLS may write http: then https stays."""
    try:
        url = urljoin(base_url + "/", link)
    except ValueError as error:
        raise BrokenContract("the next link cannot be read as an address") from error
    there, here = _split(url), _split(base_url)
    if there is not None and here is not None and _is_without_tls(there, here):
        there = there._replace(scheme=here.scheme, netloc=here.netloc)
        url = there.geturl()
    if there is None or here is None or _origin(there) != _origin(here) or there.username is not None:
        told = "nowhere" if there is None or not there.hostname else _told_origin(there)
        raise BrokenContract(f"the next link leads to {told}, away from {_told_origin(here) if here else base_url}")
    return url


def _is_without_tls(there: SplitResult, here: SplitResult) -> bool:
    """Return whether a link is that of an https origin, but for the scheme."""
    is_host = there.hostname == here.hostname and there.username is None
    return is_host and (here.scheme, there.scheme) == ("https", "http") and there.port in (None, 80, _origin(here)[2])


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _told_origin(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"


def _shown(text: str) -> str:
    return repr(text.split("@")[-1].partition("?")[0][:80])
