"""What is published, how the server answers, and how both look on the wire. Pure."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from streams.errors import MalformedHeader, OutcomeUnknown, StreamError, refusal
from streams.link.frames import header_block, message_id_block


class Outgoing(Struct, frozen=True, gc=False):
    """A message to publish. `block`: its headers as they travel, in place of the other two, from a caller that builds
    them faster than from a mapping. Such a message is sent again until it is answered: it holds an id or a condition,
    or a second one does no harm. The caller checks it, and the subject too. `is_unfenced`: only the server's memory of
    message ids keeps a repeat from being stored as a second message. So it is not sent again once that memory may be
    lost."""

    subject: str
    payload: bytes
    message_id: str | None = None
    headers: Mapping[str, str] | None = None
    block: bytes = b""
    is_unfenced: bool = False


class Receipt(Struct, frozen=True, gc=False):
    """The server's confirmation that a message is in a stream. A duplicate's `seq` is that of the first."""

    stream: str
    seq: int
    is_duplicate: bool = msgspec.field(name="duplicate", default=False)


class _Refusal(Struct):
    error: dict[str, object]


_ERROR = b'"error":'
_decode_receipt = msgspec.json.Decoder(Receipt).decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode


def block_of(
    message_id: str | None, headers: Mapping[str, str] | None, expected_seq: int | None, ttl_s: int | None
) -> bytes:
    """Return the header block. Raises MalformedHeader, also for a header that an argument already sets."""
    if headers is None and expected_seq is None and ttl_s is None:
        return b"" if message_id is None else message_id_block(message_id)
    own = {
        "Nats-Msg-Id": message_id,
        "Nats-Expected-Last-Subject-Sequence": None if expected_seq is None else str(expected_seq),
        "Nats-TTL": None if ttl_s is None else f"{ttl_s}s",
    }
    given = {name: value for name, value in own.items() if value is not None}
    if message_id == "":
        raise MalformedHeader("message id: empty")
    if headers and any(name.lower() == "nats-msg-id" for name in headers):
        raise MalformedHeader("header Nats-Msg-Id: give it as the message id, or repeats will not know of it")
    return header_block(given, headers or {})


def outcome_of(payload: bytes, subject: str) -> Receipt | StreamError:
    """Return the outcome that the server's answer to a publish states."""
    try:
        if _ERROR not in payload:
            return _decode_receipt(payload)
        return refusal(_decode_refusal(payload).error, subject=subject)
    except msgspec.DecodeError as error:
        return OutcomeUnknown(f"the acknowledgement cannot be read: {error}", subject=subject)
