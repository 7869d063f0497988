"""The settings of a topic, at two levels: for all topics (`default`), and for one.

A level is a flat JSON object. A topic's own values win, name by name. `parse_topic` checks one document alone, at the
door. `resolve_topic` combines the two. When either refuses, a node that follows the bucket keeps the last good one.
"""

from collections.abc import Callable, Mapping

import msgspec

from actors.runtime.rules.bounds import read_bound
from actors.runtime.rules.setting_document import read_document
from actors.runtime.rules.setting_values import (
    BadSetting,
    duration_text,
    nearest,
    read_duration,
    read_number,
    read_text,
    read_whole,
    span_ms,
)
from actors.runtime.rules.slot_keys import check_path, check_when_full
from streams.backoff import Backoff, Growth
from streams.messages.jobs import LONGEST_TTR_MS, READY_TOKENS, SHORTEST_TTR_MS, Priority
from streams.messages.slots import MOST_SLOTS, WhenFull

DEFAULT = "default"
"""The level that holds for all topics. So no topic has this name."""
LANES: tuple[Priority, ...] = tuple(READY_TOKENS)
"""In the order of service."""
MOST_ATTEMPTS = 1_000
_DAY_MS = 86_400_000


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force for a topic.

    `backoff`: the wait after a failed attempt. `remember_ms`: how long the id of a finished job stays taken. `None`: it
    is free at once. `rate`: jobs handed out a second, in the whole cluster. `0`: no limit. `most_waiting`: how many may
    be delayed and ready. `0`: no limit. `lanes`: the priorities that were ever used. Each costs a consumer.

    `slots`: calls at once under each key, in the whole cluster. `0`: no limit. `slot_key`: where the key is in the
    body, as a dotted path. `when_full`: what becomes of a job whose key has no free slot. `declared_slots`: what the
    code said last about these three, so that it does not undo what a person has set since.

    `zone`: where its handlers run (actors/runtime/rules/bounds.py). Empty: anywhere. `region_key`: where the key by
    which a job finds its shard is in the body, as a dotted path. A job of a shard of another zone is refused.
    """

    ttr_ms: int = 60_000
    attempts: int = 10
    backoff_ms: int = 5_000
    backoff_cap_ms: int = 600_000
    backoff_growth: Growth = "exponential"
    remember_ms: int | None = None
    rate: float = 0.0
    is_paused: bool = False
    most_waiting: int = 0
    lanes: tuple[Priority, ...] = ("normal",)
    slots: int = 0
    slot_key: str = ""
    when_full: WhenFull = "queue"
    declared_slots: str = ""
    zone: str = ""
    region_key: str = ""

    @property
    def remember_s(self) -> int:
        """How long the id of a finished job stays taken, in whole seconds, at least one. 0: it is free at once."""
        return 0 if self.remember_ms is None else max(1, self.remember_ms // 1000)

    @property
    def backoff(self) -> Backoff:
        """The wait before the next attempt, for `next_delay_ms`."""
        return Backoff(
            retries=self.attempts - 1, growth=self.backoff_growth, base_ms=self.backoff_ms, cap_ms=self.backoff_cap_ms
        )


def parse_topic(text: bytes) -> dict[str, object]:
    """Return the values of one level as they stand, each checked.
    Raises BadSetting for a document that is not one flat JSON object, a name that is unknown or repeated, or a value of
    the wrong kind or out of range."""
    values = read_document(text)
    resolve_topic(values, {})
    return values


def resolve_topic(default: Mapping[str, object], topic: Mapping[str, object]) -> TopicSettings:
    """Return what is in force. The topic's values come first, then the default ones, then the built-in ones. Raises
    BadSetting as `parse_topic` does, or if values of the two levels do not fit together."""
    fields: dict[str, object] = {}
    for name, value in {**default, **topic}.items():
        if name not in _READERS:
            raise BadSetting(name, value, "is not a setting of topics", nearest(name, list(_READERS)))
        field, read = _READERS[name]
        fields[field] = read(name, value)
    settings = msgspec.convert(fields, TopicSettings)
    if settings.backoff_ms > settings.backoff_cap_ms:
        shown = duration_text(settings.backoff_cap_ms)
        raise BadSetting(
            "backoff",
            duration_text(settings.backoff_ms),
            f"is longer than backoff_cap, {shown}",
            "lengthen backoff_cap",
        )
    return settings


def as_document(settings: TopicSettings) -> dict[str, object]:
    """Return `settings` as a person would write them, each by its name."""
    values = {name: getattr(settings, field) for name, (field, _) in _READERS.items()}
    durations = {
        name: duration_text(value) for name, value in values.items() if _is_duration(name) and value is not None
    }
    return {**values, **durations, "lanes": list(settings.lanes)}


def as_written(values: Mapping[str, object]) -> dict[str, object]:
    """Return values as a level has them, each length of time as a text. Raises BadSetting for an invalid length of
    time. The reader refuses all other invalid values."""
    return {
        name: value
        if value is None or name not in _READERS or not _is_duration(name)
        else duration_text(span_ms(name, value))
        for name, value in values.items()
    }


def _is_duration(name: str) -> bool:
    return _READERS[name][0].endswith("_ms")


def _duration(low_ms: int, high_ms: int) -> Callable[[str, object], object]:
    def read(name: str, value: object) -> int:
        duration_ms = read_duration(name, value)
        if not low_ms <= duration_ms <= high_ms:
            raise _out_of_range(name, value, duration_text(low_ms), duration_text(high_ms))
        return duration_ms

    return read


def _whole(low: int, high: int) -> Callable[[str, object], object]:
    def read(name: str, value: object) -> int:
        number = read_whole(name, value)
        if not low <= number <= high:
            raise _out_of_range(name, value, low, high)
        return number

    return read


def _rate(name: str, value: object) -> float:
    number = read_number(name, value)
    if number != 0 and not 0.001 <= number <= 1_000_000:
        raise _out_of_range(name, value, 0.001, 1_000_000)
    return number


def _remember(name: str, value: object) -> object:
    """Read `remember`. It is some times longer than the ack wait: a ready copy whose ack was lost meets the record of
    the job's end."""
    return None if value is None else _duration(10_000, 30 * _DAY_MS)(name, value)


def _yes_or_no(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadSetting(name, value, "is neither true nor false", "write true or false without quotes")
    return value


def _growth(name: str, value: object) -> str:
    text = read_text(name, value)
    if text not in ("linear", "exponential"):
        raise BadSetting(name, value, "is no way to grow", "write linear or exponential")
    return text


def _lanes(name: str, value: object) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(lane, str) and lane in LANES for lane in value):
        raise BadSetting(name, value, "is not a list of priorities", f"write a list of {', '.join(LANES)}")
    return [lane for lane in LANES if lane in value or lane == "normal"]


def _out_of_range(name: str, value: object, low: object, high: object) -> BadSetting:
    return BadSetting(name, value, "is out of range", f"write {low} to {high}")


_READERS: dict[str, tuple[str, Callable[[str, object], object]]] = {
    "ttr": ("ttr_ms", _duration(SHORTEST_TTR_MS, LONGEST_TTR_MS)),
    "attempts": ("attempts", _whole(1, MOST_ATTEMPTS)),
    "backoff": ("backoff_ms", _duration(1, _DAY_MS)),
    "backoff_cap": ("backoff_cap_ms", _duration(1, 7 * _DAY_MS)),
    "backoff_growth": ("backoff_growth", _growth),
    "remember": ("remember_ms", _remember),
    "rate": ("rate", _rate),
    "is_paused": ("is_paused", _yes_or_no),
    "most_waiting": ("most_waiting", _whole(0, 10**12)),
    "lanes": ("lanes", _lanes),
    "slots": ("slots", _whole(0, MOST_SLOTS)),
    "slot_key": ("slot_key", check_path),
    "when_full": ("when_full", check_when_full),
    "declared_slots": ("declared_slots", read_text),
    "zone": ("zone", read_bound),
    "region_key": ("region_key", check_path),
}
