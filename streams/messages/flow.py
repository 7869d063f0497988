"""Requests to load rows of one shard of a flow, and their replies. JSON, and pure.

Nothing is stored, and a request that gets no reply is not repeated: a later round makes up for it."""

from typing import TypeVar

import msgspec
from msgspec import Struct

from streams.errors import MalformedMessage

ANY_GROUP = "any"
"""The group of all nodes. So no group has this name."""


class LoadShard(Struct, frozen=True, kw_only=True, tag="load_shard"):
    """A request. `limit`: rows that are to be new. `after`: the key of the last row that was read from this shard
    before. Empty: begin at its start. `taken`: where the node that has it says so at once."""

    flow: str
    shard: str
    limit: int
    after: str = ""
    taken: str = ""


class ShardLoaded(Struct, frozen=True, kw_only=True, tag="shard_loaded", omit_defaults=True):
    """The reply. `new`: rows that are in flight now and were not before. `known`: rows that were read, and were in
    flight already. `after`: the last key that was read. `is_short`: the shard had fewer rows than asked for. `error`:
    why the user's code, or the store, did not give or take them all."""

    new: int = 0
    known: int = 0
    after: str = ""
    is_short: bool = False
    error: str = ""


FlowMessage = TypeVar("FlowMessage", LoadShard, ShardLoaded)


def decode_flow(raw: bytes, kind: type[FlowMessage]) -> FlowMessage:
    """Return the message. Raises MalformedMessage."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no message about loads: {error}") from error
