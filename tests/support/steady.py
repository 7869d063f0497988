"""Runs pytest, and what failed beside others again, alone: `python -m tests.support.steady ARGUMENTS` (ADR 77).

A test passes after all if it passes five times in a row with the machine to itself. It is named at the end. Exits as
pytest does.

Each module is compiled once. A run starts some thousand processes, and compiling takes half of what such a start costs.
Where Python may write nothing beside the sources, what it compiled is kept in pytest's folder.

The servers' files are in memory where that is large enough (`IN_MEMORY`). A run makes some hundred thousand files, and
on a disk they take a fifth of its processor time.

The servers collect garbage a quarter as often (`GOGC`). A run makes some ten thousand streams, each of which is gone
after a second, and collecting takes a third of what a server spends on them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

MOST = 5
"""More tests than this fail for a reason."""
TIMES = 5
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
FAILED = 1
COMPILED = Path(".pytest_cache/compiled")
IN_MEMORY = Path("/dev/shm")
ENOUGH = 8 << 30
"""Bytes. A run fills 160 MB at most, but servers and nodes look at how much is free."""


def environment() -> dict[str, str]:
    """Return this process's environment, such that Python keeps what it compiles, files are in memory, and servers
    seldom collect garbage."""
    kept = dict(os.environ)
    if kept.pop("PYTHONDONTWRITEBYTECODE", ""):
        kept["PYTHONPYCACHEPREFIX"] = kept.get("PYTHONPYCACHEPREFIX") or str(COMPILED.absolute())
    if has_room(IN_MEMORY):
        kept.setdefault("TMPDIR", str(IN_MEMORY))
    kept.setdefault("GOGC", "400")
    return kept


def has_room(folder: Path) -> bool:
    """Return whether the files of a run, and programs among them, may be there."""
    if not folder.is_dir():
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= ENOUGH and not found.f_flag & os.ST_NOEXEC


def run(*arguments: str) -> int:
    """Run pytest, and return its exit code."""
    return subprocess.call([sys.executable, "-m", "pytest", *arguments], env=environment())


def main(arguments: list[str]) -> int:
    code = run("--cache-clear", *arguments)
    if code != FAILED:
        return code
    failed = sorted(json.loads(LAST_FAILED.read_text()))
    if not 0 < len(failed) <= MOST:
        return code
    for time in range(1, TIMES + 1):
        print(f"\n{len(failed)} of the tests again, alone, {time} of {TIMES} times:", flush=True)
        if code := run("-n", "0", *failed):
            return code
    print(f"\nNot steady: failed beside others, passed {TIMES} times alone. Find out why:")
    print("\n".join(failed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
