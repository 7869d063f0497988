"""Says which dead letters are being sent again, so that a drop at the same moment is not reported as a plain drop.

A caller that sends letters again stores their sequences **before** it looks whether they are still there. A caller that
drops letters removes them **before** it reads what is stored. So one of the two sees the other: the sender finds its
letter gone and sends nothing, or the dropper finds its letter named and reports that it may have been sent.

In and out: keys `replay.<mark>` of LEASES, one for each page of letters. A sender deletes its key when the outcome of
each letter is its own. Otherwise the key keeps the letters in doubt, for a day.
"""

import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress

import msgspec

from streams.buckets.bucket import Bucket
from streams.errors import StreamError

KEPT_S = 86_400
"""Longer than a program stands still between its look and its send."""
MARKER_S = 1
_decoder = msgspec.json.Decoder(tuple[int, ...])


class Resending:
    """The letters that are being sent again. `leases`: the bucket LEASES."""

    def __init__(self, leases: Bucket[bytes]) -> None:
        self._leases = leases

    async def begin(self, seqs: Iterable[int]) -> str:
        """Store that these letters are being sent again, and return the key for `end`. Raises as `Bucket.put`, and then
        nothing may be sent."""
        key = f"replay.{secrets.token_hex(8)}"
        await self._leases.put(key, msgspec.json.encode(tuple(seqs)), ttl_s=KEPT_S)
        return key

    async def end(self, key: str, in_doubt: Collection[int]) -> None:
        """Keep the letters that were sent, or may have been, and that another caller may have removed. Raises nothing
        of ours: a key that stays names more letters than it must."""
        with suppress(StreamError):
            if in_doubt:
                await self._leases.put(key, msgspec.json.encode(tuple(in_doubt)), ttl_s=KEPT_S)
            else:
                await self._leases.delete(key, ttl_s=MARKER_S)

    async def seqs(self) -> set[int]:
        """Return the letters that are being sent again, or are in doubt. Raises Disconnected, NoStream."""
        return {seq for entry in await self._leases.entries("replay.>") for seq in _decoder.decode(entry.raw)}
