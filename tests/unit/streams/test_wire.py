"""What `streams/link/wire.py` uses of the client library's private parts is where it was. A failure here after a new
version of nats-py means: read that version, and adapt wire.py before anything else.
"""

import asyncio
import inspect
import logging
import tomllib
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from streams.errors import Disconnected
from streams.link.connection import connect
from streams.link.library import MADE_FOR, other_version
from streams.link.wire import WireClient


def parameters(function: object) -> list[str]:
    assert callable(function)
    return list(inspect.signature(function).parameters)


def test_pyproject_allows_the_minor_version_that_the_wire_was_made_for() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    major, minor = map(int, MADE_FOR.split("."))
    assert f"nats-py>={MADE_FOR},<{major}.{minor + 1}" in project["project"]["dependencies"]
    assert other_version() is None
    assert other_version(f"{MADE_FOR}.9") is None
    assert other_version("2.160.1") == "2.160.1"


async def test_another_minor_version_is_told_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streams.link.connection.other_version", lambda: "2.17.0")
    with pytest.raises(Disconnected), caplog.at_level(logging.WARNING):
        async with connect("nats://127.0.0.1:1", name="test", connect_timeout_s=0.05):
            pass
    told = next(record for record in caplog.records if record.message == "connection.other_library")
    assert vars(told)["fields"] == {"nats_py": "2.17.0", "made_for": MADE_FOR}


def test_the_library_is_where_it_was() -> None:
    client = Client()
    assert (client._pending, client._pending_data_size, client._subs, client._sid, client._pongs) == ([], 0, {}, 0, [])
    assert client._flush_queue is None
    assert client._status == Client.DISCONNECTED != Client.CONNECTED
    assert inspect.iscoroutinefunction(Client._process_msg)
    assert parameters(Client._process_msg) == ["self", "sid", "subject", "reply", "data", "headers"]
    assert parameters(WireClient._process_msg) == parameters(Client._process_msg)
    assert parameters(Client._process_pong) == ["self"]
    assert parameters(WireClient._process_err) == parameters(Client._process_err)
    assert "await self._process_op_err(errors.StaleConnectionError())" in inspect.getsource(Client._process_err)
    assert parameters(WireClient._connect_to_server) == parameters(Client._connect_to_server)
    assert parameters(WireClient._read_loop) == parameters(Client._read_loop)
    assert "create_task(self._read_loop())" in inspect.getsource(Client._process_connect_init)
    assert "await self._io_reader.read(" in inspect.getsource(TcpTransport.read)
    assert "reader.feed_data(data)" in inspect.getsource(asyncio.StreamReaderProtocol.data_received)
    assert parameters(WireClient._close) == parameters(Client._close)
    assert "await self._transport.drain()" in inspect.getsource(Client._close)
    tasks = {"_reading_task", "_ping_interval_task", "_flusher_task", "_transport"}
    assert {vars(client)[name] for name in tasks} == {None}
    assert parameters(Subscription.__init__)[:6] == ["self", "conn", "id", "subject", "queue", "cb"]
    assert "future" in parameters(Subscription.__init__)


def test_the_flusher_and_the_reconnect_use_what_is_queued_here() -> None:
    assert "future: asyncio.Future = await self._flush_queue.get()" in inspect.getsource(Client._flusher)
    assert "self._pending[:]" in inspect.getsource(Client._flusher)
    assert "self._subs.items()" in inspect.getsource(Client._attempt_reconnect)
    assert "await self._disconnected_cb()" in inspect.getsource(Client._attempt_reconnect)
    assert "await self._connect_to_server(s)" in inspect.getsource(Client._select_next_server)
    assert "PERMISSIONS_ERR in m" in inspect.getsource(Client._process_err)
    assert "set_result(True)" in inspect.getsource(Client._process_pong)


async def test_a_message_goes_to_its_listener_and_nowhere_when_nobody_listens() -> None:
    client, heard = WireClient(), list[tuple[bytes, bytes, bytes, bytes | None]]()
    client._flush_queue = asyncio.Queue()
    sid = client.listen("a.*", lambda *message: heard.append(message))
    await client._process_msg(sid, b"a.b", b"r", b"payload", b"")
    await client._process_msg(sid + 1, b"a.b", b"r", b"payload", b"")
    client.forget(sid)
    await client._process_msg(sid, b"a.b", b"r", b"payload", b"")
    assert heard == [(b"a.b", b"r", b"payload", b"")]
