"""A node as `penstock up` runs it, with one thing broken on purpose: `python -m tests.support.mutant_node NAME up …`.

The history check has to catch each (tests/chaos/test_history_mutants.py). A mutant replaces a function before the node
starts; the product knows nothing of it.
"""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

_CONDITION = re.compile(rb"Nats-Expected-Last-Subject-Sequence(-Subject)?: [^\r]*\r\n")
_STANDING = ("delayed", "delayed-2", "ready", "ready-high", "ready-low", "reserved", "reserved-2")


def end_without_condition() -> None:
    """A job is ended whatever has become of it."""
    from streams.jobs import moves

    sound = moves._outgoing

    def outgoing(move: moves.Move) -> Any:
        made = sound(move)
        if move.subject.split(".")[2] in _STANDING:
            return made
        return replace(made, block=_CONDITION.sub(b"", made.block))

    moves._outgoing = outgoing


def receipts_count_too_long() -> None:
    """A receipt counts for five seconds more after the TTR's end."""
    from actors.jobs import reservations as job_reservations

    vars(job_reservations)["STALE_AFTER_MS"] += 5_000


def fired_early() -> None:
    """Timers fire 600 ms before a job is due."""
    from actors.jobs.delay_timer.timer import DelayTimer

    class Ahead:
        def __init__(self, clock: Any) -> None:
            self._clock = clock

        def __getattr__(self, name: str) -> Any:
            return getattr(self._clock, name)

        def now_ms(self) -> int:
            return int(self._clock.now_ms()) + 600

        def seconds_until(self, at_ms: int) -> float:
            return float(self._clock.seconds_until(at_ms)) - 0.6

    sound = DelayTimer.__init__

    def made(self: DelayTimer, *, clock: Any, **more: Any) -> None:
        ahead: Any = Ahead(clock)
        sound(self, clock=ahead, **more)

    DelayTimer.__init__ = made  # type: ignore[method-assign]


def adds_without_nonce() -> None:
    """A desk takes each try of an add for an add of its own."""
    from msgspec.structs import replace

    from actors.jobs.adding import Adding
    from streams.messages.jobs import NewJob

    sound = Adding.add

    async def add(self: Adding, jobs: Sequence[NewJob], **more: Any) -> Any:
        return await sound(self, [replace(job, nonce="") for job in jobs], **more)

    Adding.add = add  # type: ignore[method-assign]


def settled_without_second_look() -> None:
    """What was acknowledged after the server's own firing was due is not looked at again."""
    from msgspec.structs import replace

    from actors.jobs.stream import JobStream
    from streams.jobs.moves import Move

    sound = JobStream.move_many

    async def move_many(self: JobStream, moves: Sequence[Move], **more: Any) -> Any:
        return await sound(self, [replace(move, fires_ms=0) for move in moves], **more)

    JobStream.move_many = move_many  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant
    for mutant in (
        end_without_condition,
        receipts_count_too_long,
        fired_early,
        adds_without_nonce,
        settled_without_second_look,
    )
}


def main() -> None:
    _, name, *arguments = sys.argv
    MUTANTS[name]()
    from penstock.cli import main as penstock

    sys.argv = ["penstock", *arguments]
    penstock()


if __name__ == "__main__":
    main()
