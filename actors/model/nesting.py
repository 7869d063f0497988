"""How deeply a JSON text is nested."""

import re

__all__ = ["depth_of"]

_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.S)


def depth_of(text: bytes) -> int:
    """Return the most lists and objects that stand within each other. `text` is valid JSON."""
    deepest = depth = 0
    for part in _PARTS.finditer(text):
        sign = part[0][:1]
        if sign in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in b"]}":
            depth -= 1
    return deepest
