"""A server with the project's accounts.conf, and a seed for each of its users."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nkeys  # type: ignore[import-untyped] # it ships no types
import pytest

from streams.credentials import Credentials
from streams.server import EmbeddedServer, embedded_server
from tests.support.processes import include_line, quoted

ROLES = ("admin", "node", "fetcher", "console", "app", "sys")


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


@contextmanager
def secured_server(store: Path, users: Users) -> Iterator[EmbeddedServer]:
    """Run a server with accounts.conf, outside of any test's loop."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in users.environment().items():
            patch.setenv(name, value)
        running = embedded_server(store, config=include_line("accounts.conf", store))
        with asyncio.Runner() as runner:
            server = runner.run(running.__aenter__())
            try:
                yield server
            finally:
                runner.run(running.__aexit__(None, None, None))
