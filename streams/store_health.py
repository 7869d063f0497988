"""How the server's store fares: whether it is full, or has failed and takes nothing until the server is started again.

A stream of nats-server 2.15 that could not be written once (a full disk, a broken one) takes nothing more until a
restart, and answers nobody. Only the monitoring address tells it (`/healthz`), and there alone stands how much of its
limit the server uses (`/jsz`). Of a server elsewhere that gives none, an account's own
limit is all that is known.
"""

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread

from streams.errors import StoreFailed, StoreFull

__all__ = ["StoreHealth", "StoreState", "account_health", "monitor_health", "reserve_of", "room_at", "why_failed"]

ANSWER_S = 5.0
MOST_BYTES = 1 << 20
MOST_RESERVE = 1 << 30
MOST_TOLD = 3
_OF_THE_STORE = ("write error", "could not be recovered")


class StoreHealth(NamedTuple):
    """`used` of `limit` bytes; a `limit` of 0 is none that is known. `failed`: what the server says of itself, empty
    if all is well. `failed_streams`: which streams take nothing; an empty name: all of them."""

    used: int = 0
    limit: int = 0
    failed: str = ""
    failed_streams: frozenset[str] = frozenset()


class StoreState:
    """What a node knows of the store by now. Written by the store watch, read by the doors."""

    def __init__(self) -> None:
        self.full = ""
        """Why nothing may be added; empty while there is room."""
        self.failed = ""
        """Why nothing can be stored; empty while all is well."""
        self.failed_streams: frozenset[str] = frozenset()
        """Which streams take nothing; an empty name: all of them."""

    @property
    def kind(self) -> str:
        """`failed`, `full`, or empty."""
        return "failed" if self.failed else "full" if self.full else ""

    @property
    def trouble(self) -> str:
        """One sentence; empty if there is none."""
        return self.failed or self.full

    def admit(self, subject: str) -> None:
        """Return if something may be added. Raises StoreFull, StoreFailed: nothing was sent.

        What settles, deletes and moves is not asked: it has the room that is kept for it."""
        if self.failed:
            raise StoreFailed(self.failed, subject=subject)
        if self.full:
            raise StoreFull(self.full, subject=subject)

    def check(self, stream: str) -> None:
        """Return if what is in a stream can be settled, deleted and moved: also while the store is full, and while
        others have failed. Raises StoreFailed: nothing was sent."""
        if self.failed_streams & {stream, ""}:
            raise StoreFailed(self.failed, subject=stream)


def reserve_of(total: int) -> int:
    """Return the bytes to be kept for what settles and deletes, of so many in all."""
    return min(total // 20, MOST_RESERVE)


def room_at(folder: Path) -> tuple[int, int]:
    """Return the free bytes of the disk under a folder, and how many are to be kept."""
    disk = shutil.disk_usage(folder)
    return disk.free, reserve_of(disk.total)


def has_room(folder: Path) -> bool:
    """Return whether the disk under a folder has more room than is to be kept."""
    free, kept = room_at(folder)
    return free > kept


async def monitor_health(url: str) -> StoreHealth | None:
    """Ask a server's monitoring address; None if it gives no answer that can be read."""
    return await anyio.to_thread.run_sync(_monitored, url.rstrip("/"), abandon_on_cancel=True)


async def account_health(ask: Callable[[str], Awaitable[Mapping[str, Any]]]) -> StoreHealth:
    """Return what the account's own limit says; `ask` asks the JetStream API, and its errors go on up."""
    told = await ask("INFO")
    return StoreHealth(told.get("storage", 0), max(0, told.get("limits", {}).get("max_storage", 0)))


def _monitored(url: str) -> StoreHealth | None:
    store, health = _got(f"{url}/jsz"), _got(f"{url}/healthz?details=true")
    if store is None or health is None:
        return None
    limit = store.get("config", {}).get("max_storage", 0)
    failed_streams = frozenset(one.get("stream", "") for one in _write_errors(health))
    return StoreHealth(store.get("storage", 0), limit, why_failed(health), failed_streams)


def why_failed(health: Mapping[str, Any]) -> str:
    """Return the errors of writing in an answer of `/healthz`, shortened, and without the server's paths: whoever asks
    `/ready` is told them. A cluster that has yet to catch up is not meant."""
    errors = _write_errors(health)
    told = [f"{one.get('stream') or 'server'}: {one['error'].rpartition(': ')[2]}" for one in errors[:MOST_TOLD]]
    more = len(errors) - len(told)
    return ", ".join([*told, f"and {more} more"] if more else told)


def _write_errors(health: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in health.get("errors") or () if any(word in one.get("error", "") for word in _OF_THE_STORE)]


def _got(url: str) -> dict[str, Any] | None:
    from urllib.error import HTTPError  # not needed by most, and not free
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=ANSWER_S) as answer:  # the server's own address, or one that the config has checked
            body = answer.read(MOST_BYTES)
    except HTTPError as error:  # an unhealthy server says so with 500 or 503, and why
        body = error.read(MOST_BYTES)
    except (OSError, ValueError):
        return None
    try:
        told = json.loads(body)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None
