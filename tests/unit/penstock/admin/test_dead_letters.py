"""What sending a dead letter round again means."""

import msgspec
import pytest

from actors.fetch.monitor import hole_dead_letter
from actors.fetch.rules.ledger import Hole
from actors.fetch.sources import SourceKey
from penstock.admin.dead_letters import Cannot, Plan, Redrive, Send, SendStored, plan
from streams.messages.fetch import DeadLetter, ListedOrder, Order, OrderPage, SliceOffer, dead_body, encode

ORDER = Order(
    platform="mall", source="s1", order_key="o1", version=2, modified_ms=1, fetched_ms=2, body=msgspec.Raw(b'{"a":1}')
)
LISTED = ListedOrder(order_key="o1", version=2, modified_ms=1, body=msgspec.Raw(b"{}"))
OFFER = SliceOffer(platform="mall", source="s1", slice_id="t1-0-60000")


def letter(payload: bytes, *, engine: str = "sink", reason: str = "constraint", dead_id: str = "7") -> DeadLetter:
    body, is_base64 = dead_body(payload)
    return DeadLetter(
        engine=engine,
        name="main",
        id=dead_id,
        reason=reason,
        attempts=1,
        first_ms=1,
        body=body,
        is_base64=is_base64,
    )


def test_a_holes_letter_has_its_window_read_again() -> None:
    hole = Hole("t", 1, 0, 60_000, reason="HTTP 500")
    assert plan(hole_dead_letter(SourceKey("mall", "s1"), hole)) == Redrive(SourceKey("mall", "s1"), "t1-0-60000")


def test_an_orders_letter_sends_the_very_bytes() -> None:
    payload = encode(ORDER)
    steps = plan(letter(payload))
    assert isinstance(steps, Send)
    assert [order.order_key for order in steps.orders] == ["o1"]
    assert steps.payload == payload


def test_a_page_is_sent_as_a_page() -> None:
    page = OrderPage(platform="mall", source="s1", fetched_ms=2, orders=(LISTED, LISTED))
    steps = plan(letter(encode(page)))
    assert isinstance(steps, Send)
    assert len(steps.orders) == 2


def test_an_order_too_large_to_carry_is_taken_from_its_stream() -> None:
    reason = "no (too large to carry: the body is message 314 of the stream of orders)"
    assert plan(letter(b"null", reason=reason, dead_id="h_abc")) == SendStored(314)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (letter(b"\xff\x00"), "no order"),
        (letter(b"null"), "no order"),
        (letter(b'{"type":"order"}'), "no order"),
        (letter(encode(OrderPage(platform="p", source="s", fetched_ms=1, orders=()))), "holds no order"),
        (letter(encode(OFFER), engine="fetch"), "offer of a slice"),
        (letter(b"\xff", engine="fetch"), "offer of a slice"),
        (letter(b'{"platform":"p","source":"s","slice_id":"x"}', engine="fetch"), "offer of a slice"),
        (letter(b"{}", engine="delay"), "letters of delay"),
    ],
)
def test_what_cannot_be_sent_again_says_why(found: DeadLetter, said: str) -> None:
    steps: Plan = plan(found)
    assert isinstance(steps, Cannot)
    assert said in steps.why
