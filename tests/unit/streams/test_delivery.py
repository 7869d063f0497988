"""Deliveries: their numbers, their answers, and settling once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import Disconnected, MalformedMessage
from streams.link.frames import Message
from streams.pull.delivery import Delivery, Facts, is_delivery, read_reply

REPLY = b"$JS.ACK.WORK.c.3.17.42.1763715427233604179.9"


class Holder:
    """Keeps what its deliveries send."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.settled_count = 0
        self.is_broken = False

    def send(self, frame: bytes) -> None:
        if self.is_broken:
            raise Disconnected("no room")
        self.frames.append(frame)

    async def ask(self, subject: str, payload: bytes, timeout_s: float) -> Message:
        self.send(f"{subject} {payload.decode()}".encode())
        return Message(b"", b"", b"", None)

    def settled(self, delivery: Delivery) -> None:
        assert delivery.is_settled
        self.settled_count += 1


def delivery(holder: Holder) -> Delivery:
    return Delivery(holder, b"work.a", REPLY, b"payload", b"NATS/1.0\r\nA: b\r\n\r\n")


def test_both_forms_of_the_reply_subject_are_read() -> None:
    facts = Facts("WORK", "c", 3, 17, 42, 1763715427233, 9)
    assert read_reply(REPLY) == facts
    with_domain = REPLY.replace(b"$JS.ACK.", b"$JS.ACK.hub.ACCOUNTHASH.")
    assert read_reply(with_domain + b".random") == facts
    assert read_reply(with_domain + b".random.more") == facts
    assert is_delivery(REPLY)
    assert not is_delivery(b"")


@given(st.integers(4, 8), st.text().filter(lambda text: "." not in text and not text.strip().isdecimal()))
def test_a_reply_subject_with_a_word_for_a_number_is_malformed(at: int, word: str) -> None:
    tokens = REPLY.decode().split(".")
    tokens[at] = word
    with pytest.raises(MalformedMessage):
        read_reply(".".join(tokens).encode("utf-8", "surrogatepass"))


@given(st.integers(0, 10).filter(lambda count: count != 9))
def test_a_reply_subject_of_too_few_or_too_many_tokens_is_malformed(count: int) -> None:
    tokens = [*REPLY.decode().split("."), "1"][:count]
    with pytest.raises(MalformedMessage):
        read_reply(".".join(tokens).encode())


async def test_each_answer_has_its_word_and_settles_once() -> None:
    holder = Holder()
    for at in range(5):
        one = delivery(holder)
        answers = [one.ack(), one.nak(), one.nak(1.5), one.term("bad\nbody"), one.ack_sync()]
        await answers[at]
        for late in answers[:at] + answers[at + 1 :]:
            await late
        await one.extend()
        one.forget()
    prefix = b"PUB " + REPLY
    assert holder.frames == [
        prefix + b" 0\r\n\r\n",
        prefix + b" 4\r\n-NAK\r\n",
        prefix + b' 25\r\n-NAK {"delay":1500000000}\r\n',
        prefix + b" 14\r\n+TERM bad body\r\n",
        REPLY + b" +ACK",
    ]
    assert holder.settled_count == 5


async def test_extending_does_not_settle_and_forgetting_says_nothing() -> None:
    holder = Holder()
    one = delivery(holder)
    await one.extend()
    assert holder.settled_count == 0
    one.forget()
    assert holder.settled_count == 1
    assert holder.frames == [b"PUB " + REPLY + b" 4\r\n+WPI\r\n"]


async def test_what_could_not_be_sent_is_not_settled() -> None:
    holder = Holder()
    holder.is_broken = True
    one = delivery(holder)
    for answer in (one.ack(), one.nak(), one.term(""), one.ack_sync()):
        with pytest.raises(Disconnected):
            await answer
    assert not one.is_settled
    assert (one.headers, one.seq, one.delivered, one.pending, one.stored_ms) == ({"A": "b"}, 17, 3, 9, 1763715427233)
