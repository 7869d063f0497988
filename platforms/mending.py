"""Reads JSON as platforms write it, which is not always JSON.

Text that was cut in the middle of a sign is everyday: half an emoji as a lone `\\ud83d`, half a character as bytes that
are no UTF-8, a tab as it stands. One such remark would make a whole page, and so its window, unreadable for good. What
is broken becomes U+FFFD or a blank; all that is not stays byte for byte. Numbers that are none are not mended.
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
_BLANKS = bytes.maketrans(bytes(range(32)), b" " * 32)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_json(decode: Callable[[bytes], T], body: bytes) -> T:
    """Return `decode(body)`, of the mended body where the given one is no JSON. Raises as `decode` does."""
    try:
        str(body, "utf-8")  # the decoder lets broken text through where nobody reads it; whoever stores it would not
        return decode(body)
    except msgspec.ValidationError:
        raise
    except (UnicodeDecodeError, msgspec.DecodeError):
        return decode(mend(body))


def mend(body: bytes) -> bytes:
    """Return the body with broken text replaced. What is sound stays as it is, byte for byte."""
    text = body.removeprefix(_BYTE_ORDER_MARK).decode(errors="replace").encode()
    # a control sign is white space between values, and inside text it may not stand; a blank is right in both places
    return _ESCAPE.sub(_lone_to_replacement, text.translate(_BLANKS))


def _lone_to_replacement(found: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if found[1] else found[0]
