"""Finds an adapter by name: one built in as Python, one built in as a file, or one from a table of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files

from platforms.adapter import Adapter
from platforms.declared import declare, declare_toml
from platforms.errors import BadDeclaration, nearest
from platforms.mall.adapter import MallAdapter

_IN_PYTHON: Mapping[str, Callable[[], Adapter]] = {
    "mall": lambda: MallAdapter("one"),
    "mall_token": lambda: MallAdapter("token"),
}


def adapter_names() -> list[str]:
    """Return the names of all adapters that are built in."""
    return sorted({*_IN_PYTHON, *_files()})


class NoSuchAdapter(BadDeclaration):
    """No adapter has this name. `others`: names of adapters that are not built in."""

    def __init__(self, name: str, others: Iterable[str] = ()) -> None:
        name = name[:64]
        super().__init__("adapter", f"there is no adapter {name!r}{nearest(name, {*adapter_names(), *others})}")

    def __str__(self) -> str:
        return self.problem


@cache
def adapter_named(name: str) -> Adapter:
    """Return a built-in adapter. NoSuchAdapter, with the nearest name, when there is none."""
    if name in _IN_PYTHON:
        return _IN_PYTHON[name]()
    found = _files()
    if name not in found:
        raise NoSuchAdapter(name)
    return declare_toml(found[name])


def adapter_file(name: str) -> str | None:
    """Return the text of a built-in adapter's file, None if it has none."""
    return _files().get(name)


def make_adapter(adapter: str | Mapping[str, object]) -> Adapter:
    """Return an adapter from its name, or from the table of an adapter file."""
    return adapter_named(adapter) if isinstance(adapter, str) else declare(adapter)


@cache
def _files() -> Mapping[str, str]:
    """Return the text of each adapter file that comes with the package, by name."""
    found = [entry for entry in files("platforms").iterdir() if entry.name.endswith(".toml")]
    return {entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8") for entry in found}
