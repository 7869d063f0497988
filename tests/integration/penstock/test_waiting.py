"""A command that gets no connection: a terminal is told what it waits for, and Ctrl-C ends it with one line."""

import os
import pty
import signal
import socket
from collections.abc import Iterator

import anyio
import anyio.to_thread
import pytest

from tests.support.command import penstock, plain_environment, start


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"


async def test_a_terminal_is_told_what_a_command_waits_for_and_ctrl_c_ends_it(silent: str) -> None:
    ours, theirs = pty.openpty()
    command = ["-m", "penstock", "nodes", "--nats", silent]
    async with await start(command, plain_environment(PENSTOCK_CONNECT_S="60"), err=theirs) as waiting:
        os.close(theirs)
        with anyio.fail_after(60), os.fdopen(ours, "rb", buffering=0) as terminal:
            said = await anyio.to_thread.run_sync(terminal.readline)
            waiting.send_signal(signal.SIGINT)
            last = await anyio.to_thread.run_sync(terminal.readline)
            assert await waiting.wait() == 130
    assert said.decode() == f"penstock: waiting for the server at {silent} (at most 60 s)\r\n"
    assert last == b"penstock: stopped\r\n"


async def test_what_is_no_terminal_gets_the_error_alone(silent: str) -> None:
    waited = await penstock("nodes", "--nats", silent, PENSTOCK_CONNECT_S="2")
    assert waited.code == 1
    assert [line.partition(" within")[0] for line in waited.err.splitlines()] == [
        f"penstock: no connection to {silent}"
    ]
