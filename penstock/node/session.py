"""From a configuration to a connection: the server, our credentials, and the error when there is no server."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import StartFailed, UsageError
from penstock.node.config import Config
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection, connect
from streams.link.credentials import Credentials
from streams.publish.publisher import Publisher
from streams.subjects import Namespace

if TYPE_CHECKING:
    from actors.fetch.settings.desk import Desk
    from streams.link.store_health import StoreHealth
    from streams.topology.specs import Topology

__all__ = [
    "Session",
    "credentials_of",
    "health_of",
    "hub_topology",
    "monitor_url",
    "open_session",
    "server_folder",
    "server_url",
    "topology_of",
]


@dataclass(frozen=True, slots=True)
class Session:
    """The connection and configuration of a command."""

    connection: Connection
    publisher: Publisher

    @property
    def namespace(self) -> Namespace:
        return self.connection.namespace

    def settings_desk(self) -> "Desk":
        """Return the desk that changes settings."""
        from actors.fetch.settings.desk import Desk
        from actors.fetch.settings.history import kept_values

        name = self.namespace.bucket("SETTINGS")
        return Desk(self.bucket("SETTINGS"), kept_values(self.connection, name))

    def bucket(self, short: str, *, domain: str = "") -> Bucket[bytes]:
        """Return a bucket of the namespace, its values as bytes. `domain`: of another domain than the server's own."""
        return Bucket(self.connection, self.publisher, self.namespace.bucket(short), bytes, domain=domain)


def server_folder(config: Config) -> Path:
    """Return the folder of the embedded server's files."""
    return config.data_folder() / "server"


def server_url(config: Config) -> str:
    """Return the address to connect to: the one configured, else that of the embedded server that a node runs in the
    data folder. Raises StartFailed if there is none."""
    if config.nats:
        return config.nats
    try:
        told = json.loads((server_folder(config) / "server.json").read_text())
        os.kill(int(told["pid"]), 0)  # no signal, only the question whether there is such a process
        return str(told["url"])
    except (OSError, ValueError, KeyError, TypeError):
        raise StartFailed(
            f"no server: none runs in {config.data_folder()}; start a node with `penstock up`, or give --nats URL"
        ) from None


def monitor_url(config: Config) -> str:
    """Return the server's monitoring address: the configured one, else the embedded server's. Empty: not known."""
    if config.monitor or not config.is_embedded:
        return config.monitor
    try:
        return str(json.loads((server_folder(config) / "server.json").read_text())["monitor"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


async def health_of(config: Config, connection: Connection) -> "StoreHealth | None":
    """Return the health of the server's store, as far as it can be known from here. None: no source for it. Raises as
    `Connection.api` does."""
    from streams.link.store_health import account_health, monitor_health

    url = monitor_url(config)
    return await monitor_health(url) if url else await account_health(connection.api)


def credentials_of(config: Config) -> Credentials:
    """Return our credentials, references resolved. Raises UsageError that names the one that cannot be read."""
    for name in ("creds_file", "tls_ca", "tls_cert", "tls_key"):
        path = getattr(config, name)
        if path and not Path(path).is_file():
            raise UsageError(f"{name}: {path}: no such file")
    return Credentials(
        nkey_seed=config.secret("nkey_seed"),
        user=config.user,
        password=config.secret("password"),
        token=config.secret("token"),
        creds_file=config.creds_file,
        tls_ca=config.tls_ca,
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        inbox_prefix=config.inbox_prefix,
    )


def topology_of(config: Config, namespace: Namespace) -> "Topology":
    """Return the streams and buckets that this configuration needs. `namespace`: the configuration's, which knows in
    how many streams the jobs are."""
    from streams.topology.specs import wanted

    try:
        return wanted(namespace, profile=config.profile, replicas=config.replicas)
    except ValueError as error:
        raise UsageError(str(error)) from error


def hub_topology(config: Config) -> "Topology":
    """Return the buckets that the hub of several zones needs."""
    from streams.topology.specs import hub

    return hub(Namespace(config.namespace), profile=config.profile, replicas=config.replicas)


@asynccontextmanager
async def open_session(
    config: Config, *, name: str = "penstock-cli", wait_s: float | None = None
) -> AsyncIterator[Session]:
    """Connect for one command. Raises StartFailed, Disconnected, PermissionDenied."""
    opened = connect(
        server_url(config),
        name=name,
        namespace=Namespace(config.namespace),
        credentials=credentials_of(config),
        connect_timeout_s=config.connect_s if wait_s is None else wait_s,
    )
    async with opened as connection, Publisher(connection) as publisher:
        yield Session(connection, publisher)
