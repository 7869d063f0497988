"""Reservations by server push: `POST /v1/topics/{topic}/reservations`, a stream of server-sent events. It hands out
jobs, so it is not a GET: a page of another site could make a browser send that.

Each event is a reservation, and its id is the receipt. The client's credit is `most`, the number of reservations that
may be unsettled at a time. Beyond it the node hands out nothing. A settlement through this node gives the credit back
at once. The node finds a settlement through another node, or a TTR that ran out, when it looks, a second later. When
the client goes, the node hands out nothing more, and releases undelivered jobs.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio
import msgspec

from actors.jobs.rules.job_answers import Reserved
from actors.jobs.rules.job_rules import BadJob
from actors.runtime.logs import fields
from penstock.api.forms.jobs import PushQuery
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, query_of
from penstock.api.http.routes.jobs import give_back, reservation_of
from streams.errors import StreamError

__all__ = ["Credit", "push"]

log = logging.getLogger(__name__)

Send = Callable[[Any], Awaitable[None]]

SIGN_OF_LIFE_MS = 15_000
"""A comment is sent after this long a silence, so that proxies and clients keep the connection."""
AT_ONCE = 100
LOOK_S = 1.0
LOOKS = 16
"""The number of reservations checked each time, the longest held first, while the credit is used up."""
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
_encode = msgspec.json.Encoder().encode


class Credit:
    """The reservations that one client has not settled yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, Reserved] = {}
        self._news = anyio.Event()

    @property
    def left(self) -> int:
        return self._most - len(self._held)

    def hold(self, jobs: Sequence[Reserved]) -> None:
        self._held.update((job.receipt, job) for job in jobs)

    def settled(self, receipt: str) -> None:
        if self._held.pop(receipt, None) is not None:
            self._news.set()
            self._news = anyio.Event()

    async def wait(self, shared: GatewayState) -> None:
        """Return when there is room, or after a look at the longest held ones."""
        with anyio.move_on_after(LOOK_S):
            await self._news.wait()
            return
        for receipt, job in list(self._held.items())[:LOOKS]:
            now = await shared.desk.peek(job.topic, job.id)
            is_held = self._held.pop(receipt, None) is not None  # it may have been settled meanwhile
            if is_held and now is not None and now.state == "reserved" and now.attempts == job.attempt:
                self._held[receipt] = job  # behind the others, which are checked next time


async def push(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Hand out until the client goes, or the node stops. An event source then comes again by itself."""
    topic, asked = call.topic(), query_of(PushQuery, call.query)

    async def stream(send: Send) -> None:
        with shared.load.poll(call.caller.key), shared.crediting(Credit(asked.most)) as credit:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
            try:
                await call.while_there(shared, partial(_hand_out, shared, call, send, topic, asked, credit), None)
            except (StreamError, BadJob) as error:
                log.info("gateway.push_ended", extra=fields(topic=topic, by=call.caller.name, error=str(error)))
            await send({"type": "http.response.body", "body": b""})

    return HttpAnswer(None, stream=stream)


async def _hand_out(
    shared: GatewayState, call: HttpCall, send: Send, topic: str, asked: PushQuery, credit: Credit
) -> None:
    while True:
        if credit.left <= 0:
            await credit.wait(shared)
            continue
        jobs = await shared.desk.reserve(
            topic,
            most=min(credit.left, AT_ONCE),
            wait_ms=SIGN_OF_LIFE_MS,
            ttr_ms=asked.ttr_ms,
            holder=call.caller.name,
        )
        credit.hold(jobs)
        await _deliver(shared, call, send, jobs)


async def _deliver(shared: GatewayState, call: HttpCall, send: Send, jobs: Sequence[Reserved]) -> None:
    """Send the events as one part. Release the jobs if it was not sent."""
    call.charge(len(jobs))
    is_out = False
    try:
        await send({"type": "http.response.body", "body": events_of(call, jobs), "more_body": True})
        is_out = not call.is_gone
    finally:
        if jobs and not is_out:
            await give_back(shared, [job.receipt for job in jobs])


def events_of(call: HttpCall, jobs: Sequence[Reserved]) -> bytes:
    """Return the events, or a comment as a sign of life if there are no jobs. A body may contain line ends."""
    if not jobs:
        return b":\n\n"
    parts = []
    for job in jobs:
        reservation = reservation_of(call, job)
        lines = b"".join(b"data: %b\n" % line for line in _encode(reservation).splitlines())
        parts.append(b"event: reservation\nid: %b\n%b\n" % (reservation.receipt.encode(), lines))
    return b"".join(parts)
