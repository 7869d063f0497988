"""beanstalkd, driven the way its own Python client does it: a blocking socket, and one command after the other.

Where our client sends a list, beanstalkd gets its commands in one write as well. Its client has no call for that, and
its server takes it. It keeps its jobs in a log on the disk (`-b`), as ours does, so that both survive a killed server.

`python -m bench._beanstalk drain PORT` and `… listen PORT COUNT` are its worker processes.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from streams.clock import monotonic_s

TTR_S = 60
PRIORITY = 2**16
"""Its client's default."""
START_S = 10.0
READY = b"ready\n"


class Beanstalk:
    """One connection. Raises RuntimeError for an answer other than the wanted one."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._answers = self._socket.makefile("rb")

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def put(self, body: bytes, delay_s: int = 0) -> None:
        self.put_many([body], delay_s)

    def put_many(self, bodies: Iterable[bytes], delay_s: int = 0) -> None:
        """Put jobs by commands in one write, and wait for all answers."""
        told = [b"put %d %d %d %d\r\n%b\r\n" % (PRIORITY, delay_s, TTR_S, len(body), body) for body in bodies]
        self._send(told, b"INSERTED")

    def reserve(self) -> tuple[int, bytes]:
        """Wait for a job. Return its id and body."""
        self._socket.sendall(b"reserve\r\n")
        job = self._job(b"RESERVED")
        assert job is not None
        return job

    def reserve_many(self, most: int) -> list[tuple[int, bytes]]:
        """Take ready jobs by commands in one write. Return an empty list if there is none."""
        self._socket.sendall(b"reserve-with-timeout 0\r\n" * most)
        jobs = [self._job(b"RESERVED", none=b"TIMED_OUT") for _ in range(most)]
        return [job for job in jobs if job is not None]

    def delete(self, job_id: int) -> None:
        self.delete_many([job_id])

    def delete_many(self, job_ids: Iterable[int]) -> None:
        self._send([b"delete %d\r\n" % job_id for job_id in job_ids], b"DELETED")

    def count(self) -> int:
        """Return how many jobs there are, in any state."""
        self._socket.sendall(b"stats-tube default\r\n")
        size = int(self._line(b"OK")[1])
        lines = self._answers.read(size + 2).decode().splitlines()
        counts = dict(line.split(": ", 1) for line in lines if ": " in line)
        return sum(int(counts[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed", "buried"))

    def _send(self, commands: Sequence[bytes], wanted: bytes) -> None:
        self._socket.sendall(b"".join(commands))
        for _ in commands:
            self._line(wanted)

    def _line(self, *wanted: bytes) -> list[bytes]:
        line = self._answers.readline().split()
        if not line or line[0] not in wanted:
            raise RuntimeError(f"beanstalkd answers {line!r} where {wanted!r} was expected")
        return line

    def _job(self, wanted: bytes, none: bytes = b"") -> tuple[int, bytes] | None:
        line = self._line(wanted, none) if none else self._line(wanted)
        if line[0] == none:
            return None
        return int(line[1]), self._answers.read(int(line[2]) + 2)[:-2]


def find_beanstalkd() -> str | None:
    """Return the path of the installed server."""
    return shutil.which("beanstalkd")


@contextmanager
def beanstalkd() -> Iterator[int]:
    """Run a server with an empty log. Yield its port."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    binary = find_beanstalkd()
    assert binary is not None
    with TemporaryDirectory(prefix="penstock-bench-") as folder:
        child = subprocess.Popen([binary, "-l", "127.0.0.1", "-p", str(port), "-b", folder])
        try:
            _wait_for(port)
            yield port
        finally:
            child.kill()
            child.wait()


def _wait_for(port: int) -> None:
    give_up_s = monotonic_s() + START_S
    while monotonic_s() < give_up_s:
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
    raise RuntimeError(f"beanstalkd does not listen on port {port} within {START_S:g} s")


class Worker:
    """A worker process, connected once it is made. It begins with `go`. `told`: its report at the end."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "bench._beanstalk", *map(str, arguments)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
        )
        assert self._child.stdout is not None
        if self._child.stdout.readline() != READY:
            raise RuntimeError(f"{' '.join(command)} did not start")

    def go(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(b"go\n")
        self._child.stdin.flush()

    def told(self) -> list[float]:
        """Wait for the end. Return the figures."""
        out, _ = self._child.communicate(timeout=30)
        return msgspec.json.decode(out, type=list[float])


def _drain(client: Beanstalk) -> list[float]:
    """Take and delete one job after the other until none is ready. Print how many."""
    done = 0
    while jobs := client.reserve_many(1):
        client.delete(jobs[0][0])
        done += 1
    return [done]


def _listen(client: Beanstalk, count: int) -> list[float]:
    """Take so many jobs whose bodies begin with a moment in seconds. Print how much later each came, in
    milliseconds."""
    late_ms = []
    for _ in range(count):
        job_id, body = client.reserve()
        late_ms.append((monotonic_s() - float(body.split(b" ", 1)[0])) * 1000)
        client.delete(job_id)
    return late_ms


def main(arguments: list[str]) -> None:
    what, port, *counts = arguments
    with closing(Beanstalk(int(port))) as client:
        sys.stdout.write(READY.decode())
        sys.stdout.flush()
        sys.stdin.readline()
        told = _drain(client) if what == "drain" else _listen(client, int(counts[0]))
    sys.stdout.write(msgspec.json.encode(told).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
