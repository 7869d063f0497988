"""Reads JSON as platforms write it, which is not always JSON.

Text that was cut in the middle of a character is common: half an emoji as a lone `\\ud83d`, half a character as bytes
that are no UTF-8. So is a raw tab. One such remark would make a whole page, and so its window, unreadable for good.
Broken text becomes U+FFFD or a blank. NaN and Infinity, which some writers send, become null, as in JavaScript.
All else stays byte for byte. Other malformed numbers are not mended.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.S
)
_NO_NUMBER = re.compile(rb'("(?:[^"\\]|\\.)*+")|-?\b(?:NaN|Infinity)\b')
_BLANKS = bytes.maketrans(bytes(range(32)), b" " * 32)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_json(decode: Callable[[bytes], T], body: bytes) -> T:
    """Return `decode(body)`, of the mended body if the given one is no JSON. Raises as `decode` does."""
    try:
        if not body.isascii():
            str(body, "utf-8")  # the decoder passes broken text in fields that it skips, a store would not
        return decode(body)
    except msgspec.ValidationError:
        raise
    except (UnicodeDecodeError, msgspec.DecodeError):
        return decode(mend(body))


def mend(body: bytes) -> bytes:
    """Return the body with broken text replaced. Sound text stays byte for byte."""
    text = body.removeprefix(BYTE_ORDER_MARK).decode(errors="replace").encode()
    # between values a control character is white space, inside text it is forbidden: a blank is right in both places
    text = _ESCAPE.sub(_lone_to_replacement, text.translate(_BLANKS))
    if b"NaN" in text or b"Infinity" in text:
        text = _NO_NUMBER.sub(lambda found: found[1] or b"null", text)
    return text


def _lone_to_replacement(found: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if found[1] else found[0]
