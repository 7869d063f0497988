"""How long the threads of a process waited for a core, by the kernel's count (`/proc/<pid>/task/*/schedstat`)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Use(NamedTuple):
    """What the threads of a process had so far. `ran_ns`: time on a core. `waited_ns`: time in which they could have
    run, and waited for a core. `turns`: how often they got one."""

    ran_ns: int = 0
    waited_ns: int = 0
    turns: int = 0

    def since(self, before: Use) -> Use:
        """Return what was added. A process that has been started anew counts from nothing."""
        if self.turns < before.turns:
            return self
        return Use(*(now - then for now, then in zip(self, before, strict=True)))

    def plus(self, other: Use) -> Use:
        """Return both together."""
        return Use(*(each + more for each, more in zip(self, other, strict=True)))

    @property
    def wait_ms(self) -> float:
        """How long a thread that could run waited for its turn, in the mean."""
        return round(self.waited_ns / max(self.turns, 1) / 1e6, 3)


def use_of(pid: int) -> Use:
    """Return what the threads of a process had so far. Nothing where the kernel does not count it."""
    return sum_of(_read(path) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def sum_of(uses: Iterable[Use]) -> Use:
    """Return all together."""
    total = Use()
    for use in uses:
        total = total.plus(use)
    return total


def _read(path: Path) -> Use:
    with suppress(OSError, ValueError, TypeError):
        return Use(*map(int, path.read_text().split()))
    return Use()
