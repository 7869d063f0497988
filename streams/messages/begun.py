"""How anybody asks all nodes what they began under the cluster's rates. JSON, and pure.

One request goes to all nodes, and each replies once. Nothing is stored, and a lost message is not repeated.
"""

from typing import TypeVar

import msgspec
from msgspec import Struct

from streams.errors import MalformedMessage

MOST_SECONDS = 120
"""For how many seconds a node knows what it began."""
MOST_KEYS = 1_000
"""Keys in one request."""


class AskBegun(Struct, frozen=True, kw_only=True, tag="ask_begun"):
    """What was begun in the `seconds` seconds that end with `until_s`? `until_s`: a whole second since 1970 of the
    server's clock, the last of them."""

    keys: tuple[str, ...]
    until_s: int
    seconds: int


class KeyBegun(Struct, frozen=True, array_like=True):
    """One key on one node. `begun`: for each second, the oldest first. `share`: what the node may begin a second now.
    `is_waiting`: the share held something back in the last second, or gave it back to wait elsewhere. `free_ms`: in how
    many milliseconds the next one may begin then, as far as the node knows."""

    key: str
    begun: tuple[int, ...]
    share: float = 0.0
    is_waiting: bool = False
    free_ms: int = 0


class NodeBegun(Struct, frozen=True, kw_only=True, tag="node_begun"):
    """A node's reply. It leaves out keys of which it knows nothing. `cores`: what its process used of a core lately.
    `load`: programs that run or wait on its machine, for each core."""

    node: str
    keys: tuple[KeyBegun, ...] = ()
    cores: float = 0.0
    load: float = 0.0


BegunMessage = TypeVar("BegunMessage", AskBegun, NodeBegun)


def decode_begun(raw: bytes, kind: type[BegunMessage]) -> BegunMessage:
    """Return the message. Raises MalformedMessage."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no message about what was begun: {error}") from error
