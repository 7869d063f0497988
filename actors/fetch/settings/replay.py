"""Which levels are in force, computed only from what is stored. Every node gets the same result, whenever it started.

If the newest values of all levels fit together, they are in force. If one does not, all values that the bucket still
keeps are applied in the order in which they were written, as by a node that had followed it since the oldest of them. A
value that does not fit waits, and is tried again after each one that does. Values that still wait at the end are
refused.
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from actors.fetch.rules.settings import LevelValues, parse_level
from actors.fetch.settings.levels import LevelName, Levels, UnfitLevel, UnknownLevel, level_of_key
from actors.runtime.rules.setting_values import BadSetting


class Kept(NamedTuple):
    """A value that a key had at a revision. `None`: it was deleted there."""

    revision: int
    key: str
    text: bytes | None


class InForce(NamedTuple):
    """The levels in force, the newest revision of each key (0: deleted), and why the newest of some is not in force."""

    levels: Levels
    newest: Mapping[str, int]
    refused: Mapping[str, str]


def newest_together(newest: Iterable[Kept]) -> InForce | None:
    """Return what is in force if the newest values of all levels fit together, else None."""
    newest = list(newest)
    levels = Levels()
    if not change_together(levels, newest):
        return None
    return InForce(levels, {kept.key: kept.revision for kept in newest}, {})


def change_together(levels: Levels, changed: Iterable[Kept]) -> bool:
    """Change levels that are the newest, in place. Return False if the changed ones do not fit together with them: then
    nothing has changed."""
    try:
        levels.change(dict(_level_of(kept) for kept in changed))
    except (BadSetting, UnknownLevel):
        return False
    return True


def _level_of(kept: Kept) -> tuple[LevelName, LevelValues | None]:
    """Raises BadSetting, UnknownLevel."""
    name = level_of_key(kept.key)
    return name, None if kept.text is None else parse_level(kept.text, name.level)


def replayed(kept: Iterable[Kept]) -> InForce:
    """Return what is in force after all kept values were applied in the order of their revisions."""
    levels, newest = Levels(), dict[str, int]()
    waiting: dict[str, _Waiting] = {}
    for each in sorted(kept):
        newest[each.key] = 0 if each.text is None else each.revision
        waiting.pop(each.key, None)
        _apply(levels, each, waiting)
    return InForce(levels, newest, {key: found.why for key, found in waiting.items()})


class _Waiting(NamedTuple):
    """A value that does not fit, why, and the level where it does not. `None`: it fits nowhere."""

    kept: Kept
    why: str
    at: LevelName | None


def _apply(levels: Levels, first: Kept, waiting: dict[str, _Waiting]) -> None:
    """Apply a value, and then those that wait and fit now: by their revisions, over and over until none fits any more.
    A value that does not fit at a level can fit only after that level, or a wider one, has changed."""
    this_time = [first]
    while this_time:
        next_time: list[Kept] = []
        while this_time:
            kept = heappop(this_time)
            try:
                name, values = _level_of(kept)
                levels.change({name: values})
            except (BadSetting, UnknownLevel) as error:
                waiting[kept.key] = _Waiting(kept, str(error), error.at if isinstance(error, UnfitLevel) else None)
                continue
            waiting.pop(kept.key, None)
            for found in waiting.values():
                if found.at is None or not name.covers(found.at):
                    continue
                if found.kept.revision > kept.revision and found.kept not in this_time:
                    heappush(this_time, found.kept)
                elif found.kept.revision < kept.revision and found.kept not in next_time:
                    heappush(next_time, found.kept)
        this_time = next_time
