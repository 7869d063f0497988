"""The gateway's actor: listens for HTTP and serves the job desk.

In: HTTP requests, and the records of TOKENS. Out: answers. The job desk carries the requests out. State: none that a
restart would miss. A request with an answer was carried out. A request without one may have been, and the client may
repeat it with the same id or receipt.

- **Address taken**: one warning, and another try each second. Of two nodes on one host the second takes over when the
  first is gone. A node never fails for want of the address.
- **Access**: without tokens, every client on this machine. With tokens, only a client with a valid one. On an address
  that other machines reach, the gateway does not listen before there is a token.
- **Stop**: in two steps with the node. First the gateway accepts no new connections, answers long polls at once, and
  finishes requests at work. Past the drain deadline it cuts them off.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from importlib import import_module

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from actors.batch.desk import BatchDesk
from actors.fetch.source_desk import SourceDesk
from actors.flow.desk import FlowDesk
from actors.flow.rates_desk import RatesDesk
from actors.jobs.desk import JobDesk
from actors.jobs.schedule_desk import ScheduleDesk
from actors.runtime.logs import fields
from actors.runtime.supervisor import ActorSpec
from actors.zone.desk import ZoneDesk
from penstock.api.http.calls import GatewayState
from penstock.api.http.live_tokens import LiveTokens
from penstock.node.config import Config, is_loopback
from penstock.node.node import Node
from penstock.rows.first_look import look_at_file
from penstock.rows.sheet_stream import sheet_parts
from streams.clock import now_ms, until_turn_s

log = logging.getLogger(__name__)

__all__ = ["Gateway", "gateway_spec"]

AGAIN_S = 1.0
BACKLOG = 2048
Address = tuple[str, int]


def gateway_spec(
    node: Node,
    desk: JobDesk,
    batches: BatchDesk,
    schedules: ScheduleDesk,
    flows: FlowDesk,
    rates: RatesDesk,
    zones: ZoneDesk,
    sources: SourceDesk,
) -> ActorSpec:
    """Return the actor to run on a node with the role `gateway`. Without an address it does nothing."""
    shared = GatewayState(
        desk=desk,
        batches=batches,
        schedules=schedules,
        flows=flows,
        rates=rates,
        zones=zones,
        sources=sources,
        sheet_parts=sheet_parts,
        look_at_file=look_at_file,
        is_connected=lambda: node.connection.is_connected,
        trouble=lambda: node.connection.store.trouble,
        answered=node.measures.request_answered,
    )
    gateway = Gateway(node.config, shared, LiveTokens(node.bucket("TOKENS"), now_ms), node.stop)
    return ActorSpec(name="gateway", role="gateway", run=gateway.run, drains=True)


class Gateway:
    """The actor's life. See the module."""

    def __init__(self, config: Config, shared: GatewayState, tokens: LiveTokens, stop: anyio.Event) -> None:
        self.port = 0
        """The port on which it listens: the configured one, or a free one if that is 0."""
        self.is_up = anyio.Event()
        self.shared = shared
        self._config = config
        self._tokens = tokens
        self._stop = stop
        self._is_started = False

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until the node stops. Raises StartFailed for a certificate that cannot be used, NoStream without
        TOKENS."""
        address, self._is_started = self._config.http_address(), False
        if address is None:
            self._say_started(task_status)
            await self._stop.wait()
            return
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._tokens.run)
            is_open = is_loopback(address[0]) and not self._config.behind_proxy
            if is_open or await self._tokens_made(address, task_status):
                listening = await self._bound(address, task_status)
                if listening is not None:
                    await self._serve(listening, task_status, is_open=is_open)
            tasks.cancel_scope.cancel()

    async def _serve(self, listening: socket.socket, task_status: TaskStatus[None], *, is_open: bool) -> None:
        host, port = listening.getsockname()[:2]
        with listening:
            module = await anyio.to_thread.run_sync(import_module, "penstock.node.http_server")  # takes half a second
            server = module.GatewayServer(self._config, self.shared, self._tokens, is_open=is_open)
            needs = "a token" if self._tokens.are_there or not is_open else "nothing: there are no tokens"
            self.port = port
            self.is_up.set()
            log.info("gateway.listens", extra=fields(address=host, port=port, callers_need=needs))
            self._say_started(task_status)
            await server.serve(listening, self._stop)

    async def _tokens_made(self, address: Address, task_status: TaskStatus[None]) -> bool:
        """Return True once there is a token, False if the node stops before."""
        if not self._tokens.are_there:
            log.error(
                "gateway.waits_for_a_token",
                extra=fields(address=address[0], port=address[1], do="penstock tokens add NAME"),
            )
        while not self._tokens.are_there:
            self._say_started(task_status)
            if await self._stopped_before(self._tokens.changed):
                return False
        return True

    async def _bound(self, address: Address, task_status: TaskStatus[None]) -> socket.socket | None:
        """Return a listening socket as soon as the address is free, None if the node stops before."""
        is_told = False
        while not self._stop.is_set():
            try:
                return _listen(address)
            except OSError as error:
                if not is_told:
                    log.warning(
                        "gateway.address_taken",
                        extra=fields(address=address[0], port=address[1], error=error.strerror, tries_every_s=AGAIN_S),
                    )
                is_told = True
            self._say_started(task_status)
            with anyio.move_on_after(until_turn_s(AGAIN_S)):
                await self._stop.wait()
        return None

    def _say_started(self, task_status: TaskStatus[None]) -> None:
        """Report the start early: a node does not wait for a gateway that waits for its address or a token."""
        if not self._is_started:
            self._is_started = True
            task_status.started()

    async def _stopped_before(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Return True if the node is stopped before `wait` returns."""
        async with anyio.create_task_group() as tasks:

            async def cancel_on_stop() -> None:
                await self._stop.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(cancel_on_stop)
            await wait()
            tasks.cancel_scope.cancel()
        return self._stop.is_set()


def _listen(address: Address) -> socket.socket:
    """Return a socket that listens. Raises OSError."""
    host, port = address
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
