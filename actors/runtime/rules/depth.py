"""How deeply JSON from outside may be nested. Pure."""

import re

from msgspec import Raw

DEEPEST = 128
"""Limit of the levels. Every JSON reader accepts this many (PHP stops at 512, Python's own at about 1,000)."""
_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.S)


def is_too_deep(value: Raw | bytes, deepest: int = DEEPEST) -> bool:
    """Return whether valid JSON is nested more deeply than every reader can follow."""
    if memoryview(value).nbytes <= 2 * deepest:  # each level takes two characters
        return False
    text = bytes(value)
    return text.count(b"[") + text.count(b"{") > deepest and depth_of(text) > deepest


def depth_of(text: bytes) -> int:
    """Return how many lists and objects stand within each other at most. `text` is valid JSON."""
    deepest = depth = 0
    for part in _PARTS.finditer(text):
        sign = part[0][:1]
        if sign in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in b"]}":
            depth -= 1
    return deepest
