"""Messages that somebody handed in by a plain publish: taken in pages until the node stops, and set aside when refused.

Shared by the actors that take them. What is refused becomes a dead letter `dead.<engine>.<name>.<sequence>`, with its
payload as it came and the reason; only once that is stored it is dropped.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence

import anyio

from actors.runtime.actor import dead_letter
from actors.runtime.logs import fields
from actors.runtime.supervisor import one_error
from streams.delivery import Delivery
from streams.message_ids import dead_letter_message_id
from streams.messages import encode
from streams.publisher import Outgoing, Publisher, Receipt
from streams.puller import Puller
from streams.subjects import Namespace

log = logging.getLogger(__name__)

__all__ = ["bury", "pages"]


async def pages(puller: Puller, stop: anyio.Event, *, most: int, wait_s: float) -> AsyncIterator[list[Delivery]]:
    """Yield what comes, `most` messages at a time, until `stop` is set; what is not received by then is given back by
    the puller. The first of a page waits for more, but no longer than `wait_s`."""
    while page := await _page(puller, stop, most, wait_s):
        yield page


async def _page(puller: Puller, stop: anyio.Event, most: int, wait_s: float) -> list[Delivery]:
    page: list[Delivery] = []

    async def receive() -> None:
        page.extend(await puller.receive_many(most, wait_s))
        tasks.cancel_scope.cancel()

    with one_error():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await stop.wait()
            tasks.cancel_scope.cancel()
    return page


async def bury(
    publisher: Publisher,
    namespace: Namespace,
    engine: str,
    refused: Sequence[tuple[Delivery, str]],
    name_of: Callable[[Delivery], str],
) -> None:
    """Make dead letters of what is refused, each with its reason, and drop it; else it comes again."""
    letters = []
    for delivery, reason in refused:
        letter = dead_letter(engine, name_of(delivery) or engine, delivery, reason)
        subject = namespace.dead(letter.engine, letter.name, letter.id)
        letters.append(Outgoing(subject, encode(letter), dead_letter_message_id(letter, occurrence=delivery.seq)))
        log.warning("submissions.refused", extra=fields(subject=delivery.subject, dead=subject, reason=reason))
    for (delivery, reason), answer in zip(refused, await publisher.publish_many(letters), strict=True):
        if isinstance(answer, Receipt):
            await delivery.term(reason)
