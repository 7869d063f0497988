"""How nodes get their shares of the cluster's rates: one request for all keys in demand, one reply. JSON, and pure.

The constants are the protocol's: both sides compute with them. Nothing is stored, and a lost message is not repeated.
"""

from typing import TypeVar

import msgspec
from msgspec import Struct

from streams.errors import MalformedMessage

LIFE_S = 1.5
"""How long a share lasts, counted by the node from the moment at which it sent its request."""
SECOND_S = 1.0
"""No span of this length has more than the rate. What a node spent stays its own for so long."""
MARGIN_S = 0.1
"""How much later the governor believes that a share has ended: for clocks that differ in speed."""
ANSWER_S = 0.4
"""How long a node waits for a reply before it asks again. So one lost message does not let a share end that is renewed
once a second."""
CLAIM_S = LIFE_S + SECOND_S
"""For so long after the request for a share nobody has given it to another node. So a node may ask for the same share
again, also of another governor, if it takes the reply within that time."""
MOST_KEYS = 1_000
"""Keys in one request."""


class KeyAsk(Struct, frozen=True, array_like=True):
    """What a node says about one key. `share`: the `most` that it was given at last, for `CLAIM_S`. `held`: in no
    second that ends from now on does it spend more, unless it gets more. `used`: what it spent a second lately.
    `is_wanted`: it needs the key. `is_short`: its share held something back lately. `has_turn`: it has a single turn
    and has not used it. `rest_ms`: up to when turns are given, as far as it knows. Without a burst no node gets another
    one before. `rate`: the cluster's, if only the nodes with work know it. 0: the governor knows it. `burst`: how many
    may begin at once after a pause. `members`: those that have work under the key on this node, with their weights.
    None: the node itself, with weight 1."""

    key: str
    share: float = 0.0
    held: float = 0.0
    used: float = 0.0
    is_wanted: bool = False
    is_short: bool = False
    has_turn: bool = False
    rest_ms: int = 0
    rate: float = 0.0
    burst: int = 0
    members: tuple[tuple[str, float], ...] = ()


class AskShares(Struct, frozen=True, kw_only=True, tag="ask_shares"):
    """A node's request. `run`: this start of the node. `number` rises with each request of a run, and a reply to an
    earlier request is void. `heard`: the number of the last reply that the node took. `token`: the highest one that the
    node has seen in a reply."""

    node: str
    run: str
    number: int
    heard: int = 0
    token: int = 0
    keys: tuple[KeyAsk, ...] = ()


class KeyDealt(Struct, frozen=True, array_like=True):
    """The node's share of one key, per second: its pace. `has_turn`: it may begin one, once, in place of a share.
    `rest_ms`: up to when turns are given. `most`: what it may begin in any one second. It is below the share while
    others have yet to give way. Below 0: as much as the share. `spread`: members that have work on several nodes, and
    on how many."""

    key: str
    share: float = 0.0
    has_turn: bool = False
    rest_ms: int = 0
    most: float = -1.0
    spread: tuple[tuple[str, int], ...] = ()


class SharesDealt(Struct, frozen=True, kw_only=True, tag="shares_dealt"):
    """The governor's reply. `token`: of its lease. `again_ms`: when the node should ask again."""

    number: int
    token: int
    again_ms: int
    keys: tuple[KeyDealt, ...] = ()


RateMessage = TypeVar("RateMessage", AskShares, SharesDealt)


def decode_rates(raw: bytes, kind: type[RateMessage]) -> RateMessage:
    """Return the message. Raises MalformedMessage."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no message about rates: {error}") from error
