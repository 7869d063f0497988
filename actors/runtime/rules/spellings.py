"""One spelling of a length of time at every door: `"delay": "30s"`. Pure.

JSON forms have it in milliseconds, as `delay_ms`. A request that fits its form costs nothing here: only one with an
unknown field is looked at again.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw

from actors.runtime.rules.setting_values import BadSetting, nearest, read_duration, shown

SPANS = ("delay", "ttr", "expires_in", "wait", "every", "fixed_delay", "initial_delay", "jitter")
_UNKNOWN = re.compile(rf"unknown field `(?:{'|'.join(SPANS)})`")
_TEXT = re.compile(rf"got `str` - at `\$\.({'|'.join(SPANS)})_ms`")
_UNITS = re.compile(r"_(?:ms|s|sec|seconds|millis|milliseconds|minutes|m)$")
_T = TypeVar("_T")
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
        if not _UNKNOWN.search(str(error)):
            raise
    return decode(_in_milliseconds(payload))


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
        do = f'write a text with its unit, as "{name}": "30s", or milliseconds, as "{name}_ms": 30000'
        raise BadSetting(name, value, error.why, do) from None


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
