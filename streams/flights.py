"""A publisher's books: the messages on their way, and who waits for what becomes of them."""

import asyncio

from streams.errors import OutcomeUnknown, StreamError
from streams.outcomes import Receipt


class Waiting:
    """Who waits for outcomes: one place for each message, and a future for all of them."""

    __slots__ = ("all_known", "left", "outcomes")

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.outcomes: list[Receipt | StreamError | None] = [None] * count
        self.left = count
        self.all_known: asyncio.Future[None] = loop.create_future()

    def know(self, index: int, outcome: Receipt | StreamError) -> None:
        """Take down what became of one."""
        self.outcomes[index] = outcome
        self.left -= 1
        if not self.left and not self.all_known.done():
            self.all_known.set_result(None)


class Flight:
    """One message on its way, all its tries under one number.

    `is_unknown`: a try stayed without answer, so it may have been stored. `is_resting`: the last try was answered by
    nobody; the next is due at `due_s`, at which any other flight is overdue. `memory`: the server's memory of message
    ids without which it must not be sent again; empty: it may always be.
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
        self, subject: str, message_id: str | None, frame: bytes, waiting: Waiting, index: int, is_repeatable: bool
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
        """Return the outcome of a message of which nobody knows."""
        return OutcomeUnknown(reason, subject=self.subject, message_id=self.message_id)
