"""The demo's processes: malls and nodes, started, watched, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

__all__ = ["MallProcess", "MallState", "NodeProcess", "start_mall"]

STOP_S = 30.0


class MallState(msgspec.Struct, frozen=True):
    """What a mall says of itself on its first line."""

    url: str
    shops: tuple[str, ...]
    orders: int
    versions: int
    history_start_ms: int
    end_ms: int
    last_visible_ms: int


class MallProcess(msgspec.Struct, frozen=True):
    """A running mall that plays one platform."""

    platform: str
    paging: str
    state: MallState
    process: Process

    def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()


async def start_mall(platform: str, paging: str, arguments: Sequence[str]) -> MallProcess:
    """Start a mall on a free port. It ends with this process."""
    command = [sys.executable, "-m", "platforms.mall", "--paging", paging, "--until-stdin-closes", *arguments]
    process = await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None)
    assert process.stdout is not None
    line = ""
    async for part in TextReceiveStream(process.stdout):
        line += part
        if "\n" in line:
            break
    else:
        raise RuntimeError(f"the mall {platform} ended before it was ready: {' '.join(command)}")
    return MallProcess(platform, paging, msgspec.convert(json.loads(line), MallState), process)


class NodeProcess:
    """One node of the demo, as `penstock up` runs it. `kills` counts how often it was killed -9."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.kills = 0
        self._command = [sys.executable, "-m", "penstock", "up", "--name", name, *arguments]
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process's id. It changes with each kill."""
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it, its log appended to its file."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self._environment}
            )

    def kill(self) -> None:
        """Kill it -9 and start it again."""
        self.end()
        self.start()

    def end(self) -> None:
        """Kill it -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.kills += 1

    async def stop(self) -> int | None:
        """Ask the process to stop, wait, and kill it if it does not. Return the exit code."""
        if self._process is None:
            return None
        self._process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(STOP_S) as waited:
            await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        if waited.cancelled_caught:
            self._process.kill()
            self._process.wait()
        return self._process.returncode
