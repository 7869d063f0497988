"""Submissions: takes messages that any program publishes, in pages until the node stops, and settles them.

In: messages on `submit.<kind>.<name>`. Out: what the engine makes of them with its `make`. A refused message becomes a
dead letter `dead.<engine>.<name>.<sequence>` with its unchanged payload and the reason, and is dropped once that is
stored.

State: none. Under redelivery: `make` derives its ids from the message, so a repeat makes no second one. When it cannot
go on: while the broker takes nothing, messages stay where they are and come again.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL, dead_letter
from actors.runtime.logs import fields
from actors.runtime.supervisor import one_error
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.messages.fetch import encode
from streams.messages.ids import dead_letter_message_id
from streams.publish.publisher import Outgoing, Publisher, Receipt
from streams.pull.delivery import Delivery
from streams.pull.puller import Puller
from streams.subjects import TOKEN
from streams.topology.specs import ConsumerSpec
from streams.topology.topology import ensure_consumer

log = logging.getLogger(__name__)

WAIT_S = 0.005
"""How long the first message of a page waits for more: a page costs little more than one message."""
KEEP_ALIVE_S = 3.0
AGAIN_S = 1.0


class Submission(NamedTuple):
    """A message, and the last part of its subject. `name` is empty if that is no token."""

    delivery: Delivery
    name: str


Refusal = tuple[Submission, str]
Make = Callable[[Sequence[Submission]], Awaitable[list[Refusal]]]
"""Carries out the messages of a page, and acks each. Returns those that it refuses, with the reasons. Messages that it
does not settle come again, and so does the rest of the page if it raises StreamError."""


class Submissions:
    """Takes the submissions of one consumer. `at_once`: messages in a page."""

    def __init__(
        self,
        engine: str,
        spec: ConsumerSpec,
        make: Make,
        connection: Connection,
        publisher: Publisher,
        stop: anyio.Event,
        *,
        capacity: int,
        at_once: int,
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._make = make
        self._connection = connection
        self._publisher = publisher
        self._stop = stop
        self._capacity = capacity
        self._at_once = at_once

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Take submissions until the node's stop is set. Raises FATAL errors."""
        spec = self._spec
        await ensure_consumer(self._connection, spec)
        puller = Puller(self._connection, spec.stream, spec.name, capacity=self._capacity, keep_alive_s=KEEP_ALIVE_S)
        async with puller:
            task_status.started()
            while page := await _page(puller, self._stop, self._at_once):
                await self._take(page)

    async def _take(self, page: Sequence[Delivery]) -> None:
        """Take one page to its end: each message is acked, becomes a dead letter, or is given back."""
        try:
            await self._bury(await self._make([Submission(one, self._name_of(one)) for one in page]))
        except FATAL:
            raise
        except StreamError as error:
            log.warning("submissions.not_taken", extra=fields(engine=self._engine, count=len(page), error=str(error)))
        finally:
            with suppress(StreamError):
                for delivery in page:
                    await delivery.nak(AGAIN_S)  # does nothing to settled messages

    def _name_of(self, delivery: Delivery) -> str:
        """Return the last part of the subject. The server may have stored any characters."""
        name = delivery.subject.removeprefix(self._spec.filter_subject.removesuffix(">"))
        return name if TOKEN.fullmatch(name) else ""

    async def _bury(self, refused: Sequence[Refusal]) -> None:
        """Make dead letters of the refused messages, and drop those that are stored. The others come again."""
        letters = []
        for (delivery, name), reason in refused:
            letter = dead_letter(self._engine, name or self._engine, delivery, reason)
            subject = self._connection.namespace.dead(letter.engine, letter.name, letter.id)
            letters.append(Outgoing(subject, encode(letter), dead_letter_message_id(letter, occurrence=delivery.seq)))
            log.warning("submissions.refused", extra=fields(subject=delivery.subject, dead=subject, reason=reason))
        for (submission, reason), answer in zip(refused, await self._publisher.publish_many(letters), strict=True):
            if isinstance(answer, Receipt):
                await submission.delivery.term(reason)


async def _page(puller: Puller, stop: anyio.Event, most: int) -> list[Delivery]:
    """Return up to `most` messages, at least one, or none once `stop` is set. The puller gives back what is not
    received by then. The first message of a page waits for more, but no longer than WAIT_S."""
    page: list[Delivery] = []

    async def receive() -> None:
        page.extend(await puller.receive_many(most, WAIT_S))
        tasks.cancel_scope.cancel()

    with one_error():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await stop.wait()
            tasks.cancel_scope.cancel()
    return page
