"""Which version of a task's code may work on which instance: not an older one than made its items.

Versions are the application's own text. They are compared as people read them: numbers by their value, so that 1.10 is
newer than 1.9. No version is older than any version. A newer worker serves items that an older one has split, so that
an upgrade can go node by node. An older one does not understand the items of a newer one.
"""

import re
from collections.abc import Iterable

_PART = re.compile(r"\d+|[^\d.]+")


def is_older(one: str, other: str) -> bool:
    """Return whether version `one` comes before `other`."""
    return _parts(one) < _parts(other)


def newest(versions: Iterable[str]) -> str | None:
    """Return the newest of these versions, or None if there is none."""
    return max(versions, key=_parts, default=None)


def _parts(version: str) -> list[tuple[bool, int, str]]:
    """Return the version's numbers and words in their order, and an end. A word comes before the end, and the end
    before a number: 1.rc2, 1, 1.0."""
    parts = [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, "" if part.isdecimal() else part)
        for part in _PART.findall(version)
    ]
    return [*parts, (True, -1, "")] if parts else []
