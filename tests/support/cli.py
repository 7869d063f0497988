"""The command line within the test's own process: quick, and as a user sees it. `command.py` has it as a process."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from typer.testing import CliRunner

from penstock.admin.records import Records
from penstock.cli.root import app
from penstock.node.session import Session
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.server import Reachable, make_topology, topology_for


class Answer:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def json(self) -> Any:
        """Return the one document that was printed."""
        return json.loads(self.out)

    def ok(self) -> Answer:
        """Return itself, if the command succeeded."""
        assert self.code == 0, f"{self.code}: {self.err}{self.out}"
        return self


class CommandLine:
    """Runs commands on one installation; `records` is a second way to look at it."""

    def __init__(self, server: Reachable, records: Records) -> None:
        self.records = records
        self._common = ["--nats", server.url, "--namespace", records.namespace.name]

    async def __call__(self, *arguments: str) -> Answer:
        """Run `penstock …` on a thread of its own, since it brings its own loop."""
        return await anyio.to_thread.run_sync(self._run, [*arguments, *self._common])

    def _run(self, arguments: list[str]) -> Answer:
        told = CliRunner().invoke(app, arguments, env={"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"})
        if told.exception is not None and not isinstance(told.exception, SystemExit):
            raise told.exception
        return Answer(told.exit_code, told.stdout, told.stderr)


@asynccontextmanager
async def command_line(server: Reachable, connection: Connection, publisher: Publisher) -> AsyncIterator[CommandLine]:
    """Make the topology and open the command line on it; what commands do to logging is undone."""
    await make_topology(connection, topology_for(connection))
    root, raises = logging.getLogger(), logging.raiseExceptions
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("asyncio", "aiohttp", "nats", "sqlalchemy")}
    try:
        yield CommandLine(server, Records(Session(connection, publisher)))
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.raiseExceptions = raises
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
