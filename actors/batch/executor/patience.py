"""What has run is not thrown away because the broker does not take the word of it: it is told until it is taken."""

import logging
from collections.abc import Awaitable, Callable
from itertools import chain, repeat
from typing import TypeVar

import anyio

from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from streams.errors import RevisionConflict, StreamError, TooLarge

log = logging.getLogger(__name__)

__all__ = ["patiently"]

T = TypeVar("T")
WAITS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


async def patiently(write: Callable[[], Awaitable[T]]) -> T:
    """Return what the write returns, made again until the broker takes it; it must bear repeats. Raises what no repeat
    mends: RevisionConflict, TooLarge, FATAL errors."""
    for wait_s in chain(WAITS_S, repeat(WAITS_S[-1])):
        try:
            return await write()
        except (*FATAL, RevisionConflict, TooLarge):
            raise
        except StreamError as error:
            log.warning("executor.write_waits", extra=fields(error=str(error), wait_s=wait_s))
        await anyio.sleep(wait_s)
    raise AssertionError("it is tried for ever")
