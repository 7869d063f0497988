"""What each read slice held, as 8 bytes for a key and version, so that a second look publishes only new rows.

A digest is kept in DIGESTS under `<platform>.<source>.h<hour>.<slice_id>` (the hour in which the slice starts) until
the last second look is over. What does not fit into one message continues under `<slice_id>_1`, `_2`, … Losing a digest
costs a repeat, never an order, so a digest that cannot be stored or read stops nothing. 8 bytes are enough, since only
one source's hours are compared: for a hundred thousand rows the chance of a collision is one in three billion, and then
only on the second look.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from hashlib import blake2b

import msgspec

from actors.fetch.rules.slices import MalformedSliceId, Slice, parse_slice_id
from actors.fetch.sources import SourceKey
from actors.runtime.logs import fields
from platforms.adapter import Row
from platforms.bounds import Window
from streams.bucket import Bucket
from streams.errors import MalformedMessage, Refused

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
SIZE = 8
MOST_ROWS = 60_000
"""Rows in one message: 640 kB in base64, below the server's megabyte."""
MOST_HOURS = 24
"""Up to this number each hour is read alone. Beyond it, reading all digests of the source costs less."""
SPARE_S = 3_600


class Digest(msgspec.Struct, frozen=True):
    """The rows of one slice: their number, and their hashes one after the other in base64."""

    rows: int
    hashes: str


def row_hash(row: Row) -> bytes:
    """Return 8 bytes that stand for the row's key and version."""
    return blake2b(f"{row.key}\0{row.version}".encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()


def hours(start_ms: int, end_ms: int) -> range:
    """Return the hours since 1970 that `[start_ms, end_ms)` touches."""
    return range(start_ms // HOUR_MS, -(-end_ms // HOUR_MS))


def window_of(key: str) -> Window | None:
    """Return the window of the slice whose digest stands under a key. `None`: the key has another form."""
    name = key.rpartition(".")[2].partition("_")[0]
    try:
        piece = parse_slice_id(name)
    except MalformedSliceId:
        return None
    return Window(piece.start_ms, piece.end_ms)


class Digests:
    """Writes and reads digests."""

    def __init__(self, bucket: Bucket[Digest]) -> None:
        self._bucket = bucket

    async def put(self, source: SourceKey, piece: Slice, hashes: set[bytes], *, keep_ms: int) -> None:
        """Keep the hashes of `piece` until `keep_ms` after now. What the server refuses is left out."""
        rows, ttl_s = sorted(hashes), keep_ms // 1000 + SPARE_S
        key = f"{source.key}.h{piece.start_ms // HOUR_MS}.{piece.slice_id}"
        try:
            for number, at in enumerate(range(0, len(rows), MOST_ROWS)):
                part = rows[at : at + MOST_ROWS]
                digest = Digest(len(part), b64encode(b"".join(part)).decode())
                await self._bucket.put(f"{key}_{number}" if number else key, digest, ttl_s=ttl_s)
        except Refused as error:
            log.warning("digest.not_stored", extra=fields(key=key, error=str(error)))

    async def known(self, source: SourceKey, window: Window, *, longest_ms: int = HOUR_MS) -> set[bytes]:
        """Return the hashes of all rows read in slices that touch the window. No slice is longer than `longest_ms`."""
        touched = hours(window.start_ms - max(longest_ms, HOUR_MS), window.end_ms)
        each_hour = [f"{source.key}.h{hour}.*" for hour in touched]
        found: set[bytes] = set()
        for pattern in each_hour if len(each_hour) <= MOST_HOURS else [f"{source.key}.*.*"]:
            found |= await self._matching(pattern, window)
        return found

    async def _matching(self, pattern: str, window: Window) -> set[bytes]:
        found: set[bytes] = set()
        try:
            entries = await self._bucket.entries(pattern)
        except MalformedMessage as error:
            log.warning("digest.not_read", extra=fields(pattern=pattern, error=str(error)))
            return found
        for entry in entries:
            slice_window = window_of(entry.key)
            if slice_window and slice_window.start_ms < window.end_ms and window.start_ms < slice_window.end_ms:
                found |= read_hashes(entry.value)
        return found


def read_hashes(digest: Digest) -> set[bytes]:
    """Return the hashes of a digest. Empty if it is malformed, because somebody wrote it by hand."""
    try:
        raw = b64decode(digest.hashes, validate=True)
    except ValueError:
        return set()
    return {raw[at : at + SIZE] for at in range(0, len(raw) - SIZE + 1, SIZE)}
