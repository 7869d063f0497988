"""Gives back jobs that were delivered and that no caller gets: it left, or several lanes brought a job at once.

They are stored anew. After a nak a job is delivered a second time. If it is older than the ack wait, that counts as an
attempt where handlers, or programs that take jobs by themselves, share the topic. What cannot be stored anew comes
again after the ack wait.
"""

from collections.abc import Sequence
from contextlib import suppress

from actors.jobs.deliveries import PutOff
from actors.jobs.store import JobStore
from actors.jobs.stream import SOON_MS
from actors.runtime.turns import Carriers
from streams.errors import Disconnected, MalformedMessage, OutcomeUnknown, StreamError
from streams.messages.jobs import decode_job
from streams.pull.delivery import Delivery

GIVE_BACK_S = 2.0


class Returns:
    """Gives back in tasks of its own, since whoever has the jobs may be cancelled over it."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._carriers = Carriers(Disconnected, lambda why: OutcomeUnknown(why, subject="jobs"))

    def give_back(self, deliveries: Sequence[Delivery], delay_ms: int = SOON_MS) -> None:
        """Have the jobs ready again in `delay_ms`. No attempt is counted."""
        if deliveries:
            with suppress(Disconnected):  # it is closed
                self._carriers.start(self._put_off(list(deliveries), delay_ms))

    async def close(self) -> None:
        """Give back what is left, for two seconds at most."""
        await self._carriers.close(GIVE_BACK_S)

    async def _put_off(self, deliveries: Sequence[Delivery], delay_ms: int) -> None:
        some: list[PutOff] = []
        with suppress(StreamError):  # then the ack wait gives them back
            for delivery in deliveries:
                try:
                    some.append(PutOff(delivery, decode_job(delivery.payload), delay_ms))
                except MalformedMessage:
                    await delivery.nak()
            await self._store.put_off(some)
