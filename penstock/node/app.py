"""Runs one node: its server, the streams that must exist, the actors of its roles, and an orderly end.

In order: the embedded server if no address is given, the connection, the topology (made on an embedded server, required
elsewhere), the parts that the engines share, then every actor under one supervisor. SIGTERM or SIGINT asks the node to
stop. It then takes no new work, and work in hand gets `drain_s`. A second signal ends it at once. Either way the
process ends, if need be by force (last_end.py). An error that no restart mends (the connection closed for good, a
missing permission, another topology) ends the node.
"""

import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.metadata import version
from types import FrameType

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.runtime.logs import fields
from actors.runtime.membership import NodeRecord
from actors.runtime.supervisor import ActorSpec, ActorState, Policy, Supervisor, one_error
from penstock.errors import Interrupted, UsageError
from penstock.node.config import Config, node_name
from penstock.node.last_end import LAST_S, end_within, keep_for
from penstock.node.node import Node, open_node
from penstock.node.session import credentials_of, server_folder, server_url, topology_of
from penstock.node.systemd import systemd_actors
from penstock.node.traces import begin_traces
from penstock.node.wiring import open_engines
from streams.chance import chance
from streams.clock import now_ms, until_turn_s
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import Connection, connect
from streams.link.store_health import has_room
from streams.subjects import Namespace
from streams.topology.topology import apply, learn_job_streams, require

log = logging.getLogger(__name__)

__all__ = ["Engines", "forget_lost_store", "run_node"]

SWITCH_S = 0.0005
"""How long a thread may keep the interpreter. Beside a busy event loop the SQLite thread writes 500 orders a second at
Python's 5 ms, and 92,000 at half a millisecond (measured)."""
COLLECT_AFTER = (10_000, 20, 50)
"""New objects until the garbage collector runs, and runs until it looks at older ones. Our objects rarely form cycles.
With this, and with the objects of the start frozen, a busy node saves a fifth of its time (measured)."""
Engines = Callable[[Node], AbstractAsyncContextManager[tuple[ActorSpec, ...]]]
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 0.5
REST_S = 10.0
"""Between restarts of a server whose store has failed. A broken disk fails again at once."""
SILENT_S = 2.0
"""How long the embedded server may be away before the node starts it again."""
MEANING = {
    "fast": "acknowledged data survives a killed process; a power cut may lose up to its last two minutes",
    "safe": "acknowledged data survives a killed process, and a power cut where the server syncs always",
}


async def run_node(
    config: Config,
    *,
    engines: Engines = open_engines,
    before: Callable[[Connection], AbstractAsyncContextManager[None]] | None = None,
    on_ready: Callable[[Node], None] = lambda _node: None,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Run a node until it is asked to stop. `before` is opened once the topology exists (it seeds settings). `on_stop`
    is called when a signal asks it to stop, before the work in hand ends.

    Raises the one error that ended it: PenstockError, StreamError, or the error of an actor that ends the node."""
    begin_traces(os.environ)  # the user's own code has been imported by now; an exporter may be missing
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*COLLECT_AFTER)
    stop = anyio.Event()
    with one_error():
        async with anyio.create_task_group() as tasks:
            signals = _Signals(stop, tasks.cancel_scope, config.drain_s, on_stop)
            await tasks.start(signals.heed)
            async with _server(config) as server, _connection(config, server) as connection:
                await _topology(config, connection)
                async with (
                    (before or _nothing)(connection),
                    open_node(config, connection, _record(config), stop) as node,
                ):
                    async with engines(node) as specs:
                        wanted = (*_keeper(server, connection), *node.actors(), *specs, *systemd_actors(stop))
                        await _run(node, wanted, signals, on_ready)
            tasks.cancel_scope.cancel()
    if signals.can_drain:
        end_within(LAST_S, "the node has ended, and a thread runs on")
    if signals.has_cut_short:
        raise Interrupted("stopped at once, by a second signal; unfinished work comes again elsewhere")


async def _run(node: Node, specs: tuple[ActorSpec, ...], signals: "_Signals", on_ready: Callable[[Node], None]) -> None:
    wanted = [spec for spec in specs if node.config.has_role(spec.role)]

    def changed(state: ActorState) -> None:
        log.debug("actor.changed", extra=fields(actor=state.name, status=state.status))
        if state.status in ("restarting", "parked"):
            node.members.beat_soon()

    supervisor = Supervisor(
        wanted,
        stop=node.stop,
        drain_s=node.config.drain_s,
        chance=chance,
        on_change=changed,
    )
    told = node.status
    node.status = lambda: msgspec.structs.replace(told(), actors=supervisor.states())

    async def supervise(*, task_status: TaskStatus[None]) -> None:
        await supervisor.run(task_status=task_status)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        signals.can_drain = True
        await tasks.start(supervise)
        gc.freeze()
        node.members.beat_soon()  # its actors run now
        log.info("node.ready" if supervisor.is_ready() else "node.started", extra=fields(**_told(node, supervisor)))
        on_ready(node)
    log.info("node.stopped", extra=fields(node=node.members.name))


def _told(node: Node, supervisor: Supervisor) -> dict[str, object]:
    return {
        "node": node.members.name,
        "namespace": node.config.namespace,
        "roles": node.config.roles or "all",
        "actors": {state.name: state.status for state in supervisor.states()},
    }


@asynccontextmanager
async def _server(config: Config) -> AsyncIterator[EmbeddedServer | None]:
    """Run the embedded server as long as the node, unless the configuration names another one."""
    if not config.is_embedded:
        yield None
        return
    forget_lost_store(config)
    _make_data_folder(config)
    async with embedded_server(
        server_folder(config),
        port=config.port,
        sync_always=config.profile == "safe",
        on_progress=lambda: keep_for(LAST_S),
    ) as server:
        log.info(
            "server.embedded",
            extra=fields(
                url=server.url, folder=str(server.store), profile=config.profile, means=MEANING[config.profile]
            ),
        )
        yield server


def forget_lost_store(config: Config) -> None:
    """Remove the node's memory of an embedded server whose files are gone. The server that begins there is another one,
    and not an older copy of the same."""
    store, memory = server_folder(config) / "jetstream", config.memory_file()
    if memory.exists() and not store.exists():
        log.warning("server.new_store", extra=fields(folder=str(store), forgotten=str(memory)))
        memory.unlink()


def _keeper(server: EmbeddedServer | None, connection: Connection) -> tuple[ActorSpec, ...]:
    """Return the actor that restarts the embedded server: when it was killed or hangs, or when its store has failed and
    there is room."""

    async def keep(server: EmbeddedServer, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        silent, rested_s = 0, REST_S
        while True:
            await anyio.sleep(until_turn_s(LOOK_S))
            silent, rested_s = 0 if connection.is_connected else silent + 1, rested_s + LOOK_S
            has_failed = connection.store.failed and rested_s >= REST_S and has_room(server.store)
            if silent * LOOK_S >= SILENT_S or has_failed:
                log.warning("server.restarts", extra=fields(url=server.url, why=connection.store.failed or "silent"))
                await server.restart()
                silent, rested_s = 0, 0.0

    if server is None:
        return ()
    return (ActorSpec(name="server", role="", run=partial(keep, server), policy=Policy(then="stop")),)


def _connection(config: Config, server: EmbeddedServer | None) -> AbstractAsyncContextManager[Connection]:
    return connect(
        server_url(config) if server is None else server.url,
        name=f"penstock-{config.name or os.getpid()}",
        namespace=Namespace(config.namespace),
        credentials=credentials_of(config),
        connect_timeout_s=config.connect_s,
    )


async def _topology(config: Config, connection: Connection) -> None:
    """Make missing streams and buckets on the embedded server. Any other server must have had `penstock init`."""
    await learn_job_streams(connection)
    topology = topology_of(config, connection.namespace)
    if config.is_embedded:
        await apply(connection, topology)
    else:
        await require(connection, topology)


def _make_data_folder(config: Config) -> None:
    folder = config.data_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # orders are personal data
    except OSError as error:
        raise UsageError(f"data: {folder}: {error.strerror}; name a folder where this user may write") from error


def _record(config: Config) -> NodeRecord:
    chance = secrets.token_hex(2)
    return NodeRecord(
        node=node_name(config, host=socket.gethostname(), process_id=os.getpid(), chance=chance),
        run=secrets.token_hex(8),
        zone=config.zone,
        labels=config.labels,
        roles=config.roles,
        started_ms=now_ms(),
        version=version("penstock"),
    )


@asynccontextmanager
async def _nothing(_connection: Connection) -> AsyncIterator[None]:
    yield


class _Signals:
    """The first signal asks to stop, the second one ends the node at once. During the start the first one does.

    The process ends even if the node does not. Python's own signal handler takes care of that, since the loop may be
    blocked. If a handler of jobs takes the signals or ignores them, the node takes them back."""

    def __init__(
        self, stop: anyio.Event, everything: anyio.CancelScope, drain_s: float, on_stop: Callable[[], None]
    ) -> None:
        self.can_drain = False
        self.has_cut_short = False
        self._stop = stop
        self._everything = everything
        self._drain_s = drain_s
        self._on_stop = on_stop
        self._count = 0
        self._loops: dict[int, object] = {}
        """The calls that the event loop wants."""

    async def heed(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*SIGNALS) as received:
            for number in SIGNALS:
                self._loops[number] = signal.getsignal(number)
                self._take(number)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep)
                task_status.started()
                async for number in received:
                    name = signal.Signals(number).name
                    if self._stop.is_set() or not self.can_drain:
                        log.warning("node.cut_short", extra=fields(signal=name))
                        self.has_cut_short = self._stop.is_set()
                        self._everything.cancel()
                        return
                    log.info("node.stopping", extra=fields(signal=name))
                    self._on_stop()
                    self._stop.set()

    async def _keep(self) -> None:
        while True:
            await anyio.sleep(until_turn_s(LOOK_S))
            for number in SIGNALS:
                if signal.getsignal(number) != self._heard:
                    name = signal.Signals(number).name
                    log.warning(
                        "node.signal_taken", extra=fields(signal=name, do="leave SIGTERM and SIGINT to the node")
                    )
                    self._take(number)

    def _take(self, number: int) -> None:
        signal.signal(number, self._heard)
        signal.siginterrupt(number, False)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        """Python itself calls this, between any two steps of the running code."""
        self._count += 1
        drain_s = self._drain_s if self._count == 1 and self.can_drain else 0.0
        why = f"{signal.Signals(number).name}, and the node has not ended"
        end_within(drain_s + LAST_S, why, can_wait=self._count == 1)
        loops = self._loops[number]
        if callable(loops):
            loops(number, frame)
