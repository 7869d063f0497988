"""A real server for tests: one a session for most, one of its own for tests that kill it."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import anyio

from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.errors import OutcomeUnknown, Refused, StreamError
from streams.link.connection import Connection, connect
from streams.subjects import Namespace
from streams.topology.specs import ConsumerSpec, StreamSpec, Topology, wanted
from streams.topology.topology import ensure_consumer, is_passing
from tests.support.moments import a_moment

BUSY_S = 20.0
"""Creating a stream flushes to the disk, which other tests on this machine may keep busy for seconds."""

T = TypeVar("T")


class _Named(Protocol):
    name: str


_Server = TypeVar("_Server", bound=_Named)


@contextmanager
def session_server(store: Path) -> Iterator[EmbeddedServer]:
    """Run a server outside of any test's loop, so that tests on different loops can share it."""
    running = embedded_server(store)
    with asyncio.Runner() as runner:
        server = runner.run(running.__aenter__())
        try:
            yield server
        finally:
            runner.run(running.__aexit__(None, None, None))


def fresh_namespace() -> Namespace:
    """Return a namespace that no other test uses. `PENSTOCK_TEST_JOB_STREAMS`: in how many streams jobs are."""
    return Namespace(f"t{secrets.token_hex(6)}", int(os.environ.get("PENSTOCK_TEST_JOB_STREAMS", "1")))


class Reachable(Protocol):
    """Where tests connect: one server, or three."""

    @property
    def url(self) -> str: ...


def copies(connection: Connection) -> int:
    """Return how many copies of a stream there can be: as many as servers, one or three."""
    return 3 if len({(url.hostname, url.port) for url in connection.client.servers}) >= 3 else 1


def topology_for(connection: Connection) -> Topology:
    """Return the whole topology of the connection's namespace, with a copy on each server."""
    return wanted(connection.namespace, profile="fast", replicas=copies(connection))


async def make_topology(connection: Connection, topology: Topology) -> None:
    """Make what is not there yet of a topology. `apply` asks three times for each stream beside that. Two who make the
    same at once do no harm."""

    async def make_stream(spec: StreamSpec) -> None:
        config = spec.config()
        await once_it_is_led(partial(connection.api, f"STREAM.CREATE.{spec.name}", config, timeout_s=BUSY_S))

    with anyio.fail_after(2 * BUSY_S):
        async with anyio.create_task_group() as tasks:
            for spec in topology.all_streams():
                tasks.start_soon(make_stream, spec)
        for consumer in topology.consumers:
            await ensure_consumer(connection, consumer)


@asynccontextmanager
async def connected(server: Reachable, namespace: Namespace | None = None) -> AsyncIterator[Connection]:
    """Connect; at the end remove every stream and bucket of the namespace."""
    namespace = namespace or fresh_namespace()
    async with connect(server.url, name="test", namespace=namespace) as connection:
        try:
            yield connection
        finally:
            with contextlib.suppress(StreamError):  # the test may have left the server dead
                await remove_streams(connection)


@asynccontextmanager
async def forbidding(folder: Path, namespace: Namespace, *specs: ConsumerSpec) -> AsyncIterator[Connection]:
    """Give a connection whose user may not make these consumers, on a server of its own."""
    forbidden = [f"$JS.API.CONSUMER.CREATE.{one.stream}.{one.name}{rest}" for one in specs for rest in ("", ".>")]
    rights = f"permissions: {{ publish: {{ deny: {json.dumps(forbidden)} }} }}"
    config = f"authorization {{ users: [ {{ user: w, password: p, {rights} }} ] }}"
    async with embedded_server(folder, config=config) as server:
        async with connect(server.url.replace("//", "//w:p@"), namespace=namespace, name="test") as connection:
            yield connection


async def remove_streams(connection: Connection) -> None:
    """Delete the streams and buckets of the connection's namespace."""
    names = (await connection.api("STREAM.NAMES", timeout_s=2.0)).get("streams") or []
    prefix = f"{connection.namespace.name.upper()}_"
    for name in names:
        if name.startswith((prefix, f"KV_{prefix}")):
            await connection.api(f"STREAM.DELETE.{name}", timeout_s=2.0)


async def add_stream(connection: Connection, short: str, *tokens: str, **settings: object) -> str:
    """Create a stream of the namespace on the subjects `<namespace>.<tokens>`; return its name.

    `settings` are those of the server's own stream configuration, e.g. `retention="workqueue"`.
    """
    name = connection.namespace.stream(short)
    subjects = [connection.namespace.pattern(*(tokens or (short.lower(), ">")))]
    config = {"name": name, "subjects": subjects, "storage": "file", "num_replicas": copies(connection), **settings}
    with anyio.fail_after(2 * BUSY_S):
        await once_it_is_led(partial(connection.api, f"STREAM.CREATE.{name}", config, timeout_s=BUSY_S))
    return name


async def once_it_is_led(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat what a cluster that elects does not answer, or refuses for the moment."""
    while True:
        try:
            return await ask()
        except OutcomeUnknown:
            pass
        except Refused as refused:
            if not is_passing(refused):
                raise
            await a_moment()


async def leader_of(connection: Connection, of: str) -> str:
    """Return the name of the server that leads `STREAM.INFO.…` or `CONSUMER.INFO.…`, once one is elected."""
    while True:
        info = await once_it_is_led(partial(connection.api, of, timeout_s=BUSY_S))
        if leader := info["cluster"].get("leader"):
            return str(leader)
        await a_moment()


async def leading(servers: Sequence[_Server], connection: Connection, of: str) -> _Server:
    """Return the one of these servers that leads, as `leader_of` does its name."""
    name = await leader_of(connection, of)
    (leader,) = (server for server in servers if server.name == name)
    return leader


async def add_consumer(connection: Connection, stream: str, durable: str, **settings: object) -> None:
    """Create a durable pull consumer with explicit acks; durations in `settings` are nanoseconds, as the server's."""
    config = {"durable_name": durable, "ack_policy": "explicit", "max_ack_pending": 10_000, **settings}
    await connection.api(
        f"CONSUMER.CREATE.{stream}.{durable}", {"stream_name": stream, "config": config}, timeout_s=BUSY_S
    )


async def stream_state(connection: Connection, stream: str) -> dict[str, int]:
    """Return the server's own counts of a stream: `messages`, `first_seq`, `last_seq`, …"""
    state: dict[str, int] = (await connection.api(f"STREAM.INFO.{stream}", timeout_s=BUSY_S))["state"]
    return state


@asynccontextmanager
async def full(connection: Connection, stream: str) -> AsyncIterator[None]:
    """Have a stream refuse whatever is published to it, until the block ends. An empty one takes a message of any size,
    so one of ours lies in it until then."""
    config = (await connection.api(f"STREAM.INFO.{stream}", timeout_s=BUSY_S))["config"]
    await connection.api(f"STREAM.UPDATE.{stream}", {**config, "discard": "new", "max_bytes": 1}, timeout_s=BUSY_S)
    answer = await connection.request(config["subjects"][0].replace(">", "filler"), b"", timeout_s=BUSY_S)
    filler = json.loads(answer.payload)
    yield
    if "error" not in filler:
        await connection.api(f"STREAM.MSG.DELETE.{stream}", {"seq": filler["seq"]}, timeout_s=BUSY_S)
    await connection.api(f"STREAM.UPDATE.{stream}", config, timeout_s=BUSY_S)


class Stoppable(Protocol):
    """A server's process."""

    @property
    def pid(self) -> int: ...

    def send_signal(self, number: signal.Signals) -> None: ...


async def freeze(server: Stoppable) -> None:
    """Stop the process until `thaw`; return once each of its threads stands still; a busy machine takes a while."""
    server.send_signal(signal.SIGSTOP)
    with anyio.fail_after(20):
        while not _stands_still(server.pid):
            await a_moment()


def thaw(server: Stoppable) -> None:
    server.send_signal(signal.SIGCONT)


async def until_written(server: EmbeddedServer) -> None:
    """Wait until what was acknowledged is in the consumers' files: they have not changed for a while."""
    with anyio.fail_after(30):
        while now_ms() / 1000 - _last_written(server.store) < 2:
            await a_moment()


def _last_written(store: Path) -> float:
    return max(path.stat().st_mtime for path in store.rglob("o.dat"))


def _stands_still(pid: int) -> bool:
    if sys.platform != "linux":
        return True
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state == "T" for state in states)
