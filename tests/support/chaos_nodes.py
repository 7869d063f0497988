"""Nodes as processes that are killed, stopped, held and started again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio

from streams.clock import monotonic_s
from tests.support.command import Process, plain_environment, start

TELL_S = 5.0


class ChaosNode:
    """One node, over all its `lives`. `kills` counts those that ended by SIGKILL, whoever sent it."""

    def __init__(self, name: str, arguments: list[str], folder: Path, **environment: str) -> None:
        self.name = name
        self.kills = 0
        self.lives = 0
        self._readies = 0
        self._arguments = arguments
        self._environment = environment
        self._log = folder / f"{name}.log"
        self._out = folder / f"{name}.out"
        self._process: Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The process's id; another in each life."""
        assert self._process is not None
        return self._process.pid

    async def start(self, *, crash_at: str = "", skew_ms: int | None = None, mutant: str = "") -> None:
        """Start it, armed with a failpoint, with a clock that is off, or as a mutant (mutant_node.py); its log is
        appended to its file."""
        assert not self.is_running
        self.lives += 1
        self._readies = sum(1 for _ in self.lines("node.ready"))
        how = ["-m", "penstock"] if skew_ms is None else ["-m", "tests.support.odd_node", str(skew_ms)]
        if mutant:
            how = ["-m", "tests.support.mutant_node", mutant]
        armed = {"PENSTOCK_CRASH_AT": crash_at} if crash_at else {}
        command = [*how, "up", "--name", self.name, *self._arguments]
        environment = plain_environment(PENSTOCK_LOG_FORM="json", **armed, **self._environment)
        with self._log.open("ab") as log, self._out.open("ab") as out:
            self._process = await start(command, environment, out=out.fileno(), err=log.fileno())

    async def ended(self, within_s: float) -> int | None:
        """Return the exit code as soon as it has ended; None if it has not within so many seconds."""
        assert self._process is not None
        code = None
        with anyio.move_on_after(within_s):
            code = await self._process.wait()
        if code == -signal.SIGKILL:
            self.kills += 1
        return code

    async def kill(self) -> None:
        """Kill it -9 and wait until it is gone."""
        if self.is_running:
            self.signal(signal.SIGKILL)
            await self.ended(TELL_S)

    async def stop(self, within_s: float = 30.0) -> tuple[int | None, float]:
        """Send SIGTERM; return the exit code and how many seconds it took."""
        begun_s = monotonic_s()
        self.signal(signal.SIGTERM)
        code = await self.ended(within_s)
        return code, monotonic_s() - begun_s

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def lines(self, *events: str) -> Iterator[dict[str, Any]]:
        """Yield what it has logged so far in all its lives, only the named events if any is named."""
        for text in self._log.read_text(errors="replace").splitlines() if self._log.exists() else []:
            try:
                line = json.loads(text)
            except ValueError:
                line = {"event": "not_json", "text": text}
            if not events or line.get("event") in events:
                yield line

    async def logged(self, event: str, *, times: int = 1, within_s: float = 60.0) -> None:
        """Wait until an event was logged so often, over all lives."""
        give_up_s = monotonic_s() + within_s
        while sum(1 for _ in self.lines(event)) < times:
            assert monotonic_s() < give_up_s, f"{self.name} has not logged {event} within {within_s:g} s"
            await anyio.sleep(0.05)

    async def ready(self, within_s: float = 60.0) -> bool:
        """Wait until it is ready in this life; False if it has ended before."""
        give_up_s = monotonic_s() + within_s
        while sum(1 for _ in self.lines("node.ready")) == self._readies:
            if not self.is_running:
                return False
            assert monotonic_s() < give_up_s, f"{self.name} is not ready within {within_s:g} s"
            await anyio.sleep(0.05)
        return True

    async def counts(self) -> dict[str, int]:
        """Return how many tasks and files it has; only for one that was started with a `skew_ms`."""
        before = self._out.stat().st_size
        self.signal(signal.SIGUSR1)
        give_up_s = monotonic_s() + TELL_S
        while not (told := self._out.read_bytes()[before:]).endswith(b"\n"):
            assert monotonic_s() < give_up_s, f"{self.name} does not tell its counts"
            await anyio.sleep(0.02)
        counts: dict[str, int] = json.loads(told)
        return counts

    async def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process is None:
            return
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                os.kill(self._process.pid, signal.SIGKILL)
            await self._process.aclose()
