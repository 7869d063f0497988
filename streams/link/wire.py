"""The one place that touches the client library's private parts, and why.

nats-py passes each message through a queue to a task of the subscription, parses its headers even if nobody reads them,
and formats each publish through three coroutines. That gives a third of the speed that the wire allows. `WireClient`
queues a finished frame, and takes a message off the parser, by plain calls. Everything else (connecting, TLS, logins,
pings, reconnecting, replaying subscriptions) stays the library's. Private parts may change with each minor version:
pyproject.toml allows one, and `connect` warns of any other. `tests/unit/streams/test_wire.py` fails when a new version
of the library has moved a part that is used here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from streams.errors import ConnectionLost, Disconnected
from streams.link.library import Client, Error, ErrStaleConnection, Srv, Subscription, load_websocket
from streams.link.wire_parser import Deliver, WireParser

MAX_WAITING = 2 * 1024 * 1024
"""Bytes that may wait for the socket, or for the reconnect, before a sender is held up or refused."""

AT_ONCE = 32 * 1024
"""Bytes that go to the socket at once. The server works on them while this turn of the loop goes on."""
UNCLOG_S = 10.0
CLUSTER = "cluster "
"""The prefix of a cluster's name in `memory`."""
GARBLED = ("unknown protocol operation", "parser error")
"""The server's last word on bytes that we did not send: a link garbled them, and the next link may not."""


class _Sink(asyncio.Future[object]):
    """Marks a subscription of ours. As its future it keeps the library from starting a task for it."""

    def __init__(self, deliver: Deliver) -> None:
        super().__init__()
        self.deliver = deliver


class WireClient(Client):
    """nats-py's client with a short way out and a short way in."""

    def __init__(self) -> None:
        super().__init__()
        self._ps: WireParser = WireParser(self, self._sink_of)
        self._left: Srv | None = None
        self._is_flush_due = False

    def _sink_of(self, sid: int) -> Deliver | None:
        subscription = self._subs.get(sid)
        if subscription is None:
            return _drop
        sink = subscription._future
        return sink.deliver if type(sink) is _Sink else None

    def send(self, frame: bytes) -> None:
        """Queue a frame for the socket: flushed in this turn of the loop, or after the reconnect.

        Raises Disconnected when `MAX_WAITING` bytes wait for a reconnect already, ConnectionLost after the close.
        """
        if self._status != Client.CONNECTED:
            self._check_room(len(frame))
        self._pending.append(frame)
        self._pending_data_size += len(frame)
        if self._pending_data_size >= AT_ONCE and self._write():
            return
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Write what waits at the end of a turn. What the socket does not take now is the library's to write."""
        self._is_flush_due = False
        queue = self._flush_queue
        if self._pending and not self._write() and queue is not None and queue.empty():
            queue.put_nowait(asyncio.get_running_loop().create_future())

    def _write(self) -> bool:
        """Write what waits if the socket has taken all that was written before. Return whether it was."""
        socket = self._socket
        if self._status != Client.CONNECTED or socket is None or socket.is_closing() or socket.get_write_buffer_size():
            return False
        socket.write(b"".join(self._pending))
        self._pending, self._pending_data_size = [], 0
        return True

    @property
    def _socket(self) -> asyncio.WriteTransport | None:
        """The transport of a link over TCP. None: there is no link, or it is a websocket."""
        writer = getattr(self._transport, "_io_writer", None)
        return writer.transport if writer is not None else None

    @property
    def memory(self) -> str:
        """Return an id of the server's memory of message ids. A single server forgets the ids of deleted messages when
        it is started anew. The servers of a cluster have them from each other, but see jobs/leader_terms.py."""
        cluster = self._server_info.get("cluster", "")
        return f"{CLUSTER}{cluster}" if cluster else str(self._server_info.get("server_id", ""))

    @property
    def server(self) -> str:
        """Return the name of the server."""
        return str(self._server_info.get("server_name", ""))

    @property
    def knows_another(self) -> bool:
        """Whether there is another server to connect to."""
        return len(self._server_pool) > 1

    async def leave(self, reason: str) -> None:
        """Reconnect, as after a broken link, to another server first."""
        self._left = self._current_server
        await self._process_op_err(Error(f"nats: {reason}"))

    @property
    def heard_s(self) -> float:
        """When the server sent something last, by the monotonic clock."""
        return self._ps.heard_s

    @property
    def is_clogged(self) -> bool:
        """Whether so much waits for the socket that a sender without a window of its own should wait too."""
        return self._pending_data_size > MAX_WAITING

    async def unclog(self) -> None:
        """Wait until the bytes that wait now are written to the socket. Raises Disconnected if that takes longer than
        `UNCLOG_S`.

        The library's own forced flush swallows a cancellation, so the flusher is asked directly.
        """
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        assert self._flush_queue is not None
        try:
            async with asyncio.timeout(UNCLOG_S):
                await self._flush_queue.put(flushed)
                await flushed
        except TimeoutError:
            raise Disconnected(f"the server has read nothing for {UNCLOG_S} s") from None

    def listen(self, subject: str, deliver: Deliver, queue: str = "") -> int:
        """Subscribe and return the subscription's number. It is subscribed again after each reconnect. Of all
        subscribers of a `queue` group only one gets each message."""
        self._sid += 1
        sid = self._sid
        self._subs[sid] = Subscription(self, sid, subject, queue, future=_Sink(deliver))
        if self._status == Client.CONNECTED:  # else the reconnect replays all subscriptions
            self.send(f"SUB {subject} {queue} {sid}\r\n".encode())
        return sid

    def stop_listening(self, sid: int) -> None:
        """Have the server send no more. Messages on their way are still delivered until `forget`."""
        if sid in self._subs and self._status == Client.CONNECTED:
            self.send(f"UNSUB {sid}\r\n".encode())

    def forget(self, sid: int) -> None:
        """Deliver no more, and do not subscribe again after a reconnect."""
        self._subs.pop(sid, None)

    async def round_trip(self, timeout_s: float) -> bool:
        """Return whether the server answered a ping in time: all that was sent before has then been processed. It does
        not once the link has broken.

        The future is never cancelled: the library's own `flush` leaves a cancelled one behind when it times out, and
        the late answer then kills its read loop.
        """
        if self._status != Client.CONNECTED:
            return False
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self.send(b"PING\r\n")
        done, _ = await asyncio.wait({pong}, timeout=timeout_s)
        return bool(done) and pong.result()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Called by the library to close for good. Bytes that the link can no longer take are dropped.

        If a link breaks under the last flush, the library raises there. Then it leaves the socket and the subscriptions
        as they are and notifies nobody. A second call, with nothing left to flush, does all of that. From Python 3.12
        on, a flush to a link that is gone already raises TypeError.
        """
        if self._socket is not None and self._socket.is_closing():
            self._pending, self._pending_data_size = [], 0
        try:
            await super()._close(status, do_cbs)
        except OSError:
            self._status = Client.DISCONNECTED
            await super()._close(status, do_cbs)

    async def _connect_to_server(self, s: Srv) -> None:
        """Called by the library for each try to connect.

        A try that failed after the TCP connect (a refused login, a server that hangs) leaves its socket open and its
        tasks alive. The library forgets the socket and lets the tasks read from the next link.
        """
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None:
                task.cancel()
        if self._transport:
            self._transport.close()  # type: ignore[no-untyped-call] # the library's own gap
        left, self._left = self._left, None
        if s is left:
            raise Error("nats: another server comes first")
        if s.uri.scheme in ("ws", "wss"):
            load_websocket()
        await super()._connect_to_server(s)
        if self._transport:  # a close cancels the reconnecting that waits for this, and then waits for it, too
            self._transport.wait_closed = partial(_uncancelled, self._transport.wait_closed)  # type: ignore[method-assign]

    async def _read_loop(self) -> None:
        """Called by the library as the reading task of each new link, after the login. From then on the parser has the
        link's bytes as they come, without a turn of this task. The task gets what is the library's to parse, and the
        end.

        An error of the server may end a link while its bytes are parsed. Those behind the error then leave a part of a
        message in the parser, which would begin the first message of the new link.
        """
        reader = getattr(self._transport, "_io_reader", None)
        self._ps.reset(behind=len(reader._buffer) if reader is not None else 0)
        if reader is not None:  # a WebSocket has none
            reader.feed_data = partial(self._feed, reader, reader.feed_data)
        await super()._read_loop()

    def _feed(self, reader: asyncio.StreamReader, to_library: Callable[[bytes], None], data: bytes) -> None:
        """Take what the socket of a link brings. A link that was left has nothing to say."""
        if self._status == Client.CONNECTED and getattr(self._transport, "_io_reader", None) is reader:
            data = self._ps.take(data)
        if data:
            to_library(data)

    async def _process_op_err(self, e: Exception) -> None:
        """Called by the library when the link breaks. What was queued for it goes with it, as what the socket has taken
        does. Sent on the next link it could be a repeat whose first try is stored and over, at a server that was
        started anew. What is queued from now on goes to the next link. A server that missed its pings hangs, and would
        take the time of a connect if it were tried first."""
        if isinstance(e, ErrStaleConnection) and self.knows_another:
            self._left = self._current_server
        if self._status == Client.CONNECTED:
            self._pending, self._pending_data_size = [], 0
            for pong in self._pongs:
                if not pong.done():
                    pong.set_result(False)
            self._pongs = []
        await super()._process_op_err(e)

    async def _process_err(self, err_msg: str) -> None:
        """Called by the library for an error of the server, most of which make it close for good."""
        if any(words in err_msg.lower() for words in GARBLED):
            await self._process_op_err(Error(f"nats: {err_msg}"))
        else:
            await super()._process_err(err_msg)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Called by the library's parser for a message that it put together."""
        sink = self._sink_of(sid)
        if sink is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            sink(subject, reply, data, headers)

    def _check_room(self, size: int) -> None:
        if self.is_closed:
            raise ConnectionLost("the connection is closed")
        if self._pending_data_size + size > MAX_WAITING:
            raise Disconnected(f"{self._pending_data_size} bytes wait for the reconnect already")


def _drop(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
    """Take a message that nobody listens to any more."""


async def _uncancelled(wait: Callable[[], Awaitable[None]]) -> None:
    """Wait. A caller that is cancelled leaves the wait to others: a task that awaits a future would cancel it."""
    await asyncio.shield(wait())
