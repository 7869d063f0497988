"""What each read slice held, as 8 bytes for a key and version, so that a second look publishes only new rows.

Of a platform without versions each reading, also one that did not come to its end, keeps 8 bytes for a key, 8 for the
content and 8 for the time. Every reading of such a platform publishes only rows whose content is not the latest one of
their key.

A digest is kept in DIGESTS under `<platform>.<source>.h<hour>.<slice_id>` (the hour in which the slice starts) until
the last second look is over. What does not fit into one message continues under `<slice_id>_1`, `_2`, … Losing a digest
costs a repeat, never an order, so a digest that cannot be stored or read stops nothing. 8 bytes are enough, since only
one source's hours are compared: for a hundred thousand rows the chance of a collision is one in three billion, and then
only on the second look.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import msgspec

from actors.fetch.rules.slices import MalformedSliceId, Slice, parse_slice_id
from actors.fetch.sources import SourceKey
from actors.runtime.logs import fields
from platforms.adapter import Row
from platforms.bounds import Window
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.errors import MalformedMessage, Refused

log = logging.getLogger(__name__)
T = TypeVar("T")

HOUR_MS = 3_600_000
SIZE = 8
MOST_ROWS = 60_000
"""Rows in one message: 640 kB in base64, below the server's megabyte."""
MOST_CONTENTS = MOST_ROWS // 3
CONTENTS_MS = 7 * 86_400_000
"""How long contents are kept at least. A later backfill publishes again what it lists, and the store compares."""
MOST_HOURS = 72
"""Up to this number each hour is read alone. Beyond it, reading all digests of the source costs less."""
SPARE_S = 3_600


class Digest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows of one slice: their number, and their hashes one after the other in base64. Or contents, each a key's
    hash and the content's, and `times`: 8 bytes for when each of them was read."""

    rows: int
    hashes: str = ""
    contents: str = ""
    times: str = ""


class Content(NamedTuple):
    """The hash of a row's content, and when it was read. The latest one is the greatest."""

    read_ms: int
    hash: bytes


def row_hash(row: Row) -> bytes:
    """Return 8 bytes that stand for the row's key and version."""
    return blake2b(f"{row.key}\0{row.version}".encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()


def key_hash(row: Row) -> bytes:
    """Return 8 bytes that stand for the row's key."""
    return blake2b(row.key.encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()


def content_hash(row: Row) -> bytes:
    """Return 8 bytes that stand for the row's content, where its version is `content_version`."""
    return row.version.to_bytes(SIZE, "big")


def hours(start_ms: int, end_ms: int) -> range:
    """Return the hours since 1970 that `[start_ms, end_ms)` touches."""
    return range(start_ms // HOUR_MS, -(-end_ms // HOUR_MS))


def piece_of(key: str) -> Slice | None:
    """Return the slice whose digest stands under a key. `None`: the key has another form."""
    try:
        return parse_slice_id(key.rpartition(".")[2].partition("_")[0])
    except MalformedSliceId:
        return None


class Digests:
    """Writes and reads digests."""

    def __init__(self, bucket: Bucket[Digest]) -> None:
        self._bucket = bucket

    async def put(self, source: SourceKey, piece: Slice, hashes: set[bytes], *, keep_ms: int) -> None:
        """Keep the hashes of `piece` until `keep_ms` after now. What the server refuses is left out."""
        digests = [Digest(len(part), _packed(part)) for part in _parts(sorted(hashes), MOST_ROWS)]
        await self._put(_key(source, piece), digests, keep_ms)

    async def put_contents(
        self, source: SourceKey, piece: Slice, fence: int, contents: Mapping[bytes, Content], *, keep_ms: int
    ) -> None:
        """Keep the contents that one reading of `piece` found, by the hashes of their keys, as `put` does. `fence`
        tells the readings of one slice apart."""
        digests = []
        for part in _parts(list(contents.items()), MOST_CONTENTS):
            pairs = _packed([key + content.hash for key, content in part])
            times = _packed([content.read_ms.to_bytes(SIZE, "big") for _, content in part])
            digests.append(Digest(len(part), "", pairs, times))
        await self._put(f"{_key(source, piece)}_f{fence}", digests, max(keep_ms, CONTENTS_MS))

    async def _put(self, key: str, digests: list[Digest], keep_ms: int) -> None:
        try:
            for number, digest in enumerate(digests):
                name = f"{key}_{number}" if number else key
                await self._bucket.put(name, digest, ttl_s=keep_ms // 1000 + SPARE_S)
        except Refused as error:
            log.warning("digest.not_stored", extra=fields(key=key, error=str(error)))

    async def contents(
        self, source: SourceKey, window: Window, *, longest_ms: int = HOUR_MS, epoch: int = 0
    ) -> dict[bytes, Content]:
        """Return the latest content of each key that was read in slices that touch the window, by their hashes.
        `epoch`: in slices of this epoch only. 0: of all."""
        entries = await self._touching(source, window, longest_ms, epoch)
        found: dict[bytes, Content] = {}
        for digest in (entry.value for entry in entries):
            pairs, times = _unpacked(digest.contents, 2 * SIZE), _unpacked(digest.times, SIZE)
            for pair, time in zip(pairs, times, strict=False):
                content = Content(int.from_bytes(time, "big"), pair[SIZE:])
                found[pair[:SIZE]] = max(content, found.get(pair[:SIZE], content))
        return found

    async def known(
        self, source: SourceKey, window: Window, *, longest_ms: int = HOUR_MS, epoch: int = 0
    ) -> set[bytes]:
        """Return the hashes of all rows read in slices that touch the window. No slice is longer than `longest_ms`.
        `epoch`: as in `contents`."""
        entries = await self._touching(source, window, longest_ms, epoch)
        return set[bytes]().union(*(read_hashes(entry.value) for entry in entries))

    async def _touching(self, source: SourceKey, window: Window, longest_ms: int, epoch: int) -> list[Entry[Digest]]:
        touched = hours(window.start_ms - max(longest_ms, HOUR_MS), window.end_ms)
        is_short = len(touched) <= MOST_HOURS
        found: list[Entry[Digest]] = []
        for pattern in [f"{source.key}.h{hour}.*" for hour in touched] if is_short else [f"{source.key}.*.*"]:
            found += await self._matching(pattern, window, epoch)
        return found

    async def _matching(self, pattern: str, window: Window, epoch: int) -> list[Entry[Digest]]:
        try:
            entries = await self._bucket.entries(pattern)
        except MalformedMessage as error:
            log.warning("digest.not_read", extra=fields(pattern=pattern, error=str(error)))
            return []
        return [entry for entry in entries if _touches(piece_of(entry.key), window, epoch)]


def read_hashes(digest: Digest) -> set[bytes]:
    """Return the hashes of a digest. Empty if it is malformed, because somebody wrote it by hand."""
    return set(_unpacked(digest.hashes, SIZE))


def _key(source: SourceKey, piece: Slice) -> str:
    return f"{source.key}.h{piece.start_ms // HOUR_MS}.{piece.slice_id}"


def _touches(piece: Slice | None, window: Window, epoch: int) -> bool:
    if piece is None or epoch not in (0, piece.epoch):
        return False
    return piece.start_ms < window.end_ms and window.start_ms < piece.end_ms


def _parts(rows: list[T], most: int) -> list[list[T]]:
    return [rows[at : at + most] for at in range(0, len(rows), most)]


def _packed(hashes: list[bytes]) -> str:
    return b64encode(b"".join(hashes)).decode()


def _unpacked(text: str, size: int) -> list[bytes]:
    try:
        raw = b64decode(text, validate=True)
    except ValueError:
        return []
    return [raw[at : at + size] for at in range(0, len(raw) - size + 1, size)]
