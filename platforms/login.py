"""Logs in by a request of the file, and takes the credentials from its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from platforms.adapter import Response
from platforms.calls import CompiledRequest
from platforms.declared_file import LoginPart
from platforms.errors import BadDeclaration, BrokenContract
from platforms.fields import Field, Picker, steps_of
from platforms.mending import read_json

KNOWN = frozenset({"now"})


class LoginCall:
    """The compiled login of a file."""

    def __init__(self, part: LoginPart) -> None:
        self.request = CompiledRequest("login.request", part.request, part.auth, KNOWN)
        self.takes = tuple(part.take)
        self.reads_body = any(not place.startswith(("header:", "cookie:")) for place in part.take.values())
        self.reads_text = "body:" in part.take.values()
        if not part.take:
            raise BadDeclaration("login.take", 'names no account value; write access_token = "access_token"')
        self._readers = {name: _reader(f"login.take.{name}", place) for name, place in part.take.items()}

    @property
    def account_names(self) -> set[str]:
        return {name for template in self.request.templates for name in template.account_names}

    def granted(self, response: Response, needed: tuple[str, ...]) -> Mapping[str, str]:
        """Return the credentials in an answer. BrokenContract if one that is `needed` is not there."""
        found = {name: value for name, read in self._readers.items() if (value := read(response))}
        missing = [name for name in needed if name not in found]
        if missing:
            raise BrokenContract(f"the answer to the login has no {missing[0]!r}; look at [login.take]")
        return found


def _reader(where: str, place: str) -> Callable[[Response], str]:
    kind, colon, name = place.partition(":")
    if place == "body:":
        return _whole_body
    if colon and kind in ("header", "cookie") and name:
        if kind == "header":
            return lambda response: response.headers.get(name.lower(), "")
        return lambda response: _cookie(response.headers.get("set-cookie", ""), name)
    steps_of(where, place)
    picker = Picker("Login", {"value": Field(where, place, str | int, is_optional=True)})
    get = picker.getters["value"]

    def read(response: Response) -> str:
        try:
            value = get(read_json(picker.decode, response.body))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return ""
        return "" if value is None else str(value)

    return read


def _whole_body(response: Response) -> str:
    """Return a body that is nothing but the token, as text in JSON."""
    try:
        value = read_json(msgspec.json.decode, response.body)
    except (msgspec.DecodeError, RecursionError):
        return ""
    return value if isinstance(value, str) else ""


def _cookie(header: str, wanted: str) -> str:
    """Return a cookie's value. Several Set-Cookie headers stand on lines of their own."""
    for line in header.split("\n"):
        name, equals, value = line.partition(";")[0].strip().partition("=")
        if equals and name == wanted:
            return value
    return ""
