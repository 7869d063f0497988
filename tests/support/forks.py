"""`python -m penstock …` without its imports: a process that has made them forks for each, and hands the child over.

A node imports for a second of a core, and the tests start hundreds. The child is a process like any other: it is
killed, stopped and waited for. What reads its environment while it is imported (failpoints) must be started anew.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import Self, TypedDict

import anyio

READ = 65_536
LONGEST = 1_000_000
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: a child whose parent has ended becomes ours."""
IMPORTED = ("penstock.cli", "penstock.node", "penstock.admin")
LATER = ("uvloop", "concurrent.futures.thread", "penstock.sql")
"""What a process imports once it runs."""


def main(number: int) -> None:
    """Fork for each request on the socket of this number, and be the child that it asks for."""
    for name in IMPORTED:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    for name in LATER:
        importlib.import_module(name)
    gc.disable()
    gc.collect()
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=number) as door:
        while True:
            text, fds, _, _ = socket.recv_fds(door, LONGEST, 3)
            if not text:
                return
            if (middle := os.fork()) == 0:
                break
            os.waitpid(middle, 0)
            for fd in fds:
                os.close(fd)
        if os.fork():
            os._exit(0)
        door.send(str(os.getpid()).encode())
    _end_quickly(partial(_become, json.loads(text), fds))


class Asked(TypedDict):
    """A request to fork."""

    command: list[str]
    environment: dict[str, str]
    folder: str


def _become(asked: Asked, fds: Sequence[int]) -> None:
    for at, fd in enumerate(fds):
        os.dup2(fd, at)
        os.close(fd)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    module, *sys.argv[1:] = asked["command"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_quickly(run: Callable[[], None]) -> None:
    """Run, and end as Python does, but for the objects that are left. To free them takes longer than a command."""
    code: str | int | None = None
    try:
        run()
    except SystemExit as asked:
        code = asked.code
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    with suppress(OSError, AttributeError):  # a stream that is closed or gone: Python has an end for it
        sys.stdout.flush()
        sys.stderr.flush()
        if code is None or isinstance(code, int):
            os._exit(code or 0)
    sys.exit(code)


@cache
def _door(_of: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Return the socket to the process that forks for this one, and that process."""
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.support.forks", str(theirs.fileno())]
        forker = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    atexit.register(_end, ours, forker)
    return ours, forker


def _end(door: socket.socket, forker: subprocess.Popen[bytes]) -> None:
    door.close()
    forker.wait()


class Output:
    """What a child writes."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "rb", buffering=0)
        self._reading: tuple[asyncio.StreamReader, asyncio.BaseTransport] | None = None

    async def receive(self) -> bytes:
        """Return what comes next. Empty: nothing more comes."""
        if self._reading is None:
            reader = asyncio.StreamReader()
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), self._file
            )
            self._reading = reader, transport
        return await self._reading[0].read(READ)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.receive():
            yield chunk

    def close(self) -> None:
        if self._reading is not None:
            self._reading[1].close()
        self._file.close()


class Forked:
    """A child: what tests need of `anyio.abc.Process`."""

    def __init__(self, pid: int, stdout: Output | None, stderr: Output | None) -> None:
        self.pid = pid
        self.stdout, self.stderr = stdout, stderr
        self._pidfd = os.pidfd_open(pid)
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal that killed it. None while it runs."""
        if self._code is None:
            with suppress(ChildProcessError):  # it is another's until the one between has ended
                found, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if found else None
        return self._code

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait until it has ended. Return the exit code."""
        loop = asyncio.get_running_loop()
        while (code := self.returncode) is None:
            ended = asyncio.Event()
            loop.add_reader(self._pidfd, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(self._pidfd)
        return code

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait for its end, kill it if we may not wait, and close what it wrote to."""
        try:
            await self.wait()
        finally:
            self.kill()
            with anyio.CancelScope(shield=True):
                await self.wait()
            self._close()

    def _close(self) -> None:
        os.close(self._pidfd)
        for output in (self.stdout, self.stderr):
            if output is not None:
                output.close()


def fork(
    command: Sequence[str], environment: Mapping[str, str], *, out: int = subprocess.PIPE, err: int = subprocess.PIPE
) -> Forked:
    """Start `python -m …` here. `command`: the module, and its arguments. `out`, `err`: where it writes."""
    door, _ = _door(os.getpid())
    outputs: list[Output | None] = []
    asked = {"command": list(command), "environment": dict(environment), "folder": str(Path.cwd())}
    with ExitStack() as stack:
        fds = [stack.enter_context(Path(os.devnull).open("rb")).fileno()]
        for fd in (out, err):
            if fd == subprocess.PIPE:
                read, write = os.pipe()
                stack.callback(os.close, write)
                fds.append(write)
                outputs.append(Output(read))
            else:
                fds.append(fd)
                outputs.append(None)
        socket.send_fds(door, [json.dumps(asked).encode()], fds)
        pid = int(door.recv(READ))
    return Forked(pid, *outputs)


if __name__ == "__main__":
    main(int(sys.argv[1]))
