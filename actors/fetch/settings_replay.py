"""Which levels are in force, computed only from what is stored. Every node gets the same result, whenever it started.

If the newest values of all levels fit together, they are in force. If one does not, all values that the bucket still
keeps are applied in the order in which they were written, as by a node that had followed it since the oldest of them. A
value that does not fit waits, and is tried again after each one that does. Values that still wait at the end are
refused.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from actors.fetch.rules.settings import LevelValues, parse_level
from actors.fetch.settings_levels import LevelName, Levels, UnknownLevel, level_of_key
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
    values: dict[LevelName, LevelValues] = {}
    newest = list(newest)
    try:
        for kept in newest:
            if kept.text is not None:
                name = level_of_key(kept.key)
                values[name] = parse_level(kept.text, name.level)
        levels = Levels(values)
        for name in values:
            levels.settings(name)
    except (BadSetting, UnknownLevel):
        return None
    return InForce(levels, {kept.key: kept.revision for kept in newest}, {})


def replayed(kept: Iterable[Kept]) -> InForce:
    """Return what is in force after all kept values were applied in the order of their revisions."""
    levels, newest = Levels(), dict[str, int]()
    waiting: dict[str, Kept] = {}
    refused: dict[str, str] = {}
    for each in sorted(kept):
        newest[each.key] = 0 if each.text is None else each.revision
        waiting[each.key] = each
        levels = _settled(levels, waiting, refused)
    return InForce(levels, newest, {key: refused[key] for key in waiting})


def _settled(levels: Levels, waiting: dict[str, Kept], refused: dict[str, str]) -> Levels:
    """Return the levels with all fitting ones of `waiting` applied. Write into `refused` why the rest does not fit."""
    is_moving = True
    while is_moving:
        is_moving = False
        for key, each in sorted(waiting.items(), key=lambda item: item[1].revision):
            try:
                name = level_of_key(key)
                levels = levels.with_level(name, None if each.text is None else parse_level(each.text, name.level))
            except (BadSetting, UnknownLevel) as error:
                refused[key] = str(error)
            else:
                del waiting[key]
                is_moving = True
    return levels
