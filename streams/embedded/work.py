"""Whether a server that starts or stops still gets on with it, and how far it is.

A server reads its whole store at its start, and writes the rest of it at its stop. That takes as long as there is to
read. So no time is too long, and a server is given up only if it does nothing for a while. What it does is its use of
a core, the bytes that it reads and writes, and the lines that it logs. On systems without /proc only its log tells, and
there it is never given up.
"""

from pathlib import Path
from typing import NamedTuple

STILL_S = 30.0
"""A disk or a neighbour may keep a server from its work for some seconds."""
LEAST_CPU_S = 1.0
"""In STILL_S. A server that only waits uses less than a tenth of that."""
LEAST_BYTES = 1024 * 1024
"""In STILL_S."""
_TICKS = 100
_STARTING, _RESTORED = "Starting restore for stream", "  Restored "


class ServerWork(NamedTuple):
    """What a process has done so far. `cpu_s` is None where nobody tells."""

    cpu_s: float | None
    moved_bytes: int
    logged_bytes: int


class Patience:
    """Tells when to give up a process, by what it has done. Pure but for its memory."""

    def __init__(self, work: ServerWork, now_s: float, *, still_s: float) -> None:
        self._still_s = still_s
        self._work = work
        self._since_s = now_s

    def is_over(self, work: ServerWork, now_s: float) -> bool:
        """Return whether the process has done nothing worth its name for `still_s`."""
        if work.cpu_s is None or self._is_progress(work):
            self._work, self._since_s = work, now_s
        return now_s - self._since_s > self._still_s

    def _is_progress(self, work: ServerWork) -> bool:
        before = self._work
        return (
            work.logged_bytes > before.logged_bytes
            or work.moved_bytes - before.moved_bytes >= LEAST_BYTES
            or (work.cpu_s or 0.0) - (before.cpu_s or 0.0) >= LEAST_CPU_S
        )


def work_of(process_id: int, log_file: Path) -> ServerWork:
    """Return what the process has done so far."""
    logged = log_file.stat().st_size if log_file.exists() else 0
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        moved = Path(f"/proc/{process_id}/io").read_text().split()
    except OSError:
        return ServerWork(None, 0, logged)
    return ServerWork((int(stat[11]) + int(stat[12])) / _TICKS, int(moved[1]) + int(moved[3]), logged)


def restored_in(log_text: str, streams: int) -> str:
    """Return how far a start is, from what the server has logged since, and from how many streams its store has."""
    lines = [line.partition("]")[2].partition("]")[2] for line in log_text.splitlines()]
    done = [line for line in lines if line.startswith(f" {_RESTORED}")]
    begun = [line.partition("'")[2].rpartition("'")[0] for line in lines if _STARTING in line]
    ended = {line.partition("'")[2].rpartition("'")[0] for line in done}
    messages = sum(int(line.split()[1].replace(",", "")) for line in done)
    under_way = ", ".join(name.rpartition(" ")[2] for name in begun if name not in ended)
    reads = f"; it reads {under_way}" if under_way else ""
    return f"{len(done)} of {streams} streams, {messages:,} messages{reads}"
