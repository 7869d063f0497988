"""Programs in processes of their own, in whatever language, and the lines that they print."""

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from streams.clock import monotonic_s

WITHIN_S = 90.0


class Program:
    """One that runs; what it prints, errors too, is read as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._come: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._come.put(line.rstrip("\n"))
        self._come.put(None)

    def until(self, is_enough: Callable[[list[str]], object], within_s: float = WITHIN_S) -> list[str]:
        """Return all lines as soon as `is_enough` of them is true."""
        give_up_s = monotonic_s() + within_s
        while not is_enough(self.lines):
            try:
                line = self._come.get(timeout=max(0.0, give_up_s - monotonic_s()))
            except queue.Empty:
                raise AssertionError("\n".join([f"not within {within_s} s:", *self.lines])) from None
            assert line is not None, "\n".join(["it has ended:", *self.lines])
            self.lines.append(line)
        return self.lines

    def ended(self, within_s: float = WITHIN_S) -> list[str]:
        """Return all lines once it has ended well."""
        code = self.process.wait(within_s)
        self._reader.join()
        while (line := self._come.get()) is not None:
            self.lines.append(line)
        assert code == 0, "\n".join(self.lines)
        return self.lines

    def close(self) -> None:
        """Stop it if it still runs, kill it if it does not heed that."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def program(command: Sequence[str], folder: Path, environment: Mapping[str, str] = os.environ) -> Iterator[Program]:
    """Run a program in `folder` until the block ends."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    running = Program(process)
    try:
        yield running
    finally:
        running.close()
