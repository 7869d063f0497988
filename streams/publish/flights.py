"""A publisher's books: the messages on their way, and the callers that wait for their outcomes."""

import asyncio

from msgspec import Struct

from streams.errors import OutcomeUnknown, StreamError
from streams.publish.outcomes import Receipt


class Waiting:
    """A caller that waits for outcomes: one place for each message, and a future for all of them."""

    __slots__ = ("all_known", "left", "outcomes")

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.outcomes: list[Receipt | StreamError | None] = [None] * count
        self.left = count
        self.all_known: asyncio.Future[None] = loop.create_future()

    def know(self, index: int, outcome: Receipt | StreamError) -> None:
        """Record the outcome of one message."""
        self.outcomes[index] = outcome
        self.left -= 1
        if not self.left and not self.all_known.done():
            self.all_known.set_result(None)


class Alone(Struct, gc=False):
    """A caller that waits for one outcome."""

    known: "asyncio.Future[Receipt | StreamError]"

    def know(self, _index: int, outcome: Receipt | StreamError) -> None:
        """Record the outcome."""
        if not self.known.done():
            self.known.set_result(outcome)


class Flight(Struct, gc=False):
    """One message on its way, all its tries under one number.

    `is_unknown`: a try stayed without answer, so the message may have been stored. `is_resting`: no server took the
    last try. The next one is due at `due_s`. For any other flight, `due_s` is when its answer is overdue. `memory`: the
    server's memory of message ids without which the message must not be sent again. Empty: it may always be sent again.
    """

    subject: str
    message_id: str | None
    frame: bytes
    waiting: Waiting | Alone
    index: int
    is_repeatable: bool
    memory: str = ""
    deadline_s: float = 0.0
    due_s: float = 0.0
    is_unknown: bool = False
    is_resting: bool = False

    def unknown(self, reason: str) -> OutcomeUnknown:
        """Return the outcome of a message whose fate nobody knows."""
        return OutcomeUnknown(reason, subject=self.subject, message_id=self.message_id)
