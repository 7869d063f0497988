"""A link over WebSocket, for which aiohttp is imported only then."""

import socket
import sys
from pathlib import Path

import anyio

from streams.embedded.server import embedded_server

ASK = """
import asyncio, sys
from streams.link.connection import connect
assert "aiohttp" not in sys.modules

async def main(url):
    async with connect(url, name="test") as connection:
        print("limits" in await connection.api("INFO"))

asyncio.run(main(sys.argv[1]))
print("aiohttp" in sys.modules)
"""


async def test_a_link_over_websocket_works_and_another_loads_nothing_for_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}'
    async with embedded_server(tmp_path / "store", config=config) as server:
        for url, loads in ((f"ws://127.0.0.1:{port}", True), (server.url, False)):
            command = [sys.executable, "-c", ASK, url]
            with anyio.fail_after(60):
                done = await anyio.run_process(command, check=False)
            assert done.stdout.decode().split() == ["True", str(loads)], done.stderr.decode()
