"""The settings of fetching, and how three levels become one record.

A level (default, platform, source) is a flat JSON object of names of `SETTINGS`. A narrower level wins name by name.
`parse_level` checks one document alone, at the door. `resolve` combines three and checks the rules between settings.
When either refuses, a node that follows the bucket keeps the last good record.
"""

import sys
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from actors.fetch.rules.setting_table import LEVELS, SETTINGS, Level, Setting
from actors.runtime.rules.bounds import read_bound
from actors.runtime.rules.setting_document import read_document
from actors.runtime.rules.setting_values import (
    BadSetting,
    duration_text,
    nearest,
    read_duration,
    read_label,
    read_number,
    read_reference,
    read_start,
    read_text,
    read_whole,
    start_ms_of,
)
from actors.runtime.rules.slot_keys import check_path
from streams.backoff import Backoff, Growth

MAX_AGAIN = 8
USUAL_AGAIN = (600_000, 7_200_000, 86_400_000)
"""When closed windows are read once more if neither the setting nor the adapter says."""

TOGETHER: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (("overlap_before", "overlap_after"), "slice", "is longer than the slice itself", "shorten the overlaps"),
    (("slice",), "again_slice", "is longer than the window of a second look", "lengthen again_slice"),
    (("request_timeout",), "timeout", "is longer than the time for all pages", "shorten request_timeout"),
    (("timeout",), "stale_after", "would be cut off by the monitor", "lengthen stale_after to some timeouts"),
    (("retry_base",), "retry_cap", "is longer than the longest pause", "lengthen retry_cap"),
    (("throttle_wait",), "throttle_cap", "is longer than the longest pause", "lengthen throttle_cap"),
    (("settle",), "again", "is later than the first second look", "make the first of again longer than settle"),
)
"""Sums of durations on the left that may not exceed the one on the right, why, and what to do."""

LevelValues = Mapping[str, object]
"""Names to values, as in the JSON document."""


LONGEST_PLACE = 58
"""Characters of a lane's token, beside those that name the lane."""


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one source. Durations are milliseconds and end in `_ms`. `SETTINGS` says what each means."""

    start: str = "-90d"
    slice_ms: int = 0  # auto
    settle_ms: int = 30_000
    overlap_before_ms: int = 3_000
    overlap_after_ms: int = 1_000
    max_open: int = 64
    max_holes: int = 500
    back_open: int = 4
    again_ms: tuple[int, ...] | None = None  # auto
    sweep_ms: int = 0  # auto
    again_slice_ms: int = 600_000
    timeout_ms: int = 60_000
    request_timeout_ms: int = 15_000
    split_after: int = 1
    retries: int = 5
    backoff: Growth = "linear"
    retry_base_ms: int = 5_000
    retry_cap_ms: int = 600_000
    retry_spread: float = 0.2
    down_after_ms: int = 120_000
    losses: int = 10
    stale_after_ms: int = 180_000
    scan_every_ms: int = 5_000
    reoffer_ms: int = 30_000
    claim_retries: int = 10
    concurrency: int = 8
    rate: float = 10.0
    platform_rate: float = 0.0
    burst: int = 10
    weight: float = 1.0
    throttle_wait_ms: int = 10_000
    throttle_cap_ms: int = 3_600_000
    inflow: float = 0.0
    sink_backlog: int = 100_000
    lag_alarm_ms: int = 900_000
    pin: str = ""
    zone: str = ""
    region_key: str = ""
    webhook: str = ""

    @property
    def place(self) -> str:
        """The token of the lanes of the sources that are pinned and bound alike. Empty: the common lanes."""
        if not self.zone:
            return self.pin
        place = f"{self.pin}_at_{self.zone.replace(':', '_')}".lstrip("_")
        return place if len(place) <= LONGEST_PLACE else f"at_{blake2b(place.encode(), digest_size=12).hexdigest()}"

    def looks_ms(self, declared_ms: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return how long after its end a window is read once more: as set, or else as the adapter declares."""
        if self.again_ms is not None:
            return self.again_ms
        return USUAL_AGAIN if declared_ms is None else declared_ms

    @property
    def retry_policy(self) -> Backoff:
        return Backoff(
            retries=self.retries,
            growth=self.backoff,
            base_ms=self.retry_base_ms,
            cap_ms=self.retry_cap_ms,
            spread=self.retry_spread,
        )

    def slowed(self, per_s: float, *, has_burst: bool) -> "FetchSettings":
        """Return the settings with a lower rate."""
        return msgspec.structs.replace(self, rate=per_s, burst=self.burst if has_burst else 1)

    def first_ms(self, now_ms: int) -> int:
        """Return where the source's time begins if it is first used at `now_ms`. Raises BadSetting for the future."""
        return start_ms_of(self.start, now_ms)


def parse_level(text: bytes, level: Level = "source") -> dict[str, object]:
    """Return the values of one level's JSON document, each checked alone and against those beside it.
    Raises BadSetting for a document that is not one flat JSON object in UTF-8, a name that is unknown, repeated or not
    settable at `level`, and a value of the wrong kind or out of range."""
    values = read_document(text)
    check_level(values, level)
    return values


def check_level(values: LevelValues, level: Level, *, now_ms: int | None = None) -> None:
    """Check a level that did not come as JSON text (from a TOML file, for example), as `parse_level` does. With
    `now_ms` it also raises BadSetting for a start in the future."""
    fields = {}
    for name, value in values.items():
        setting = _setting(name, value)
        if level not in setting.levels():
            where = " and ".join(setting.levels())
            raise BadSetting(name, value, f"cannot be set for one {level}", f"set it at the level {where}")
        fields[name] = _read(name, setting, value)
    _check_together(fields)
    if now_ms is not None and "start" in values:
        start_ms_of(str(values["start"]), now_ms)


def resolve(default: LevelValues, platform: LevelValues, source: LevelValues) -> FetchSettings:
    """Return the settings of a source. The source's own values come first, then its platform's, then the default ones,
    then those of the table. Raises BadSetting as `parse_level` does, or if values of several levels do not fit
    together."""
    read = dict(_DEFAULTS)
    for level in (default, platform, source):
        for name, value in level.items():
            read[name] = _read(name, _setting(name, value), value)
    _check_together(read)
    return msgspec.convert({_field(name): value for name, value in read.items()}, FetchSettings)


def narrowed(wider: FetchSettings, values: LevelValues) -> FetchSettings:
    """Return what `resolve` returns for a level with these values, from what is in force at the level above it. Raises
    as `resolve` does. Only the rules that the values touch are checked, since the others hold above."""
    changed: dict[str, object] = {}
    for name, value in values.items():
        read, field = _read(name, _setting(name, value), value), _field(name)
        changed[field] = float(read) if isinstance(read, int) and isinstance(getattr(wider, field), float) else read
    after = msgspec.structs.replace(wider, **changed)
    touched = [rule for rule in TOGETHER if any(name in values for name in (*rule[0], rule[1]))]
    if touched:
        names = {name for low, high, _, _ in touched for name in (*low, high)}
        _check_together({name: getattr(after, _field(name)) for name in names})
    return after


def as_level(settings: FetchSettings) -> dict[str, object]:
    """Return `settings` as a level that resolves to them again: what a user would write."""
    return {name: _written(setting, getattr(settings, _field(name))) for name, setting in SETTINGS.items()}


def origins(default: LevelValues, platform: LevelValues, source: LevelValues) -> dict[str, Level | None]:
    """Return for each setting the level that decides it. `None`: the table's own default."""
    found: dict[str, Level | None] = dict.fromkeys(SETTINGS)
    for level, values in zip(LEVELS, (default, platform, source), strict=True):
        found.update(dict.fromkeys(values, level))
    return found


def _setting(name: str, value: object) -> Setting:
    try:
        return SETTINGS[name]
    except KeyError:
        raise BadSetting(name[:64], value, "is not a setting", nearest(name, list(SETTINGS))) from None


def _field(name: str) -> str:
    return f"{name}_ms" if SETTINGS[name].unit in ("duration", "durations") else name


def _read(name: str, setting: Setting, value: object) -> object:
    """Return the value as the record holds it. Raises BadSetting for a wrong kind or range."""
    match setting.unit:
        case "duration":
            return _bounded_duration(name, setting, value)
        case "durations":
            return _durations(name, setting, value)
        case "count":
            return _bounded(name, setting, value, read_whole(name, value))
        case "requests/s" | "orders/s" | "share":
            return _bounded(name, setting, value, read_number(name, value))
        case "choice":
            return _choice(name, setting, value)
        case "start":
            return read_start(name, value)
        case "label":
            return read_label(name, value)
        case "bound":
            return read_bound(name, value)
        case "path":
            return check_path(name, value)
        case "reference":
            return read_reference(name, value)


def _bounded(name: str, setting: Setting, value: object, read: int | float) -> int | float:
    low, high = read_number(name, setting.low), read_number(name, setting.high)
    if not low <= read <= high:
        raise BadSetting(name, value, f"is not within {setting.low} to {setting.high}", _instead(name))
    return read


def _bounded_duration(name: str, setting: Setting, value: object) -> int:
    if value in setting.choices:
        return 0
    read = read_duration(name, value)
    if not read_duration(name, setting.low) <= read <= read_duration(name, setting.high):
        raise BadSetting(name, value, f"is not within {setting.low} to {setting.high}", _instead(name))
    return read


def _durations(name: str, setting: Setting, value: object) -> tuple[int, ...] | None:
    if value in setting.choices:
        return None
    if not isinstance(value, list | tuple) or len(value) > MAX_AGAIN:
        do = 'write it as ["10m", "2h"], [] for none, or auto'
        raise BadSetting(name, value, f"is not a list of up to {MAX_AGAIN} durations", do)
    read = tuple(_bounded_duration(name, setting, each) for each in value)
    if list(read) != sorted(set(read)):
        raise BadSetting(name, value, "does not rise from one to the next", "sort it and name each once")
    return read


def _choice(name: str, setting: Setting, value: object) -> str:
    text = read_text(name, value)
    if text not in setting.choices:
        raise BadSetting(name, value, "is not a choice", nearest(text, setting.choices))
    return text


def _instead(name: str) -> str:
    if name in ("rate", "concurrency", "max_open"):
        return "choose one in between; to stop a source, pause it"
    return "choose one in between"


def _written(setting: Setting, value: object) -> object:
    if setting.unit == "duration":
        assert isinstance(value, int)
        return setting.choices[0] if setting.choices and not value else duration_text(value)
    if setting.unit == "durations":
        if value is None:
            return setting.choices[0]
        assert isinstance(value, tuple)
        return [duration_text(each) for each in value]
    return value


def _check_together(read: Mapping[str, object]) -> None:
    """Check the rules between settings, as far as `read` has both sides."""
    for low, high, why, do in TOGETHER:
        names = (*low, high)
        if not all(name in read for name in names):
            continue
        amounts = [_least(read[name]) for name in names]
        if SETTINGS[high].choices and amounts[-1] == 0:
            continue  # auto is long enough
        if sum(amounts[:-1]) > amounts[-1]:
            words = " + ".join(f"{name} {duration_text(amount)}" for name, amount in zip(low, amounts, strict=False))
            raise BadSetting(low[0], words, f"{why} ({high} is {duration_text(amounts[-1])})", do)


def _least(value: object) -> int:
    """Return the duration, or the first of a list. An empty list or `auto` has nothing that could be too short."""
    if value is None or isinstance(value, tuple):
        return value[0] if value else sys.maxsize
    assert isinstance(value, int)
    return value


_DEFAULTS: Mapping[str, object] = {name: _read(name, setting, setting.default) for name, setting in SETTINGS.items()}
