"""Runs pytest, and what failed beside others again, alone: `python -m tests.support.steady ARGUMENTS` (ADR 77).

A test passes after all if it passes five times in a row with the machine to itself. It is named at the end. Exits as
pytest does.

Each module is compiled once. A run starts some thousand processes, and compiling takes half of what such a start costs.
Where Python may write nothing beside the sources, what it compiled is kept in pytest's folder.
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


def environment() -> dict[str, str]:
    """Return this process's environment, such that Python keeps what it compiles."""
    kept = dict(os.environ)
    if kept.pop("PYTHONDONTWRITEBYTECODE", ""):
        kept["PYTHONPYCACHEPREFIX"] = kept.get("PYTHONPYCACHEPREFIX") or str(COMPILED.absolute())
    return kept


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
