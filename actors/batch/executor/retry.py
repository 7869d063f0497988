"""Repeats a write until the broker takes it, so that the result of finished work is not lost."""

import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

import anyio

from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from streams.backoff import Backoff
from streams.errors import RevisionConflict, StreamError, TooLarge

log = logging.getLogger(__name__)

T = TypeVar("T")
AGAIN = Backoff(growth="exponential", base_ms=500, cap_ms=30_000, spread=0.0)


async def retried(write: Callable[[], Awaitable[T]]) -> T:
    """Call `write` until the broker takes it, and return its result. A repeat of `write` must be harmless. Raises
    errors that no repeat can cure: RevisionConflict, TooLarge, FATAL errors."""
    for failures in count(1):
        try:
            return await write()
        except (*FATAL, RevisionConflict, TooLarge):
            raise
        except StreamError as error:
            wait_s = AGAIN.wait_s(failures)
            log.warning("executor.write_waits", extra=fields(error=str(error), wait_s=wait_s))
        await anyio.sleep(wait_s)
    raise AssertionError("count() does not end")
