"""Pulls messages from a consumer continuously, never more than the workers can hold.

A standing request asks the server for as many messages as there is room for. It lasts `expires_s`, longer if nothing
comes (`IDLE`). Then the server ends it, and the next one goes out. Requests die with the link, the consumer's leader or
the consumer. Then they are made again: after a reconnect, after the server ended them, and a second after their expiry
if nothing at all was heard.

The count is `requested + held <= capacity`, where held is what was delivered and is not settled. Deliveries do not say
which request they answer, but the server's last status of a request says how many it left, so the sum stays right. An
inbox whose requests must not count any more (the link broke, the capacity shrank) is replaced by a new one: the server
drops a request without a subscriber.

No task runs behind it: messages arrive while the socket is read, and timers do the rest. A puller to which nothing
comes has no timer of its own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from streams.backoff import Backoff
from streams.errors import ConnectionLost, Disconnected, PermissionDenied, StreamError
from streams.link.connection import Connection
from streams.link.frames import Message, check_subject, publish_frame, status_of
from streams.pull.delivery import Delivery as Delivery
from streams.pull.delivery import is_delivery
from streams.pull.inbox import PullInbox, left_over_of

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the puller checks whether it heard from the server (`Connection.each_second`). Silence costs at most this,
on top of the expiry."""
IDLE, LONGER = 24, 5
"""So many times as long does a request last to which nothing comes, on a single server, and by so much longer is each
next one until then. There a request is lost with the link alone, and a node with a thousand topics would do nothing but
repeat requests. In a cluster it is lost with the consumer's leader, too, and nobody tells."""
RETRY = Backoff(growth="exponential", base_ms=100, cap_ms=1_000, spread=0.0)
"""The waits before a new request after a refusal."""
FEW = 16
"""Up to this capacity free places are requested once they are as many as the server may fill without another request.
Above it, a quarter of the capacity at a time. So no free place waits while messages do, and where they come one by one
not each one costs a request."""
LEAVE_S = 1.0


class Puller:
    """An async context manager over a connection and a durable consumer. Its deliveries may be settled in any order.

    `capacity`: deliveries held at a time, at most as many as can be settled, or kept alive, within the ack wait.
    `keep_alive_s`: the interval at which all unsettled deliveries are extended, also waiting ones. It is below half the
    ack wait. `deliver`: called with each delivery as it comes, short and sync, in place of `receive`. `on_trouble`:
    called with each refusal: the consumer may be missing. At the end, deliveries that nobody received are given back.
    The receiver settles those that it received.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: str,
        *,
        capacity: int,
        expires_s: float = 5.0,
        keep_alive_s: float | None = None,
        deliver: Callable[[Delivery], None] | None = None,
        on_trouble: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._on_trouble = on_trouble
        self._subject = check_subject(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}")
        self._capacity = capacity
        self._expires_s = expires_s
        self._lasts_s = self._longest_s = expires_s
        self._keep_alive_s = keep_alive_s
        self._deliver = deliver or self._hand_out
        self._inbox: PullInbox | None = None
        self._retired: list[PullInbox] = []
        self._next_number = 0
        self._ready: deque[Delivery] = deque()
        self._unsettled: dict[int, Delivery] = {}
        """By sequence."""
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._timers: dict[Callable[..., None], asyncio.TimerHandle] = {}
        self._silent_s = 0.0
        self._troubles = 0
        self.refusals = 0
        """How often a request was refused so far, or ended before its time, as by a leader that hands over."""
        self._end: StreamError | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._removers = [
            self._connection.on_disconnect(self._link_broke),
            self._connection.on_reconnect(self._start),
            self._connection.on_failure(self._failed),
            self._connection.each_second(self._look),
        ]
        if self._connection.is_connected:
            self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for remove in self._removers:
            remove()
        for timer in self._timers.values():
            timer.cancel()
        self._deliver = self._hand_out  # no caller takes them any more
        self._finish(StreamError("the puller is closed"))
        if self._inbox is not None:
            self._retire(self._inbox)
        with anyio.move_on_after(LEAVE_S, shield=True):  # messages on their way are given back too
            await self._connection.client.round_trip(LEAVE_S)
        for inbox in self._retired:
            self._connection.client.forget(inbox.sid)
        with suppress(Disconnected, ConnectionLost):  # then the ack wait gives them back
            while self._ready:
                await self._ready.popleft().nak()

    # ---- what callers use

    async def receive(self) -> Delivery:
        """Wait for a delivery. Raises ConnectionLost or PermissionDenied when none can come any more."""
        await self._wait(1)
        return self._ready.popleft()

    async def receive_many(self, most: int, wait_s: float) -> list[Delivery]:
        """Wait for ever for the first delivery, then up to `wait_s` for `most` of them. Return at least one."""
        await self._wait(1)
        if wait_s > 0 and len(self._ready) < most:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wait(min(most, self._capacity - self.held + len(self._ready)))
        if not self._ready:  # another receiver took them meanwhile
            return [await self.receive()]
        return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def ack_all(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge those deliveries that are this puller's and not settled, at a fraction of the cost of `ack` for
        each. Raises Disconnected or ConnectionLost, and then settles none of them."""
        own = [delivery for delivery in deliveries if self._unsettled.get(delivery.seq) is delivery]
        if own:
            self.send(b"".join([delivery.frame(b"") for delivery in own]))
            for delivery in own:
                delivery.is_settled = True
                self._unsettled.pop(delivery.seq, None)
            self._ask()

    def set_capacity(self, n: int) -> None:
        """Hold at most `n` from now on. 0 pauses: held deliveries stay, and no more are requested."""
        shrinks = n < self._capacity
        self._capacity = n
        if shrinks and self._inbox is not None and self._inbox.requested and self._room() < 0:
            self._retire(self._inbox)
            self._start()
        self._ask()

    @property
    def is_troubled(self) -> bool:
        """Whether the last message about the consumer was a refusal: it may be missing."""
        return self._troubles > 0

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def unsettled(self) -> Collection[Delivery]:
        """Deliveries that are not settled."""
        return self._unsettled.values()

    @property
    def held(self) -> int:
        """How many deliveries are not settled."""
        return len(self._unsettled)

    @property
    def requested(self) -> int:
        """Messages that the server may send without another request."""
        return self._inbox.requested if self._inbox is not None else 0

    # ---- for its deliveries

    def send(self, frame: bytes) -> None:
        self._connection.client.send(frame)

    async def ask(self, subject: str, payload: bytes, timeout_s: float) -> Message:
        return await self._connection.request(subject, payload, timeout_s=timeout_s)

    def settled(self, delivery: Delivery) -> None:
        if self._unsettled.get(delivery.seq) is delivery:
            del self._unsettled[delivery.seq]
        self._ask()

    # ---- asking

    def _room(self) -> int:
        return self._capacity - len(self._unsettled) - self.requested

    def _ask(self) -> None:
        """Request messages for the free room, if it is worth a request."""
        inbox, room = self._inbox, self._room()
        if inbox is None or room <= 0 or self._retry in self._timers:
            return
        if room >= (inbox.requested if self._capacity <= FEW else self._capacity // 4) or not inbox.requested:
            self._request(inbox, room)

    def _request(self, inbox: PullInbox, count: int) -> None:
        self._next_number = number = self._next_number + 1
        body = b'{"batch":%d,"expires":%d}' % (count, int(self._lasts_s * 1e9))
        with suppress(Disconnected, ConnectionLost):  # the reconnect, or the failure, handles it
            self._connection.client.send(publish_frame(self._subject, f"{inbox.prefix}{number}", b"", body))
            inbox.count_request(number, count)
            self._longest_s = max(self._longest_s, self._lasts_s)

    def _start(self) -> None:
        """Listen on a new inbox, and send a request."""
        inbox = PullInbox(f"{self._connection.new_inbox()}.")
        inbox.sid = self._connection.listen(f"{inbox.prefix}*", partial(self._heard, inbox))
        self._inbox = inbox
        self._silent_s = 0.0
        self._lasts_s = self._longest_s = self._expires_s
        self._cancel(self._retry)
        self._ask()

    def _retire(self, inbox: PullInbox) -> None:
        """Have the server drop the requests of an inbox. What it has sent already still arrives."""
        inbox.is_retired = True
        inbox.requested = 0
        self._inbox = None
        self._retired.append(inbox)
        self._connection.client.stop_listening(inbox.sid)

    def _link_broke(self) -> None:
        """Forget all inboxes, or the reconnect would revive their requests beside the new ones."""
        for inbox in [*self._retired, *([self._inbox] if self._inbox else [])]:
            self._connection.client.forget(inbox.sid)
        self._retired.clear()
        self._inbox = None

    # ---- hearing

    def _heard(self, inbox: PullInbox, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        self._silent_s = 0.0
        if is_delivery(reply):
            inbox.count_delivery()
            self._lasts_s = self._expires_s
            if self._troubles:
                self._recovered()
            delivery = Delivery(self, subject, reply, payload, block)
            if self._is_news(delivery):
                if self._keep_alive_s is not None and self._keep_alive not in self._timers:
                    self._keep_later(self._keep_alive_s)
                self._deliver(delivery)
            if not inbox.requested or self._capacity <= FEW:  # else one slow message would block all the free places
                self._ask()
        elif not inbox.is_retired:
            self._heard_status(inbox, int(subject[len(inbox.prefix) :]), block)

    def _is_news(self, delivery: Delivery) -> bool:
        """Hold a delivery, unless the message is held already: a new leader hands out once more what its holder still
        works on. What has the sequence of a message that the server lost is another one."""
        held = self._unsettled.get(delivery.seq)
        if held is not None and held.stored_ms == delivery.stored_ms:
            return False
        self._unsettled[delivery.seq] = delivery
        if held is not None:
            held.forget()
        return True

    def _heard_status(self, inbox: PullInbox, number: int, block: bytes | None) -> None:
        status, text = status_of(block)
        if status == 100:  # an idle heartbeat, which we never request
            return
        inbox.count_end(number, left_over_of(block))
        if not inbox.requested:
            self._longest_s = self._expires_s
        if status == 408:  # expired, as it should
            self._recovered()
            if not self._unsettled and not self._connection.is_clustered:
                self._lasts_s = min(LONGER * self._lasts_s, IDLE * self._expires_s)
            self._ask()
        else:
            self._troubled(status, text)

    def _troubled(self, status: int, text: str) -> None:
        """There is no consumer (404, 503), or it ended the request (409): request again after a while, and report it
        once."""
        if not self._troubles:
            facts = {"subject": self._subject, "status": status, "reason": text or "nobody answers"}
            log.warning("puller.troubled", extra={"fields": facts})
        self._troubles += 1
        self.refusals += 1
        self._on_trouble()
        if self._retry not in self._timers:
            self._timers[self._retry] = self._loop.call_later(RETRY.wait_s(self._troubles), self._retry)

    def _retry(self) -> None:
        self._cancel(self._retry)
        self._ask()

    def _recovered(self) -> None:
        if self._troubles:
            self._troubles = 0
            log.info("puller.recovered", extra={"fields": {"subject": self._subject}})

    def _look(self) -> None:
        """Start again if requests are open and the server sent nothing about them, not even their expiry."""
        self._silent_s = self._silent_s + LOOK_S if self.requested else 0.0
        if self._inbox is not None and self._silent_s > self._longest_s + LOOK_S:
            log.warning("puller.silent", extra={"fields": {"subject": self._subject}})
            self._retire(self._inbox)
            self._start()
        while len(self._retired) > 2:
            self._connection.client.forget(self._retired.pop(0).sid)

    def extend_all(self) -> None:
        """Restart the ack wait of all unsettled deliveries, if the link is there."""
        if not self._unsettled:
            return
        with suppress(Disconnected, ConnectionLost):
            if self._connection.is_connected:
                for delivery in self._unsettled.values():
                    self.send(delivery.frame(b"+WPI"))

    # ---- handing out

    def _hand_out(self, delivery: Delivery) -> None:
        self._ready.append(delivery)
        self._wake()

    async def _wait(self, count: int) -> None:
        """Wait until `count` deliveries are ready. Receivers are served in the order in which they came."""
        while len(self._ready) < count:
            if self._end is not None:
                raise self._end
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((count, turn))
            try:
                await turn
            finally:
                self._waiters = deque(waiter for waiter in self._waiters if waiter[1] is not turn)
                if self._ready:
                    self._loop.call_soon(self._wake)  # for the next one, if this one leaves some or gave up

    def _wake(self) -> None:
        if self._waiters:
            count, turn = self._waiters[0]
            if len(self._ready) >= count and not turn.done():
                turn.set_result(None)

    def _finish(self, error: StreamError) -> None:
        self._end = error
        for _, turn in self._waiters:
            if not turn.done():
                turn.set_exception(error)

    def _failed(self, failure: StreamError) -> None:
        if not isinstance(failure, PermissionDenied) or failure.is_about(self._subject):
            self._finish(failure)

    # ---- timers

    def _keep_later(self, seconds: float) -> None:
        self._timers[self._keep_alive] = self._loop.call_later(seconds, self._keep_alive, seconds)

    def _keep_alive(self, seconds: float) -> None:
        """Extend what is not settled, and again after a while, for as long as there is any."""
        if self._unsettled:
            self._keep_later(seconds)
            self.extend_all()
        else:
            del self._timers[self._keep_alive]

    def _cancel(self, act: Callable[[], None]) -> None:
        timer = self._timers.pop(act, None)
        if timer is not None:
            timer.cancel()
