"""What a bucket holds: one value under a key at a revision, decoded on first use. Pure.

A reader of thousands of records with thousands of changes a second mostly needs the last change of each, so the bytes
are kept as they came. People and the `nats` command can read JSON. The error for a value that does not decode names its
key.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from streams.errors import MalformedMessage

T = TypeVar("T")

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_UNSET: Any = object()


class Entry(Generic[T]):
    """A value as stored. `raw`: its bytes. `revision`: its sequence in the bucket, for compare-and-set. `stored_ms`:
    when it was stored, by the server's clock. `calls`: the marks of the calls that changed it last (streams/calls.py).
    None where a watch brought it."""

    __slots__ = ("_decode", "_value", "calls", "key", "raw", "revision", "stored_ms")

    def __init__(
        self,
        key: str,
        raw: bytes,
        revision: int,
        decode: Callable[[bytes], T],
        *,
        stored_ms: int = 0,
        calls: Sequence[str] = (),
    ) -> None:
        self.key = key
        self.raw = raw
        self.revision = revision
        self.stored_ms = stored_ms
        self.calls = calls
        self._decode = decode
        self._value: T = _UNSET

    @property
    def value(self) -> T:
        """The decoded value, made on first use. Raises MalformedMessage, naming the key."""
        if self._value is _UNSET:
            try:
                self._value = self._decode(self.raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                message = f"key {self.key} at revision {self.revision}: {error}"
                raise MalformedMessage(f"{message}; put a correct value, or delete the key") from error
        return self._value

    def __repr__(self) -> str:
        return f"Entry(key={self.key!r}, revision={self.revision}, {len(self.raw)} bytes)"


class Change(NamedTuple, Generic[T]):
    """A change of a key: its entry, or None if it was deleted, purged or expired."""

    key: str
    entry: Entry[T] | None


class Synced:
    """Yielded by a watch after the current state: at the start, and each time it was read anew."""

    __slots__ = ()


class Codec(Generic[T]):
    """Bytes to values and back: as they are for `bytes`, JSON for every other type."""

    def __init__(self, type_: type[T]) -> None:
        self.is_raw = type_ is bytes
        self.decode: Callable[[bytes], T] = (
            cast(Callable[[bytes], T], bytes) if self.is_raw else msgspec.json.Decoder(type_).decode
        )

    def encode(self, value: T) -> bytes:
        """Return the bytes to store. Raises TypeError for a value of another kind."""
        if not self.is_raw:
            return msgspec.json.encode(value)
        if isinstance(value, bytes):
            return value
        raise TypeError(f"this bucket holds bytes, not {type(value).__name__}")


@lru_cache(maxsize=64)
def ttl_of(text: str) -> int | None:
    """Return the seconds of a `Nats-TTL` header (`5`, `5s`, `1m30s`). None: it never expires."""
    if text.isdigit():
        return int(text)
    found = _DURATION.fullmatch(text)
    if not found or not text:
        return None
    hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def is_marker(block: bytes | None) -> bool:
    """Return whether a message's headers say that its key is deleted: by a person or node, or by expiry."""
    return block is not None and (b"\nKV-Operation:" in block or b"\nNats-Marker-Reason:" in block)
