"""`penstock settings`: how orders are fetched, at three levels, live."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actors.fetch.rules.setting_table import SETTINGS
from actors.fetch.rules.settings import as_level, origins
from actors.fetch.settings.desk import Changed, StoredSettings, change_level, read_seed, read_stored, value_of
from actors.fetch.settings.levels import LevelName, UnknownLevel, level_named
from actors.runtime.rules.setting_values import BadSetting, nearest
from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.parameters import read_values
from penstock.errors import UsageError
from streams.clock import now_ms

if TYPE_CHECKING:
    from actors.fetch.rules.settings import LevelValues

__all__ = ["add_to", "seed_of"]

MOST_SHOWN = 10

LevelArgument = Annotated[str, typer.Argument(metavar="LEVEL", help="`default`, a platform, or platform/source.")]
OptionalLevel = Annotated[
    str, typer.Argument(metavar="[LEVEL]", help="`default`, a platform, or platform/source.", show_default=False)
]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        cls=Group, help="How orders are fetched: default, platform, source. Live on all nodes within a second."
    )
    app.add_typer(group, name="settings")
    command(group, "set")(_set)
    command(group, "get")(_get)
    command(group, "list")(_list)


def seed_of(file: Path | None) -> "dict[LevelName, LevelValues]":
    """Return the levels of a seed file, none without a file. Raises UsageError naming file and value."""
    if file is None:
        return {}
    try:
        return read_seed(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file}: not TOML: {error}") from error
    except (BadSetting, UnknownLevel) as error:
        raise UsageError(f"{file}: {error}") from error


async def _set(
    call: CommandCall,
    level: LevelArgument,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="As slice=2m retries=3.")
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave it to the wider level.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Drop all else that the level says.")] = False,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Also for a platform or source that is not there yet.")
    ] = False,
    trial: Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")] = False,
) -> None:
    """Set values of one level. They are checked with every source below it, and shown as old and new."""
    name, wanted = _level(level), _values(values or [])
    if not wanted and not unset and not replace:
        raise UsageError("nothing to set: write NAME=VALUE, or --unset NAME; `penstock settings list` shows the names")
    async with call.session() as session:
        try:
            changed = await change_level(
                session.settings_desk(),
                name,
                values=wanted,
                unset=unset or (),
                now_ms=now_ms(),
                is_replaced=replace,
                is_ahead=ahead,
                is_trial=trial,
            )
        except UnknownLevel as error:
            raise UsageError(str(error)) from error
    _show(call, changed, is_trial=trial)


def _show(call: CommandCall, changed: Changed, *, is_trial: bool) -> None:
    call.out.result(
        {
            "level": str(changed.name),
            "before": changed.before,
            "after": changed.after,
            "effects": {
                where: {key: {"before": old, "after": new} for key, (old, new) in what.items()}
                for where, what in changed.effects.items()
            },
            "is_trial": is_trial,
        }
    )
    if changed.before == changed.after:
        call.out.say(f"{changed.name}: nothing changes")
        return
    for key in sorted({*changed.before, *changed.after}):
        old, new = changed.before.get(key), changed.after.get(key)
        if old != new:
            call.out.say(f"{changed.name}: {key}: {_text(old)} -> {_text(new)}")
    below = [where for where in changed.effects if where != str(changed.name)]
    if below:
        named = ", ".join(below[:MOST_SHOWN]) + (" …" if len(below) > MOST_SHOWN else "")
        call.out.say(f"{'would change' if is_trial else 'changes'} {len(below)} source(s): {named}")


async def _get(
    call: CommandCall,
    level: LevelArgument,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="One setting.")] = "",
) -> None:
    """Print what is in force at a level: all of it, or one value alone."""
    at = _level(level)
    if name and name not in SETTINGS:
        raise UsageError(f"setting {name}: is not a setting; {nearest(name, list(SETTINGS))}")
    async with call.session() as session:
        stored = await read_stored(session.settings_desk())
    found = as_level(stored.levels.settings(at))
    if name:
        call.out.say(_text(found[name]))
        call.out.result({name: found[name]})
        return
    for key, value in found.items():
        call.out.say(f"{key} = {_text(value)}")
    call.out.result(found)


async def _list(call: CommandCall, level: OptionalLevel = "default") -> None:
    """Print every setting at a level: value, where it comes from, range, default, and why that default."""
    at = _level(level)
    async with call.session() as session:
        stored = await read_stored(session.settings_desk())
    found, told = as_level(stored.levels.settings(at)), origins(*stored.levels.three(at))
    records: list[dict[str, object]] = [
        {
            "name": name,
            "value": found[name],
            "from": told[name] or "built in",
            "unit": setting.unit,
            "range": " | ".join(setting.choices) if setting.choices else _range(setting.low, setting.high),
            "default": setting.default,
            "level": setting.settable_at,
            "what": setting.what,
            "why": setting.why,
        }
        for name, setting in SETTINGS.items()
    ]
    rows = [
        [each["name"], _text(each["value"]), each["from"], each["range"], each["what"], each["why"]] for each in records
    ]
    call.out.table(["setting", "value", "from", "range", "what it is", "why that default"], rows)
    _warn(call, stored)
    call.out.result({"level": str(at), "settings": records, "refused": stored.broken})


def _warn(call: CommandCall, stored: StoredSettings) -> None:
    for key, reason in stored.broken.items():
        call.out.say(f"not in force: {key}: {reason}")


def _level(text: str) -> LevelName:
    try:
        return level_named(text)
    except UnknownLevel as error:
        raise UsageError(str(error)) from error


def _values(texts: list[str]) -> dict[str, object]:
    return {name: value_of(name, value) for name, value in read_values(texts, "NAME=VALUE", "slice=2m").items()}


def _range(low: object, high: object) -> str:
    return f"{low} to {high}" if high else ""


def _text(value: object) -> str:
    match value:
        case None:
            return "(not set)"
        case "":
            return "(empty)"
        case list() | tuple():
            return ",".join(str(each) for each in value) or "(none)"
        case _:
            return str(value)
