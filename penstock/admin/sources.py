"""Adding and changing sources: all is checked before anything is stored.

A source is four records, written in this order: its declared adapter if it has one, its settings, its ledger, and last
the record that makes nodes look at it. A crash in between leaves something that nobody reads, and the same command
again goes on from there.

A ledger is never made where it would skip time: a source that had one goes on with it, and a source whose ledger was
deleted needs a person to say where to begin (`sources rewind`).
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from actors.fetch.grants import Grants
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.settings.desk import StoredSettings, change_level, read_stored
from actors.fetch.settings.levels import LevelName
from actors.fetch.slice_allocator import ensure_lanes
from actors.fetch.source_import import ADDED_SO
from actors.fetch.sources import SourceKey, SourceRecord
from actors.fetch.stored import Broken
from actors.runtime.rules.setting_values import BadSetting, start_ms_of
from penstock.admin.first_request import try_first_request
from penstock.admin.records import Records
from penstock.admin.source_door import AdapterTable, check_account
from penstock.admin.source_moves import make_ledger, pause
from penstock.errors import PenstockError, UsageError
from penstock.times import span_text, time_text
from platforms.adapter import Adapter
from platforms.declared import declare
from streams.calls import kept_with
from streams.errors import RevisionConflict

__all__ = ["Edit", "SourceAdded", "Wanted", "add", "change"]


class Wanted(Struct, frozen=True):
    """A source as a person asks for it. `start` is `-90d`, a moment with an offset to the second, or empty.
    `is_paused`: nothing is read before a person resumes it. `is_tried`: the platform is asked once, before anything is
    stored."""

    source: SourceKey
    adapter: str | AdapterTable
    account: Mapping[str, str]
    settings: Mapping[str, object] = {}
    start: str = ""
    is_paused: bool = False
    is_tried: bool = False

    @property
    def adapter_name(self) -> str:
        return self.adapter.name if isinstance(self.adapter, AdapterTable) else self.adapter


class SourceAdded(Struct, frozen=True):
    """What became of adding. `is_new`: there was no such record. `is_continued`: its ledger was there before."""

    source: SourceKey
    ledger: Ledger
    is_new: bool
    is_continued: bool
    notes: tuple[str, ...]


async def add(records: Records, wanted: Wanted) -> SourceAdded:
    """Add a source. The same again changes nothing. Raises UsageError and BadSetting, before anything is stored, for
    wrong values and for a source that exists in another form."""
    source, now_ms = wanted.source, records.now_ms()
    adapter = await _adapter(records, wanted.adapter)
    check_account(source, adapter, wanted.account, now_ms=now_ms)
    known, ledger = await records.source(source), await records.ledger(source)
    values = {**wanted.settings, **({"start": wanted.start} if wanted.start and ledger is None else {})}
    stored = await read_stored(records.desk)
    others = await _other_settings(records, source, values, stored)
    _check_start(wanted, ledger, now_ms)
    if known is not None:
        _check_same(wanted, known, others)
        if ledger is None:
            raise PenstockError(
                f"{source} is there, but its ledger is not; say where to begin: sources rewind {source}"
            )
        return SourceAdded(source, ledger, False, True, tuple(_state_note(ledger)))
    tried = await _tried(records, wanted, adapter, now_ms) if wanted.is_tried else []
    if isinstance(wanted.adapter, AdapterTable):
        await _store_adapter(records, wanted.adapter, may_replace=False)
    revision, settings = await _store_settings(records, source, values, stored)
    await ensure_lanes(records.connection, source.platform, settings.place)
    if ledger is not None and wanted.is_paused:
        ledger, _ = await pause(records, source, reason=ADDED_SO)
    made = ledger or await make_ledger(records, source, settings.first_ms(now_ms), is_paused=wanted.is_paused)
    record = SourceRecord(adapter=wanted.adapter_name, account=wanted.account, settings_revision=revision)
    try:
        await records.settings.create(f"source.{source.key}", msgspec.json.encode(record))
    except RevisionConflict:
        return await add(records, wanted)  # somebody was faster: theirs is the same, or we say how it differs
    if await _is_bare(records, source):  # somebody has removed it meanwhile
        await _store_settings(records, source, values, await read_stored(records.desk))
        made = await make_ledger(records, source, settings.first_ms(now_ms), is_paused=wanted.is_paused)
    notes = [*tried, *_notes(adapter, ledger, made, now_ms)]
    return SourceAdded(source, made, True, ledger is not None, tuple(notes))


class Edit(Struct, frozen=True):
    """Changes of a source. An adapter of None stays as it is. Account values are given or dropped, settings given or
    unset."""

    adapter: str | AdapterTable | None = None
    account: Mapping[str, str] = {}
    dropped: Sequence[str] = ()
    settings: Mapping[str, object] = {}
    unset: Sequence[str] = ()


async def change(records: Records, source: SourceKey, edit: Edit) -> list[str]:
    """Change how a source is reached or fetched. Return what was changed, in words.

    An adapter file replaces the stored one of its name for every source that uses it. All of them have to fit it.
    Raises UsageError and BadSetting before anything is stored, PenstockError when somebody else was faster."""
    known, _ = await records.need(source)
    if known is None:
        raise UsageError(f"{source} has a ledger and no record: it was removed with --keep; add it again first")
    adapter = await _adapter(records, edit.adapter or known.adapter)
    account = {key: value for key, value in known.account.items() if key not in edit.dropped} | dict(edit.account)
    check_account(source, adapter, account, now_ms=records.now_ms())
    await _change_settings(records, source, edit, is_trial=True)
    changed: list[str] = []
    name = known.adapter if edit.adapter is None else edit.adapter
    if isinstance(name, AdapterTable):
        await _check_users(records, name, adapter, besides=source)
        changed += await _store_adapter(records, name, may_replace=True)
        name = name.name
    changed += await _change_settings(records, source, edit, is_trial=False)
    await ensure_lanes(records.connection, source.platform, (await records.settings_of(source)).place)
    if (name, account) != (known.adapter, dict(known.account)):
        changed += await _store_record(records, source, known, name, account)
    return changed


# ---- the parts of adding and changing


async def _adapter(records: Records, adapter: str | AdapterTable) -> Adapter:
    return declare(adapter.table) if isinstance(adapter, AdapterTable) else await records.adapter(adapter)


async def _tried(records: Records, wanted: Wanted, adapter: Adapter, now_ms: int) -> list[str]:
    grants = Grants(records.session.bucket("DIGESTS"))
    return await try_first_request(wanted.source, adapter, wanted.account, grants=grants, now_ms=now_ms)


async def _is_bare(records: Records, source: SourceKey) -> bool:
    """Return whether the source has no ledger, or no level of settings."""
    level = LevelName(source.platform, source.source).key
    return await records.ledger(source) is None or await records.settings.get(level) is None


def _check_start(wanted: Wanted, ledger: Ledger | None, now_ms: int) -> None:
    if wanted.start and ledger is not None and start_ms_of(wanted.start, now_ms) < ledger.start_ms:
        raise UsageError(
            f"{wanted.source} has a ledger that begins at {time_text(ledger.start_ms)}, later than --start "
            f"{wanted.start}; leave --start out to go on with it, then `sources rewind` or `sources backfill`"
        )


def _check_same(wanted: Wanted, known: SourceRecord, other_settings: set[str]) -> None:
    differs = [f"setting {name}" for name in sorted(other_settings)]
    if wanted.adapter_name != known.adapter:
        differs.append(f"adapter (it is {known.adapter})")
    names = {*wanted.account, *known.account}
    differs += [f"account {name}" for name in sorted(names) if wanted.account.get(name) != known.account.get(name)]
    if differs:
        raise UsageError(
            f"{wanted.source} is there already, with another {', '.join(differs)}; change it with `sources set`"
        )


async def _store_adapter(records: Records, adapter: AdapterTable, *, may_replace: bool) -> list[str]:
    key = f"adapter.{adapter.name}"
    entry = await records.settings.get(key)
    if entry is not None and entry.value == adapter.stored:
        return []
    if entry is not None and not may_replace:
        raise UsageError(
            f"an adapter {adapter.name!r} with other contents is stored; rename this one, or replace that one for all "
            "its sources: sources set SOURCE --adapter FILE"
        )
    await records.settings.compare_and_set(key, adapter.stored, 0 if entry is None else entry.revision)
    return [f"adapter {adapter.name}: {'stored' if entry is None else 'replaced'}"]


async def _change_settings(records: Records, source: SourceKey, edit: Edit, *, is_trial: bool) -> list[str]:
    if not edit.settings and not edit.unset:
        return []
    told = await change_level(
        records.desk,
        LevelName(source.platform, source.source),
        values=edit.settings,
        unset=edit.unset,
        now_ms=records.now_ms(),
        is_trial=is_trial,
    )
    pairs = [(name, told.before.get(name), told.after.get(name)) for name in sorted({*told.before, *told.after})]
    return [f"{name}: {_said(old)} -> {_said(new)}" for name, old, new in pairs if old != new]


def _said(value: object) -> str:
    return "(not set)" if value is None else str(value)


async def _check_users(records: Records, adapter: AdapterTable, loaded: Adapter, *, besides: SourceKey) -> None:
    for source, record in (await records.sources()).items():
        if isinstance(record, Broken) or record.adapter != adapter.name or source == besides:
            continue
        check_account(source, loaded, record.account, now_ms=records.now_ms())


async def _other_settings(
    records: Records, source: SourceKey, values: Mapping[str, object], stored: StoredSettings
) -> set[str]:
    """Return the settings that the source does not have in just this way. Raises BadSetting for one that is refused."""
    if not values:
        return set()
    level = LevelName(source.platform, source.source)
    trial = await change_level(
        records.desk, level, values=values, now_ms=records.now_ms(), is_ahead=True, is_trial=True, stored=stored
    )
    return {name for name in values if trial.before.get(name) != values[name]}


async def _store_settings(
    records: Records, source: SourceKey, values: Mapping[str, object], stored: StoredSettings
) -> tuple[int, FetchSettings]:
    """Store the source's own level, also an empty one. Return its revision, for which nodes wait before they cut, and
    the settings that are in force then."""
    level, levels = LevelName(source.platform, source.source), stored.levels
    if values:
        changed = await change_level(
            records.desk, level, values=values, now_ms=records.now_ms(), is_ahead=True, stored=stored
        )
        try:
            levels = levels.with_level(level, changed.after)
        except BadSetting:  # it fits only now that a level of somebody else is in force
            levels = await records.levels()
    _, revision = await records.settings.update(level.key, lambda entry: (b"{}" if entry is None else None, None))
    return revision, levels.settings(level)


async def _store_record(
    records: Records, source: SourceKey, known: SourceRecord, adapter: str, account: Mapping[str, str]
) -> list[str]:
    key = f"source.{source.key}"
    entry = await records.settings.get(key)
    after = msgspec.structs.replace(known, adapter=adapter, account=account)
    if entry is None or msgspec.json.decode(entry.value, type=SourceRecord) != known:
        raise PenstockError(f"{source} was changed by somebody else just now; look at it and try again")
    try:
        kept = kept_with(entry.calls, "")  # a late try of an import finds that it was done
        await records.settings.compare_and_set(key, msgspec.json.encode(after), entry.revision, kept=kept)
    except RevisionConflict:
        raise PenstockError(f"{source} was changed by somebody else just now; look at it and try again") from None
    changed = [f"adapter: {known.adapter} -> {adapter}"] if adapter != known.adapter else []
    names = sorted({*account, *known.account})
    return changed + [f"account {name} changed" for name in names if account.get(name) != known.account.get(name)]


def _state_note(ledger: Ledger) -> list[str]:
    if ledger.state == "running":
        return []
    return [f"it is {ledger.state}: {ledger.reason or 'no reason given'}; `sources resume` lets it run"]


def _notes(adapter: Adapter, before: Ledger | None, made: Ledger, now_ms: int) -> list[str]:
    notes = []
    if before is not None:
        notes.append(f"it goes on with the ledger that it has, at {time_text(made.frontier_ms)}")
        notes += _state_note(made)
    look_back_ms = adapter.declaration.window.look_back_ms
    if look_back_ms is not None and made.frontier_ms < now_ms - look_back_ms:
        notes.append(f"the platform remembers {span_text(look_back_ms)}; what is older may come back empty")
    return notes
