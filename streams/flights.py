"""A publisher's books: the messages on their way, and the callers that wait for their outcomes."""

import asyncio

from streams.errors import OutcomeUnknown, StreamError
from streams.outcomes import Receipt


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


class Alone:
    """A caller that waits for one outcome."""

    __slots__ = ("known",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.known: asyncio.Future[Receipt | StreamError] = loop.create_future()

    def know(self, _index: int, outcome: Receipt | StreamError) -> None:
        """Record the outcome."""
        if not self.known.done():
            self.known.set_result(outcome)


class Flight:
    """One message on its way, all its tries under one number.

    `is_unknown`: a try stayed without answer, so the message may have been stored. `is_resting`: no server took the
    last try. The next one is due at `due_s`. For any other flight, `due_s` is when its answer is overdue. `memory`: the
    server's memory of message ids without which the message must not be sent again. Empty: it may always be sent again.
    """

    __slots__ = (
        "deadline_s",
        "due_s",
        "frame",
        "index",
        "is_repeatable",
        "is_resting",
        "is_unknown",
        "memory",
        "message_id",
        "subject",
        "waiting",
    )
    deadline_s: float
    due_s: float
    is_resting: bool

    def __init__(
        self,
        subject: str,
        message_id: str | None,
        frame: bytes,
        waiting: Waiting | Alone,
        index: int,
        is_repeatable: bool,
    ) -> None:
        self.subject = subject
        self.message_id = message_id
        self.frame = frame
        self.waiting = waiting
        self.index = index
        self.is_repeatable = is_repeatable
        self.is_unknown = False
        self.memory = ""

    def unknown(self, reason: str) -> OutcomeUnknown:
        """Return the outcome of a message whose fate nobody knows."""
        return OutcomeUnknown(reason, subject=self.subject, message_id=self.message_id)
