"""Wire messages: what is encoded decodes the same, released forms decode for good, and ids are made of facts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from streams.errors import MalformedMessage
from streams.messages.fetch import (
    LONGEST_ORDER_KEY,
    DeadLetter,
    FetchEvent,
    HoleMade,
    Message,
    Order,
    SliceCompleted,
    dead_body,
    dead_payload,
    decode_dead_letter,
    decode_event,
    decode_orders,
    decode_slice_offer,
    encode,
)
from streams.messages.ids import (
    LONGEST_MESSAGE_ID,
    dead_letter_message_id,
    event_message_id,
    event_names,
    message_id,
    order_message_id,
    order_page_message_id,
)
from streams.subjects import Namespace
from tests.support.orders import page_of

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "messages").glob("*.json"))
EVENT_TAGS = {str(kind.__struct_config__.tag) for kind in get_args(FetchEvent)}

raw_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).map(lambda value: Raw(json.dumps(value).encode()))
texts = st.text(st.characters(exclude_categories=["Cs"]))
orders = st.builds(
    Order,
    platform=texts,
    source=texts,
    order_key=texts.filter(bool),
    version=st.integers(0, 2**63 - 1),
    modified_ms=st.integers(-(2**63), 2**63 - 1),
    fetched_ms=st.integers(0, 2**63 - 1),
    body=raw_json,
)


def golden(tag: str) -> bytes:
    return next(path for path in GOLDEN if path.stem == tag).read_bytes().strip()


def order_of(payload: bytes) -> Order:
    [found] = decode_orders(payload)
    return found


def decoder_of(tag: str) -> Callable[[bytes], Message]:
    plain: dict[str, Callable[[bytes], Message]] = {
        "slice_offer": decode_slice_offer,
        "order": order_of,
        "order_page": lambda payload: page_of(decode_orders(payload)),
        "dead_letter": decode_dead_letter,
    }
    return plain.get(tag, decode_event)


def order(**changes: object) -> Order:
    return msgspec.structs.replace(order_of(golden("order")), **changes)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_released_form_decodes_with_every_field(path: Path) -> None:
    released = path.read_bytes()
    tag = json.loads(released)["type"]
    now = json.loads(encode(decoder_of(tag)(released)))
    assert {name: now.get(name) for name in json.loads(released)} == json.loads(released)


def test_every_kind_has_a_released_form() -> None:
    assert {json.loads(path.read_bytes())["type"] for path in GOLDEN} == EVENT_TAGS | {
        "slice_offer",
        "order",
        "order_page",
        "dead_letter",
    }


@given(orders)
def test_order_decodes_to_itself(given_order: Order) -> None:
    assert order_of(encode(given_order)) == given_order


@given(st.lists(orders, min_size=1, max_size=5))
def test_page_carries_its_orders_in_their_order(given_orders: list[Order]) -> None:
    first = given_orders[0]
    same_page = [
        msgspec.structs.replace(o, platform=first.platform, source=first.source, fetched_ms=first.fetched_ms)
        for o in given_orders
    ]
    assert decode_orders(encode(page_of(same_page))) == same_page


@given(orders)
def test_order_sent_alone_is_a_page_of_one(given_order: Order) -> None:
    assert decode_orders(encode(given_order)) == [given_order]


def test_page_of_another_holder_is_another_message() -> None:
    ids = {order_page_message_id("taobao", "shop1", "t1-0-5", fence, page, 0) for fence in (1, 2) for page in (1, 2)}
    assert len(ids) == 4


def test_order_body_is_carried_as_it_came() -> None:
    body = b'{ "price": 1.50, "id": 12345678901234567890123, "n": 1e2, "\\u0041": "\\u0000" }'
    assert bytes(order_of(encode(order(body=Raw(body)))).body) == body


def test_unknown_fields_are_ignored() -> None:
    later = golden("slice_offer")[:-1] + b',"colour":"red"}'
    assert decode_slice_offer(later) == decode_slice_offer(golden("slice_offer"))


def good_order() -> dict[str, object]:
    found: dict[str, object] = json.loads(golden("order"))
    return found


BAD_ORDERS: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"<html>",
    "truncated": golden("order")[:-3],
    "trailing": golden("order") + b"x",
    "byte order mark": b"\xef\xbb\xbf" + golden("order"),
    "another tag": golden("slice_offer"),
    "no body": json.dumps({k: v for k, v in good_order().items() if k != "body"}).encode(),
    "empty key": json.dumps({**good_order(), "order_key": ""}).encode(),
    "long key": json.dumps({**good_order(), "order_key": "k" * (LONGEST_ORDER_KEY + 1)}).encode(),
    "number as key": json.dumps({**good_order(), "order_key": 5}).encode(),
    "version beyond 64 bit": json.dumps({**good_order(), "version": 2**63}).encode(),
    "version below 0": json.dumps({**good_order(), "version": -1}).encode(),
    "version with a fraction": json.dumps({**good_order(), "version": 1.5}).encode(),
    "NaN": golden("order").replace(b"208817", b"NaN"),
    "lone surrogate in key": golden("order").replace(b"2088-17", b"\\ud800"),
    "invalid UTF-8 in key": golden("order").replace(b"2088-17", b"\xff"),
    "deep nesting": golden("order").replace(b"208817", b"[" * 100_000 + b"]" * 100_000),
}


@pytest.mark.parametrize("payload", BAD_ORDERS.values(), ids=BAD_ORDERS.keys())
def test_malformed_order_is_told_as_such(payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        order_of(payload)


def test_event_with_a_tag_of_a_later_release_is_malformed() -> None:
    with pytest.raises(MalformedMessage):
        decode_event(b'{"type":"source_sang","platform":"taobao"}')


@given(st.binary() | raw_json.map(bytes))
@example(b' {"a": 1}')
@example(b'"\xff"')
@example(b"[" * 9_000)
def test_dead_letter_gives_back_its_payload(payload: bytes) -> None:
    body, is_base64 = dead_body(payload)
    letter = DeadLetter(
        engine="sink", name="main", id="1", reason="", attempts=1, first_ms=0, body=body, is_base64=is_base64
    )
    assert dead_payload(decode_dead_letter(encode(letter))) == payload


def test_dead_letter_shows_json_as_json() -> None:
    assert dead_body(b'{"a":1}') == (Raw(b'{"a":1}'), False)


def test_order_id_names_the_version() -> None:
    assert order_message_id(order()) == "taobao/shop1/2088-17/7"
    assert order_message_id(order(body=Raw(b"1"), fetched_ms=9)) == order_message_id(order())
    assert order_message_id(order(version=8)) != order_message_id(order())


@given(st.lists(texts, min_size=1, max_size=5))
@example(["k" * 200])
@example(["a\r\nb"])
@example(["a b"])
@example(["#a"])
@example([""])
def test_message_id_is_safe_as_a_header(facts: list[str]) -> None:
    made = message_id(*facts)
    assert len(made) <= LONGEST_MESSAGE_ID
    assert made.isascii()
    assert made.isprintable()
    assert " " not in made


@given(st.tuples(texts, st.integers(0, 9)), st.tuples(texts, st.integers(0, 9)))
@example(("a/1", 2), ("a", 12))
@example(("k" * 200, 1), ("k" * 201, 1))
def test_different_orders_have_different_ids(one: tuple[str, int], other: tuple[str, int]) -> None:
    first, second = (order(order_key=key, version=version) for key, version in (one, other))
    assert (order_message_id(first) == order_message_id(second)) == (one == other)


def test_no_plain_id_poses_as_a_hashed_one() -> None:
    hashed = message_id("k" * 200)
    assert message_id(hashed) != hashed


def test_letter_of_another_occurrence_is_another_letter() -> None:
    letter = decode_dead_letter(golden("dead_letter"))
    assert dead_letter_message_id(letter, occurrence=5) == "dead/sink/main/4711/5"
    assert dead_letter_message_id(letter, occurrence=6) != dead_letter_message_id(letter, occurrence=5)


@pytest.mark.parametrize("tag", sorted(EVENT_TAGS))
def test_event_has_a_subject_and_an_id(tag: str) -> None:
    event = decode_event(golden(tag))
    assert Namespace().event("fetch", *event_names(event)).startswith(f"penstock.events.fetch.{tag}")
    assert event_message_id(event).startswith(tag)


def test_event_told_twice_has_one_id() -> None:
    completed = decode_event(golden("slice_completed"))
    assert isinstance(completed, SliceCompleted)
    again = msgspec.structs.replace(completed, finished_ms=completed.finished_ms + 1)
    assert event_message_id(again) == event_message_id(completed)
    retaken = msgspec.structs.replace(completed, fence=completed.fence + 1)
    assert event_message_id(retaken) != event_message_id(completed)


def test_hole_made_again_after_it_was_sent_round_is_another_event() -> None:
    hole = decode_event(golden("hole_made"))
    assert isinstance(hole, HoleMade)
    assert event_message_id(msgspec.structs.replace(hole, at_ms=hole.at_ms + 1)) != event_message_id(hole)
