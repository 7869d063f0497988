"""The existing sources: one record a source under `source.<platform>.<source>` in SETTINGS, one a declared adapter
under `adapter.<name>`. `penstock sources add` or `nats kv put` writes them. Every node follows them live.

A record that does not decode is ignored with a warning, and so is an adapter that cannot be used. What was in force
before stays, and the others go on. SETTINGS holds the levels of settings too. This module ignores them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from anyio.abc import TaskStatus

from actors.runtime.live import Live
from actors.runtime.secrets import BadReference, is_reference, resolve_values
from platforms.adapter import Account, Adapter
from platforms.errors import BadDeclaration
from platforms.registry import make_adapter
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.errors import MalformedMessage, MalformedSubject
from streams.subjects import check_token


class SourceKey(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """One account on one platform. Both are subject tokens."""

    platform: str
    source: str

    def __str__(self) -> str:
        return f"{self.platform}/{self.source}"

    @property
    def key(self) -> str:
        """The bucket key of the source's ledger."""
        return f"{self.platform}.{self.source}"


class BadSourceName(ValueError):
    """A text that names no source. The message says what to write."""


def source_named(text: str) -> SourceKey:
    """Return the source that PLATFORM/SOURCE names. Raises BadSourceName."""
    platform, slash, source = text.partition("/")
    if not slash:
        raise BadSourceName(f"source {text[:80]!r}: write PLATFORM/SOURCE, as in mall/s1")
    if platform == "default":
        raise BadSourceName("platform 'default': that is the level of settings for all sources; choose another name")
    try:
        return SourceKey(check_token("platform", platform), check_token("source", source))
    except MalformedSubject as error:
        raise BadSourceName(f"{error}; a source is named PLATFORM/SOURCE, as in mall/s1") from error


def source_of(key: str) -> SourceKey:
    """Return the source that a key `platform.source` names."""
    platform, _, source = key.partition(".")
    return SourceKey(platform, source)


class SourceRecord(msgspec.Struct, frozen=True):
    """How to reach a source: the adapter by name, and the account's values, with secrets only as references.
    The allocator cuts nothing before the source's own settings of `settings_revision` are in force on its node."""

    adapter: str
    account: Mapping[str, str] = {}
    settings_revision: int = 0


class UnknownSource(Exception):
    """No such source, or not yet, on this node."""


class UnusableSource(Exception):
    """The source's record cannot be used: its adapter, or a reference. The message says why."""


class Sources:
    """A live view of the source and adapter records. `known` and `adapter` are cheap at any time."""

    def __init__(self, bucket: Bucket[bytes]) -> None:
        self._live = Live(bucket, _read, unreadable="source.bad_record", keeps_last=True)
        self._live.on_change(self._take)
        self._records: dict[SourceKey, SourceRecord] = {}
        self._plain: dict[SourceKey, tuple[SourceRecord, Account]] = {}  # accounts that hold no reference
        self._listeners: list[Callable[[SourceKey], None]] = []

    def on_change(self, listener: Callable[[SourceKey], None]) -> Callable[[], None]:
        """Call `listener` with each source that came, changed or went. It must be short. Return its remover."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def known(self) -> list[SourceKey]:
        return list(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, source: object) -> bool:
        return source in self._records

    def find(self, source: SourceKey) -> SourceRecord | None:
        return self._records.get(source)

    def adapter(self, source: SourceKey) -> Adapter:
        """Return the source's adapter. Raises UnknownSource, UnusableSource."""
        name = self._record(source).adapter
        found = self._live.get(f"adapter.{name}")
        if found is not None and not isinstance(found, SourceRecord):
            return found
        if fault := self._live.fault(f"adapter.{name}"):
            raise UnusableSource(f"{source}: {fault}")
        try:
            return make_adapter(name)
        except BadDeclaration as error:
            raise UnusableSource(f"{source}: {error}") from error

    def settings_revision(self, source: SourceKey) -> int:
        """Return the revision of the settings that the source was added with."""
        record = self._records.get(source)
        return 0 if record is None else record.settings_revision

    def account(self, source: SourceKey) -> Account:
        """Return the source's account with its references resolved now, so that a rotated secret is used.
        Raises UnknownSource, and UnusableSource naming the reference that cannot be resolved."""
        record = self._record(source)
        known = self._plain.get(source)
        if known is not None and known[0] is record:
            return known[1]
        try:
            account = Account(name=source.source, values=resolve_values(record.account))
        except BadReference as error:
            raise UnusableSource(f"{source}: {error}") from error
        if not any(is_reference(value) for value in record.account.values()):
            self._plain[source] = (record, account)
        return account

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the records for ever. Started once the present ones are known."""
        await self._live.run(task_status=task_status)

    def _record(self, source: SourceKey) -> SourceRecord:
        record = self._records.get(source)
        if record is None:
            raise UnknownSource(f"{source} has no record; add it with `penstock sources add {source} …`")
        return record

    def _take(self, key: str) -> None:
        match key.split("."):
            case ["source", platform, name]:
                self._take_source(SourceKey(platform, name), self._live.get(key))
            case ["adapter", name]:
                for source in [source for source, record in self._records.items() if record.adapter == name]:
                    self._notify(source)

    def _take_source(self, source: SourceKey, record: object) -> None:
        if isinstance(record, SourceRecord):
            self._records[source] = record
        else:
            self._records.pop(source, None)
            self._plain.pop(source, None)
        self._notify(source)

    def _notify(self, source: SourceKey) -> None:
        for listener in tuple(self._listeners):
            listener(source)


def _read(entry: Entry[bytes]) -> SourceRecord | Adapter | None:
    """Return the value under a key of SETTINGS. `None`: the key is of another kind. Raises for what cannot be used."""
    match entry.key.split("."):
        case ["source", _, _]:
            return msgspec.json.decode(entry.raw, type=SourceRecord)
        case ["adapter", name]:
            return _make(name, entry.raw)
        case ["source" | "adapter", *_]:
            raise MalformedMessage("a key is source.<platform>.<source> or adapter.<name>")
    return None


def _make(name: str, declared: bytes) -> Adapter:
    """Return the adapter of a stored table. Raises BadDeclaration."""
    try:
        return make_adapter(msgspec.json.decode(declared, type=dict[str, object]))
    except BadDeclaration:
        raise
    except Exception as error:  # a table written by hand may hold anything, and must not end the actor
        raise BadDeclaration(name, f"cannot be used: {type(error).__name__}: {error}") from error
