"""Batch submissions: instances from plain publishes, checked and made.

In: JSON on `submit.batch.<task>`, as the batch service's `submit` takes it, from any program that may publish there, in
any language. Out: instances, made by the node's `submit` function. A refused message becomes a dead letter
`dead.batch.<task>.<sequence>` with its unchanged payload and the reason. State: none. The task in the subject counts.
One in the payload must be the same.

Under redelivery: an instance without an id is named after its message, so a repeat makes no second one. When it cannot
go on: while the broker takes nothing, messages stay where they are and come again.
"""

from collections.abc import Awaitable, Callable, Sequence

import anyio

from actors.runtime.rules.traceparents import traceparent_of
from actors.runtime.submissions import Refusal, Submission, Submissions
from actors.runtime.tracing import traces
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.topology.specs import submit_batch_consumer

ENGINE = "batch"
CAPACITY = 200

Submit = Callable[[str, bytes, str, int], Awaitable[str]]
"""Makes an instance of a task (empty: the payload names it) from a payload, with the given id if the payload names
none. Its delay counts from the given moment. Returns why it is refused, empty if it is made. Raises StreamError when
the message should come again."""


def batch_submissions(submit: Submit, connection: Connection, publisher: Publisher, stop: anyio.Event) -> Submissions:
    """Return the actor. It takes one message after the other."""

    async def take(page: Sequence[Submission]) -> list[Refusal]:
        [one] = page
        own_id = f"submit-{one.delivery.stored_ms}-{one.delivery.seq}"
        parent = traceparent_of(one.delivery.headers) if traces.is_on else ""
        with traces.span(f"submit {one.name}", "server", {"task": one.name}, parent=parent):
            reason = await submit(one.name, one.delivery.payload, own_id, one.delivery.stored_ms)
        if reason:
            return [(one, reason)]
        await one.delivery.ack()
        return []

    spec = submit_batch_consumer(connection.namespace)
    return Submissions(ENGINE, spec, take, connection, publisher, stop, capacity=CAPACITY, at_once=1)
