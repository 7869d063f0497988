"""The real `nats` command, where this machine has it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest


def find_nats() -> str | None:
    """Return the `nats` command: from PENSTOCK_NATS_CLI, PATH, or Go's folder of built commands."""
    given = os.environ.get("PENSTOCK_NATS_CLI", "")
    go_folders = [Path(os.environ.get("GOBIN", "")), Path(os.environ.get("GOPATH", "")) / "bin", Path.home() / "go/bin"]
    candidates = [given, shutil.which("nats") or "", *(str(folder / "nats") for folder in go_folders)]
    return next((one for one in candidates if one and os.access(one, os.X_OK) and Path(one).is_absolute()), None)


class NatsCli:
    """Runs `nats` against one server, with its settings in a folder of the test's own."""

    def __init__(self, binary: str, url: str, home: Path) -> None:
        self._binary = binary
        self._url = url
        self._environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "NO_COLOR": "1"}

    @classmethod
    def or_skip(cls, url: str, home: Path) -> "NatsCli":
        binary = find_nats()
        if binary is None:
            pytest.skip("no `nats` command on PATH or in Go's bin folder; set PENSTOCK_NATS_CLI to one")
        return cls(binary, url, home)

    async def run(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Return what the command prints; an exit code other than 0 raises, with what it said."""
        with anyio.fail_after(60):
            done = await anyio.run_process(
                [self._binary, "--server", self._url, *arguments],
                input=stdin.encode(),
                env=self._environment,
                stderr=subprocess.STDOUT,
                check=False,
            )
        said = done.stdout.decode()
        if check and done.returncode:
            raise AssertionError(f"nats {' '.join(arguments)} ended with {done.returncode}: {said}")
        return said

    async def json(self, *arguments: str) -> Any:
        """Return what the command prints with `--json`."""
        return json.loads(await self.run(*arguments, "--json"))
