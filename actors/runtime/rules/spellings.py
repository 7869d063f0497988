"""One spelling of a length of time at every door: `"delay": "30s"`. Pure.

JSON forms have it in milliseconds, as `delay_ms`. A request that fits its form costs nothing here: only one with an
unknown field is looked at again.
"""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import msgspec
from msgspec import Raw

from actors.runtime.rules.setting_values import BadSetting, nearest, read_duration, shown

SPANS = ("delay", "ttr", "expires_in", "wait", "every", "fixed_delay", "initial_delay", "jitter")
TEXTS = ("ttr", "backoff", "backoff_cap", "remember")
"""Settings of a topic, which are texts."""
_UNKNOWN = re.compile(r"unknown field `(\w+)`$")
_TEXT = re.compile(rf"got `str` - at `\$\.({'|'.join(SPANS)})_ms`")
_BARE = re.compile(rf"got `(?:int|float)` - at `\$\.({'|'.join(TEXTS)})`")
_UNITS = re.compile(r"_(?:ms|s|sec|secs|seconds|millis|milliseconds|minutes|mins|m|h|hours)$")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_T = TypeVar("_T")
_R = TypeVar("_R")
_P = ParamSpec("_P")
_object = msgspec.json.Decoder(dict[str, Raw]).decode


def decode_spelled(decode: Callable[[bytes], _T], payload: bytes) -> _T:
    """Return the decoded object. Lengths of time may be texts with units. Raises as `decode` does, and BadSetting for a
    length that is none, or that is given twice."""
    try:
        return decode(payload)
    except msgspec.ValidationError as error:
        if text := _TEXT.search(str(error)):
            do = f'write it as "{text[1]}": "30s", or as digits without quotes'
            raise BadSetting(f"{text[1]}_ms", "", "a text is not a number of milliseconds", do) from None
        if bare := _BARE.search(str(error)):
            raise BadSetting(bare[1], "", "a number has no unit", _text(bare[1])) from None
        unknown = _UNKNOWN.search(str(error))
        if not unknown:
            raise
        if unknown[1] not in SPANS:
            _hint_at_span(decode, payload, unknown[1])
            raise
    return decode(_in_milliseconds(payload))


def _hint_at_span(decode: Callable[[bytes], object], payload: bytes, name: str) -> None:
    """Raise BadSetting if an unknown field is a length of time of this form in another spelling (`delay_s`, `TTR`)."""
    base = _UNITS.sub("", _HUMP.sub("_", name).lower())
    fields = {each: value for each, value in _object(payload).items() if each not in (name, base)}
    if base in SPANS and _takes(decode, fields, f"{base}_ms", 0):
        raise BadSetting(name, "", "is no field", _both(base))
    if base in TEXTS and base != name and _takes(decode, fields, base, "30s"):
        raise BadSetting(name, "", "is no field", _text(base))


def _takes(decode: Callable[[bytes], object], fields: dict[str, Raw], name: str, value: object) -> bool:
    """Return whether the form has this field for such a value, whatever is wrong with the others."""
    try:
        decode(msgspec.json.encode({**fields, name: value}))
    except msgspec.ValidationError as error:
        return f"`{name}`" not in str(error) and f"`$.{name}`" not in str(error)
    return True


def _text(name: str) -> str:
    return f'write a text with its unit, as "{name}": "30s"'


def _both(name: str) -> str:
    return f'{_text(name)}, or milliseconds, as "{name}_ms": 30000'


def _in_milliseconds(payload: bytes) -> bytes:
    fields = _object(payload)
    for name in SPANS:
        if name in fields:
            fields[f"{name}_ms"] = _millis_of(name, fields.pop(name), is_double=f"{name}_ms" in fields)
    return msgspec.json.encode(fields)


def _millis_of(name: str, raw: Raw, *, is_double: bool) -> Raw:
    value: object = msgspec.json.decode(raw)
    if is_double:
        raise BadSetting(name, value, f"is beside {name}_ms", "give one of them")
    try:
        return Raw(b"%d" % read_duration(name, value))
    except BadSetting as error:
        raise BadSetting(name, value, error.why, _both(name)) from None


def hinted(what: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Have a function refuse options that it does not have with the name that is right."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        code = function.__code__
        takes = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known, names = takes[code.co_argcount :], frozenset(takes)

        @wraps(function)
        def called(*arguments: _P.args, **options: _P.kwargs) -> _R:
            if options and (unknown := options.keys() - names):
                raise TypeError(unknown_option(what, min(unknown), sorted(known)))
            return function(*arguments, **options)

        return called

    return decorate


def unknown_option(what: str, name: str, known: Sequence[str]) -> str:
    """Return the error's text for an option of a call in a program that there is not, with the name that is right."""
    base = _UNITS.sub("", name)
    if base != name and base in known:
        return f'{what} has no option {name!r}; write {base}="30s", a number of seconds, or a timedelta'
    return f"{what} has no option {name!r}; {nearest(name, known)}"


def told(error: BadSetting) -> str:
    """Return what is wrong with a field of a request."""
    value = "" if error.value == "" else f"{shown(error.value)} "
    return f"{error.name}: {value}{error.why}; {error.do}"
