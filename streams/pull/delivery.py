"""One message that a consumer delivered, and its five answers: ack, nak, in progress, term, none.

The answers go to the message's reply subject, which also carries its numbers. JetStream does not fence: an answer that
comes after the ack wait counts as well. A consumer that must be the only owner holds another fence and settles last.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from streams.errors import MalformedMessage
from streams.link.frames import Message, parse_headers

_PREFIX = b"$JS.ACK."
_MAX_REASON = 256
ACK_SYNC_S = 2.0
_SHORT_DOTS = 8


class Facts(NamedTuple):
    """The numbers in the reply subject. `delivered` counts from 1. `pending`: messages that the consumer had still to
    deliver."""

    stream: str
    consumer: str
    delivered: int
    seq: int
    consumer_seq: int
    stored_ms: int
    pending: int


class Holder(Protocol):
    """Holds the delivery until it is settled: a puller."""

    def send(self, frame: bytes) -> None: ...
    async def ask(self, subject: str, payload: bytes, timeout_s: float) -> Message: ...
    def settled(self, delivery: "Delivery") -> None: ...


class Delivery:
    """A message to work on, held until it is settled.

    Settle it once, by `ack`, `ack_sync`, `nak`, `term` or `forget`. A second settle does nothing, so that an error path
    may settle what is settled. A delivery that is dropped unsettled keeps its place in the puller for good.
    """

    __slots__ = ("_block", "_facts", "_headers", "_holder", "_reply", "_seq", "is_settled", "payload", "subject")

    def __init__(self, holder: Holder, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        self._holder = holder
        self._reply = reply
        self._block = block
        self._facts: Facts | None = None
        self._headers: Mapping[str, str] | None = None
        self._seq = 0
        self.subject = subject.decode("utf-8", "replace")  # the server stores any bytes as a subject
        self.payload = payload
        self.is_settled = False

    @property
    def reply(self) -> bytes:
        """Where the delivery's answers go."""
        return self._reply

    @property
    def headers(self) -> Mapping[str, str]:
        if self._headers is None:
            self._headers = parse_headers(self._block)
        return self._headers

    def has_header(self, name: bytes) -> bool:
        """Return whether there is a header of this name, as it was sent, without reading the others."""
        return self._block is not None and b"\r\n%b:" % name in self._block

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            self._facts = read_reply(self._reply)
        return self._facts

    @property
    def seq(self) -> int:
        """The message's sequence in its stream."""
        if not self._seq:
            tokens = self._reply.split(b".")
            is_short = len(tokens) == _SHORT_DOTS + 1 and tokens[5].isdigit()
            self._seq = (
                int(tokens[5]) if is_short else self.facts.seq
            )  # without reading the rest: a mover needs just this
        return self._seq

    @property
    def delivered(self) -> int:
        """The number of this delivery, from 1. Naks count too. It is not the attempt: see the ledger."""
        if self._facts is None and self._reply.count(b".") == _SHORT_DOTS:  # read for each job, the others seldom
            number = self._reply.split(b".", 5)[4]
            if number.isdigit():
                return int(number)
        return self.facts.delivered

    @property
    def stored_ms(self) -> int:
        """When the server stored the message, by its clock."""
        return self.facts.stored_ms

    @property
    def pending(self) -> int:
        """Messages that the consumer had not delivered yet when it delivered this one."""
        return self.facts.pending

    async def ack(self) -> None:
        """Acknowledge without waiting for the server. If the link loses the ack, the message is redelivered."""
        self._settle(b"")

    async def ack_sync(self) -> None:
        """Acknowledge, and wait until the server has it. Raises OutcomeUnknown, Disconnected, NoStream (no such
        consumer), and then it is still unsettled."""
        if not self.is_settled:
            await self._holder.ask(self._reply.decode(), b"+ACK", ACK_SYNC_S)
            self._mark_settled()

    async def nak(self, delay_s: float = 0) -> None:
        """Have the message delivered again, to any client, after `delay_s`."""
        self._settle(b'-NAK {"delay":%d}' % int(delay_s * 1e9) if delay_s > 0 else b"-NAK")

    async def extend(self) -> None:
        """Restart the ack wait."""
        if not self.is_settled:
            self._holder.send(self.frame(b"+WPI"))

    async def term(self, reason: str) -> None:
        """Have the message never delivered again. A work queue removes it, so store it elsewhere before."""
        printable = "".join(sign if sign.isprintable() else " " for sign in reason[:_MAX_REASON])
        self._settle(f"+TERM {printable}".encode())

    def forget(self) -> None:
        """Send no answer, and make room for another message. After the ack wait the server delivers this one again."""
        if not self.is_settled:
            self._mark_settled()

    def frame(self, answer: bytes) -> bytes:
        """Return the bytes that send `answer`."""
        return b"PUB %b %d\r\n%b\r\n" % (self._reply, len(answer), answer)

    def _settle(self, answer: bytes) -> None:
        if not self.is_settled:
            self._holder.send(self.frame(answer))
            self._mark_settled()

    def _mark_settled(self) -> None:
        self.is_settled = True
        self._holder.settled(self)


def ack_all(deliveries: Sequence[Delivery]) -> None:
    """Acknowledge deliveries of one holder by one write, those that are not settled. Raises as `ack`, and settles none
    then."""
    left = [delivery for delivery in deliveries if not delivery.is_settled]
    if left:
        left[0]._holder.send(b"".join([delivery.frame(b"") for delivery in left]))
        for delivery in left:
            delivery._mark_settled()


def ack_of(reply: bytes) -> bytes:
    """Return the bytes that acknowledge the message with this reply subject once more."""
    return b"PUB %b 0\r\n\r\n" % reply


def consumer_of(reply: bytes) -> bytes:
    """Return the part of a delivery's reply subject that names the consumer, without reading the rest."""
    names = 4 if reply.count(b".") == _SHORT_DOTS else 6
    return b".".join(reply.split(b".", names)[:names])


def is_delivery(reply: bytes) -> bool:
    """Return whether a message with this reply subject is a delivery. The server's statuses have none."""
    return reply.startswith(_PREFIX)


def read_reply(reply: bytes) -> Facts:
    """Return the numbers in the reply subject. Raises MalformedMessage.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<consumer seq>.<stored ns>.<pending>`, or with two tokens more before
    the stream (domain, account) and one or more after (ADR-15 of NATS).
    """
    tokens = reply.decode("utf-8", "replace").split(".")
    fields = tokens[2:9] if len(tokens) == 9 else tokens[4:11]
    try:
        stream, consumer, *numbers = fields
        delivered, seq, consumer_seq, stored_ns, pending = map(int, numbers)
    except ValueError:
        raise MalformedMessage(f"no reply subject of a delivery: {reply!r}") from None
    return Facts(stream, consumer, delivered, seq, consumer_seq, stored_ns // 1_000_000, pending)
