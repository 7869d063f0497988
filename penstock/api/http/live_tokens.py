"""Follows TOKENS, so that a new token works and a revoked one does not within a moment, on every node.

In: the records of TOKENS. Out: who a token's text belongs to. State: the records in memory; the bucket is the truth. A
record that does not decode is left out, told in the log, and still counts as one: the gateway is not open to anybody.
While the server is away, what was known last holds.
"""

import logging
from collections.abc import Callable

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.runtime.logs import fields
from penstock.api.http.callers import Caller, caller_of
from penstock.api.http.tokens import TokenRecord, decode_token, token_id
from streams.bucket import Bucket, Entry, Synced

log = logging.getLogger(__name__)

__all__ = ["LiveTokens"]


class LiveTokens:
    """The tokens that are known now."""

    def __init__(self, bucket: Bucket[bytes], now_ms: Callable[[], int]) -> None:
        self._bucket = bucket
        self._now_ms = now_ms
        self._records: dict[str, TokenRecord | None] = {}
        self._by_id: dict[str, tuple[TokenRecord, Caller]] = {}
        self._news = anyio.Event()

    @property
    def are_there(self) -> bool:
        """True once any token was made, whether or not it is still valid."""
        return bool(self._records)

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
        unseen, is_started = set(self._records), False
        async with self._bucket.watch() as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    for key in unseen:
                        self._take(key, None)
                    unseen = set()
                    if not is_started:  # it is told again after each reconnect
                        is_started = True
                        task_status.started()
                    continue
                unseen.discard(change.key)
                self._take(change.key, change.entry)

    def _take(self, key: str, entry: Entry[bytes] | None) -> None:
        before = self._records.pop(key, None)
        if before is not None:
            self._by_id.pop(before.id, None)
        if entry is not None:
            record = self._records[key] = _record(key, entry)
            if record is not None:
                self._by_id[record.id] = (record, caller_of(record))
        self._news.set()
        self._news = anyio.Event()


def _record(key: str, entry: Entry[bytes]) -> TokenRecord | None:
    try:
        record = decode_token(entry.value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.warning("token.unreadable", extra=fields(key=key, error=str(error)))
        return None
    return record
