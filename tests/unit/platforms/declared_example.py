"""A small adapter file as a table, for tests to change."""

from collections.abc import Mapping
from typing import Any

from platforms.declared import DeclaredAdapter, declare


def table(**changes: Any) -> dict[str, Any]:
    """Return a file whose named parts are merged into, or replaced where they are no tables."""
    made: dict[str, Any] = {
        "name": "example",
        "request": {
            "path": "/orders",
            "params": {"from": "{window.start}", "to": "{window.end}", "after": "{page.token}"},
        },
        "window": {},
        "pages": {"style": "token", "next": "next", "total": "total", "size": 3},
        "record": {
            "rows": "orders",
            "key": "id",
            "version": {"kind": "number", "path": "v"},
            "modified": {"path": "at", "format": "unix_ms"},
        },
    }
    for name, change in changes.items():
        old = made.get(name)
        made[name] = {**old, **change} if isinstance(old, dict) and isinstance(change, Mapping) else change
    return made


def adapter(**changes: Any) -> DeclaredAdapter:
    return declare(table(**changes))
