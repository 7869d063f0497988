"""A PostgreSQL server of the tests' own, if one is installed."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

USER = "penstock"
SETTINGS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "max_connections": "60"}


@dataclass(frozen=True)
class PostgresServer:
    """A cluster in a folder; it can be stopped and started again on the same port."""

    programs: Path
    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = " ".join(f"-c {name}='{value}'" for name, value in {**SETTINGS, "port": str(self.port)}.items())
        log = str(self.folder / "log")
        self._control("start", "-w", "-t", "30", "-l", log, "-o", options)

    def stop(self) -> None:
        """Stop at once, as a crash would: connections break, and nothing is flushed."""
        self._control("stop", "-w", "-m", "immediate")

    def _control(self, *arguments: str) -> None:
        _run([str(self.programs / "pg_ctl"), "-D", str(self.folder / "data"), *arguments])


def find_programs() -> Path | None:
    """Return the folder of initdb and pg_ctl; None if there is none."""
    on_path = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = [Path(on_path).resolve(), *installed] if on_path else installed
    return next((path.parent for path in found if (path.parent / "pg_ctl").exists()), None)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a new cluster, and remove it at the end. Skip the test at a desk without PostgreSQL."""
    programs = find_programs()
    if programs is None:
        if os.environ.get("CI"):
            pytest.fail("PostgreSQL is not installed")
        pytest.skip("PostgreSQL (initdb, pg_ctl) is not installed")
    folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, _other_user())
        data = str(folder / "data")
        _run([str(programs / "initdb"), "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"])
        server = PostgresServer(programs, folder, _free_port())
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _other_user() -> str:
    """Return a user to run as instead of root, whom PostgreSQL refuses."""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _run(command: Sequence[str]) -> None:
    """Run as an ordinary user; the server that pg_ctl starts must not hold our pipes, so output goes to a file."""
    user = _other_user() if os.geteuid() == 0 else None
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command,
            user=user,
            group=user and _group(user),
            extra_groups=[] if user else None,
            cwd="/",
            stdout=output,
            stderr=output,
        )
        output.seek(0)
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {output.read().decode(errors='replace')}")


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
