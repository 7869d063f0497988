"""What a reading lists, as it is stored: which rows are new, how they fit messages, and letters for the bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from actors.digests import row_hash
from actors.fetcher.decisions import ReadSlice
from platforms.adapter import BadRow, Row
from streams.messages import DeadLetter, dead_body
from streams.subjects import token_of

__all__ = ["bad_letter", "pages_of", "take_new"]

PAGE_BYTES = 256 * 1024
"""Bodies in one message: a quarter of the server's default limit, and still hundreds of orders."""


def pages_of(rows: Sequence[Row], most_bytes: int = PAGE_BYTES) -> list[Sequence[Row]]:
    """Cut rows into what fits one message; a row alone may exceed `most_bytes`."""
    cut, start, size = [], 0, 0
    for at, row in enumerate(rows):
        if size + len(row.body) > most_bytes and at > start:
            cut.append(rows[start:at])
            start, size = at, 0
        size += len(row.body)
    return [*cut, rows[start:]]


def take_new(rows: list[Row], known: set[bytes], fresh: set[bytes]) -> list[Row]:
    """Return the rows that are not among the `known` hashes, and add theirs to `fresh`."""
    new = []
    for row in rows:
        mark = row_hash(row)
        if mark not in known:
            fresh.add(mark)
            new.append(row)
    return new


def bad_letter(work: ReadSlice, row: BadRow, now_ms: int) -> DeadLetter:
    """Return the dead letter of a row that cannot be read: its beginning, under its key and a hash of what it says, so
    that the same row has one letter however often it is listed."""
    body, is_base64 = dead_body(row.body)
    said = blake2b(row.body, digest_size=6).hexdigest()
    key = said if row.key is None else f"{row.key}_{said}"
    return DeadLetter(
        engine="fetch",
        name=work.source.platform,
        id=token_of(f"{work.source.source}_{key}"),
        reason=f"{work.slice.slice_id}: {row.reason}",
        attempts=work.slice.attempt,
        first_ms=now_ms,
        body=body,
        is_base64=is_base64,
    )
