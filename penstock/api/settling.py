"""How reserved jobs are settled by their receipts, the same for HTTP and NATS."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from actors.jobs.desk import JobDesk
from actors.jobs.rules.job_answers import JobReply

__all__ = ["SETTLES"]

Settle = Callable[[JobDesk, Sequence[str], Any], Awaitable[list[JobReply]]]

SETTLES: dict[str, Settle] = {
    "finish": lambda desk, receipts, _ask: desk.finish(receipts),
    "touch": lambda desk, receipts, ask: desk.touch(receipts, ttr_ms=ask.ttr_ms),
    "release": lambda desk, receipts, ask: desk.release(
        receipts, delay_ms=ask.delay_ms, reason=ask.reason, counts=ask.counts
    ),
    "bury": lambda desk, receipts, ask: desk.bury(receipts, reason=ask.reason),
}
"""Each takes a request whose form has the verb's options (forms/jobs.py), and returns an answer for each receipt."""
