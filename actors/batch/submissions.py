"""Batch submissions: instances that were handed in by a plain publish, checked and made.

In: JSON on `submit.batch.<task>`, as the batch service's `submit` takes it, from whoever may publish there, in any
language. Out: instances, made by what the node hands us; what is refused becomes a dead letter
`dead.batch.<task>.<sequence>` with the payload as it came and the reason. State: none. The task in the subject counts;
one in the payload must be the same.
Under redelivery: an instance without an id is named after its message, so a repeat makes no second one.
When it cannot go on: while the broker takes nothing, messages stay where they are and come again.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL
from actors.runtime.handed_in import bury, pages
from actors.runtime.logs import fields
from streams.connection import Connection
from streams.delivery import Delivery
from streams.errors import StreamError
from streams.publisher import Publisher
from streams.puller import Puller
from streams.specs import submit_batch_consumer
from streams.subjects import TOKEN, Namespace
from streams.topology import ensure_consumer

log = logging.getLogger(__name__)

__all__ = ["ENGINE", "BatchSubmissions", "Submit"]

ENGINE = "batch"
CAPACITY = 200
AT_ONCE = 50
WAIT_S = 0.005
KEEP_ALIVE_S = 3.0
AGAIN_S = 1.0

Submit = Callable[[str, bytes, str], Awaitable[str]]
"""Makes an instance of a task (empty: the payload names it), by a payload, and the id that it has if the payload names
none. Returns why it is refused, nothing if it is made. Raises StreamError when it should come again."""


class BatchSubmissions:
    """Takes submissions one after the other; each is settled once its instance is stored."""

    def __init__(self, submit: Submit, connection: Connection, publisher: Publisher, stop: anyio.Event) -> None:
        self._submit = submit
        self._connection = connection
        self._publisher = publisher
        self._stop = stop

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Make what is handed in until the node's stop is set. Raises FATAL errors."""
        spec = submit_batch_consumer(self._connection.namespace)
        await ensure_consumer(self._connection, spec)
        puller = Puller(self._connection, spec.stream, spec.name, capacity=CAPACITY, keep_alive_s=KEEP_ALIVE_S)
        async with puller:
            task_status.started()
            async for page in pages(puller, self._stop, most=AT_ONCE, wait_s=WAIT_S):
                await self._take(page)

    async def _take(self, page: Sequence[Delivery]) -> None:
        """Take one page to its end: each is acked, a dead letter, or given back."""
        namespace = self._connection.namespace

        def name_of(delivery: Delivery) -> str:
            return task_of(namespace, delivery.subject)

        try:
            for delivery in page:
                own_id = f"submit-{delivery.stored_ms}-{delivery.seq}"
                reason = await self._submit(name_of(delivery), delivery.payload, own_id)
                if reason:
                    await bury(self._publisher, namespace, ENGINE, [(delivery, reason)], name_of)
                else:
                    await delivery.ack()
        except FATAL:
            raise
        except StreamError as error:
            log.warning("batch_submissions.not_taken", extra=fields(count=len(page), error=str(error)))
        finally:
            with suppress(StreamError):
                for delivery in page:
                    await delivery.nak(AGAIN_S)  # does nothing to those that are settled


def task_of(namespace: Namespace, subject: str) -> str:
    """Return the task that a subject names, empty for none; what the server stored may hold any signs."""
    task = subject.removeprefix(f"{namespace.name}.submit.batch.")
    return task if TOKEN.fullmatch(task) else ""
