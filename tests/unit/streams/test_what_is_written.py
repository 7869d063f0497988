"""Whatever an encoder lets through decodes again, for every kind of message: what does not would take along all that
travels with it, and whoever reads it can only bury it."""

import json
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from streams.errors import Unwritable
from streams.messages import batch, jobs
from streams.messages import fetch as fetch_messages
from streams.messages.fetch import LONGEST_ORDER_KEY, ListedOrder, Message, Order, OrderPage, decode_orders, encode

Codec = tuple[Callable[[Any], bytes], Callable[[bytes], object]]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
).map(lambda value: Raw(json.dumps(value).encode()))
ODD_BODIES = st.sampled_from(
    [Raw(b"{"), Raw(b""), Raw(b'"\xff"'), *(Raw(b"[" * n + b"]" * n) for n in (500, 990, 9_000))]
)


def of_type(kind: Any, bodies: st.SearchStrategy[Raw]) -> st.SearchStrategy[Any]:
    """Return values of a type as the type checker lets them through, whatever limits are annotated beside it."""
    origin, inner = get_origin(kind), get_args(kind)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=9) | st.sampled_from(["", "k" * 513, "\ud800", "\0"]),
        int: st.integers() | st.sampled_from([-1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64]),
        bool: st.booleans(),
        Raw: bodies,
        type(None): st.none(),
    }
    if kind in plain:
        return plain[kind]
    if origin is Annotated:
        return of_type(inner[0], bodies)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, UnionType):
        return st.one_of([of_type(each, bodies) for each in inner])
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(of_type(inner[0], bodies), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(of_type(each, bodies) for each in inner))
    if origin is dict:
        return st.dictionaries(of_type(inner[0], bodies), of_type(inner[1], bodies), max_size=3)
    hints = get_type_hints(kind, include_extras=True)
    fields = msgspec.structs.fields(kind)
    return st.builds(kind, **{field.name: of_type(hints[field.name], bodies) for field in fields})


def decoded(payload: bytes) -> object:
    """Return a message as its readers decode it: pages and orders by the sinks' way."""
    kind = msgspec.json.decode(payload)["type"]
    named = {
        "slice_offer": fetch_messages.decode_slice_offer,
        "dead_letter": fetch_messages.decode_dead_letter,
        "order": msgspec.json.Decoder(Order).decode,
    }
    if kind == "order_page":
        return decode_orders(payload)
    return named.get(kind, fetch_messages.decode_event)(payload)


def expected(message: object) -> object:
    if not isinstance(message, OrderPage):
        return message
    page: dict[str, Any] = {"platform": message.platform, "source": message.source, "fetched_ms": message.fetched_ms}
    return [Order(**page, **msgspec.structs.asdict(listed)) for listed in message.orders]


OURS: dict[type, Codec] = dict.fromkeys(get_args(Message), (encode, decoded))
OTHERS: dict[type, Codec] = {
    jobs.JobRecord: (jobs.encode_job, jobs.decode_job),
    jobs.JobDone: (jobs.encode_job, jobs.decode_done),
    jobs.NewJob: (jobs.encode_new_job, msgspec.json.Decoder(jobs.NewJob).decode),
    batch.Chunk: (batch.encode_message, batch.decode_chunk),
    batch.ChunkResult: (batch.encode_message, batch.decode_result),
    batch.Pointer: (batch.encode_message, batch.decode_pointer),
    batch.BatchEvent: (batch.encode_message, lambda payload: msgspec.json.decode(payload, type=batch.BatchEvent)),
}


@pytest.mark.parametrize("kind", [*OURS, *OTHERS], ids=lambda kind: kind.__name__)
def test_whatever_is_written_decodes_again(kind: type) -> None:
    """Bodies of jobs and items were looked at where they came in (`is_json`); those of orders are anything here."""
    encoder, decoder = (OURS | OTHERS)[kind]
    bodies = JSON | ODD_BODIES if kind in OURS else JSON

    @settings(max_examples=50, deadline=None, database=None)
    @given(of_type(kind, bodies))
    def holds(message: object) -> None:
        try:
            payload = encoder(message)
        except (Unwritable, ValueError, OverflowError):
            return
        assert decoder(payload) == expected(message)

    holds()


GOOD = ListedOrder(order_key="good", version=1, modified_ms=5, body=Raw(b"{}"))


@pytest.mark.parametrize(
    "odd",
    [
        {"order_key": "k" * (LONGEST_ORDER_KEY + 1)},
        {"order_key": ""},
        {"order_key": "\ud800"},
        {"version": 2**63},
        {"version": -1},
        {"modified_ms": 2**63},
        {"body": Raw(b"{")},
    ],
    ids=["a long key", "no key", "half a character", "a large version", "a version below 0", "a far time", "no JSON"],
)
def test_an_order_that_could_not_be_read_is_not_written_alone_nor_in_a_page(odd: dict[str, object]) -> None:
    listed = msgspec.structs.replace(GOOD, **odd)
    page = OrderPage(platform="p", source="s", fetched_ms=1, orders=(GOOD, listed))
    alone = Order(platform="p", source="s", fetched_ms=1, **msgspec.structs.asdict(listed))
    for message in (page, alone):
        with pytest.raises(Unwritable):
            encode(message)
