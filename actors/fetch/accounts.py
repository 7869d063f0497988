"""Whether an account may be stored: it has what the adapter asks for, and no secret. Pure: no server, no network.

No message repeats a value that could be a secret.
"""

import re
from collections.abc import Mapping

from actors.fetch.sources import SourceKey
from actors.runtime.secrets import BadReference, is_reference, looks_secret, resolve_values
from actors.runtime.transport import check_url
from platforms.adapter import Account, Adapter
from platforms.bounds import Window
from platforms.errors import BadDeclaration, PlatformError, nearest
from platforms.lists import lists_of
from platforms.urls import check_base_url

LONGEST_VALUE = 2_000
MOST_VALUES = 64

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:/(?!/)[^\x00-\x1f]{1,1000}", re.ASCII)


class BadAccount(ValueError):
    """An account that cannot be used. `name`: the value that is wrong. Empty: the account as a whole."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


def check_account(source: SourceKey | None, adapter: Adapter, account: Mapping[str, str], *, now_ms: int) -> None:
    """Raise BadAccount unless `account` has what the adapter asks for, each value in a form that may be stored.
    `source` is None for an account that is only tried.

    References are checked for their form only: they have to lead somewhere on the nodes, not here."""
    if len(account) > MOST_VALUES:
        raise BadAccount(f"{source or 'trial'}: {len(account)} account values; at most {MOST_VALUES}")
    for name, value in account.items():
        _check_value(name, value)
    declared = adapter.declaration
    needs_no_login = declared.granted and all(name in account for name in declared.granted)
    spared = declared.for_login if needs_no_login else ()
    missing = [name for name in declared.account if name not in account and name not in spared]
    if missing:
        given = nearest(missing[0], account) if account else ""
        raise BadAccount(
            f"{source or 'trial'}: the adapter {adapter.declaration.name} needs the account value {missing[0]!r}{given}"
            f"; add --account {missing[0]}=…",
            missing[0],
        )
    if not any(is_reference(value) for value in account.values()):
        _try_request(source, adapter, account, now_ms)


def _check_value(name: str, value: str) -> None:
    if not value:
        raise BadAccount(f"--account {name}: is empty; write a value, or leave it out", name)
    if len(value) > LONGEST_VALUE or not value.isprintable():
        raise BadAccount(f"--account {name}: use up to {LONGEST_VALUE} printable characters", name)
    if is_reference(value):
        if not _REFERENCE.fullmatch(value):
            raise BadAccount(f"--account {name}: a reference is env:NAME or file:/absolute/path", name)
    elif looks_secret(name, value):
        raise BadAccount(
            f"--account {name}: looks like a secret, and would be stored for all to read; put it where the nodes find "
            f"it and write {name}=env:NAME or {name}=file:/path",
            name,
        )
    elif name == "base_url" or "://" in value:
        _check_address(name, value)


def _check_address(name: str, value: str) -> None:
    try:
        if name == "base_url":
            check_base_url(f"--account {name}", value)
        else:
            check_url(value)
    except BadDeclaration as error:
        raise BadAccount(str(error), name) from error
    except ValueError as error:
        raise BadAccount(f"--account {name}: {error}", name) from error


def _try_request(source: SourceKey | None, adapter: Adapter, account: Mapping[str, str], now_ms: int) -> None:
    """Have the adapter form a request: it says best what it cannot use."""
    try:
        values = resolve_values(account)
        for each in lists_of(adapter).values():
            each.request(Window(now_ms - 60_000, now_ms), None, Account("account", values), now_ms)
    except (PlatformError, BadReference) as error:
        raise BadAccount(
            f"{source or 'trial'}: the adapter {adapter.declaration.name} cannot use this account: {error}"
        ) from error
