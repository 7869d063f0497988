"""uvicorn, as a part of a node: no signals, logging or exit of its own, and the node waits for each of its tasks."""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Iterator

import anyio
import uvicorn

from penstock.api.http.app import build_app
from penstock.api.http.calls import GatewayState
from penstock.api.http.connections import BoundedConnection, connection_class
from penstock.api.http.door import Door
from penstock.api.http.limits import MOST_CONNECTIONS, MOST_PER_ADDRESS, Census
from penstock.api.http.live_tokens import LiveTokens
from penstock.errors import StartFailed
from penstock.node.config import Config
from streams.clock import until_turn_s

__all__ = ["GatewayServer"]

BACKLOG = 2048
TICK_S = 1.0
LOOK_S = 0.5
"""How often the server checks connections: it closes a slow client at most so much later than its limit."""
LAST_S = 2.0
"""The time in which requests that were cut off must end."""
HEADERS = [
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
]


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without the node's duties. It wakes once a second, for the Date header and to end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_ending = anyio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._is_ending.set()

    async def main_loop(self) -> None:
        while not self.should_exit:
            await self.on_tick(0)
            with anyio.move_on_after(until_turn_s(TICK_S)):
                await self._is_ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the node handles them


class GatewayServer:
    """One gateway on one socket. Use `serve` once."""

    def __init__(self, config: Config, shared: GatewayState, tokens: LiveTokens, *, is_open: bool) -> None:
        self._shared = shared
        self._server = _Uvicorn(_uvicorn_config(config, shared, tokens, is_open=is_open))

    async def serve(self, listening: socket.socket, stop: anyio.Event) -> None:
        """Answer until `stop` is set and requests at work are finished. A cancellation cuts them off."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._look)
                tasks.start_soon(self._shared.quotas.run)
                tasks.start_soon(self._end_on, stop)
                await self._server.serve([listening])
                tasks.cancel_scope.cancel()
        finally:
            listening.close()
            with anyio.move_on_after(LAST_S, shield=True):
                await self._cut_off()

    async def _end_on(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._shared.end_polls()
        self._server.end()

    async def _look(self) -> None:
        """Let connections do what is due, most often end."""
        loop = asyncio.get_running_loop()
        while True:
            await anyio.sleep(until_turn_s(LOOK_S))
            for connection in list(self._server.server_state.connections):
                if isinstance(connection, BoundedConnection):
                    connection.look(loop.time())

    async def _cut_off(self) -> None:
        """Wait for each of uvicorn's tasks to end, since they have no parent."""
        state = self._server.server_state
        for connection in list(state.connections):
            if isinstance(connection, BoundedConnection):
                connection.transport.abort()
        for task in list(state.tasks):
            task.cancel()
        if state.tasks:
            await asyncio.wait(list(state.tasks))


def _uvicorn_config(config: Config, shared: GatewayState, tokens: LiveTokens, *, is_open: bool) -> uvicorn.Config:
    door = Door(build_app(shared), shared, tokens, is_open=is_open, behind_proxy=config.behind_proxy)
    made = uvicorn.Config(
        door,
        http=connection_class(_census(config)),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=HEADERS,
        backlog=BACKLOG,
        ssl_certfile=config.http_cert or None,
        ssl_keyfile=config.http_key or None,
    )
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the door logs what is needed, in our form
    try:
        made.load()
    except (OSError, ssl.SSLError) as error:
        raise StartFailed(f"http_cert {config.http_cert}, http_key {config.http_key}: {error}") from error
    if made.ssl is not None:
        made.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return made


def _census(config: Config) -> Census:
    """Return a count with room for half of the files that this process may open. The rest is for everything else.
    Behind a proxy all connections come from one address."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft // 2))
    return Census(most, most if config.behind_proxy else MOST_PER_ADDRESS)
