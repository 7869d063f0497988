"""The state of the server's store: whether it is full, or has failed and takes nothing until the server is started
again.

If a stream of nats-server 2.15 could not be written once (a full disk, a broken one), it takes nothing more until a
restart, and answers no request. Only the monitoring address reports it (`/healthz`), and only there stands how much of
its limit the server uses (`/jsz`). If an external server gives no such address, an account's own limit is all that is
known.
"""

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread

from streams.errors import StoreFailed, StoreFull

ANSWER_S = 5.0
MOST_BYTES = 1 << 20
MOST_RESERVE = 1 << 30
MOST_TOLD = 3
RESTART = "make room, or mend the disk, and start the server again; an embedded one is started again by its node"
"""What to do about a store that has failed."""
_OF_THE_STORE = ("write error", "could not be recovered")


class StoreHealth(NamedTuple):
    """`used` of `limit` bytes. A `limit` of 0 is not known. `failed`: the server's own report, empty if all is well.
    `failed_streams`: the streams that take nothing. An empty name means all of them."""

    used: int = 0
    limit: int = 0
    failed: str = ""
    failed_streams: frozenset[str] = frozenset()


class StoreState:
    """What a node knows of the store. The store watch writes it, and the API reads it."""

    def __init__(self) -> None:
        self.full = ""
        """Why nothing may be added. Empty while there is room."""
        self.failed = ""
        """Why nothing can be stored. Empty while all is well."""
        self.failed_streams: frozenset[str] = frozenset()
        """The streams that take nothing. An empty name means all of them."""

    @property
    def kind(self) -> str:
        """`failed`, `full`, or empty."""
        return "failed" if self.failed else "full" if self.full else ""

    @property
    def trouble(self) -> str:
        """One sentence, empty if there is no trouble."""
        return self.failed or self.full

    def admit(self, subject: str) -> None:
        """Return if something may be added. Raises StoreFull, StoreFailed: nothing was sent.

        Settles, deletes and moves do not call it: they have the room that is kept for them."""
        if self.failed:
            raise StoreFailed(self.failed, subject=subject)
        if self.full:
            raise StoreFull(self.full, subject=subject)

    def check(self, stream: str) -> None:
        """Return if messages of a stream can be settled, deleted and moved, also while the store is full, and while
        other streams have failed. Raises StoreFailed: nothing was sent."""
        if self.failed_streams & {stream, ""}:
            raise StoreFailed(self.failed, subject=stream)


def reserve_of(total: int) -> int:
    """Return the bytes of `total` to keep for settles and deletes."""
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
    """Request the state from a server's monitoring address. None if it gives no answer that can be read."""
    return await anyio.to_thread.run_sync(_monitored, url.rstrip("/"), abandon_on_cancel=True)


async def account_health(ask: Callable[[str], Awaitable[Mapping[str, Any]]]) -> StoreHealth:
    """Return the state by the account's own limit. `ask` sends requests to the JetStream API, and its errors are
    raised."""
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
    """Return the write errors in an answer of `/healthz`, shortened, and without the server's paths, since any caller
    of `/ready` sees them. A cluster that has yet to catch up is not meant."""
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
