"""Publishes events for callers that cannot wait: in the background, in order.

An event informs people and decides nothing. While the broker takes none, the oldest `MOST` are kept. Later ones are
dropped and counted in the log. Ids are made of facts (streams/messages/ids.py), so the same event from several nodes,
or twice from one, is stored once.
"""

import logging
from collections import deque

import anyio
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from streams.errors import StreamError
from streams.messages.fetch import FetchEvent, encode
from streams.messages.ids import event_message_id, event_names
from streams.publish.publisher import Outgoing, Publisher
from streams.subjects import Namespace

log = logging.getLogger(__name__)

MOST = 1000
AT_ONCE = 100
LAST_S = 1.0


def outgoing_event(namespace: Namespace, event: FetchEvent) -> Outgoing:
    """Return the message that carries an event."""
    return Outgoing(namespace.event("fetch", *event_names(event)), encode(event), event_message_id(event))


class Events:
    """A bounded queue of events and the loop that publishes them."""

    def __init__(self, publisher: Publisher, namespace: Namespace) -> None:
        self._publisher = publisher
        self._namespace = namespace
        self._waiting: deque[Outgoing] = deque()
        self._dropped = 0
        self._news = anyio.Event()

    def tell(self, event: FetchEvent) -> None:
        """Queue the event for publishing. Never waits and never raises."""
        if len(self._waiting) >= MOST:
            self._dropped += 1
            return
        self._waiting.append(outgoing_event(self._namespace, event))
        self._news.set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Publish until cancelled. Events queued just before the end are still published, within `LAST_S`."""
        task_status.started()
        try:
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                await self._publish_all()
        finally:
            with anyio.move_on_after(LAST_S, shield=True):
                await self._publish_all()

    async def _publish_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            try:
                await self._publisher.publish_many(batch)
            except FATAL:
                raise
            except StreamError as error:
                self._dropped += len(batch)
                log.warning("events.not_published", extra=fields(count=len(batch), error=str(error)))
        if self._dropped:
            log.warning("events.dropped", extra=fields(count=self._dropped))
            self._dropped = 0
