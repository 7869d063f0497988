"""Somebody who reads a page of docs and types what it tells."""

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import Process

from streams.clock import monotonic_s
from tests.support.command import plain_environment
from tests.support.docs import LONG_RUNNING, Block, Page

ELSEWHERE = ("just ", "export ", "nats ", "cp ")
"""Lines that set up the reader's own shell and folder, or need the `nats` command."""
LOOK_AGAIN_S = 0.5
"""A command costs a third of a second of a core, which the nodes need. What takes long is looked at less often."""
NODE = "--port 4222"
"""What the command of the reader's own node holds."""


class Reader:
    """Types commands in a folder, as a page tells, with other ports and numbers: `instead` has them by the page's
    own."""

    def __init__(self, folder: Path, instead: Mapping[str, int | str], **environment: str) -> None:
        self.log = folder / "log"
        self.printed = ""
        self._folder = folder
        self._instead = instead
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        self._environment = plain_environment(PATH=path, PENSTOCK_DATA=str(folder / "data"), **environment)
        self._node: Process | None = None
        self._read = 0
        self._until_the_end = AsyncExitStack()

    async def __aenter__(self) -> "Reader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._until_the_end.aclose()

    async def follow(self, page: Page) -> int:
        """Write the page's files and type its commands, one block after the other; return how many blocks there were.
        What runs until it is stopped, runs until we end; a second node takes the place of the first."""
        count = 0
        for block in page.blocks:
            if block.file:
                (self._folder / block.file).write_text(self.own(block.text), encoding="utf-8")
            if not is_ours(block):
                continue
            text, count = typed(block), count + 1
            if LONG_RUNNING in block.text:
                await self._start(text)
            else:
                self.printed += await self.type_until(text)
        return count

    def own(self, text: str) -> str:
        """Return the text with our ports and numbers in place of the page's."""
        return re.sub("|".join(map(re.escape, self._instead)), lambda found: str(self._instead[found[0]]), text)

    async def type(self, text: str) -> tuple[int, str]:
        """Run commands up to the first that fails; return its exit code and all that was printed."""
        command = ["sh", "-e", "-c", self.own(text)]
        done = await anyio.run_process(
            command, check=False, cwd=self._folder, env=self._environment, stderr=subprocess.STDOUT
        )
        return done.returncode, done.stdout.decode()

    async def type_until(self, text: str, *, within_s: float = 90.0) -> str:
        """Run commands again until they succeed: the reader waits where the page says that something takes a while."""
        begun_s = monotonic_s()
        while True:
            code, out = await self.type(text)
            if code == 0:
                return out
            waited_s = monotonic_s() - begun_s
            assert waited_s < within_s, f"{text}\n{out}"
            await anyio.sleep(max(LOOK_AGAIN_S, waited_s / 5))

    async def see(self, text: str) -> str:
        """Run commands that have to succeed at once."""
        code, out = await self.type(text)
        assert code == 0, f"{text}\n{out}"
        return out

    async def _start(self, text: str) -> None:
        if NODE in text and self._node is not None:
            await stop(self._node)
        process = await self._until_the_end.enter_async_context(self._running(text))
        if NODE in text:
            self._node = process
            await self._logged('"event":"node.ready"')

    async def _logged(self, text: str, *, within_s: float = 90.0) -> None:
        """Wait until something is in the log once more, to which each process appends."""
        give_up_s = monotonic_s() + within_s
        while text not in (log := self.log.read_text(encoding="utf-8"))[self._read :]:
            assert monotonic_s() < give_up_s, log
            await anyio.sleep(0.05)
        self._read = len(log)

    @asynccontextmanager
    async def _running(self, text: str) -> AsyncIterator[Process]:
        """Run a command until the block ends, or somebody stops it."""
        command = ["sh", "-c", f"exec {self.own(text)}"]
        with self.log.open("ab") as log:
            process = await anyio.open_process(
                command, cwd=self._folder, env=self._environment, stdin=None, stdout=log, stderr=log
            )
            async with process:
                try:
                    yield process
                finally:
                    await stop(process)


async def stop(process: Process) -> None:
    """Stop it as Ctrl-C does."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
    try:
        with anyio.fail_after(90):
            await process.wait()
    except TimeoutError:
        process.kill()
        raise


def typed(block: Block) -> str:
    """Return the lines of a block that are typed."""
    lines = [line for line in block.text.splitlines() if line.strip() and not line.startswith("#")]
    return "\n".join(lines)


def is_ours(block: Block) -> bool:
    """True for commands that work in a test."""
    return block.language == "sh" and not any(line.startswith(ELSEWHERE) for line in typed(block).splitlines())
