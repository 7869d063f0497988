"""A request of a NATS service as the operations see it, and the entry of an endpoint in the table of operations."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from streams.link.frames import Message

__all__ = ["MOST_WAITING", "DeskEndpoint", "Engine", "Question"]

Engine = Literal["jobs", "batch", "schedules", "flow", "rates", "sources", "zones"]
MOST_WAITING = 4_096
"""Long polls that one node holds. Each is a request at the server and some kilobytes of memory here."""
ROOM = 16 * 1024
"""Bytes of an answer that are reserved for everything but the list."""


class Question(NamedTuple):
    """A request, and how many bytes its answer may have."""

    request: Message
    most_bytes: int

    @property
    def page_bytes(self) -> int:
        """Bytes of a list in the answer, beside which there is something else."""
        return self.most_bytes - ROOM


class DeskEndpoint(NamedTuple):
    """One endpoint of an engine's service. `answer` gets the engine's desk, the request decoded to `form` (None: it
    decodes by itself), and the raw request. It returns a value that becomes JSON.

    `most`: requests in hand at a time. `None`: the default of the engine. `is_undone`: a cancelled request had no
    effect."""

    engine: Engine
    name: str
    form: type[Any] | None
    answer: Callable[[Any, Any, Question], Awaitable[object]]
    most: int | None = None
    is_undone: bool = False
