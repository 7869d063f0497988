"""The messages of the streams: frozen, tagged records, JSON on the wire.

Every message may come twice or late, so each kind says what makes two copies the same. A slice offer is its subject. An
order is (platform, source, order_key, version). Dead letters and events are the facts in their ids (ids.py).

Forms grow by fields with defaults. Unknown fields are ignored. A new meaning gets a new tag. Every released form stays
in tests/golden/messages and decodes for good. Times are whole milliseconds UTC.
"""

import base64
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from streams.errors import MalformedMessage, Unwritable

_T = TypeVar("_T")

LONGEST_ORDER_KEY = 512
"""Characters. A key of a database index has to hold it: PostgreSQL refuses index rows above 2,704 bytes."""

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A count or version that a database's 64-bit column can hold."""
Millis = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
OrderKey = Annotated[str, Meta(min_length=1, max_length=LONGEST_ORDER_KEY)]


NO_LEDGER = Raw(b"")


class SliceOffer(Struct, frozen=True, kw_only=True, tag="slice_offer", omit_defaults=True):
    """Points a fetcher at an open slice of a source's ledger. The ledger is the truth. The offer only says where to
    look. It may carry the ledger as it was at the offer, with its `revision`, which mostly saves the fetcher a read. 0:
    it carries none."""

    platform: str
    source: str
    slice_id: str
    revision: int = 0
    ledger: Raw = NO_LEDGER
    """This very object if there is none: the encoder leaves it out then."""


class Order(Struct, frozen=True, kw_only=True, tag="order", omit_defaults=True):
    """One version of one order. `body`: the platform's JSON as it came. Nothing on the way decodes it. `by_content`:
    the platform has no version, so `version` is the moment of the reading, and only another body is another state."""

    platform: str
    source: str
    order_key: OrderKey
    version: Whole
    modified_ms: Millis
    fetched_ms: Millis
    body: Raw
    by_content: bool = False


class ListedOrder(Struct, frozen=True, kw_only=True):
    """One order of a page. The page has the other fields of `Order`."""

    order_key: OrderKey
    version: Whole
    modified_ms: Millis
    body: Raw


class OrderPage(Struct, frozen=True, kw_only=True, tag="order_page", omit_defaults=True):
    """Orders that a platform listed together: one message for many, each with its own key and version (ADR 5)."""

    platform: str
    source: str
    fetched_ms: Millis
    orders: tuple[ListedOrder, ...]
    by_content: bool = False


class Try(Struct, frozen=True, kw_only=True):
    """One attempt that failed, as a line of a dead letter's history."""

    attempt: int
    at_ms: int
    node: str = ""
    reason: str = ""


class DeadLetter(Struct, frozen=True, kw_only=True, tag="dead_letter"):
    """A message that was given up, with all that a person needs to submit it again. See `dead_body` for `body`."""

    engine: str
    name: str
    id: str
    reason: str
    attempts: int
    first_ms: int
    """When the message was first stored."""
    body: Raw
    is_base64: bool = False
    history: tuple[Try, ...] = ()


# Events of the fetch engine: what happened, for people, the console and readers who ask when something was read.


class SliceCompleted(Struct, frozen=True, kw_only=True, tag="slice_completed"):
    """Everything the platform lists for `[start_ms, end_ms)` is stored. `new_rows` leaves out rows known before."""

    platform: str
    source: str
    slice_id: str
    start_ms: int
    end_ms: int
    attempt: int
    fence: int
    node: str
    started_ms: int
    finished_ms: int
    rows: int
    new_rows: int
    requests: int
    is_proven: bool


class SliceFailed(Struct, frozen=True, kw_only=True, tag="slice_failed"):
    """An attempt failed. The next one comes no earlier than `not_before_ms`."""

    platform: str
    source: str
    slice_id: str
    start_ms: int
    end_ms: int
    attempt: int
    fence: int
    node: str
    at_ms: int
    reason: str
    not_before_ms: int = 0


class SliceSplit(Struct, frozen=True, kw_only=True, tag="slice_split"):
    """A window was too full or too slow to read at once, and was cut in `parts`."""

    platform: str
    source: str
    slice_id: str
    start_ms: int
    end_ms: int
    fence: int
    node: str
    at_ms: int
    reason: str
    parts: tuple[str, ...] = ()


class SourceThrottled(Struct, frozen=True, kw_only=True, tag="source_throttled"):
    """The platform throttled the source: no node fetches it before `hold_until_ms`."""

    platform: str
    source: str
    at_ms: int
    hold_until_ms: int
    reason: str = ""


class HoleMade(Struct, frozen=True, kw_only=True, tag="hole_made"):
    """A slice was given up. The watermark waits before it until a person accepts or re-drives it. `at_ms` is the time
    in the ledger, which tells this hole from a later one of the same slice. `missing`: the slice was read, and the
    platform counts so many more orders than it lists."""

    platform: str
    source: str
    slice_id: str
    start_ms: int
    end_ms: int
    attempts: int
    at_ms: int
    reason: str
    missing: int = 0


class HoleClosed(Struct, frozen=True, kw_only=True, tag="hole_closed"):
    """A hole was accepted as it is, or sent round again (`is_redriven`)."""

    platform: str
    source: str
    slice_id: str
    at_ms: int
    by: str
    is_redriven: bool


class SourceParked(Struct, frozen=True, kw_only=True, tag="source_parked"):
    """A source is parked until a person acts: the platform refuses its credentials or its settings."""

    platform: str
    source: str
    at_ms: int
    reason: str


class SourceResumed(Struct, frozen=True, kw_only=True, tag="source_resumed"):
    """A parked or paused source runs again."""

    platform: str
    source: str
    at_ms: int
    by: str = ""


class SourceDown(Struct, frozen=True, kw_only=True, tag="source_down"):
    """A source cannot be reached at all since `at_ms`, and a notice was sent. Reading resumes by itself."""

    platform: str
    source: str
    at_ms: int
    reason: str


class SourceUp(Struct, frozen=True, kw_only=True, tag="source_up"):
    """A source that was reported down since `down_ms` answers again, and a notice was sent."""

    platform: str
    source: str
    at_ms: int
    down_ms: int


class SettingsRefused(Struct, frozen=True, kw_only=True, tag="settings_refused"):
    """A change of settings was not valid. The last good ones stay in force."""

    key: str
    revision: int
    at_ms: int
    reason: str


class LateOrders(Struct, frozen=True, kw_only=True, tag="late_orders"):
    """A second look at a closed window found orders that were not there before: the settle delay is too short."""

    platform: str
    source: str
    slice_id: str
    start_ms: int
    end_ms: int
    at_ms: int
    count: int
    latest_by_ms: int = 0
    """How long after its modified time the latest of them became visible, at most."""


class WatermarkLag(Struct, frozen=True, kw_only=True, tag="watermark_lag"):
    """A source's watermark is further behind than its alert allows, or (`is_over`) caught up again."""

    platform: str
    source: str
    at_ms: int
    watermark_ms: int
    lag_ms: int
    is_over: bool = False


class LedgerUnusable(Struct, frozen=True, kw_only=True, tag="ledger_unusable"):
    """A source's ledger is missing or cannot be read. Nothing of the source is fetched until a person acts, or
    (`is_over`) the ledger is whole again."""

    platform: str
    source: str
    at_ms: int
    reason: str = ""
    is_over: bool = False


class ConsumerStuck(Struct, frozen=True, kw_only=True, tag="consumer_stuck"):
    """Messages wait and a client pulls, but the server has delivered nothing since `since_ms`: the consumer is paused,
    or it hangs. With `is_over` it delivers again."""

    stream: str
    consumer: str
    at_ms: int
    since_ms: int
    pending: int
    is_over: bool = False


class NodeJoined(Struct, frozen=True, kw_only=True, tag="node_joined"):
    """A node is live."""

    node: str
    at_ms: int
    zone: str = ""


class NodeLeft(Struct, frozen=True, kw_only=True, tag="node_left"):
    """A node left, or its registration expired."""

    node: str
    at_ms: int
    zone: str = ""


class SinkDown(Struct, frozen=True, kw_only=True, tag="sink_down"):
    """A sink's store takes nothing, and its orders wait in the stream. One event for each outage."""

    sink: str
    at_ms: int
    reason: str
    pending: int = 0
    """Orders waiting behind the batch in hand."""


class SinkUp(Struct, frozen=True, kw_only=True, tag="sink_up"):
    """A sink's store takes orders again. The outage began at `down_ms`."""

    sink: str
    at_ms: int
    down_ms: int


class OrderBuried(Struct, frozen=True, kw_only=True, tag="order_buried"):
    """A sink gave up one order. Its dead letter is `dead.sink.<sink>.<id>`."""

    sink: str
    id: str
    at_ms: int
    reason: str


FetchEvent = (
    SliceCompleted
    | SliceFailed
    | SliceSplit
    | SourceThrottled
    | HoleMade
    | HoleClosed
    | SourceParked
    | SourceResumed
    | SourceDown
    | SourceUp
    | SettingsRefused
    | LateOrders
    | WatermarkLag
    | LedgerUnusable
    | ConsumerStuck
    | NodeJoined
    | NodeLeft
    | SinkDown
    | SinkUp
    | OrderBuried
)

Message = SliceOffer | Order | OrderPage | DeadLetter | FetchEvent

_encode: Callable[[Message], bytes] = msgspec.json.Encoder().encode
_offers: msgspec.json.Decoder[SliceOffer] = msgspec.json.Decoder(SliceOffer)
_carried: msgspec.json.Decoder[Order | OrderPage] = msgspec.json.Decoder(Order | OrderPage)
_letters: msgspec.json.Decoder[DeadLetter] = msgspec.json.Decoder(DeadLetter)
_events: msgspec.json.Decoder[FetchEvent] = msgspec.json.Decoder(FetchEvent)
_any_json: msgspec.json.Decoder[Raw] = msgspec.json.Decoder(Raw)
_written: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return a message's JSON. Raises Unwritable for a message that would not decode again, by the limits of its fields
    or because its body is no JSON. Costs some microseconds an order."""
    try:
        payload = _encode(message)
        if not payload.isascii():
            str(payload, "utf-8")  # the decoder accepts invalid UTF-8 in a body, since it does not decode it
        _written.decode(payload)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Unwritable(f"{type(message).__name__}: {error}") from error
    return payload


def _decode(decoder: msgspec.json.Decoder[_T], payload: bytes) -> _T:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{error}") from error


def decode_slice_offer(payload: bytes) -> SliceOffer:
    """Return the offer, or raise MalformedMessage."""
    return _decode(_offers, payload)


def decode_orders(payload: bytes) -> list[Order]:
    """Return the orders of a message of ORDERS, a page or a single order. Raises MalformedMessage. Their bodies are
    views, which keep `payload` alive."""
    message = _decode(_carried, payload)
    if isinstance(message, Order):
        return [message]
    platform, source, fetched_ms = message.platform, message.source, message.fetched_ms
    return [
        Order(
            platform=platform,
            source=source,
            order_key=listed.order_key,
            version=listed.version,
            modified_ms=listed.modified_ms,
            fetched_ms=fetched_ms,
            body=listed.body,
            by_content=message.by_content,
        )
        for listed in message.orders
    ]


def decode_dead_letter(payload: bytes) -> DeadLetter:
    """Return the dead letter, or raise MalformedMessage."""
    return _decode(_letters, payload)


def decode_event(payload: bytes) -> FetchEvent:
    """Return the event. Raises MalformedMessage, also for a tag of a later release."""
    return _decode(_events, payload)


def dead_body(payload: bytes) -> tuple[Raw, bool]:
    """Return a payload as the `body` and `is_base64` of a dead letter.

    JSON stays as it came, for people and `nats stream view`. Anything else is base64 in a JSON string."""
    try:
        payload.decode()
        body = _any_json.decode(payload)
        is_json = bytes(body) == payload  # the decoder drops blanks around a value, and a copy must be exact
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        is_json = False
    return (body, False) if is_json else (Raw(b'"' + base64.b64encode(payload) + b'"'), True)


def dead_payload(letter: DeadLetter) -> bytes:
    """Return the payload that `dead_body` was given."""
    body = bytes(letter.body)
    return base64.b64decode(body[1:-1]) if letter.is_base64 else body
