"""Changes of settings at the door: checked with all stored levels, shown as old and new, stored by revision.

In: a level's name, values to set and names to unset, or a whole seed. Out: the stored level, and what changed where.
State: only the bucket's. The desk reads the settings in force exactly as nodes do. It refuses a change (BadSetting)
when the level, or any source below it, would not resolve. Two people who change one level at once meet at
compare-and-set: the later change is decided anew on what the first one stored. A repeat stores nothing, since nothing
changes.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from actors.fetch.rules.setting_table import SETTINGS
from actors.fetch.rules.settings import LevelValues, as_level, check_level
from actors.fetch.settings.history import History
from actors.fetch.settings.levels import DEFAULT, PREFIX, LevelName, Levels, UnknownLevel, level_named
from actors.fetch.settings.replay import InForce, Kept, newest_together, replayed
from actors.runtime.rules.setting_values import BadSetting, nearest
from actors.runtime.secrets import looks_secret
from streams.buckets.bucket import Bucket
from streams.calls import kept_with, mark_of
from streams.errors import RevisionConflict
from streams.races import race

TRIES = 10
_TABLES = "a seed has the tables [default], [platform.NAME] and [source.NAME.SHOP]"
Effects = Mapping[str, Mapping[str, tuple[object, object]]]
"""For each level or source that changes: each setting with its old and new value in force."""


class StoredSettings(Struct, frozen=True):
    """The contents of the bucket: the levels in force, the revision of each key, why some stored levels are not in
    force, the sources that exist or have a level, the sources that exist, and each key's newest value."""

    levels: Levels
    revisions: Mapping[str, int]
    broken: Mapping[str, str]
    sources: Sequence[LevelName]
    added: frozenset[LevelName]
    newest: Sequence[Kept]


class Desk(Struct, frozen=True):
    """Where the settings lie: their bucket, and how to read all values that it keeps of them."""

    bucket: Bucket[bytes]
    history: History


class Changed(Struct, frozen=True):
    """A change that was stored (or, with `is_trial`, would be): the level's own values, and the effects below."""

    name: LevelName
    before: LevelValues
    after: LevelValues
    effects: Effects


class Seeded(Struct, frozen=True):
    """The result of a seed: levels that were written, and existing ones that were left alone."""

    written: tuple[LevelName, ...]
    kept: tuple[LevelName, ...]


async def read_stored(desk: Desk) -> StoredSettings:
    """Read every level as a node does, and the existing sources. Raises StreamError."""
    found, newest = await _read(desk)
    records = [entry.key.split(".") for entry in await desk.bucket.entries("source.>")]
    added = frozenset(LevelName(key[1], key[2]) for key in records if len(key) == 3)
    sources = added | {name for name in found.levels.names() if name.source}
    revisions = {key: revision for key, revision in found.newest.items() if revision}
    return StoredSettings(found.levels, revisions, found.refused, sorted(sources), added, newest)


async def read_levels(desk: Desk) -> Levels:
    """Read the levels that are in force, as a node does. Raises StreamError."""
    found, _ = await _read(desk)
    return found.levels


async def _read(desk: Desk) -> tuple[InForce, list[Kept]]:
    newest = [Kept(entry.revision, entry.key, entry.raw) for entry in await desk.bucket.entries(f"{PREFIX}.>")]
    return newest_together(newest) or replayed(await desk.history()), newest


async def change_level(
    desk: Desk,
    name: LevelName,
    *,
    values: LevelValues,
    unset: Sequence[str] = (),
    now_ms: int,
    is_replaced: bool = False,
    is_ahead: bool = False,
    is_trial: bool = False,
    stored: StoredSettings | None = None,
) -> Changed:
    """Set `values` and unset names of a level. With `is_replaced`, replace all its values. With `is_ahead` the platform
    or source need not exist yet. `stored`: what the caller has just read. It is read anew after a lost race.
    Raises BadSetting and UnknownLevel (nothing is stored then), RevisionConflict after ten in a row, StreamError."""

    known = [stored] if stored is not None else []
    mark = mark_of((values, unset))

    async def attempt() -> Changed:
        stored = known.pop() if known else await read_stored(desk)
        if not is_ahead:
            _check_there(stored, name)
        if name.key in stored.broken and not is_replaced:
            reason = stored.broken[name.key]
            raise BadSetting(
                "", None, f"of {name} are broken as they stand ({reason})", "write them anew with --replace"
            )
        changed = _decide(stored, name, values, unset, now_ms, is_replaced=is_replaced)
        if is_trial or (changed.before == changed.after and name.key not in stored.broken):
            return changed
        entry = await desk.bucket.get(name.key)
        calls = () if entry is None else entry.calls
        if mark in calls:
            return Changed(name, changed.before, changed.before, {})
        revision = stored.revisions.get(name.key, 0)
        await desk.bucket.compare_and_set(name.key, _encode(changed.after), revision, kept=kept_with(calls, mark))
        return changed

    return await race(attempt, tries=TRIES)


def _decide(
    stored: StoredSettings,
    name: LevelName,
    values: LevelValues,
    unset: Sequence[str],
    now_ms: int,
    *,
    is_replaced: bool,
) -> Changed:
    before = stored.levels.values(name)
    for each in unset:
        if each not in SETTINGS:
            raise BadSetting(each, each, "is not a setting", nearest(each, list(SETTINGS)))
    kept = {} if is_replaced else {key: value for key, value in before.items() if key not in unset}
    after = {**kept, **values}
    if name in stored.added and values.get("start") not in (None, before.get("start")):
        raise _begun(name, values["start"])
    check_level(after, name.level, now_ms=now_ms if "start" in values else None)
    levels = _levels_with(stored, name, after)
    below = [name, *(source for source in stored.sources if source != name and name.covers(source))]
    return Changed(name, before, after, _effects(stored, levels, below))


def _levels_with(stored: StoredSettings, name: LevelName, values: LevelValues) -> Levels:
    """Return the levels in force after the change. It must fit those in force, or else all stored levels, which are
    then in force as well. So an earlier broken value of another level does not keep this one from being mended."""
    try:
        return stored.levels.with_level(name, values)
    except BadSetting:
        others = (kept for kept in stored.newest if kept.key != name.key)
        together = newest_together([*others, Kept(0, name.key, _encode(values))])
        if together is None:
            raise
        return together.levels


def _begun(name: LevelName, start: object) -> BadSetting:
    why = f"is where a first reading begins, and {name} is being read already"
    do = f"older time is read by `penstock sources backfill {name} FROM TO`"
    return BadSetting("start", start, why, f"{do}, all of it anew by `penstock sources rewind {name} FROM`")


def _check_there(stored: StoredSettings, name: LevelName) -> None:
    """Raise UnknownLevel for a platform or a source that does not exist and has no level either: a typing error."""
    there = {str(source) for source in stored.sources}
    platforms = {source.platform for source in stored.sources}
    if name == DEFAULT or name.key in stored.revisions or str(name) in (there if name.source else platforms):
        return
    kind, known = ("source", there) if name.source else ("platform", platforms)
    what = nearest(str(name), sorted(known)) if known else "there are no sources yet"
    raise UnknownLevel(f"there is no {kind} {name}; {what}; to write settings before it is added: --ahead")


def _effects(stored: StoredSettings, after: Levels, names: Sequence[LevelName]) -> Effects:
    """Return what changes where. A new start changes nothing for a source that is already read."""
    effects: dict[str, dict[str, tuple[object, object]]] = {}
    for name in names:
        if stored.levels.settings(name) == after.settings(name):
            continue
        old, new = as_level(stored.levels.settings(name)), as_level(after.settings(name))
        changed = {key: (old[key], new[key]) for key in SETTINGS if old[key] != new[key]}
        if name in stored.added:
            changed.pop("start", None)
        if changed:
            effects[str(name)] = changed
    return effects


async def seed_levels(
    desk: Desk, seed: Mapping[LevelName, LevelValues], *, now_ms: int, is_overwriting: bool = False
) -> Seeded:
    """Write the levels of a seed that do not exist yet, or all of them. All levels are checked before anything is
    written, so an invalid seed changes nothing. Raises BadSetting, RevisionConflict, StreamError."""
    stored = await read_stored(desk)
    writing = {name: values for name, values in seed.items() if is_overwriting or name.key not in stored.revisions}
    for name in sorted(writing):
        check_level(writing[name], name.level, now_ms=now_ms)
    stored.levels.with_levels(writing)
    for name in sorted(writing):
        try:
            await desk.bucket.compare_and_set(name.key, _encode(writing[name]), stored.revisions.get(name.key, 0))
        except RevisionConflict:
            if is_overwriting:
                raise
            del writing[name]  # another node seeds the same file at this moment
    return Seeded(tuple(sorted(writing)), tuple(sorted(set(seed) - set(writing))))


def read_seed(tables: Mapping[str, object]) -> dict[LevelName, LevelValues]:
    """Return the levels of a seed file's tables: `[default]`, `[platform.NAME]`, `[source.NAME.SHOP]`.
    Raises UnknownLevel for any other table, BadSetting for a value that looks like a secret."""
    seed: dict[LevelName, LevelValues] = {}
    for kind, table in tables.items():
        if kind not in ("default", "platform", "source"):
            raise UnknownLevel(f"{kind!r}: {_TABLES}")
        for path, values in _tables((kind,), table, ("default", "platform", "source").index(kind)):
            name = level_named("/".join(path[1:])) if path[1:] else DEFAULT
            if name == DEFAULT and kind != "default":
                raise UnknownLevel("default is the level of all sources; no platform can be called so")
            seed[name] = {key: _plain(key, value) for key, value in values.items()}
    return seed


def _tables(path: tuple[str, ...], table: object, depth: int) -> list[tuple[tuple[str, ...], Mapping[str, object]]]:
    if not isinstance(table, Mapping):
        raise UnknownLevel(f"{'.'.join(path)!r}: {_TABLES}")
    if depth == 0:
        return [(path, table)]
    return [found for name, inner in table.items() for found in _tables((*path, name), inner, depth - 1)]


def _plain(name: str, value: object) -> object:
    """Return a TOML value as JSON has it: moments as text, and no secrets."""
    text = value.isoformat() if hasattr(value, "isoformat") else value
    if isinstance(text, str) and looks_secret(name, text):
        raise BadSetting(name, "***", "looks like a secret", "write env:NAME or file:/path in its place")
    return text


def value_of(name: str, text: str) -> object:
    """Return the text behind `name=` as a JSON value. The setting's unit decides whether it is a number or text."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise BadSetting(name, text, "is not a setting", nearest(name, list(SETTINGS)))
    match setting.unit:
        case "count" | "requests/s" | "orders/s" | "share":
            return _number(text)
        case "durations" if text not in setting.choices:
            return [part.strip() for part in text.strip("[] ").replace('"', "").split(",") if part.strip()]
        case _:
            return text


def _number(text: str) -> object:
    """Return the number, or the text itself for the check to refuse."""
    kinds: tuple[Callable[[str], object], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _encode(values: LevelValues) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode()
