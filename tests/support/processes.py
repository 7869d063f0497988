"""nats-server processes on the project's own configuration files: one, or a cluster of three."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from streams.connection import connect
from streams.credentials import Credentials
from streams.errors import StreamError
from streams.server import find_binary

NATS = Path(__file__).parents[2] / "nats"


_block = 15_000 + os.getpid() % 150 * 100
_ports = itertools.cycle(range(_block, _block + 100))
"""Below those that the system gives to whoever asks for none, and each process of a test run has a hundred of its own:
so nobody else takes a port while its server is started again."""


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that were free a moment ago."""
    return list(itertools.islice(filter(is_free, _ports), count))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def quoted(value: object) -> str:
    """Return a value as the server's files write it."""
    return json.dumps(value)


def include_line(name: str, folder: Path) -> str:
    """Return what includes a file of nats/ in a configuration in `folder`: the server knows no absolute paths there."""
    return f"include {quoted(os.path.relpath(NATS / name, folder))}"


def check_config(path: Path, environment: Mapping[str, str]) -> str:
    """Have the server check a file; return what it says."""
    done = subprocess.run(
        [str(find_binary()), "-t", "-c", str(path)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return f"{done.returncode} {done.stdout}{done.stderr}"


class ServerProcess:
    """One nats-server on a configuration file of the project."""

    def __init__(self, name: str, config: Path, environment: Mapping[str, str], log: Path, port: int) -> None:
        self.name = name
        self.port = port
        self._command = [str(find_binary()), "-c", str(config), "-l", str(log)]
        self._environment = {**os.environ, **environment}
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._child = subprocess.Popen(self._command, env=self._environment, stderr=subprocess.DEVNULL)

    def send_signal(self, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT make it hang and go on."""
        assert self._child is not None
        self._child.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would, and wait until it is gone."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()


@asynccontextmanager
async def cluster(
    folder: Path,
    *,
    config: Path = NATS / "cluster" / "server.conf",
    credentials: Credentials | None = None,
    stores: Sequence[Path] = (),
) -> AsyncIterator[list[ServerProcess]]:
    """Run three servers as one cluster, and yield them once it answers whoever has these credentials. `stores`: where
    each keeps its data, if that is not in `folder`."""
    stores = stores or [folder / f"n{index + 1}" for index in range(3)]
    ports = free_ports(6)
    clients, routes = ports[:3], ports[3:]
    servers = []
    for index in range(3):
        environment = {
            "PENSTOCK_SERVER_NAME": quoted(f"n{index + 1}"),
            "PENSTOCK_LISTEN": quoted(f"127.0.0.1:{clients[index]}"),
            "PENSTOCK_CLUSTER_LISTEN": quoted(f"127.0.0.1:{routes[index]}"),
            "PENSTOCK_ROUTES": quoted([f"nats://127.0.0.1:{port}" for port in routes]),
            "PENSTOCK_STORE": quoted(str(stores[index])),
        }
        servers.append(
            ServerProcess(f"n{index + 1}", config, environment, folder / f"n{index + 1}.log", clients[index])
        )
    try:
        for server in servers:
            server.start()
        await wait_until_ready(urls_of(servers), credentials)
        yield servers
    finally:
        for server in servers:
            server.kill()


class Cluster:
    """Three servers that run, as a client sees them."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self.servers = servers
        self.url = urls_of(servers)


@contextmanager
def session_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a cluster outside of any test's loop, so that tests on different loops can share it."""
    running = cluster(folder)
    with asyncio.Runner() as runner:
        servers = runner.run(running.__aenter__())
        try:
            yield Cluster(servers)
        finally:
            runner.run(running.__aexit__(None, None, None))


def urls_of(servers: list[ServerProcess]) -> str:
    return ",".join(server.url for server in servers)


async def wait_until_ready(urls: str, credentials: Credentials | None = None) -> None:
    """Return once JetStream answers, which in a cluster means that it has a leader."""
    with anyio.fail_after(30):
        async with connect(urls, name="test", credentials=credentials, connect_timeout_s=30) as connection:
            while True:
                try:
                    await connection.api("INFO", timeout_s=1.0)
                    return
                except StreamError:
                    await anyio.sleep(0.05)
