"""Follows TOKENS, so that a new token works and a revoked one does not within a moment, on every node.

In: the records of TOKENS. Out: who a token's text belongs to. State: the records in memory; the bucket is the truth. A
record that does not decode is left out, told in the log, and still counts as one: the gateway is not open to anybody.
While the server is away, what was known last holds.
"""

from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus

from actors.runtime.live import Live
from penstock.api.http.callers import Caller, caller_of
from penstock.api.http.tokens import TokenRecord, decode_token, token_id
from streams.bucket import Bucket
from streams.entries import Entry

__all__ = ["LiveTokens"]

_Held = tuple[TokenRecord, Caller]


class LiveTokens:
    """The tokens that are known now."""

    def __init__(self, bucket: Bucket[bytes], now_ms: Callable[[], int]) -> None:
        self._live = Live(bucket, _read, unreadable="token.unreadable")
        self._live.on_change(self._take)
        self._now_ms = now_ms
        self._by_id: dict[str, _Held] = {}
        self._id_of: dict[str, str] = {}
        self._news = anyio.Event()

    @property
    def are_there(self) -> bool:
        """True once any token was made, whether or not it is still valid."""
        return len(self._live) > 0

    @property
    def is_any_live(self) -> bool:
        """True while somebody could be let in."""
        at_ms = self._now_ms()
        return any(record.is_live(at_ms) for record, _ in self._by_id.values())

    def find(self, text: str) -> Caller | None:
        """Return whose token this is, None if it is nobody's (any more)."""
        own_id = token_id(text)
        record, caller = self._by_id.get(own_id or "", (None, None))
        if record is None or not record.fits(text) or not record.is_live(self._now_ms()):
            return None
        return caller

    async def changed(self) -> None:
        """Return at the next change."""
        await self._news.wait()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow the bucket until cancelled; started once all is known that stands there. Raises NoStream."""
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
