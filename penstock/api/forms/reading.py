"""How requests are read, the same at every node and at every door: JSON, strict.

Unknown fields are errors: a misspelt `delay_ms` must not make a job due at once. Of a field given twice the last one
counts.
"""

from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from actors.runtime.rules.setting_values import BadSetting
from actors.runtime.rules.spellings import decode_spelled, told

__all__ = ["Malformed", "RequestForm", "check_text", "choices", "explained", "picked", "read_ask"]

_T = TypeVar("_T", bound=Struct)


class RequestForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request, or a part of one."""


class Malformed(Exception):
    """A request that says nothing we understand. The text says what is wrong, and where."""


def read_ask(payload: bytes, form: type[_T]) -> _T:
    """Return the request, or raise Malformed. Nothing at all stands for a request without fields."""

    def decode(text: bytes) -> _T:
        return msgspec.json.decode(text, type=form)

    check_text(payload)
    try:
        return decode_spelled(decode, payload or b"{}")
    except (msgspec.MsgspecError, RecursionError, BadSetting) as error:
        raise Malformed(explained(error) + choices(error, form)) from error


def choices(error: Exception, form: type[Any]) -> str:
    """Return which words a field of the form takes, for the error about a word that it does not take."""
    said, _, place = str(error).partition(" - at `$.")
    known = _words(get_type_hints(form).get(place.rstrip("`"))) if said.startswith("Invalid enum value") else []
    return f"; use {', '.join(known)}" if known else ""


def _words(type_: object) -> list[str]:
    """Return the words that a field of this type takes, which may be left out. Empty: it takes others, too."""
    if get_origin(type_) is Literal:
        return [one for one in get_args(type_) if isinstance(one, str)]
    return [word for each in get_args(type_) for word in _words(each)]


def check_text(payload: bytes) -> None:
    """Raise Malformed for what is no text: the decoder looks at the encoding of what it reads only, not of bodies."""
    if payload.startswith(b"\xef\xbb\xbf"):
        raise Malformed("it starts with a byte order mark; send plain UTF-8")
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start} is no UTF-8") from error


def explained(error: Exception) -> str:
    """Return what the decoder says, for whoever sent it."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, BadSetting):
        return told(error)
    return str(error)[:300]


def picked(form: type[_T], source: Struct, **own: Any) -> _T:
    """Return a struct of this form: the fields of `own`, and all others as `source` has them."""
    for name in _others(form, tuple(own)):
        own[name] = getattr(source, name)
    return form(**own)


@cache
def _others(form: type[Struct], own: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in form.__struct_fields__ if name not in own)
