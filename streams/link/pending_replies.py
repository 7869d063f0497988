"""Matches answers to requests: one wildcard inbox, and a number for each request."""

import asyncio

from streams.errors import OutcomeUnknown, PermissionDenied, StreamError
from streams.link.frames import Message


class PendingReplies:
    """The requests that wait for an answer."""

    def __init__(self, inbox: str) -> None:
        self._prefix = f"{inbox}."
        self._next_number = 0
        self._waiting: dict[int, tuple[str, asyncio.Future[Message]]] = {}

    @property
    def pattern(self) -> str:
        """The pattern to subscribe to."""
        return f"{self._prefix}*"

    def expect(self, subject: str) -> tuple[str, asyncio.Future[Message]]:
        """Return the reply subject for a request to `subject`, and the future of its answer."""
        self._next_number = number = self._next_number + 1
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (subject, answer)
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        return f"{self._prefix}{number}", answer

    def heard(self, message: Message) -> None:
        """Take an answer. It is dropped if nobody waits for it any more."""
        waiting = self._waiting.get(int(message.subject[len(self._prefix) :]))
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(message)

    def link_broke(self) -> None:
        """End every request: its answer was lost with the link, or will never come."""
        for subject, answer in tuple(self._waiting.values()):
            _end(answer, OutcomeUnknown("the link broke before an answer came", subject=subject))

    def denied(self, denial: PermissionDenied) -> None:
        """End the requests to the subject that is forbidden."""
        for subject, answer in tuple(self._waiting.values()):
            if denial.is_about(subject):
                _end(answer, denial)


def expire(answer: asyncio.Future[Message], subject: str, timeout_s: float) -> None:
    """End a request that was not answered in time."""
    _end(answer, OutcomeUnknown(f"no answer within {timeout_s} s", subject=subject))


def _end(answer: asyncio.Future[Message], error: StreamError) -> None:
    if not answer.done():
        answer.set_exception(error)
