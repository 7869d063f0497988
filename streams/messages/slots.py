"""How nodes get slots, the permissions to run one call under a key: one request, one reply. JSON, and pure.

They travel on `rates`, like the requests for shares, and live by the same constants. Nothing is stored, and a lost
message is not repeated.
"""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from streams.errors import MalformedMessage
from streams.messages.rates import AskShares

WhenFull = Literal["queue", "drop_newest", "cancel_running"]
"""What becomes of a call whose key has no free slot. It waits, or is dropped, or takes the slot of the call that has
run longest, which is cancelled."""
MOST_SLOTS = 1_000
"""Slots of one key."""


class SlotAsk(Struct, frozen=True, array_like=True):
    """What a node says about one key. `held`: it uses no more slots from now on, unless it gets more. `running`: its
    calls that run, also those whose slots have ended. `wanted`: its calls that run or wait. `most`: the limit, as the
    node knows it. `oldest_ms`: how long its longest call has run."""

    key: str
    held: int = 0
    running: int = 0
    wanted: int = 0
    most: int = 1
    when_full: WhenFull = "queue"
    oldest_ms: int = 0


class AskSlots(Struct, frozen=True, kw_only=True, tag="ask_slots"):
    """A node's request. `run`: this start of the node. `number` rises with each request of a run, and a reply to an
    earlier request is void. `token`: the highest one that the node has seen in a reply."""

    node: str
    run: str
    number: int
    token: int = 0
    keys: tuple[SlotAsk, ...] = ()


class SlotDealt(Struct, frozen=True, array_like=True):
    """A node's slots of one key. `keep`: in so many it may begin calls. It gives up the others when the calls in them
    end, because another node waits. `cut`: so many of its longest calls are to be cancelled. `is_full`: calls that have
    no slot now are to be dropped."""

    key: str
    slots: int = 0
    keep: int = 0
    cut: int = 0
    is_full: bool = False


class SlotsDealt(Struct, frozen=True, kw_only=True, tag="slots_dealt"):
    """The governor's reply. `token`: of its lease. `again_ms`: when the node should ask again."""

    number: int
    token: int
    again_ms: int
    keys: tuple[SlotDealt, ...] = ()


class LookAtSlots(Struct, frozen=True, kw_only=True, tag="look_at_slots"):
    """Asks who has slots of a key."""

    key: str


class SlotsSeen(Struct, frozen=True, kw_only=True, tag="slots_seen"):
    """Who has slots of a key: nodes, with how many each. `most`: the limit."""

    most: int = 0
    holders: tuple[tuple[str, int], ...] = ()


class ListSlots(Struct, frozen=True, kw_only=True, tag="list_slots"):
    """Asks under which keys slots are taken. `most`: keys in the reply."""

    most: int


class SlotsTaken(Struct, frozen=True, array_like=True):
    """A key of which slots are taken. `waiting`: calls that nodes wait for slots with. `holders`: nodes, with how many
    each."""

    key: str
    most: int
    waiting: int = 0
    holders: tuple[tuple[str, int], ...] = ()


class SlotsListed(Struct, frozen=True, kw_only=True, tag="slots_listed"):
    """The keys of which slots are taken, those with the most waiting calls first. `total`: how many keys there are."""

    total: int = 0
    keys: tuple[SlotsTaken, ...] = ()


GovernorAsk = AskShares | AskSlots | LookAtSlots | ListSlots
Kind = TypeVar("Kind")
_asks: msgspec.json.Decoder[Any] = msgspec.json.Decoder(GovernorAsk)
_dealt = msgspec.json.Decoder(SlotsDealt)
_seen = msgspec.json.Decoder(SlotsSeen)
_listed = msgspec.json.Decoder(SlotsListed)


def decode_ask(raw: bytes) -> GovernorAsk:
    """Return a request to the governor. Raises MalformedMessage."""
    ask: GovernorAsk = _decoded(_asks, raw)
    return ask


def decode_slots(raw: bytes) -> SlotsDealt:
    """Return the governor's reply. Raises MalformedMessage."""
    return _decoded(_dealt, raw)


def decode_seen(raw: bytes) -> SlotsSeen:
    """Return who has slots. Raises MalformedMessage."""
    return _decoded(_seen, raw)


def decode_listed(raw: bytes) -> SlotsListed:
    """Return under which keys slots are taken. Raises MalformedMessage."""
    return _decoded(_listed, raw)


def _decoded(decoder: msgspec.json.Decoder[Kind], raw: bytes) -> Kind:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no message about slots: {error}") from error
