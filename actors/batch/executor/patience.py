"""What has run is not thrown away because the broker does not take the word of it: it is told until it is taken."""

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

__all__ = ["patiently"]

T = TypeVar("T")
AGAIN = Backoff(growth="exponential", base_ms=500, cap_ms=30_000, spread=0.0)


async def patiently(write: Callable[[], Awaitable[T]]) -> T:
    """Return what the write returns, made again until the broker takes it; it must bear repeats. Raises what no repeat
    mends: RevisionConflict, TooLarge, FATAL errors."""
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
