"""What docs/howto/fetch.md tells the reader to type works when it is typed."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from streams.clock import monotonic_s
from tests.support.command import plain_environment
from tests.support.docs import DOCS, LONG_RUNNING, Block, Page
from tests.support.processes import free_ports

ELSEWHERE = ("just ", "export ", "nats ")
"""Lines that set up the reader's own shell, or need the `nats` command."""


class Reader:
    """Types commands in a folder, as the page tells, with other ports."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self._folder = folder
        self._ports = dict(zip(("8100", "4222"), map(str, ports), strict=True))
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        self._environment = plain_environment(PATH=path, PENSTOCK_DATA=str(folder / "data"))

    def own(self, text: str) -> str:
        for port, free in self._ports.items():
            text = text.replace(port, free)
        return text

    async def type(self, text: str) -> tuple[int, str]:
        """Run commands up to the first that fails; return its exit code and all that was printed."""
        command = ["sh", "-e", "-c", self.own(text)]
        done = await anyio.run_process(
            command, check=False, cwd=self._folder, env=self._environment, stderr=subprocess.STDOUT
        )
        return done.returncode, done.stdout.decode()

    async def type_until(self, text: str, *, within_s: float = 30.0) -> str:
        """Run commands again until they succeed: the reader waits where the page says that something takes a while."""
        give_up_s = monotonic_s() + within_s
        while True:
            code, out = await self.type(text)
            if code == 0:
                return out
            assert monotonic_s() < give_up_s, f"{text}\n{out}"

    async def see(self, text: str) -> str:
        code, out = await self.type(text)
        assert code == 0, f"{text}\n{out}"
        return out

    def write(self, block: Block) -> None:
        (self._folder / block.file).write_text(block.text, encoding="utf-8")

    @asynccontextmanager
    async def running(self, text: str) -> AsyncIterator[Process]:
        """Run a command until the block ends, or somebody stops it."""
        command = ["sh", "-c", f"exec {self.own(text)}"]
        with (self._folder / "log").open("ab") as log:
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
    with anyio.fail_after(20):
        await process.wait()


def typed(block: Block) -> str:
    lines = [line for line in block.text.splitlines() if line.strip() and not line.startswith("#")]
    return "\n".join(lines)


def is_ours(block: Block) -> bool:
    return block.language == "sh" and not any(line.startswith(ELSEWHERE) for line in typed(block).splitlines())


@pytest.mark.timeout(180)  # some twenty processes, one after the other
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
async def test_the_page_works_as_it_is_typed(tmp_path: Path) -> None:
    page = Page(DOCS, (DOCS / "howto" / "fetch.md").read_text(encoding="utf-8")).section("PostgreSQL")
    reader = Reader(tmp_path, free_ports(2))
    node: Process | None = None
    typed_so_far = 0
    async with AsyncExitStack() as until_the_end:
        for block in page.blocks:
            if block.file:
                reader.write(block)
            if not is_ours(block):
                continue
            text, typed_so_far = typed(block), typed_so_far + 1
            if LONG_RUNNING not in block.text:
                await reader.type_until(text)
                continue
            if "--port 4222" in text and node is not None:
                await stop(node)
            process = await until_the_end.enter_async_context(reader.running(text))
            if "--port 4222" in text:
                node = process
                await reader.type_until("penstock sources list")
        nodes = json.loads(await reader.see("penstock nodes --json"))
        assert "second" in [each["node"] for each in nodes]
        assert json.loads(await reader.see("penstock holes list --json")) == []
        assert typed_so_far > 10
    assert "s1 s1-" in (tmp_path / "log").read_text(encoding="utf-8"), "the page's own sink printed no order"
