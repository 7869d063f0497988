"""nats-server processes on the project's own configuration files: one, or a cluster of three."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from streams.embedded.server import find_binary
from streams.errors import StreamError
from streams.link.connection import connect
from streams.link.credentials import Credentials
from tests.support.proxy import Proxy, proxy

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

    def __init__(
        self, name: str, config: Path, environment: Mapping[str, str], log: Path, port: int, flags: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.port = port
        self._command = [str(find_binary()), "-c", str(config), "-l", str(log), *flags]
        self._environment = {**os.environ, **environment}
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

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


NOT_TOLD = ("--cluster_advertise", "127.0.0.1:1")
"""Where nobody listens: a server tells it to the others as its own address, so that they keep to the wires."""


class Links:
    """The wires between three servers: one for each that dials and each that is dialled."""

    def __init__(self, routes: Sequence[int], wires: Mapping[tuple[int, int], Proxy]) -> None:
        self.routes = routes
        self._wires = wires
        self._parted: list[Proxy] = []

    def dialled(self, index: int) -> list[int]:
        """Return the ports at which a server finds all: it takes so many for the whole cluster."""
        return [self.routes[at] if at == index else self._wires[index, at].port for at in range(len(self.routes))]

    def part(self, one: int, other: int) -> None:
        """Hold back, until `join`, all that two servers send each other, as a network does that loses everything."""
        for wire in (self._wires[one, other], self._wires[other, one]):
            wire.freeze()
            self._parted.append(wire)

    def cut_off(self, index: int) -> None:
        """Part a server from the two others."""
        for other in {0, 1, 2} - {index}:
            self.part(index, other)

    def cut_off_one_way(self, index: int, *, is_deaf: bool) -> None:
        """Hold back what the others send a server (it is deaf), or what it sends them. The other direction goes on."""
        for other in {0, 1, 2} - {index}:
            dials, dialled = self._wires[index, other], self._wires[other, index]
            dials.hold("client" if is_deaf else "server")
            dialled.hold("server" if is_deaf else "client")
            self._parted += (dials, dialled)

    def join(self) -> None:
        """Break the links that were parted. What was held back is lost, and the servers link up again."""
        while self._parted:
            self._parted.pop().cut()


@asynccontextmanager
async def open_links() -> AsyncIterator[Links]:
    """Lay wires between the servers of a cluster that is not started yet."""
    routes = free_ports(3)
    async with AsyncExitStack() as stack:
        pairs = itertools.permutations(range(3), 2)
        wires = {(one, other): await stack.enter_async_context(proxy(routes[other])) for one, other in pairs}
        yield Links(routes, wires)


@asynccontextmanager
async def cluster(
    folder: Path,
    *,
    config: Path = NATS / "cluster" / "server.conf",
    credentials: Credentials | None = None,
    stores: Sequence[Path] = (),
    links: Links | None = None,
) -> AsyncIterator[list[ServerProcess]]:
    """Run three servers as one cluster, and yield them once it answers whoever has these credentials. `stores`: where
    each keeps its data, if that is not in `folder`. `links`: the wires over which they reach each other, if a test
    wants to part them."""
    stores = stores or [folder / f"n{index + 1}" for index in range(3)]
    clients, routes = free_ports(3), links.routes if links else free_ports(3)
    servers = []
    for index in range(3):
        found = links.dialled(index) if links else routes
        environment = {
            "PENSTOCK_SERVER_NAME": quoted(f"n{index + 1}"),
            "PENSTOCK_LISTEN": quoted(f"127.0.0.1:{clients[index]}"),
            "PENSTOCK_CLUSTER_LISTEN": quoted(f"127.0.0.1:{routes[index]}"),
            "PENSTOCK_ROUTES": quoted([f"nats://127.0.0.1:{port}" for port in found]),
            "PENSTOCK_STORE": quoted(str(stores[index])),
        }
        name, flags = f"n{index + 1}", NOT_TOLD if links else ()
        servers.append(ServerProcess(name, config, environment, folder / f"{name}.log", clients[index], flags))
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
    with anyio.fail_after(90):
        async with connect(urls, name="test", credentials=credentials, connect_timeout_s=90) as connection:
            while True:
                try:
                    await connection.api("INFO", timeout_s=3.0)
                    return
                except StreamError:
                    await anyio.sleep(0.05)
