"""A node as `penstock up` runs it, with two oddities: `python -m tests.support.odd_node SKEW_MS up …`.

Its wall clock is off by SKEW_MS, from before the first import of ours; the monotonic clock is not. At SIGUSR1 it writes
a JSON line to stdout: how many tasks and open files it has, and how many sockets by the port of their other end.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections import Counter


def skew_clock(by_ms: int) -> None:
    """Move this process's wall clock."""
    true_ns = time.time_ns
    time.time_ns = lambda: true_ns() + by_ms * 1_000_000
    time.time = lambda: time.time_ns() / 1e9


def peer_port(descriptor: int) -> int:
    """Return the port at the other end of a TCP socket; 0 for whatever else it is."""
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            peer = copy.getpeername()
    except OSError:  # not connected, or closed meanwhile
        return 0
    return peer[1] if isinstance(peer, tuple) else 0


def tell_counts(*_signal: object) -> None:
    """Write what must not grow. Runs inside the loop's thread, between two steps."""
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    ports = [port for port in map(peer_port, descriptors) if port]
    counts: Counter[str] = Counter(f"port {port}" for port in ports)
    counts |= {"tasks": len(asyncio.all_tasks()), "files": len(descriptors) - len(ports)}
    os.write(sys.stdout.fileno(), json.dumps(counts).encode() + b"\n")


def main() -> None:
    _, by_ms, *arguments = sys.argv
    skew_clock(int(by_ms))
    signal.signal(signal.SIGUSR1, tell_counts)
    from penstock.cli import main as penstock

    sys.argv = ["penstock", *arguments]
    penstock()


if __name__ == "__main__":
    main()
