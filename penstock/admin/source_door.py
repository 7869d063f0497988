"""Checks what a person says about a source before anything is stored. Pure: no server, no network.

A source that is stored wrongly is found out by every node, at night. So wrong names, addresses, secrets and values that
the adapter needs are refused here, with what to write instead. No message repeats a value that could be a secret.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from actors.fetch import accounts
from actors.fetch.sources import BadSourceName, SourceKey, source_named
from penstock.errors import UsageError
from platforms.adapter import Adapter
from platforms.declared import declare
from platforms.errors import BadDeclaration
from platforms.registry import adapter_names
from streams.errors import MalformedSubject
from streams.subjects import check_token

__all__ = ["AdapterTable", "check_account", "read_adapter_table", "read_pairs", "read_platform", "read_source"]

LONGEST_FILE = 256 * 1024

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class AdapterTable(NamedTuple):
    """An adapter file that was checked: its name, and what is stored of it."""

    name: str
    table: Mapping[str, object]

    @property
    def stored(self) -> bytes:
        """The form under `adapter.<name>`. Equal tables give equal bytes."""
        return msgspec.json.encode(self.table, order="deterministic")


def read_source(text: str) -> SourceKey:
    """Return the source that PLATFORM/SOURCE names. Raises UsageError."""
    try:
        return source_named(text)
    except BadSourceName as error:
        raise UsageError(str(error)) from error


def read_platform(text: str) -> str:
    """Return the platform that `text` names. Raises UsageError."""
    try:
        return check_token("platform", text)
    except MalformedSubject as error:
        raise UsageError(str(error)) from error


def read_pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Return `name=value` texts as a table. Raises UsageError, which never repeats a value: it may be a secret."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(f"{option}: write NAME=VALUE, the name of A-Z a-z 0-9 _ - (its value is not shown here)")
        if name in pairs:
            raise UsageError(f"{option} {name}: given twice; leave one of them out")
        pairs[name] = value
    return pairs


def read_adapter_table(text: str, *, where: str, is_new: bool = True) -> AdapterTable:
    """Return the adapter that a TOML file declares. Raises UsageError naming what is wrong in it, and its table. A new
    one must not have the name of a built-in adapter."""
    if len(text) > LONGEST_FILE:
        raise UsageError(f"{where}: {len(text)} characters; an adapter file has at most {LONGEST_FILE}")
    try:
        table = tomllib.loads(text)
        name = declare(table).declaration.name
        made = AdapterTable(check_token("name", name), table)
        _ = made.stored
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: is no TOML: {error}") from error
    except BadDeclaration as error:
        raise UsageError(f"{where}: {error.in_table}: {error.problem}") from error
    except (MalformedSubject, TypeError) as error:
        raise UsageError(f"{where}: {error}") from error
    if is_new and name in adapter_names():
        raise UsageError(f"{where}: name: {name!r} is a built-in adapter; give this one a name of its own")
    return made


def check_account(source: SourceKey | None, adapter: Adapter, account: Mapping[str, str], *, now_ms: int) -> None:
    """Raise UsageError unless `account` has what the adapter asks for, each value in a form that may be stored.
    `source` is None for an account that is only tried.

    References are checked for their form only: they have to lead somewhere on the nodes, not here."""
    try:
        accounts.check_account(source, adapter, account, now_ms=now_ms)
    except accounts.BadAccount as error:
        raise UsageError(str(error)) from error
