"""Asks a process that serves a task how its code reads rows."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from actors.runtime.actor import FATAL
from streams.errors import MalformedMessage, OutcomeUnknown, StreamError
from streams.link.connection import Connection
from streams.messages.batch import LookAtRows, RowsSeen

WITHIN_S, TRIES = 2.0, 2
"""A process that stands still may get a request. The next one may go to another."""
_decode = msgspec.json.Decoder(RowsSeen).decode


class RowLook:
    """One node's way to the processes that serve tasks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def at(self, task: str, rows: Sequence[Raw], shown: int) -> RowsSeen | None:
        """Return how the code of `task` reads these rows. `None`: no process answers."""
        ask = msgspec.json.encode(LookAtRows(task=task, rows=tuple(rows), shown=shown))
        for _ in range(TRIES):
            try:
                subject = self._connection.namespace.batch_looks(task)
                message = await self._connection.request(subject, ask, timeout_s=WITHIN_S)
            except FATAL:
                raise
            except OutcomeUnknown:
                continue
            except StreamError:
                return None
            if "Nats-Service-Error" in message.headers:
                return None
            try:
                return _decode(message.payload)
            except msgspec.MsgspecError as error:
                raise MalformedMessage(f"no look at rows: {error}") from error
        return None
