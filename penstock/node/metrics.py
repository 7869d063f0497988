"""Serves a node's figures to Prometheus, where `metrics` names an address."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from penstock.errors import StartFailed, UsageError

__all__ = ["serve_metrics"]


@contextmanager
def serve_metrics(address: str, registry: CollectorRegistry) -> Iterator[None]:
    """Serve `registry` on HOST:PORT in a thread until the block ends. An empty address serves nothing.
    Raises UsageError for a malformed address, StartFailed if the process cannot listen on it."""
    if not address:
        yield
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(f"metrics: {address!r} is no address; write HOST:PORT, as in 127.0.0.1:9464")
    try:
        server, thread = start_http_server(int(port), host, registry)
    except OSError as error:
        raise StartFailed(f"metrics: cannot listen on {address}: {error.strerror or error}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
