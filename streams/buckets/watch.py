"""Follows a bucket's keys: first what is there, then each change, through restarts of the server.

How. An ephemeral push consumer of our own (memory, no acks, last value of each key first) sends to an inbox of ours.
Its sequence numbers have no hole. If one shows, or a heartbeat stays out, or the link was down, the consumer is left to
die of inactivity, and a new one reads everything again. Keys that were known before and are not among what it read have
vanished meanwhile, and are reported as deleted. The library's own watch resumes only about 15 s after a restart.

Expiry. A key whose time to live runs out leaves no message behind (a marker would keep the key from being taken). So
when a key's time has passed by our clock, the watch reads the key, and reports it as deleted once it is gone. That is 0
to 0.3 s after the server's own expiry.

Pace. A slow reader slows the server: the watch answers its flow-control requests when what came before them has been
taken. The server bounds what it sends until then.
"""

import asyncio
import heapq
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, NamedTuple, Self

from streams.buckets.entries import Change, Codec, Entry, Synced, T, is_marker, ttl_of
from streams.clock import monotonic_s, now_ms
from streams.errors import Disconnected, NoStream, OutcomeUnknown, Refused, StreamError
from streams.link.connection import Connection
from streams.link.frames import header_of, parse_headers
from streams.subjects import is_key
from streams.topology.topology import is_passing

log = logging.getLogger(__name__)

HEARTBEAT_S, ALONE_S = 2, 10
"""A dead consumer is detected after two and a half of these. The second: on a single server, where a consumer is lost
with the link alone, or somebody deletes it. A node has twenty watches, and most of them are quiet."""
BEATS = 2.5
INACTIVE_S = 5
"""The server removes a consumer without a subscriber after this."""
CONNECT_S = 5.0
REOPEN_WAIT_S = 0.1
MISSING_FOR_S = 10.0
"""A bucket that is missing right after a restart may still come: a cluster elects for up to eight seconds."""
LOOK_AGAIN_S = 0.25
"""An expired key that is still there: the server removes in steps of a quarter of a second."""


class Delivered(NamedTuple):
    """The numbers in a delivery's reply subject. Sequences start at 1. `pending` is how many messages follow."""

    revision: int
    order: int
    stored_ms: int
    pending: int


class _FlowReply(NamedTuple):
    subject: str


class Watch(Generic[T]):
    """An async context manager, and the iterator of its changes. `Bucket.watch` makes it. For one task."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        prefix: str,
        pattern: str,
        codec: Codec[T],
        read: Callable[[str], Awaitable[Entry[T] | None]],
        on_reading: Callable[[], None],
        *,
        domain: str,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._domain = domain
        self._prefix = prefix.encode()
        self._filter = prefix + pattern
        self._decode = codec.decode
        self._read = read
        self._on_reading = on_reading
        self._known: dict[str, int] = {}
        self._unseen: set[str] = set()
        self._ready: deque[Change[T] | Synced | _FlowReply] = deque()
        self._expiries: list[tuple[float, str, int]] = []
        self._news = asyncio.Event()
        self._sid: int | None = None
        self._order = 0
        self._is_synced = False
        self._is_broken = False
        self._heard_s = 0.0
        self._heartbeat_s = HEARTBEAT_S

    async def __aenter__(self) -> Self:
        self._removers = (self._connection.on_reconnect(self._break), self._connection.each_second(self._look))
        try:
            await self._open()
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[T] | Synced:
        """Return the next change. Raises NoStream if the bucket was deleted, and what `failure` raises."""
        while True:
            while self._ready:
                item = self._ready.popleft()
                if not isinstance(item, _FlowReply):
                    return item
                await self._connection.publish_core(item.subject)
            if self._is_broken:
                await self._reopen()
            else:
                await self._wait()

    # ---- one consumer's life

    async def _open(self) -> None:
        self._stop_listening()
        await self._connection.connected_by(monotonic_s() + CONNECT_S)  # first: the reconnect breaks what was there
        self._order, self._is_synced, self._is_broken = 0, False, False
        self._unseen = set(self._known)
        self._heard_s = monotonic_s()
        inbox = self._connection.new_inbox()
        self._sid = self._connection.listen(inbox, self._delivered)
        self._on_reading()
        name = f"watch_{secrets.token_hex(8)}"
        self._heartbeat_s = HEARTBEAT_S if self._connection.is_clustered or self._domain else ALONE_S
        config = _consumer(name, inbox, self._filter, self._heartbeat_s)
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        answer = await self._connection.api(f"CONSUMER.CREATE.{self._stream}.{name}", body, domain=self._domain)
        if not self._is_synced and answer.get("num_pending", 0) + answer["delivered"]["consumer_seq"] == 0:
            self._synced()

    async def _reopen(self) -> None:
        """Read everything again, as soon as the server allows it."""
        give_up_s = monotonic_s() + MISSING_FOR_S
        while True:
            try:
                await self._open()
            except NoStream as missing:
                if missing.code == 404 and monotonic_s() > give_up_s:
                    raise
                await self._rest(missing)
            except (Disconnected, OutcomeUnknown) as lost:
                await self._rest(lost)
            except Refused as refused:
                if not is_passing(refused):  # a cluster that elects says so
                    raise
                await self._rest(refused)
            else:
                log.info("watch.resumed", extra={"fields": {"stream": self._stream, "filter": self._filter}})
                return

    async def _rest(self, reason: StreamError) -> None:
        self._is_broken = True
        log.debug("watch.waits", extra={"fields": {"stream": self._stream, "reason": str(reason)}})
        await asyncio.sleep(REOPEN_WAIT_S)

    async def _wait(self) -> None:
        """Wait for a message, or for the next expiry."""
        while self._expiries and self._known.get(self._expiries[0][1]) != self._expiries[0][2]:
            heapq.heappop(self._expiries)  # renewed or deleted since
        wait_s = self._expiries[0][0] - monotonic_s() if self._expiries else None
        if wait_s is not None and wait_s <= 0:
            await self._look_at_expired(heapq.heappop(self._expiries))
            return
        self._news.clear()
        try:
            async with asyncio.timeout(None if wait_s is None else wait_s + 0.001):
                await self._news.wait()
        except TimeoutError:
            return

    def _look(self) -> None:
        """Read anew after so long a silence that the consumer must be gone."""
        if not self._is_broken and monotonic_s() > self._heard_s + BEATS * self._heartbeat_s:
            self._break()

    def _break(self) -> None:
        self._is_broken = True
        self._news.set()

    def _stop_listening(self) -> None:
        if self._sid is not None:
            self._connection.unlisten(self._sid)
            self._sid = None

    def _close(self) -> None:
        for remove in self._removers:
            remove()
        self._stop_listening()

    # ---- what comes

    def _delivered(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        self._heard_s = monotonic_s()
        if block is not None and block.startswith(b"NATS/1.0 100"):
            self._status(reply, block)
        elif not self._is_broken:
            self._value(subject, delivered_of(reply), payload, block)
        if self._ready or self._is_broken:  # a heartbeat alone wakes nobody: a node has twenty watches
            self._news.set()

    def _status(self, reply: bytes, block: bytes) -> None:
        """Take a status. A heartbeat says how far the consumer got. A flow-control request is answered in its turn."""
        headers = parse_headers(block)
        asked = reply.decode() or headers.get("Nats-Consumer-Stalled", "")
        if asked:
            self._ready.append(_FlowReply(asked))
        if int(headers.get("Nats-Last-Consumer", self._order)) != self._order:
            self._is_broken = True

    def _value(self, subject: bytes, numbers: Delivered, payload: bytes, block: bytes | None) -> None:
        if numbers.order != self._order + 1:
            self._is_broken = True
            return
        self._order = numbers.order
        key = subject[len(self._prefix) :].decode("utf-8", "replace")
        self._unseen.discard(key)
        if is_marker(block):
            self._gone(key)
        else:
            self._known[key] = numbers.revision
            if block is not None and (ttl := header_of(block, b"Nats-TTL")):
                self._expect_expiry(key, numbers, ttl_of(ttl.decode("utf-8", "replace")))
            self._ready.append(
                Change(key, Entry(key, payload, numbers.revision, self._decode, stored_ms=numbers.stored_ms))
            )
        if not self._is_synced and numbers.pending == 0:
            self._synced()

    def _synced(self) -> None:
        self._is_synced = True
        for key in self._unseen:
            self._gone(key)
        self._unseen = set()
        self._ready.append(Synced())

    def _gone(self, key: str) -> None:
        if self._known.pop(key, None) is not None:
            self._ready.append(Change(key, None))

    # ---- expiry

    def _expect_expiry(self, key: str, numbers: Delivered, ttl_s: int | None) -> None:
        if ttl_s is None or not is_key(key):  # other tools write keys that we never read
            return
        age_s = min(max((now_ms() - numbers.stored_ms) / 1000, 0.0), ttl_s)  # clocks may differ: we look then
        heapq.heappush(self._expiries, (monotonic_s() + ttl_s - age_s, key, numbers.revision))
        if len(self._expiries) > 64 + 4 * len(self._known):
            self._drop_renewed()

    async def _look_at_expired(self, due: tuple[float, str, int]) -> None:
        _, key, revision = due
        if self._known.get(key) != revision:
            return  # renewed or deleted since
        try:
            entry = await self._read(key)
        except (Disconnected, OutcomeUnknown, Refused):
            entry = None
            is_gone = False
        else:
            is_gone = entry is None and self._known.get(key) == revision
        if is_gone:
            self._gone(key)
        elif entry is None or entry.revision == revision:
            heapq.heappush(self._expiries, (monotonic_s() + LOOK_AGAIN_S, key, revision))

    def _drop_renewed(self) -> None:
        """Forget expiries that renewals have moved, so that they do not pile up over a long time to live."""
        self._expiries = [due for due in self._expiries if self._known.get(due[1]) == due[2]]
        heapq.heapify(self._expiries)


def delivered_of(reply: bytes) -> Delivered:
    """Return the numbers of `$JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<order>.<time>.<pending>`, or of its longer
    form with a domain, which has two tokens more in front and may have one more behind."""
    tokens = reply.split(b".")
    first = 5 if len(tokens) == 9 else 7
    revision, order, stored_ns, pending = map(int, tokens[first : first + 4])
    return Delivered(revision, order, stored_ns // 1_000_000, pending)


def _consumer(name: str, inbox: str, filter_subject: str, heartbeat_s: int) -> dict[str, object]:
    second = 1_000_000_000
    return {
        "name": name,
        "deliver_subject": inbox,
        "deliver_policy": "last_per_subject",
        "ack_policy": "none",
        "filter_subject": filter_subject,
        "flow_control": True,
        "idle_heartbeat": heartbeat_s * second,
        "inactive_threshold": INACTIVE_S * second,
        "mem_storage": True,
        "num_replicas": 1,
    }
