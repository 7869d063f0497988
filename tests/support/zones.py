"""Servers of several zones: a hub, and one server a zone, each a JetStream domain, on the project's own files.

Each zone reaches the hub over a wire of its own, which a test can cut, stall and heal.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio

from streams.errors import Refused, StreamError
from streams.link.connection import Connection, connect
from streams.link.credentials import Credentials
from streams.subjects import Namespace
from tests.support.processes import NATS, ServerProcess, free_ports, quoted, wait_until_ready
from tests.support.proxy import Proxy, proxy

HUB = "hub"
ASKED = "STREAM.INFO.KV_PENSTOCK_HUB_ZONES"
"""Whatever a zone may ask the hub."""


class Zones:
    """A hub and its zones that run. `wires`: what each zone reaches the hub by."""

    def __init__(self, servers: Mapping[str, ServerProcess], wires: Mapping[str, Proxy], scheme: str = "nats") -> None:
        self.servers = servers
        self.wires = wires
        self._scheme = scheme

    @property
    def names(self) -> list[str]:
        """The zones, without the hub."""
        return [*self.wires]

    def url(self, zone: str) -> str:
        return f"{self._scheme}://127.0.0.1:{self.servers[zone].port}"

    def cut(self, zone: str) -> None:
        """Break the wire of a zone, until `heal`: a request to the hub is refused at once."""
        self.wires[zone].refuse()

    def stall(self, zone: str) -> None:
        """Hold back all on the wire of a zone, until `heal`: a request to the hub has no answer."""
        self.wires[zone].freeze()

    def heal(self, zone: str) -> None:
        """Break the links that were stalled, so that what was held is lost, and let new ones through."""
        self.wires[zone].cut()

    def kill(self, name: str) -> None:
        """End the server of a zone, or of the hub, as a crash would."""
        self.servers[name].kill()

    async def start(self, name: str) -> None:
        """Start a killed server again."""
        self.servers[name].start()
        await wait_until_ready(self.url(name))


class Secured(NamedTuple):
    """Logins and certificates for the secured files. `environment`: what those files take from it."""

    environment: Mapping[str, str]
    credentials: Credentials


@asynccontextmanager
async def zones(
    folder: Path, names: Sequence[str] = ("east", "west"), *, secured: Secured | None = None
) -> AsyncIterator[Zones]:
    """Run a hub and the zones on nats/zones, and yield them once each zone reaches the hub."""
    kind, scheme = ("_secured", "tls") if secured else ("", "nats")
    credentials = secured.credentials if secured else None
    leaves, *clients = free_ports(2 + len(names))
    async with AsyncExitStack() as stack:
        wires = {name: await stack.enter_async_context(proxy(leaves)) for name in names}
        servers = {
            name: ServerProcess(
                name,
                NATS / "zones" / f"{HUB if name == HUB else 'zone'}{kind}.conf",
                {
                    "PENSTOCK_LISTEN": quoted(f"127.0.0.1:{port}"),
                    "PENSTOCK_LEAF_LISTEN": quoted(f"127.0.0.1:{leaves}"),
                    "PENSTOCK_STORE": quoted(str(folder / name)),
                    "PENSTOCK_DOMAIN": quoted(name),
                    "PENSTOCK_HUBS": quoted([f"{scheme}://127.0.0.1:{wires[name].port}"] if name in wires else []),
                    **(secured.environment if secured else {}),
                },
                folder / f"{name}.log",
                port,
            )
            for name, port in zip((HUB, *names), clients, strict=True)
        }
        try:
            running = Zones(servers, wires, scheme)
            for name, server in servers.items():
                server.start()
                await wait_until_ready(running.url(name), credentials)
            for name in names:
                await reaches_hub(running.url(name), credentials)
            yield running
        finally:
            for server in servers.values():
                server.kill()


async def reaches_hub(url: str, credentials: Credentials | None = None) -> None:
    """Return once a client of this server reaches the hub."""
    with anyio.fail_after(30):
        async with connect(url, name="test", credentials=credentials) as connection:
            while True:
                try:
                    await connection.api(ASKED, timeout_s=1.0, domain=HUB)
                    return
                except Refused:
                    return  # it knows of no such stream yet
                except StreamError:
                    await anyio.sleep(0.02)


@asynccontextmanager
async def at(url: str, credentials: Credentials | None = None) -> AsyncIterator[Connection]:
    """Connect under the namespace of nats/zones."""
    async with connect(url, name="test", namespace=Namespace("penstock"), credentials=credentials) as connection:
        yield connection
