"""Many sources at once: rows are checked whole, compared with what is stored, and then written.

In: rows. Out: what was added and changed, what differs, and each fault with its row and field. State: none of its own.
With a fault nothing is written. Each source is written as a single one is (`penstock/admin/sources.py`): its settings,
its ledger, and last the record that makes nodes look at it. Rows are written beside each other. A crash in between
leaves some sources out, and the same rows again go on from there. What is there in the same form is not written again.

Under repeats: a late try of a call leaves each row that the call has written before as it is now.

When it cannot go on: a source that somebody else changes again and again is listed as a fault. The others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from actors.fetch.accounts import BadAccount, check_account
from actors.fetch.ledgers import BrokenLedger, read_ledger
from actors.fetch.rules import steering
from actors.fetch.rules.ledger import Ledger, first_ledger
from actors.fetch.rules.settings import LevelValues, check_level
from actors.fetch.rules.slices import parse_slice_id
from actors.fetch.settings.desk import Desk, StoredSettings, read_stored
from actors.fetch.settings.levels import LevelName, Levels
from actors.fetch.slice_allocator import ensure_lanes
from actors.fetch.sources import BadSourceName, SourceKey, SourceRecord, source_named, source_of
from actors.fetch.stored import Broken, decoded, stored_adapter
from actors.runtime.pieces import in_pieces
from actors.runtime.rules.setting_values import BadSetting, start_ms_of
from platforms.adapter import Adapter
from platforms.errors import BadDeclaration
from streams.buckets.bucket import Bucket
from streams.calls import kept_with, mark_of
from streams.clock import Clock
from streams.errors import MalformedMessage, MalformedSubject, RevisionConflict
from streams.link.connection import Connection
from streams.messages.fetch import SliceCompleted, decode_event
from streams.races import step_aside
from streams.reads.log import last_entries

AT_ONCE = 128
EVENTS_AT_ONCE = 500
ADDED_SO = "it was added so"
TRIES = 5
REMOVED = "was removed by somebody else while the import ran; import it again if it shall be there"
CHANGED_TOO = "was changed by somebody else again and again; import it again"

Progress = Callable[[int, int], None]
"""Gets how many of how many sources are written."""


class SourceRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A source as a file has it. `source`: PLATFORM/SOURCE. `start`: where to begin, such as -90d. `paused`: nothing is
    read before a person resumes it."""

    source: str
    adapter: str
    account: dict[str, str] = {}
    settings: dict[str, Any] = {}
    start: str = ""
    paused: bool = False


NumberedRow = tuple[int, SourceRow]


class RowFault(Struct, frozen=True):
    """Why a row cannot be taken. `row`: counted from 1. `field`: which of it, such as `account.shop`."""

    row: int
    field: str
    problem: str


class SourceDifference(Struct, frozen=True):
    """A source that is there in another form, and the fields that differ."""

    row: int
    source: str
    fields: tuple[str, ...]


class Imported(Struct, frozen=True, kw_only=True):
    """What became of rows. `differing`: sources that are there in another form. They are changed only if the caller
    asks for it. `is_trial`: nothing was written."""

    added: int = 0
    changed: int = 0
    same: int = 0
    differing: list[SourceDifference] = []
    faults: list[RowFault] = []
    is_trial: bool = False


class _Known(Struct):
    """What is stored: settings, records with their revisions, ledgers with theirs. `calls`: the marks of the calls that
    wrote a record, if any (streams/calls.py)."""

    settings: StoredSettings
    calls: dict[SourceKey, Sequence[str]]
    records: dict[SourceKey, tuple[SourceRecord | Broken, int]]
    ledgers: dict[SourceKey, tuple[Ledger | Broken, int]]


class _Wanted(Struct, frozen=True):
    """A row that was checked, and how it differs. `None`: the source is not there."""

    row: int
    source: SourceKey
    given: SourceRow
    differs: tuple[str, ...] | None


class Importer:
    """Imports rows over one connection. It raises StreamError."""

    def __init__(self, connection: Connection, settings: Desk, ledgers: Bucket[bytes], clock: Clock) -> None:
        self._connection = connection
        self._settings = settings
        self._ledgers = ledgers
        self._clock = clock

    async def run(
        self,
        rows: Sequence[SourceRow],
        *,
        is_trial: bool = False,
        is_updating: bool = False,
        progress: Progress = lambda _done, _of: None,
        numbers: Sequence[int] = (),
    ) -> Imported:
        """Check all rows, and write them if each may be taken. With `is_updating` write those that differ too.
        `numbers`: those of the rows, if they are not 1, 2, 3. A source that somebody else writes at the same moment, as
        a repeat of this call does, is compared and written again."""
        left = list(zip(numbers or range(1, len(rows) + 1), rows, strict=True))
        done, there = Imported(is_trial=is_trial), set[SourceKey]()
        for tried in range(1, TRIES + 1):
            part, left = await self._run(
                left, done, there, is_updating=is_updating, progress=progress, is_first=tried == 1
            )
            done = part if tried == 1 else _joined(done, part)
            if not left:
                return done
            await step_aside(tried)
        lost = [RowFault(number, "source", f"{row.source} {CHANGED_TOO}") for number, row in left]
        return _joined(done, Imported(faults=lost))

    async def _run(
        self,
        rows: Sequence[NumberedRow],
        before: Imported,
        there: set[SourceKey],
        *,
        is_updating: bool,
        progress: Progress,
        is_first: bool,
    ) -> tuple[Imported, list[NumberedRow]]:
        """Check and write rows once. Return also those that somebody else wrote at the same moment. Later on a row that
        cannot be taken any more keeps no other from being written. `there`: the sources that an earlier try has seen.
        One that is gone was removed, and is not put back."""
        known = await self._read()
        levels = known.settings.levels.with_levels({})
        wanted, faults = await self._check(rows, known, levels, there)
        there.update(known.records)
        writing = [each for each in wanted if each.differs is None or (each.differs and is_updating)]
        is_trial, lost = before.is_trial or (is_first and bool(faults)), set[int]()
        if not is_trial:
            await self._ensure_lanes(writing, levels)
            lost = await self._write_all(writing, known, levels, progress)
        kept = [each for each in wanted if each.row not in lost]
        differing = [SourceDifference(each.row, str(each.source), each.differs) for each in kept if each.differs]
        done = Imported(
            added=sum(each.differs is None for each in kept),
            changed=len(differing) if is_updating else 0,
            same=sum(each.differs == () for each in kept),
            differing=differing,
            faults=faults,
            is_trial=is_trial,
        )
        return done, [each for each in rows if each[0] in lost]

    # ---- reading and checking

    async def _read(self) -> _Known:
        settings = await read_stored(self._settings)
        records: dict[SourceKey, tuple[SourceRecord | Broken, int]] = {}
        calls: dict[SourceKey, Sequence[str]] = {}
        for entry in await self._settings.bucket.entries("source.>"):
            source = source_of(entry.key.removeprefix("source."))
            records[source] = decoded(entry, SourceRecord), entry.revision
            if entry.calls:
                calls[source] = entry.calls
        ledgers: dict[SourceKey, tuple[Ledger | Broken, int]] = {}
        async for found in in_pieces(await self._ledgers.entries()):
            source = source_of(found.key)
            try:
                ledgers[source] = read_ledger(source, found.raw), found.revision
            except BrokenLedger as error:
                ledgers[source] = Broken(found.key, str(error)), found.revision
        return _Known(settings, calls, records, ledgers)

    async def _check(
        self, rows: Sequence[NumberedRow], known: _Known, levels: Levels, there: set[SourceKey]
    ) -> tuple[list[_Wanted], list[RowFault]]:
        """Check each row, and apply its settings to `levels`. A source that was `there` before was removed."""
        adapters: dict[str, Adapter | str] = {}
        first: dict[SourceKey, int] = {}
        wanted: list[_Wanted] = []
        faults: list[RowFault] = []
        async for number, row in in_pieces(rows):
            if row.adapter not in adapters:
                adapters[row.adapter] = await self._adapter(row.adapter)
            try:
                source = source_named(row.source)
                if source in first:
                    raise BadSourceRow("source", f"{source} is in row {first[source]} already; leave one of them out")
                first[source] = number
                differs = self._checked(source, row, adapters[row.adapter], known, levels)
                if differs is None and source in there:
                    raise BadSourceRow("source", f"{source} {REMOVED}")
            except BadSourceName as error:
                faults.append(RowFault(number, "source", str(error)))
            except BadSourceRow as error:
                faults.append(RowFault(number, error.field, str(error)))
            else:
                wanted.append(_Wanted(number, source, row, differs))
        return wanted, faults

    async def _adapter(self, name: str) -> Adapter | str:
        """Return an adapter, or why there is none."""
        try:
            return await stored_adapter(self._settings.bucket, name)
        except (BadDeclaration, MalformedSubject, msgspec.DecodeError) as error:
            return str(error)

    def _checked(
        self, source: SourceKey, row: SourceRow, adapter: Adapter | str, known: _Known, levels: Levels
    ) -> tuple[str, ...] | None:
        """Return how the source differs from what is stored, `None` if it is not there. Raises BadSourceRow."""
        if isinstance(adapter, str):
            raise BadSourceRow("adapter", adapter)
        now_ms = self._clock.now_ms()
        try:
            check_account(source, adapter, row.account, now_ms=now_ms)
        except BadAccount as error:
            raise BadSourceRow(f"account.{error.name}" if error.name else "account", str(error)) from error
        _check_start(row, now_ms)
        record, ledger = known.records.get(source), known.ledgers.get(source)
        if ledger is not None and isinstance(ledger[0], Broken):
            raise BadSourceRow("source", ledger[0].why)
        level = LevelName(source.platform, source.source)
        _check_settings(level, row, levels)
        if record is None:
            return None
        if isinstance(record[0], Broken):
            raise BadSourceRow("source", f"its stored record does not decode: {record[0].why}; remove the source first")
        if ledger is None:
            raise BadSourceRow("source", f"it is there, and its ledger is not: penstock sources rewind {source} TIME")
        if mark_of(row) in known.calls.get(source, ()):
            return ()  # an earlier try of this call has written it, and others may have changed it since
        return tuple(_differences(row, record[0], known.settings.levels.values(level)))

    # ---- writing

    async def _ensure_lanes(self, wanted: Sequence[_Wanted], levels: Levels) -> None:
        """Make the consumers that slices are pulled from, where they are missing."""
        names = ((each.source.platform, LevelName(each.source.platform, each.source.source)) for each in wanted)
        for platform, place in sorted({(platform, levels.settings(name).place) for platform, name in names}):
            await ensure_lanes(self._connection, platform, place)

    async def _write_all(
        self, wanted: Sequence[_Wanted], known: _Known, levels: Levels, progress: Progress
    ) -> set[int]:
        """Write sources beside each other. Return the rows of those that somebody else wrote at the same moment."""
        epochs = await first_epochs(
            self._connection, [each.source for each in wanted if each.source not in known.ledgers]
        )
        lost = set[int]()
        left, done = iter(wanted), 0

        async def work() -> None:
            nonlocal done
            for each in left:
                try:
                    await self._write(each, known, levels, epochs.get(each.source, 1))
                except RevisionConflict:
                    lost.add(each.row)
                done += 1
                progress(done, len(wanted))

        async with anyio.create_task_group() as tasks:
            for _ in range(min(AT_ONCE, len(wanted))):
                tasks.start_soon(work)
        return lost

    async def _write(self, each: _Wanted, known: _Known, levels: Levels, epoch: int) -> None:
        row, source = each.given, each.source
        record, ledger = known.records.get(source), known.ledgers.get(source)
        revision = await self._write_settings(each, known.settings, is_first=ledger is None)
        if ledger is None:
            await self._make_ledger(each, levels, epoch)
        elif record is None and row.paused and isinstance(ledger[0], Ledger):
            paused = steering.pause(ledger[0], ADDED_SO)
            if paused is not ledger[0]:
                await self._ledgers.compare_and_set(source.key, msgspec.json.encode(paused), ledger[1])
        before = record[0] if record is not None and isinstance(record[0], SourceRecord) else None
        after = SourceRecord(row.adapter, row.account, revision if before is None else before.settings_revision)
        mark = mark_of(row)
        if after != before or mark:  # it is written last, and its mark says that all of the row was
            at, kept = 0 if record is None else record[1], kept_with(known.calls.get(source, ()), mark)
            raw = msgspec.json.encode(after)
            await self._settings.bucket.compare_and_set(f"source.{source.key}", raw, at, kept=kept)
        level = LevelName(source.platform, source.source).key
        if record is None and (ledger is not None or level in known.settings.revisions):
            await self._make_again(each, known, levels)

    async def _make_ledger(self, each: _Wanted, levels: Levels, epoch: int) -> None:
        start = each.given.start or levels.settings(LevelName(each.source.platform, each.source.source)).start
        now_ms = self._clock.now_ms()
        made = new_ledger(start_ms_of(start, now_ms), now_ms, epoch=epoch, is_paused=each.given.paused)
        await self._ledgers.create(each.source.key, msgspec.json.encode(made))

    async def _make_again(self, each: _Wanted, known: _Known, levels: Levels) -> None:
        """Make what a removal took away that had begun before the source was added."""
        level = LevelName(each.source.platform, each.source.source).key
        with suppress(RevisionConflict):  # the removal has put it back
            if await self._settings.bucket.get(level) is None:
                await self._write_settings(each, replace(known.settings, revisions={}), is_first=False)
        with suppress(RevisionConflict):  # likewise
            if await self._ledgers.get(each.source.key) is None:
                epochs = await first_epochs(self._connection, [each.source])
                await self._make_ledger(each, levels, epochs.get(each.source, 1))

    async def _write_settings(self, each: _Wanted, stored: StoredSettings, *, is_first: bool) -> int:
        """Store the source's own level, also an empty one, and return its revision."""
        name = LevelName(each.source.platform, each.source.source)
        before, revision = stored.levels.values(name), stored.revisions.get(name.key, 0)
        start = {"start": each.given.start} if each.given.start and is_first else {}
        after = {**before, **each.given.settings, **start}
        if revision and after == before:
            return revision
        return await self._settings.bucket.compare_and_set(name.key, msgspec.json.encode(after), revision)


class BadSourceRow(ValueError):
    """A row that cannot be taken, and the field that is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


async def first_epochs(connection: Connection, sources: Sequence[SourceKey]) -> dict[SourceKey, int]:
    """Return the first epochs of sources that had a ledger before: later than those that were seen."""
    namespace, found = connection.namespace, dict[SourceKey, int]()
    for part in _parts(sources, EVENTS_AT_ONCE):
        subjects = [namespace.event("fetch", "slice_completed", each.platform, each.source) for each in part]
        entries = await last_entries(connection, namespace.stream("EVENTS"), subjects)
        for source, subject in zip(part, subjects, strict=True):
            if subject in entries and (epoch := _epoch_of(entries[subject].payload)):
                found[source] = epoch + 1
    return found


def new_ledger(start_ms: int, now_ms: int, *, epoch: int, is_paused: bool) -> Ledger:
    """Return the ledger of a source that is added. `epoch`: after those that were seen of an earlier ledger, so that no
    late word of an old holder means a slice of the new one. An earlier ledger of which nothing was seen had the same
    epoch. So the fences begin with the time, beyond those that it gave: they are in the ids of messages too."""
    ledger = msgspec.structs.replace(first_ledger(start_ms), epoch=epoch, fence=now_ms, made_fence=now_ms)
    return steering.pause(ledger, ADDED_SO) if is_paused else ledger


def _joined(one: Imported, other: Imported) -> Imported:
    """Return what became of the rows of both."""
    return Imported(
        added=one.added + other.added,
        changed=one.changed + other.changed,
        same=one.same + other.same,
        differing=sorted([*one.differing, *other.differing], key=lambda each: each.row),
        faults=sorted([*one.faults, *other.faults], key=lambda each: each.row),
        is_trial=one.is_trial,
    )


def cursor(source: str) -> SourceKey:
    """Return where the list of sources goes on after `PLATFORM/SOURCE`."""
    platform, _, name = source.partition("/")
    return SourceKey(platform, name)


def _check_start(row: SourceRow, now_ms: int) -> None:
    if not row.start:
        return
    try:
        check_level({"start": row.start}, "source", now_ms=now_ms)
    except BadSetting as error:
        raise BadSourceRow("start", str(error)) from error


def _check_settings(name: LevelName, row: SourceRow, levels: Levels) -> None:
    if "start" in row.settings:
        raise BadSourceRow("settings.start", "where to begin is the field start of the row itself")
    try:
        check_level(row.settings, "source")
        levels.change({name: {**levels.values(name), **row.settings}})
    except BadSetting as error:
        raise BadSourceRow(f"settings.{error.name}" if error.name else "settings", str(error)) from error


def _differences(row: SourceRow, record: SourceRecord, values: LevelValues) -> Iterator[str]:
    """Yield the fields of the row that are stored otherwise. Settings that the row does not have stay."""
    if row.adapter != record.adapter:
        yield "adapter"
    for name in sorted({*row.account, *record.account}):
        if row.account.get(name) != record.account.get(name):
            yield f"account.{name}"
    for name in sorted(row.settings):
        if values.get(name) != row.settings[name]:
            yield f"settings.{name}"


def row_of(source: SourceKey, record: SourceRecord, levels: Levels, ledger: Ledger | Broken | None) -> SourceRow:
    """Return a stored source as a file has it."""
    values = levels.values(LevelName(source.platform, source.source))
    return SourceRow(
        source=str(source),
        adapter=record.adapter,
        account=dict(record.account),
        settings={name: value for name, value in values.items() if name != "start"},
        start=str(values.get("start", "")),
        paused=isinstance(ledger, Ledger) and ledger.state == "paused",
    )


def _epoch_of(payload: bytes) -> int:
    try:
        event = decode_event(payload)
    except MalformedMessage:
        return 0
    return parse_slice_id(event.slice_id).epoch if isinstance(event, SliceCompleted) else 0


def _parts(sources: Sequence[SourceKey], size: int) -> Iterator[Sequence[SourceKey]]:
    return (sources[at : at + size] for at in range(0, len(sources), size))
