"""A server with the project's accounts.conf, a seed for each of its users, and what that file says of them."""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nkeys  # type: ignore[import-untyped] # it ships no types
import pytest

from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.credentials import Credentials
from tests.support.processes import NATS, include_line, quoted

ROLES = ("admin", "node", "app", "console", "sys", "zone")
SHIPPED = (NATS / "accounts.conf").read_text()


class Users:
    """A fresh nkey for each role; the public ones go to the server, by its environment."""

    def __init__(self) -> None:
        self._seeds = {role: nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER) for role in ROLES}

    def environment(self) -> dict[str, str]:
        return {
            f"PENSTOCK_NKEY_{role.upper()}": quoted(nkeys.from_seed(bytearray(seed)).public_key.decode())
            for role, seed in self._seeds.items()
        }

    def credentials(self, role: str) -> Credentials:
        return Credentials(nkey_seed=self._seeds[role].decode(), inbox_prefix=f"_INBOX_{role}")

    def login(self, role: str) -> dict[str, str]:
        """Return the environment of a process of this user's."""
        seed = {"SEED": self._seeds[role].decode(), "PENSTOCK_NKEY_SEED": "env:SEED"}
        return seed | {"PENSTOCK_INBOX_PREFIX": f"_INBOX_{role}"}


@contextmanager
def secured_server(store: Path, users: Users, accounts: str = "") -> Iterator[EmbeddedServer]:
    """Run a server with accounts.conf, or this text in its place, outside of any test's loop."""
    line = include_line("accounts.conf", store)
    if accounts:
        (store / "accounts.conf").write_text(accounts)
        line = 'include "accounts.conf"'
    with pytest.MonkeyPatch.context() as patch:
        for name, value in users.environment().items():
            patch.setenv(name, value)
        running = embedded_server(store, config=line)
        with asyncio.Runner() as runner:
            server = runner.run(running.__aenter__())
            try:
                yield server
            finally:
                runner.run(running.__aexit__(None, None, None))


def block_of(account: str) -> str:
    """Return an account's block of the shipped file."""
    return SHIPPED[SHIPPED.index(f"\n  {account} {{") : SHIPPED.index("\n  }\n", SHIPPED.index(f"\n  {account} {{"))]


def reachable(block: str) -> list[str]:
    """Return the subjects on which the account of a block may ask PENSTOCK."""
    return re.findall(r'service: \{ account: PENSTOCK, subject: "([^"]+)"', block)


def with_spies(text: str = SHIPPED) -> str:
    """Return the file with one more user in each account, for `spy`."""
    for account in re.findall(r"(?m)^  (\w+) \{", text):
        before, name, rest = text.partition(f"\n  {account} {{")
        rest = rest.replace("users: [", f'users: [ {{ user: "spy_{account}", password: "spy" }},', 1)
        text = before + name + rest
    return text


def spy(account: str) -> Credentials:
    """Return the login of a user of `with_spies`, who may do all that the account can."""
    return Credentials(user=f"spy_{account}", password="spy")  # of a server on loopback, for one test
