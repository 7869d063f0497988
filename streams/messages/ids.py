"""Message ids: made of facts, never of chance, so that a repeat carries the same id.

The server forgets an id after its duplicate window. A later repeat has to be harmless to its receivers. An id also
hides what deserves another message, so each function says which facts make another message. Slice offers carry no id:
the same slice is rightly offered again in the same attempt (its source was throttled), and its subject, which must not
exist, already keeps it single.
"""

import hashlib
from typing import assert_never

from streams.messages.fetch import (
    ConsumerStuck,
    DeadLetter,
    FetchEvent,
    HoleClosed,
    HoleMade,
    LateOrders,
    LedgerUnusable,
    NodeJoined,
    NodeLeft,
    Order,
    OrderBuried,
    SettingsRefused,
    SinkDown,
    SinkUp,
    SliceCompleted,
    SliceFailed,
    SliceSplit,
    SourceDown,
    SourceParked,
    SourceResumed,
    SourceThrottled,
    SourceUp,
    WatermarkLag,
)
from streams.subjects import token_of

LONGEST_MESSAGE_ID = 128
"""Characters. Ids travel in a header of every publish and stand in the server's memory for the duplicate window."""


def order_message_id(order: Order) -> str:
    """Return the id under which an order is published: the same for each copy of one version, on any node."""
    return message_id(order.platform, order.source, order.order_key, str(order.version))


def order_page_message_id(platform: str, source: str, slice_id: str, fence: int, page: int, part: int) -> str:
    """Return the id of a part of a page that a slice's holder read: the same when its publish is repeated. Another
    holder's reading is another message, and the version guard of the sinks makes it harmless."""
    return message_id("page", platform, source, slice_id, str(fence), str(page), str(part))


def dead_letter_message_id(letter: DeadLetter, *, occurrence: int) -> str:
    """Return a dead letter's id. `occurrence` is the sequence of the message that was given up. If the same message is
    buried again after a crash, that is one dead letter. If it was sent again and failed again, that is another."""
    return message_id("dead", letter.engine, letter.name, letter.id, str(occurrence))


def event_message_id(event: FetchEvent) -> str:
    """Return an event's id: the same when the same fact is reported twice."""
    return message_id(*event_names(event), *_event_facts(event))


def event_names(event: FetchEvent) -> tuple[str, ...]:
    """Return the tokens after `events.fetch.`: the event's tag, then the node, source or sink that it is about."""
    tag = str(type(event).__struct_config__.tag)
    match event:
        case NodeJoined() | NodeLeft():
            return tag, event.node
        case SinkDown() | SinkUp() | OrderBuried():
            return tag, event.sink
        case ConsumerStuck():
            return tag, token_of(event.consumer)
        case SettingsRefused():
            return (tag,)
        case _:
            return tag, event.platform, event.source


def _event_facts(event: FetchEvent) -> tuple[str, ...]:
    match event:
        case SliceCompleted() | SliceFailed() | SliceSplit():
            return event.slice_id, str(event.fence)
        case HoleMade() | HoleClosed() | LateOrders():
            return event.slice_id, str(event.at_ms)
        case SettingsRefused():
            return event.key, str(event.revision)
        case OrderBuried():
            return event.id, str(event.at_ms)
        case (
            SourceThrottled()
            | SourceParked()
            | SourceResumed()
            | SourceDown()
            | SourceUp()
            | WatermarkLag()
            | LedgerUnusable()
            | ConsumerStuck()
            | NodeJoined()
            | NodeLeft()
            | SinkDown()
            | SinkUp()
        ):
            return (str(event.at_ms),)
        case _:
            assert_never(event)


def message_id(*facts: str) -> str:
    """Return an id made of facts, the same for the same facts, safe as a header's value and at most 128 characters.

    An id that is longer, or holds anything but visible ASCII (a header's line breaks and blanks would be changed on the
    way), is hashed. No plain id starts like a hashed one."""
    plain = "/".join(facts)
    if (
        len(plain) <= LONGEST_MESSAGE_ID
        and plain.isascii()
        and plain.isprintable()
        and " " not in plain
        and plain[:1] != "#"
    ):
        return plain
    exact = "\0".join(f"{len(fact)}:{fact}" for fact in facts)
    return "#" + hashlib.blake2b(exact.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
