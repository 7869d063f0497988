"""A small adapter file as a table, for tests to change, and answers for it to read."""

import json
from collections.abc import Mapping
from typing import Any

from platforms.adapter import Page, Response
from platforms.declared import DeclaredAdapter, declare

AT = 1_700_000_000_000


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


def answer(body: object, status: int = 200, **headers: str) -> Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


def row(**changes: Any) -> dict[str, Any]:
    return {"id": "a", "v": 1, "at": AT} | changes


def page(*rows: object, adapter_: DeclaredAdapter | None = None, **more: Any) -> Page:
    return (adapter_ or adapter()).page(answer({"orders": list(rows), **more}))
