"""What systemd hears of the node: it is ready, its event loop still runs, it stops.

systemd names a socket in NOTIFY_SOCKET, and in WATCHDOG_USEC how long it waits for a sign of life (sd_notify(3),
sd_watchdog_enabled(3)). Without these variables there is nothing to do.
"""

import math
import os
import socket
from functools import partial

import anyio
from anyio.abc import TaskStatus

from actors.runtime.supervisor import ActorSpec

__all__ = ["systemd_actors"]


def systemd_actors(stop: anyio.Event) -> tuple[ActorSpec, ...]:
    """Return the actor that reports to systemd, if systemd started this process. It has to be the last one to start."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    return (ActorSpec(name="systemd", role="", run=partial(_report, address, stop)),) if address else ()


async def _report(address: str, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
    every_s = _watchdog_s() / 2
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.send(b"READY=1")
        task_status.started()
        while not stop.is_set():
            channel.send(b"WATCHDOG=1")
            with anyio.move_on_after(every_s):
                await stop.wait()
        channel.send(b"STOPPING=1")
        while True:
            channel.send(b"WATCHDOG=1")
            with anyio.move_on_after(every_s):
                await anyio.sleep_forever()


def _watchdog_s() -> float:
    """Return how long systemd waits for a sign of life. Infinite: it does not watch this process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return math.inf
    return int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6 or math.inf
