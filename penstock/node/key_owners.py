"""Whose a key is: that of a flow, or of a batch task, belongs to one application at a time.

Two applications with one key would run each other's rows and items by the wrong code, and settle them. So a node does
not start while a live node serves one of its keys for another application. Once no live node serves the key, it is
anybody's: an application may be renamed. A script is called `__main__` whoever wrote it, and is not compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from actors.flow.flows import rows_topic
from actors.runtime.logs import fields
from actors.runtime.membership import NodeRecord, living
from penstock.errors import StartFailed
from penstock.node.node import Node

__all__ = ["KeyTaken", "check_key_owners"]

log = logging.getLogger(__name__)

SCRIPT = "__main__"


class KeyTaken(StartFailed):
    """Live nodes serve this key for another application."""

    def __init__(self, what: str, *, app: str, other: str, nodes: Iterable[str]) -> None:
        names = ", ".join(sorted(nodes))
        super().__init__(
            f"{what}: this node's application is {app!r}, and live nodes serve it for {other!r} ({names}); "
            "give it another key, or stop those nodes first"
        )


class _Owned(msgspec.Struct):
    """The part of a record that counts here."""

    app: str = ""


class _Kind(NamedTuple):
    """`serves`: whether a node serves the key."""

    name: str
    bucket: str
    serves: Callable[[NodeRecord, str], bool]


FLOW = _Kind("flow", "FLOWS", lambda node, key: rows_topic(key) in node.topics)
TASK = _Kind("task", "TASKS", lambda node, key: key in node.tasks)


async def check_key_owners(node: Node, *, flows: Mapping[str, str], tasks: Mapping[str, str]) -> None:
    """Look whose the keys of this node's application are. `flows`, `tasks`: the application of each. Raises
    KeyTaken."""
    for kind, apps in ((FLOW, flows), (TASK, tasks)):
        for key, app in apps.items():
            await _check(node, kind, key, app)


async def _check(node: Node, kind: _Kind, key: str, app: str) -> None:
    entry = await node.bucket(kind.bucket).get(key)
    try:
        other = "" if entry is None else msgspec.json.decode(entry.raw, type=_Owned).app
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # who declares the key logs it
    if other in ("", app) or SCRIPT in (app, other):
        return
    serving = [
        each.node
        for each in await living(node.bucket("NODES"))
        if each.node != node.members.name and kind.serves(each, key)
    ]
    if serving:
        raise KeyTaken(f"{kind.name} {key}", app=app, other=other, nodes=serving)
    log.warning("key.owner_changed", extra=fields(kind=kind.name, key=key, before=other, app=app))
