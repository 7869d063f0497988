"""Where a message comes from, carried in its headers: what caused it, and which node sent it.

Only for people and traces. Nothing is decided by these headers, as any publisher may write them.
"""

from collections.abc import Mapping

import msgspec

CAUSE = "Penstock-Cause"
NODE = "Penstock-Node"


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """`cause`: the id of what led to this (a slice, a job, an instance). `node`: the sender. Empty: not told."""

    cause: str = ""
    node: str = ""


def to_headers(context: Context) -> dict[str, str]:
    """Return the headers that carry `context`; what is empty is left out."""
    return {name: value for name, value in ((CAUSE, context.cause), (NODE, context.node)) if value}


def from_headers(headers: Mapping[str, str]) -> Context:
    """Return the context that the headers carry."""
    return Context(cause=headers.get(CAUSE, ""), node=headers.get(NODE, ""))
