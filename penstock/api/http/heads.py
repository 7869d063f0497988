"""What a request's head has to be before anything is done about it. Pure.

Refused here: what two servers could read in two ways (bodies of two lengths, two tokens), what a browser sends for
another site's page (a foreign Origin, Sec-Fetch-Site for what may have an effect, or a foreign Host while there are no
tokens), compressed bodies, tokens in URLs, which end up in logs, and methods behind other methods.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from actors.runtime.rules.traceparents import HEADER
from penstock.api.http.limits import LARGEST_BODY, LARGEST_UPLOAD
from penstock.api.http.problems import refused
from penstock.api.http.uploads import is_sheet, is_upload_path, name_of_header, too_large
from streams.messages.jobs import LONGEST_NONCE

__all__ = ["Head", "check_head", "is_form", "is_json", "is_local"]

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST")
OVERRIDES = frozenset({b"x-http-method-override", b"x-http-method", b"x-method-override"})
IN_URL = frozenset({b"token", b"access_token", b"api_key", b"apikey", b"authorization"})
HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
OWN_SITES = (b"same-origin", b"none")
"""Sec-Fetch-Site of requests that no other site's page made. `none`: a person typed the address."""
KEY = b"idempotency-key"
LONGEST_KEY = LONGEST_NONCE - len("/999")
"""The nonce of each job of a list is the key with its place in the list."""
ONCE = frozenset({b"authorization", b"host", b"content-type", b"content-length", b"content-encoding", b"origin", KEY})


class Head(NamedTuple):
    """The used values of a head. `length` is -1 for a chunked body. `is_upload`: the body is a file, which the door
    does not read."""

    token: str
    length: int
    media_type: str
    host: str
    forwarded: str
    is_upload: bool = False
    file_name: str = ""
    idempotency_key: str = ""
    traceparent: str = ""


def check_head(method: str, path: bytes, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Return the values of the head. Raises RefusedRequest if the request must be refused."""
    if method not in METHODS:
        raise refused(405, "method", f"{method} is not used here", hint=f"use {', '.join(METHODS)}")
    _check_path(path)
    if query:
        _check_query(query)
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in found and name in ONCE:
            raise refused(400, "malformed", "this header may come once only", what=name.decode("latin-1"))
        if name in OVERRIDES:
            raise refused(400, "malformed", "a method behind another one is not taken", what=name.decode("latin-1"))
        found[name] = value
    return _head(found, may_upload=is_upload_path(method, path), is_read=method in ("GET", "HEAD"))


def _head(found: dict[bytes, bytes], *, may_upload: bool, is_read: bool) -> Head:
    if found.get(b"content-encoding", b"identity").lower() != b"identity":
        raise refused(
            415, "media_type", "compressed bodies are not taken", what="Content-Encoding", hint="send it plain"
        )
    if b"transfer-encoding" in found and b"content-length" in found:
        raise refused(400, "malformed", "a body has one length: Content-Length or Transfer-Encoding", closes=True)
    host = found.get(b"host", b"").decode("latin-1")
    if not is_host(host):
        raise refused(400, "malformed", "missing, or not a host", what="Host", value=host)
    if b"origin" in found:
        _check_origin(found[b"origin"].decode("latin-1"), host)
    if not is_read and found.get(b"sec-fetch-site", b"none") not in OWN_SITES:
        raise refused(403, "forbidden", "pages of other sites may not call this", what="Sec-Fetch-Site")
    length = _length(found.get(b"content-length", b"0")) if b"transfer-encoding" not in found else -1
    media_type = found.get(b"content-type", b"").decode("latin-1")
    is_upload = may_upload and is_sheet(media_type)
    if is_upload and length > LARGEST_UPLOAD:
        raise too_large(length)
    if length > LARGEST_BODY and not is_upload:
        raise refused(413, "too_large", f"{length} bytes; a body has up to {LARGEST_BODY}", what="body", closes=True)
    return Head(
        token=_token(found.get(b"authorization", b"")),
        length=length,
        media_type=media_type,
        host=host,
        forwarded=found.get(b"x-forwarded-for", b"").decode("latin-1"),
        is_upload=is_upload,
        file_name=name_of_header(found.get(b"x-file-name", b"")),
        idempotency_key=_key(found.get(KEY, b"").strip()),
        traceparent=found.get(HEADER.encode(), b"").decode("latin-1"),
    )


@lru_cache(64)
def is_host(host: str) -> bool:
    """True if a Host header names a host, with or without a port. The router takes no other."""
    return HOST.fullmatch(host) is not None


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 15:
        raise refused(
            400, "malformed", "not a length", what="Content-Length", value=value.decode("latin-1"), closes=True
        )
    return int(value)


@lru_cache(64)
def is_local(host: str) -> bool:
    """True if a Host header names this machine's loopback: a page from elsewhere that resolves its own name to
    127.0.0.1 sends that name."""
    try:
        return urlsplit(f"//{host}").hostname in ("localhost", "127.0.0.1", "::1")
    except ValueError:
        return False


@lru_cache(64)
def is_json(media_type: str) -> bool:
    kind, _, more = media_type.partition(";")
    charset = more.strip().lower().removeprefix("charset=").strip('"')
    return kind.strip().lower() == "application/json" and charset in ("", "utf-8", "utf8")


@lru_cache(64)
def is_form(media_type: str) -> bool:
    """True for the three content types that a page's form sends, also when it is empty."""
    return media_type.partition(";")[0].strip().lower() in FORMS


def _check_path(path: bytes) -> None:
    if b"//" in path or b"/./" in path or b"/../" in path or path.endswith((b"/.", b"/..")) or b"\\" in path:
        raise refused(400, "malformed", "empty parts and dots are not taken", what="path", value=path.decode("latin-1"))


def _check_query(query: bytes) -> None:
    for part in query.split(b"&"):
        if part.partition(b"=")[0].lower() in IN_URL:
            raise refused(
                400,
                "malformed",
                "a token does not belong in a URL, where logs keep it",
                hint="send it as Authorization: Bearer, and make a new one, since this one may be known by now",
            )


def _check_origin(origin: str, host: str) -> None:
    try:
        is_own = urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        is_own = False
    if not is_own:
        raise refused(403, "forbidden", "pages of other sites may not call this", what="Origin", value=origin)


def _key(value: bytes) -> str:
    if len(value) > LONGEST_KEY or not all(0x21 <= sign <= 0x7E for sign in value):
        what = f"is none; use 1 to {LONGEST_KEY} printable ASCII characters without blanks"
        raise refused(400, "malformed", what, what="Idempotency-Key", value=value.decode("latin-1"))
    return value.decode("ascii")


def _token(value: bytes) -> str:
    scheme, _, token = value.decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
