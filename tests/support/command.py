"""The `penstock` command as a process of its own, for tests."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from subprocess import DEVNULL, PIPE
from typing import Any

import anyio
import anyio.abc

from actors.runtime.failpoints import VARIABLE as CRASH_AT
from tests.support.forks import Forked, fork

Process = Forked | anyio.abc.Process

WITHIN_S = 90.0
LAST = 200
"""Lines of a node's log that are shown if a test fails."""
STOOD_STILL = ("job_worker.loop_blocked", "job_worker.lost_hold", "node.was_blocked")


def plain_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without any PENSTOCK_ variable, and with `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**kept, "TERM": "dumb", "NO_COLOR": "1", **more}


class Ended:
    """A command that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def json(self) -> Any:
        """Return the document on the last line of the output."""
        return json.loads(self.out.strip().splitlines()[-1])


async def penstock(*arguments: str, **environment: str) -> Ended:
    """Run `penstock …` to its end."""
    return await penstock_within(WITHIN_S, *arguments, **environment)


async def penstock_within(within_s: float, *arguments: str, **environment: str) -> Ended:
    """Run a `penstock …` that takes its time to its end."""
    written = {"out": b"", "err": b""}

    async def read(name: str, output: AsyncIterable[bytes] | None) -> None:
        assert output is not None
        async for chunk in output:
            written[name] += chunk

    with anyio.fail_after(within_s):
        async with await start(["-m", "penstock", *arguments], plain_environment(**environment)) as command:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, "out", command.stdout)
                tasks.start_soon(read, "err", command.stderr)
            code = await command.wait()
    return Ended(code, written["out"].decode(), written["err"].decode())


class Running:
    """A node in a process of its own; its log lines are read as they come."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.text = ""
        self.has_ended = False
        self._news = anyio.Event()

    async def read(self) -> None:
        """Take in the log until it ends."""
        assert self.process.stderr is not None
        rest = b""
        async for chunk in self.process.stderr:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line.decode())
        self._take(rest.decode())
        self.has_ended = True
        self._wake()

    def _take(self, line: str) -> None:
        if not line:
            return
        try:
            self.lines.append(json.loads(line))
        except ValueError:
            self.text += line + "\n"
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def logged(self, event: str, within_s: float = WITHIN_S, **facts: object) -> dict[str, Any]:
        """Return the first line of this event with these facts, as soon as it is there."""

        def found() -> dict[str, Any] | None:
            return next((one for one in self.lines if one["event"] == event and facts.items() <= one.items()), None)

        with anyio.fail_after(within_s):
            while (line := found()) is None:
                if self.has_ended:
                    raise AssertionError(f"ended without {event} {facts}:\n{self.lines}\n{self.text}")
                await self._news.wait()
        return line

    def stood_still(self) -> bool:
        """Return whether it says that it stood still, or lost its hold over jobs. A busy machine may do that to it, and
        then something may run twice (docs/guarantees.md, 9a)."""
        return any(line["event"] in STOOD_STILL for line in self.lines)

    def tell(self) -> None:
        """Print the end of the log. It is shown if the test fails."""
        print(f"---- the log of process {self.process.pid}", *map(json.dumps, self.lines[-LAST:]), self.text, sep="\n")

    async def news(self) -> None:
        """Wait until more is written, or the log ends."""
        await self._news.wait()

    async def end(self, number: signal.Signals | None = None, within_s: float = WITHIN_S) -> int:
        """Send a signal if one is named; wait for the end and return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        with anyio.fail_after(within_s):
            code = await self.process.wait()
            while not self.has_ended:
                await self._news.wait()
        return code


@asynccontextmanager
async def node(
    *arguments: str,
    command: Sequence[str] = ("-m", "penstock", "up"),
    environment: Mapping[str, str] | None = None,
    shell: str = "",
) -> AsyncIterator[Running]:
    """Run a node until the block ends; if it still runs then, it is killed. `shell` is run before it: `ulimit`, say."""
    process = await start([*command, *arguments], plain_environment(**(environment or {})), shell)
    running = Running(process)
    async with process, anyio.create_task_group() as tasks:
        tasks.start_soon(running.read)
        try:
            yield running
        except BaseException:
            running.tell()
            raise
        finally:
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.wait()
            tasks.cancel_scope.cancel()


async def start(
    command: Sequence[str],
    environment: dict[str, str],
    shell: str = "",
    *,
    out: int = PIPE,
    err: int = PIPE,
) -> Process:
    """Start `python` with these arguments. It is forked if it may be (forks.py)."""
    if command[:2] == ["-m", "penstock"] and not shell and _may_fork(environment):
        return fork(command[1:], environment, out=out, err=err)
    wrapped = ["sh", "-c", f'{shell}; exec "$0" "$@"'] if shell else []
    whole = [*wrapped, sys.executable, *command]
    return await anyio.open_process(whole, env=environment, stdin=DEVNULL, stdout=out, stderr=err)


def _may_fork(environment: Mapping[str, str]) -> bool:
    """Return whether nothing of the environment is read before the code runs: by Python itself, or by failpoints."""
    return CRASH_AT not in environment and _of_python(environment) == _of_python(os.environ)


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}
