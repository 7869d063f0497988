"""Looks: tells how the code of this process reads rows, before a batch of them is made.

In: rows on `api.batch-looks.<task>`, of which one process that serves the task gets each request. Out: what the code
would get of them, and which it would not take. Nothing runs but the decoding. State: none. Under redelivery: the same
answer. When it cannot go on: nobody answers, and the desk says that no code has looked.
"""

from collections.abc import Sequence

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.batch.executor.handler import TaskHandler
from actors.batch.executor.rounds import unread
from actors.batch.rules.row_looks import look_at
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.batch import LookAtRows
from streams.micro import Endpoint, RequestRefused, Service

MOST = 16
"""Requests in hand at a time, of each task."""
_decode = msgspec.json.Decoder(LookAtRows).decode


class Looks:
    """The looks of one process. `version`: of the service, `1.2.3`."""

    def __init__(
        self, handlers: Sequence[TaskHandler], connection: Connection, stop: anyio.Event, *, version: str
    ) -> None:
        self._handlers = {handler.record.task: handler for handler in handlers}
        self._stop = stop
        subject = connection.namespace.batch_looks
        endpoints = [Endpoint(task, subject(task), self._answer, most=MOST) for task in self._handlers]
        self._service = Service(
            connection,
            name="penstock-batch-looks",
            version=version,
            about="tells how a task's code reads rows",
            endpoints=endpoints,
        )

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Answer until the node stops."""
        await self._service.serve(self._stop, task_status=task_status)

    async def _answer(self, message: Message) -> bytes:
        try:
            ask = _decode(message.payload)
            handler = self._handlers[ask.task]
            seen = look_at(ask.rows, handler.decode, unread, shown=ask.shown, fields=handler.fields())
        except (msgspec.MsgspecError, KeyError) as error:
            raise RequestRefused(400, f"no request to look at rows: {error}") from error
        return msgspec.json.encode(seen)
