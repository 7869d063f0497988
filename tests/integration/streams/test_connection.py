"""The connection on a real server: it comes back by itself, and tells when it cannot."""

import os
import signal
from pathlib import Path

import anyio
import nats.aio.client
import nkeys  # type: ignore[import-untyped] # it has none
import pytest

from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.errors import (
    ConnectionLost,
    Disconnected,
    NoStream,
    OutcomeUnknown,
    PermissionDenied,
    Refused,
    StreamError,
)
from streams.link import connection as connection_module
from streams.link.connection import Connection, connect
from streams.link.credentials import Credentials
from streams.link.frames import Message
from streams.publish.publisher import Publisher
from tests.support.moments import a_moment
from tests.support.proxy import Side, proxy
from tests.support.server import freeze, thaw

GUARDED = """
accounts { APP { jetstream: enabled, users: [
  { user: admin, password: secret-of-admin }
  { user: worker, password: secret-of-worker, permissions: {
      publish: { allow: ["ok.>", "$JS.API.>"] }, subscribe: { allow: ["_INBOX.>", "ok.>"] } } }
] } }
"""


async def test_an_answer_has_payload_and_headers(connection: Connection) -> None:
    subject = connection.namespace.subject("ask")

    def answer(message: Message) -> None:
        frame = f"PUB {message.reply} 4\r\nseen\r\n".encode()
        connection.client.send(frame)
        assert message.headers == {"Penstock-Node": "n1"}
        assert message.payload == b"question"

    await connection.subscribe(subject, answer)
    reply = await connection.request(subject, b"question", headers={"Penstock-Node": "n1"})
    assert (reply.payload, reply.headers, reply.status) == (b"seen", {}, 0)


async def test_a_request_to_nobody_says_so_at_once(connection: Connection) -> None:
    with pytest.raises(NoStream) as refused:
        await connection.request("nobody.listens", timeout_s=30)
    assert refused.value.code == 503


async def test_a_request_without_answer_ends_unknown(connection: Connection) -> None:
    subject = connection.namespace.subject("silent")
    await connection.subscribe(subject, lambda message: None)
    with pytest.raises(OutcomeUnknown) as unknown:
        await connection.request(subject, timeout_s=0.05)
    assert unknown.value.subject == subject


async def test_an_api_refusal_has_the_servers_code(connection: Connection) -> None:
    with pytest.raises(NoStream) as missing:
        await connection.api("STREAM.INFO.NONE_SUCH")
    assert (missing.value.code, missing.value.err_code) == (404, 10059)
    with pytest.raises(Refused) as refused:
        await connection.api("STREAM.CREATE.X", {"name": "Y", "subjects": ["y"]})
    assert refused.value.err_code == 10056


async def test_messages_come_in_order_until_unsubscribed(connection: Connection) -> None:
    subject, heard = connection.namespace.subject("news"), list[bytes]()
    subscription = await connection.subscribe(subject, lambda message: heard.append(message.payload))
    for number in range(3):
        await connection.publish_core(subject, b"%d" % number)
    await connection.flush()
    await subscription.unsubscribe()
    await subscription.unsubscribe()
    await connection.publish_core(subject, b"late")
    await connection.flush()
    assert heard == [b"0", b"1", b"2"]


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
async def test_it_comes_back_after_a_restart_with_its_subscriptions(
    own_server: EmbeddedServer, is_killed: bool
) -> None:
    async with connect(own_server.url, name="test") as connection:
        back, heard = anyio.Event(), anyio.Event()
        connection.on_reconnect(back.set)
        removed: list[str] = []
        connection.on_reconnect(lambda: removed.append("called"))()
        await connection.subscribe("news", lambda message: heard.set())
        await (own_server.kill() if is_killed else own_server.stop())
        await own_server.start()
        with anyio.fail_after(20):
            await back.wait()
            await connection.publish_core("news")
            await heard.wait()
        assert connection.is_connected
        assert removed == []


async def test_while_the_server_is_away_requests_end_at_once_or_wait_their_time(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection:
        await connection.subscribe("silent", lambda message: None)
        ended: list[StreamError] = []
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(OutcomeUnknown) as unknown:
                    await connection.request("silent", timeout_s=60)
                ended.append(unknown.value)

            tasks.start_soon(ask)
            await connection.flush()
            await own_server.kill()
        assert "link broke" in str(ended[0])
        with pytest.raises(Disconnected):
            await connection.request("silent", timeout_s=0.1)
        assert not connection.is_connected
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(own_server.start)
            assert (await connection.api("INFO", timeout_s=10))["streams"] == 0


async def test_what_the_library_closed_for_good_ends_in_failure(connection: Connection) -> None:
    connection.client.send(b"PUB " + b"a" * 5000 + b" 0\r\n\r\n")
    with anyio.fail_after(20), pytest.raises(ConnectionLost, match=r"maximum control line exceeded.*restart"):
        await connection.failure()
    assert not connection.is_connected
    for use in (connection.request("a"), connection.publish_core("a"), connection.subscribe("a", print)):
        with pytest.raises(ConnectionLost):
            await use


@pytest.mark.parametrize("to", ["client", "server"])
async def test_a_garbled_link_is_given_up_for_another(connection: Connection, server: EmbeddedServer, to: Side) -> None:
    async with proxy(server.port) as link, connect(link.url, name="garbled") as other:
        for round_ in (1, 2):
            resumed = anyio.Event()
            remove = other.on_reconnect(resumed.set)
            link.say(b"\x00\xff GET / HTTP/1.1\r\n\r\n", to)
            with anyio.fail_after(20):
                await resumed.wait()
            remove()
            assert link.accepted == 1 + round_
            assert (await other.api("INFO"))["limits"]


async def test_a_server_that_hangs_is_not_the_first_to_be_tried_again(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "PING_INTERVAL_S", 0.1)
    async with proxy(server.port) as hangs, proxy(server.port) as other:
        monkeypatch.setattr(nats.aio.client, "shuffle", lambda pool: pool.sort(key=lambda s: s.uri.port != hangs.port))
        async with connect(f"{hangs.url},{other.url}", name="test") as connection:
            assert (hangs.accepted, other.accepted) == (1, 0)
            hangs.freeze()
            with anyio.fail_after(10):
                while not other.accepted:
                    await a_moment()
            assert hangs.accepted == 1
            await connection.connected_by(monotonic_s() + 10)
            await connection.api("INFO")


async def test_a_link_that_ends_within_a_message_leaves_nothing_for_the_next_one(server: EmbeddedServer) -> None:
    async with connect(server.url, name="test") as connection:
        back, heard = anyio.Event(), list[tuple[str, bytes]]()
        connection.on_reconnect(back.set)
        await connection.subscribe("news", lambda message: heard.append((message.subject, message.payload)))
        await connection.client._ps.parse(b"-ERR 'Stale Connection'\r\nMSG old 1 9\r\nhalf")  # as the reading task does
        with anyio.fail_after(20):
            await back.wait()
        await connection.publish_core("news", b"whole")
        await connection.flush()
        assert heard == [("news", b"whole")]


async def test_a_login_that_is_taken_back_ends_in_failure(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, config=GUARDED) as server:
        async with connect(
            server.url, name="test", credentials=Credentials(user="admin", password="secret-of-admin")
        ) as connection:
            settings = tmp_path / "nats.conf"
            settings.write_text(settings.read_text().replace("secret-of-admin", "another"))
            server.send_signal(signal.SIGHUP)
            with anyio.fail_after(20), pytest.raises(ConnectionLost, match=r"authentication|authorization"):
                await connection.failure()


async def test_a_login_refused_at_the_reconnect_is_tried_again_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that restarts may refuse for a moment those whom it welcomes in the next."""
    async with embedded_server(tmp_path, config=GUARDED) as server:
        login = Credentials(user="admin", password="secret-of-admin")
        async with connect(server.url, name="test", credentials=login) as connection:
            back, settings = anyio.Event(), server._config
            connection.on_reconnect(back.set)
            server._config = settings.replace("secret-of-admin", "another")
            await server.restart()
            with anyio.fail_after(20):
                while "uthorization" not in "".join(str(record.__dict__.get("fields")) for record in caplog.records):
                    with pytest.raises(Disconnected):
                        await connection.request("waits", timeout_s=0.02)
            server._config = settings
            await server.restart()
            with anyio.fail_after(20):
                await back.wait()
            assert (await connection.api("INFO"))["streams"] == 0


async def test_what_is_forbidden_is_fatal_and_named(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, config=GUARDED) as server:
        worker = Credentials(user="worker", password="secret-of-worker")

        async with connect(server.url, name="test", credentials=worker) as connection:
            with anyio.fail_after(20), pytest.raises(PermissionDenied, match=r'publish to "secret.a"'):
                await connection.request("Secret.a", timeout_s=60)
            with pytest.raises(PermissionDenied):
                await connection.failure()

        async with connect(server.url, name="test", credentials=worker) as connection:
            await connection.subscribe("secret.>", print)
            with anyio.fail_after(20), pytest.raises(PermissionDenied, match=r'subscription to "secret.>"'):
                await connection.failure()

        async with connect(server.url, name="test", credentials=worker) as connection, Publisher(connection) as sender:
            with anyio.fail_after(20), pytest.raises(PermissionDenied, match=r'publish to "secret.b"'):
                await sender.publish("secret.b", b"", message_id="1")
            assert (await connection.api("INFO"))["streams"] == 0


async def test_a_refused_login_says_so_and_shows_no_secret(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, config=GUARDED) as server:
        wrong = Credentials(user="worker", password="guess")
        with anyio.fail_after(20), pytest.raises(PermissionDenied) as refused:
            async with connect(server.url, name="test", credentials=wrong):
                pytest.fail("connected")
        assert "guess" not in f"{refused.value} {wrong!r}"
        with_secret = server.url.replace("//", "//worker:guess@")
        with pytest.raises(PermissionDenied) as refused:
            async with connect(with_secret, name="test"):
                pytest.fail("connected")
        assert "guess" not in str(refused.value)


async def test_a_nkey_logs_in(tmp_path: Path) -> None:
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    config = f"accounts {{ APP {{ jetstream: enabled, users: [ {{ nkey: {public} }} ] }} }}"
    async with embedded_server(tmp_path, config=config) as server:
        login = Credentials(nkey_seed=seed.decode(), inbox_prefix="_INBOX_w1")
        async with connect(server.url, name="test", credentials=login) as connection:
            assert connection.new_inbox().startswith("_INBOX_w1.")
            assert (await connection.api("INFO"))["streams"] == 0


async def test_nobody_at_the_address_is_told_with_the_address() -> None:
    with pytest.raises(Disconnected, match=r"127\.0\.0\.1:9 within 0\.3 s"):
        async with connect("nats://127.0.0.1:9", name="test", connect_timeout_s=0.3):
            pytest.fail("connected")


async def test_a_failing_subscriber_fails_the_connection_and_keeps_the_link(connection: Connection) -> None:
    subject = connection.namespace.subject("news")

    def fail(message: Message) -> None:
        raise ValueError("broken subscriber")

    await connection.subscribe(subject, fail)
    await connection.publish_core(subject)
    with anyio.fail_after(20), pytest.raises(StreamError, match="broken subscriber"):
        await connection.failure()
    await connection.flush()


async def test_a_link_that_breaks_under_the_last_flush_is_closed_all_the_same(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen when a server was killed just before its client closed: the library gave up half-way."""
    broken_under_its_last_flush(connection, monkeypatch)
    socket = connection.client._transport
    connection.client.send(b"PING\r\n")
    await connection.close()
    assert connection.client.is_closed
    assert connection.client._subs == {}
    assert socket._io_writer.is_closing()  # type: ignore[union-attr] # the library's transport over TCP


async def test_a_link_that_is_gone_already_is_closed_as_any_other(connection: Connection) -> None:
    """From Python 3.12 on, what waits for it cannot be written any more."""
    await connection.flush()
    socket = connection.client._transport
    socket._io_writer.transport.abort()  # type: ignore[union-attr] # the library's transport over TCP
    await anyio.lowlevel.checkpoint()  # the loop has closed it, and nobody has been told yet
    connection.client.send(b"PING\r\n")
    await connection.close()
    assert connection.client.is_closed


async def test_a_close_while_the_broken_link_is_being_left_ends_as_any_other(server: EmbeddedServer) -> None:
    """Seen when a server was killed just before its client closed: the library cancels its own wait for the old
    socket's end, and the cancellation came out of `close`. The moment is not known, so each is tried."""
    for turns in range(8):
        async with proxy(int(server.url.rsplit(":", 1)[1])) as wire:
            with anyio.fail_after(20):
                async with connect(wire.url, name=f"leaves {turns}") as connection:
                    await connection.flush()  # what is unread when the link is cut would make it end another way
                    wire.cut()
                    while connection.client.is_connected:
                        await anyio.lowlevel.checkpoint()
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
            assert connection.client.is_closed


async def test_a_close_for_good_is_told_even_when_its_last_flush_fails(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_under_its_last_flush(connection, monkeypatch)
    connection.client.send(b"PING\r\n")
    await connection.client.close()  # as the library does after an error that no reconnect mends
    with anyio.fail_after(20), pytest.raises(ConnectionLost, match="closed the connection for good"):
        await connection.failure()


def broken_under_its_last_flush(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drain() -> None:
        raise ConnectionResetError("Connection lost")

    assert connection.client._transport is not None
    monkeypatch.setattr(connection.client._transport, "drain", drain)


async def test_what_was_queued_for_a_link_goes_with_it(server: EmbeddedServer) -> None:
    """It may be a repeat whose first try is stored and over: a server that was started anew would take it for the
    first."""
    big = b"PUB other 1000000\r\n%b\r\n" % bytes(1_000_000)
    async with proxy(server.port) as wire, connect(wire.url, name="test") as connection:
        client, back, heard = connection.client, anyio.Event(), list[bytes]()
        await connection.subscribe("queued", lambda message: heard.append(message.payload))
        connection.on_disconnect(lambda: client.send(b"PUB queued 5\r\nafter\r\n"))
        connection.on_reconnect(back.set)
        await connection.flush()
        wire.freeze()
        with anyio.fail_after(20):
            while not client.is_clogged:  # the socket takes no more
                client.send(big)
                await anyio.lowlevel.checkpoint()
            client.send(b"PUB queued 6\r\nbefore\r\n")
            wire.cut()
            await back.wait()
        await connection.flush()
        assert heard == [b"after"]


async def test_what_is_sent_in_the_moment_in_which_a_link_is_closed_goes_with_it(connection: Connection) -> None:
    back, heard = anyio.Event(), list[bytes]()
    await connection.subscribe("queued", lambda message: heard.append(message.payload))
    connection.on_reconnect(back.set)
    await connection.flush()
    socket = connection.client._transport
    socket._io_writer.transport.abort()  # type: ignore[union-attr] # the library's transport over TCP
    await anyio.lowlevel.checkpoint()  # the loop has closed it, and nobody has been told yet
    connection.client.send(b"PUB queued 100000\r\n%b\r\n" % bytes(100_000))
    with anyio.fail_after(20):
        await back.wait()
    await connection.flush()
    assert heard == []


async def test_plain_publishes_have_a_bound_while_the_server_is_away(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection:
        gone, back, heard = anyio.Event(), anyio.Event(), list[int]()
        connection.on_disconnect(gone.set)
        connection.on_reconnect(back.set)
        await connection.subscribe("big", lambda message: heard.append(len(message.payload)))
        await own_server.kill()
        with anyio.fail_after(20):
            await gone.wait()
        await connection.publish_core("big", bytes(1_000_000))
        await connection.publish_core("big", bytes(1_000_000))
        with pytest.raises(Disconnected, match="wait for the reconnect"):
            await connection.publish_core("big", bytes(1_000_000))
        await own_server.start()
        with anyio.fail_after(20):
            await back.wait()
        await connection.flush()
        assert heard == [1_000_000, 1_000_000]


async def test_a_sender_without_window_waits_for_a_server_that_does_not_read(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection:
        await freeze(own_server)
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < 1000:
                await connection.publish_core("big", bytes(1_000_000))
                sent += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            with anyio.fail_after(30):
                while sent < 2:
                    await a_moment()
            await anyio.wait_all_tasks_blocked()
            assert sent < 100
            tasks.cancel_scope.cancel()
        thaw(own_server)
        await connection.flush()
