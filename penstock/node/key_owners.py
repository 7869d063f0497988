"""Whose a key is: that of a flow, or of a batch task, belongs to one application at a time.

Two applications with one key would run each other's rows and items by the wrong code, and settle them. So a node does
not start while a live node serves one of its keys for another application. Once no live node serves the key, it is
anybody's: an application may be renamed. A script is called `__main__` whoever wrote it, and is not compared.

A node that starts is not yet among the live ones. So it claims each key first, in LEASES, by a create: of two that
start at once one gets it, and the other one is refused. The claim expires by itself once the node is surely live, and
goes at once when the node stops. Every node claims in the same order, so of several that want the same keys one gets
all of them.

Nor does a node start that would declare more tasks than an installation may have. Those that it serves already go on
on its other nodes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import anyio
import msgspec

from actors.batch.tasks import MOST_IN_ALL
from actors.flow.flows import rows_topic
from actors.runtime.crowd import for_each
from actors.runtime.logs import fields
from actors.runtime.membership import NodeRecord, living
from penstock.errors import StartFailed
from penstock.node.node import Node
from streams.buckets.entries import Entry
from streams.errors import RevisionConflict, StreamError
from streams.races import race

__all__ = ["KeyTaken", "TooManyTasks", "claim_name", "owned_keys"]

log = logging.getLogger(__name__)

SCRIPT = "__main__"
NOBODYS = ("", SCRIPT, "penstock.sdk.batches")
"""What is not compared: no application, a script, and what earlier versions say of every external task."""
CLAIM_S = 30
"""How long a claim lasts: longer than a node takes from it to its first heartbeat."""
TRIES = 10
RELEASE_S, MARKER_TTL_S = 2.0, 1


class KeyTaken(StartFailed):
    """Live nodes serve this key for another application."""

    def __init__(self, what: str, *, app: str, other: str, nodes: Iterable[str]) -> None:
        names = ", ".join(sorted(nodes))
        super().__init__(
            f"{what}: this node's application is {app!r}, and live nodes serve it for {other!r} ({names}); "
            "give it another key, or stop those nodes first"
        )


class TooManyTasks(StartFailed):
    """The installation has no room for a task of this node's application."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"task {task} would be one too many: an installation has at most {MOST_IN_ALL:,}; run its application in a "
            "namespace of its own (PENSTOCK_NAMESPACE)"
        )


class _Owned(msgspec.Struct):
    """The part of a record that counts here."""

    app: str = ""


class _Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A node that starts, and the application for which it serves the key."""

    app: str = ""
    node: str = ""


class _Kind(NamedTuple):
    """`serves`: whether a node serves the key."""

    name: str
    bucket: str
    serves: Callable[[NodeRecord, str], bool]


FLOW = _Kind("flow", "FLOWS", lambda node, key: rows_topic(key) in node.topics)
TASK = _Kind("task", "TASKS", lambda node, key: key in node.tasks)


@asynccontextmanager
async def owned_keys(node: Node, *, flows: Mapping[str, str], tasks: Mapping[str, str]) -> AsyncIterator[None]:
    """Have the keys of this node's application while the block runs. `flows`, `tasks`: the application of each. Raises
    KeyTaken, TooManyTasks."""
    claims: dict[str, int] = {}
    if tasks:
        await _check_room(node, tasks)
    try:
        for kind, apps in ((FLOW, flows), (TASK, tasks)):
            await _claim_all(node, kind, {key: app for key, app in sorted(apps.items()) if app != SCRIPT}, claims)
        yield
    finally:
        with anyio.move_on_after(RELEASE_S, shield=True), suppress(StreamError):
            await _release(node, claims)


def claim_name(kind: str, key: str) -> str:
    """Return the key of LEASES under which a node that starts claims the key of a flow or of a task."""
    return f"owner.{kind}.{key}"


async def _check_room(node: Node, tasks: Iterable[str]) -> None:
    declared = {entry.key for entry in await node.bucket(TASK.bucket).entries()}
    room = max(0, MOST_IN_ALL - len(declared))
    for task in sorted(set(tasks) - declared)[room:]:
        raise TooManyTasks(task)


async def _claim_all(node: Node, kind: _Kind, apps: Mapping[str, str], claims: dict[str, int]) -> None:
    """Check and claim keys in their order, and note the claims. All are read at once: a node may have hundreds. Who
    claims one of them meanwhile changes its claim, so that ours conflicts."""
    names = {key: claim_name(kind.name, key) for key in apps}
    owners = {entry.key: _app_of(entry.raw) for entry in await node.bucket(kind.bucket).entries_of(list(apps))}
    seen = {entry.key: entry for entry in await node.bucket("LEASES").entries_of(list(names.values()))}
    for key, name in names.items():
        await _check(node, kind, key, apps[key], owners.get(key, ""))
        claims[name] = await _claim(node, kind, key, apps[key], seen.get(name))


async def _check(node: Node, kind: _Kind, key: str, app: str, other: str) -> None:
    """`other`: the application that the key's record names."""
    if other in (app, *NOBODYS):
        return
    serving = [
        each.node
        for each in await living(node.bucket("NODES"))
        if each.node != node.members.name and kind.serves(each, key)
    ]
    if serving:
        raise KeyTaken(f"{kind.name} {key}", app=app, other=other, nodes=serving)
    log.warning("key.owner_changed", extra=fields(kind=kind.name, key=key, before=other, app=app))


async def _claim(node: Node, kind: _Kind, key: str, app: str, seen: Entry[bytes] | None) -> int:
    """Claim the key for a node that starts, and return the claim's revision. `seen`: the claim as it was read."""
    leases, name = node.bucket("LEASES"), claim_name(kind.name, key)
    own = msgspec.json.encode(_Claim(app=app, node=node.members.name))

    known = [seen]

    async def attempt() -> int:
        entry = known.pop() if known else await leases.get(name)
        if entry is not None:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # what cannot be read is nobody's claim
                claim = msgspec.json.decode(entry.raw, type=_Claim)
                if claim.app not in (app, *NOBODYS) and claim.node != node.members.name:
                    raise KeyTaken(f"{kind.name} {key}", app=app, other=claim.app, nodes=[claim.node])
        return await leases.compare_and_set(name, own, 0 if entry is None else entry.revision, ttl_s=CLAIM_S)

    return await race(attempt, tries=TRIES)


async def _release(node: Node, claims: Mapping[str, int]) -> None:
    leases = node.bucket("LEASES")

    async def release(name: str) -> None:
        with suppress(RevisionConflict):  # another node of the application has claimed it since, or it has expired
            await leases.delete(name, revision=claims[name], ttl_s=MARKER_TTL_S)

    await for_each(claims, release)


def _app_of(raw: bytes) -> str:
    """Return a record's application. Empty if it cannot be read: whoever declares the key logs it."""
    try:
        return msgspec.json.decode(raw, type=_Owned).app
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
