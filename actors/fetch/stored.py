"""What is stored of sources, read once: for commands and requests, which are short and follow nothing.

A record that a person broke is returned as `Broken`, so that it stops only what needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from actors.fetch.ledgers import BrokenLedger, read_ledger
from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey, SourceRecord, source_of
from platforms.adapter import Adapter
from platforms.registry import NoSuchAdapter, adapter_names, make_adapter
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.subjects import check_token

T = TypeVar("T")


class Broken(msgspec.Struct, frozen=True):
    """A stored record that does not decode, and why."""

    key: str
    why: str


async def stored_names(settings: Bucket[bytes], ledgers: Bucket[bytes], pattern: str) -> list[SourceKey]:
    """Return the names of all sources and ledgers that match, in order. Some that were deleted may be among them."""
    records = await settings.keys(f"source.{pattern}")
    return sorted({*(_named(key) for key in records), *map(source_of, await ledgers.keys(pattern))})


async def stored_sources(
    settings: Bucket[bytes], pattern: str = ">", *, names: Sequence[SourceKey] | None = None
) -> dict[SourceKey, SourceRecord | Broken]:
    """Return the source records whose `platform.source` matches, or those of these names."""
    if names is None:
        entries = await settings.entries(f"source.{pattern}")
    else:
        entries = await settings.entries_of([f"source.{name.key}" for name in names])
    return {_named(entry.key): decoded(entry, SourceRecord) for entry in entries}


async def stored_ledgers(
    ledgers: Bucket[bytes], pattern: str = ">", *, names: Sequence[SourceKey] | None = None
) -> dict[SourceKey, Ledger | Broken]:
    """Return the ledgers whose `platform.source` matches, or those of these names."""
    found: dict[SourceKey, Ledger | Broken] = {}
    entries = ledgers.entries(pattern) if names is None else ledgers.entries_of([name.key for name in names])
    for entry in await entries:
        source = source_of(entry.key)
        try:
            found[source] = read_ledger(source, entry.value)
        except BrokenLedger as error:
            found[source] = Broken(entry.key, str(error))
    return found


async def stored_adapter(settings: Bucket[bytes], name: str) -> Adapter:
    """Return an adapter by name: a stored one, else a built-in one. Raises BadDeclaration, MalformedSubject, and
    msgspec.DecodeError. NoSuchAdapter names the nearest of both kinds."""
    entry = await settings.get(f"adapter.{check_token('adapter', name)}")
    if entry is None and name not in adapter_names():
        raise NoSuchAdapter(name, [key.removeprefix("adapter.") for key in await settings.keys("adapter.>")])
    return make_adapter(name if entry is None else msgspec.json.decode(entry.value, type=dict[str, object]))


def _named(key: str) -> SourceKey:
    return source_of(key.removeprefix("source."))


def decoded(entry: Entry[bytes], type_: type[T]) -> T | Broken:
    """Return a stored record."""
    try:
        return msgspec.json.decode(entry.value, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Broken(entry.key, str(error))
