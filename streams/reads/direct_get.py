"""One batched direct get: many messages with one request, from any replica (ADR-31 of NATS).

The server sends the messages to our inbox, then a status. A try that falls silent before its status (the link broke in
the middle, or the answering replica died) is made again, since reading twice is harmless. A try that still receives
messages goes on, however slow the link is.

On three servers each try goes to any of them, also to one that stands still: for about ten seconds a third of the tries
is lost then. So the first tries are short there.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain, repeat

import msgspec

from streams.clock import monotonic_s
from streams.errors import Disconnected, Refused, no_responders, unreachable
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.subjects import api_prefix

TRY_S = 2.0
"""Seconds of silence after which a try is given up."""
FIRST_TRIES_S = (0.2, 0.2, 0.2, 0.3, 0.3, 0.3, 0.4, 0.4, 0.5, 0.5, 0.5)
"""The same of the first tries on three servers. A link that is slower than a try costs it, and no more. There are many,
because a caller waits five seconds: with six, one read in 729 met the silent server each time."""
DONE, NONE, TOO_MANY, NOBODY = 204, 404, 413, 503


async def get_batch(
    connection: Connection, stream: str, request: Mapping[str, object], *, timeout_s: float, domain: str = ""
) -> tuple[list[Message], Message]:
    """Return the messages of one answer and the status that ended it: DONE, NONE or TOO_MANY. `domain`: where the
    stream is, if not in the server's own.

    Raises NoStream, Refused, Disconnected when no whole answer came in time.
    """
    deadline_s = monotonic_s() + timeout_s
    for try_s in chain(FIRST_TRIES_S if connection.is_clustered and not domain else (), repeat(TRY_S)):
        left_s = deadline_s - monotonic_s()
        if left_s <= 0:
            break
        await connection.connected_by(deadline_s)
        try:
            async with asyncio.timeout(left_s):
                return await _once(connection, stream, request, try_s, domain)
        except TimeoutError:
            continue
    raise Disconnected(f"{stream}: not read within {timeout_s:g} s")


async def get_each(
    connection: Connection, stream: str, requests: Sequence[Mapping[str, object]], *, timeout_s: float
) -> list[Message | None]:
    """Return the first message of each answer, `None` if there is none. All are asked for at once, and what is not
    answered in time is asked for again. Raises NoStream, Refused, Disconnected."""
    asked = f"{api_prefix()}DIRECT.GET.{stream}"
    payloads = [msgspec.json.encode(request) for request in requests]
    found: dict[int, Message] = {}
    deadline_s = monotonic_s() + timeout_s
    for try_s in chain(FIRST_TRIES_S if connection.is_clustered else (), repeat(TRY_S)):
        left_s = deadline_s - monotonic_s()
        if left_s <= 0:
            break
        sent = {
            at: await connection.send_request(asked, payload, deadline_s=deadline_s)
            for at, payload in enumerate(payloads)
            if at not in found
        }
        try:
            await asyncio.wait(sent.values(), timeout=min(try_s, left_s))
            found |= {at: answer.result() for at, answer in sent.items() if answer.done() and not answer.exception()}
        finally:
            for answer in sent.values():
                answer.cancel()
        if len(found) == len(payloads):
            return [_first(found[at], asked) for at in range(len(payloads))]
    raise Disconnected(f"{stream}: not read within {timeout_s:g} s")


def _first(message: Message, asked: str) -> Message | None:
    if message.status == NOBODY:
        raise no_responders(asked)
    if message.status not in (0, NONE):
        raise Refused(message.status_text, subject=asked, code=message.status)
    return None if message.status else message


async def _once(
    connection: Connection, stream: str, request: Mapping[str, object], try_s: float, domain: str
) -> tuple[list[Message], Message]:
    found: list[Message] = []
    ended: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def take(message: Message) -> None:
        if not message.status:
            found.append(message)
        elif not ended.done():
            ended.set_result(message)

    inbox, asked = connection.new_inbox(), f"{api_prefix(domain)}DIRECT.GET.{stream}"
    subscription = await connection.subscribe(inbox, take)
    try:
        await connection.publish_core(asked, msgspec.json.encode(request), reply=inbox)
        while not ended.done():
            heard = len(found)
            await asyncio.wait([ended], timeout=try_s)
            if len(found) == heard and not ended.done():
                raise TimeoutError
        end = ended.result()
    finally:
        await subscription.unsubscribe()
    if end.status == NOBODY:
        raise unreachable(domain, no_responders(asked))
    if end.status not in (DONE, NONE, TOO_MANY):
        raise Refused(end.status_text, subject=asked, code=end.status)
    return found, end
