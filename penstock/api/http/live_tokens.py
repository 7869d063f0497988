"""Follows TOKENS: on every node a new token works within a moment, and a revoked one no longer does.

In: the records of TOKENS. Out: the caller of a token's text. State: the records in memory, the bucket is the truth. A
record that does not decode is left out and logged. It still counts as a token, so the gateway does not open to all.
While the server is away, the last known records hold.
"""

from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus

from actors.runtime.live import Live
from penstock.api.http.callers import Caller, caller_of
from penstock.api.http.tokens import TokenRecord, decode_token, token_id
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry

__all__ = ["LiveTokens"]

_Held = tuple[TokenRecord, Caller]


class LiveTokens:
    """The tokens that this node knows now."""

    def __init__(self, bucket: Bucket[bytes], now_ms: Callable[[], int]) -> None:
        self._live = Live(bucket, _read, unreadable="token.unreadable")
        self._live.on_change(self._take)
        self._now_ms = now_ms
        self._by_id: dict[str, _Held] = {}
        self._id_of: dict[str, str] = {}
        self._news = anyio.Event()

    @property
    def are_there(self) -> bool:
        """True if TOKENS holds a record, whether or not its token is still valid."""
        return len(self._live) > 0

    @property
    def is_any_live(self) -> bool:
        """True while at least one token is valid."""
        at_ms = self._now_ms()
        return any(record.is_live(at_ms) for record, _ in self._by_id.values())

    def find(self, text: str) -> Caller | None:
        """Return the caller of this token, or None if it is unknown or no longer valid."""
        own_id = token_id(text)
        record, caller = self._by_id.get(own_id or "", (None, None))
        if record is None or not record.fits(text) or not record.is_live(self._now_ms()):
            return None
        return caller

    async def changed(self) -> None:
        """Return at the next change."""
        await self._news.wait()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow the bucket until cancelled. Started once all its records are read. Raises NoStream."""
        await self._live.run(task_status=task_status)

    def _take(self, key: str) -> None:
        self._by_id.pop(self._id_of.pop(key, ""), None)
        held = self._live.get(key)
        if held is not None:
            self._id_of[key] = held[0].id
            self._by_id[held[0].id] = held
        self._news.set()
        self._news = anyio.Event()


def _read(entry: Entry[bytes]) -> _Held:
    record = decode_token(entry.raw)
    return record, caller_of(record)
