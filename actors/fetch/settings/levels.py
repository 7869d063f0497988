"""The levels of settings in force: pure values, no bucket and no clock.

A level is named `default`, `platform` or `platform/source`, and stands in SETTINGS under `fetch.default`,
`fetch.<platform>` or `fetch.<platform>.<source>`. Levels are changed one at a time. A change that does not resolve at
every source below it is refused as a whole, so the levels in force always resolve.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from actors.fetch.rules.setting_table import Level
from actors.fetch.rules.settings import FetchSettings, LevelValues, narrowed, resolve
from actors.runtime.rules.setting_values import BadSetting
from streams.errors import MalformedSubject
from streams.subjects import check_token

PREFIX = "fetch"
_NOTHING: LevelValues = MappingProxyType({})


class UnknownLevel(Exception):
    """A name or key that is no level. The message says what a level is."""


class LevelName(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """The name of a level. Both parts empty: the default level. An empty source: a platform's level."""

    platform: str = ""
    source: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.platform, self.source) if part) or "default"

    @property
    def key(self) -> str:
        """The level's key in SETTINGS."""
        return ".".join((PREFIX, *(part for part in (self.platform or "default", self.source) if part)))

    @property
    def level(self) -> Level:
        return "source" if self.source else "platform" if self.platform else "default"

    def covers(self, other: "LevelName") -> bool:
        """Return whether a change of this level can change what is in force at `other`."""
        return self.platform in ("", other.platform) and self.source in ("", other.source)


DEFAULT = LevelName()


def level_named(text: str) -> LevelName:
    """Return the level that a person calls `default`, `platform` or `platform/source`. Raises UnknownLevel."""
    if text == "default":
        return DEFAULT
    platform, slash, source = text.partition("/")
    try:
        check_token("platform", platform)
        if slash:
            check_token("source", source)
    except MalformedSubject as error:
        raise UnknownLevel(f"{error}; a level is default, PLATFORM or PLATFORM/SOURCE") from error
    if platform == "default":
        raise UnknownLevel("default is the level of all sources; no platform can be called so")
    return LevelName(platform, source)


def level_of_key(key: str) -> LevelName:
    """Return the level that stands under a key of SETTINGS. Raises UnknownLevel."""
    match key.split("."):
        case ["fetch", "default"]:
            return DEFAULT
        case ["fetch", platform] if platform:
            return LevelName(platform)
        case ["fetch", platform, source] if platform != "default":
            return LevelName(platform, source)
        case _:
            raise UnknownLevel(f"{key}: not a level; write fetch.default, fetch.PLATFORM or fetch.PLATFORM.SOURCE")


class Levels:
    """Levels that resolve together. `with_levels` returns a changed copy. Resolved settings are cached."""

    def __init__(self, values: Mapping[LevelName, LevelValues] = MappingProxyType({})) -> None:
        self._values = dict(values)
        self._resolved: dict[LevelName, FetchSettings] = {}

    def __len__(self) -> int:
        return len(self._values)

    def names(self) -> list[LevelName]:
        """Return the levels that have values, the widest first."""
        return sorted(self._values)

    def values(self, name: LevelName) -> LevelValues:
        """Return the values of one level itself."""
        return self._values.get(name, _NOTHING)

    def three(self, name: LevelName) -> tuple[LevelValues, LevelValues, LevelValues]:
        """Return the values of the default, the platform's and the source's level, as far as `name` reaches."""
        platform = self.values(LevelName(name.platform)) if name.platform else _NOTHING
        return self.values(DEFAULT), platform, self.values(name) if name.source else _NOTHING

    def settings(self, name: LevelName) -> FetchSettings:
        """Return what is in force at a level. A source without values of its own shares its platform's object."""
        at = name if self._values.get(name) or not name.source else LevelName(name.platform)
        found = self._resolved.get(at)
        if found is None:
            found = self._resolved[at] = self._resolve(at)
        return found

    def with_level(self, name: LevelName, values: LevelValues | None) -> "Levels":
        """Return the levels with one changed, or removed (`None`).
        Raises BadSetting, naming the level, if any level below would not resolve. Nothing is changed then."""
        return self.with_levels({name: values})

    def with_levels(self, changes: Mapping[LevelName, LevelValues | None]) -> "Levels":
        """Return the levels with some changed, or removed (`None`), all of them together. Raises as `with_level`."""
        after = Levels(self._values)
        after._resolved = dict(self._resolved)
        after.change(changes)
        return after

    def change(self, changes: Mapping[LevelName, LevelValues | None]) -> None:
        """Do as `with_levels`, in place. If it raises, these levels are as they were, and the error's `at` is the level
        that does not resolve."""
        before = {name: self._values.get(name) for name in changes}
        touched = self._put(changes)
        try:
            for at in touched:
                self._check(at, changes)
        except BadSetting:
            self._put(before)
            raise

    def _put(self, changes: Mapping[LevelName, LevelValues | None]) -> list[LevelName]:
        """Change the values, and forget what was resolved from them. Return the levels to check, the widest first."""
        for name, values in changes.items():
            if values is None:
                self._values.pop(name, None)
            else:
                self._values[name] = values
        wide = [name for name in changes if not name.source]
        known = {*self._values, *self._resolved} if wide else ()
        touched = {*changes, *(at for at in known if any(name.covers(at) for name in wide))}
        for at in touched:
            self._resolved.pop(at, None)
        return sorted(touched) if wide else list(touched)

    def _check(self, at: LevelName, changes: Mapping[LevelName, LevelValues | None]) -> None:
        try:
            self.settings(at)
        except BadSetting as error:
            raise UnfitLevel(at, error if at in changes else _elsewhere(error, at)) from error

    def _resolve(self, at: LevelName) -> FetchSettings:
        """Return what is in force at a level that has values, or at a platform."""
        if not at.source:
            return resolve(*self.three(at))
        return narrowed(self.settings(LevelName(at.platform)), self._values[at])


class UnfitLevel(BadSetting):
    """A change that does not fit: at `at`, what is in force would not resolve."""

    def __init__(self, at: LevelName, error: BadSetting) -> None:
        super().__init__(error.name, error.value, error.why, error.do)
        self.at = at


def _elsewhere(error: BadSetting, at: LevelName) -> BadSetting:
    return BadSetting(error.name, error.value, f"at {at} {error.why}", error.do)
