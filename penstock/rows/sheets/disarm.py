"""Cells that a spreadsheet program would take for a formula, made plain text (OWASP, CSV injection). Pure."""

import re

__all__ = ["disarmed", "rearmed"]

_NUMBER = re.compile(r"[+-]?\d{1,18}(?:[.,]\d{1,18})?")
_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_BLANKS = " \u00a0\u3000\u200b\ufeff"


def disarmed(text: str) -> str:
    """Return the text, behind an apostrophe if it (or a line within it) would start a formula. Plain numbers stay. A
    text that could be taken for such a one gets an apostrophe, too."""
    if not text or _NUMBER.fullmatch(text):
        return text
    lines = re.split(r"[\r\n]+", text)
    bare = text.lstrip("'")
    if bare != text and disarmed(bare) != bare:
        return f"'{text}"
    is_armed = text[0] in "\t\r\n" or any(line.lstrip(_BLANKS).startswith(_STARTS) for line in lines)
    return f"'{text}" if is_armed else text


def rearmed(text: str) -> str:
    """Return the text that `disarmed` has made this of."""
    return text[1:] if text.startswith("'") and disarmed(text[1:]) == text else text
