"""One action on many things, several at a time: a hundred requests one after the other take a hundred turns of the
server and of this process."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from actors.runtime.supervisor import one_error

T = TypeVar("T")
AT_ONCE = 32


async def for_each(things: Iterable[T], act: Callable[[T], Awaitable[object]], *, at_once: int = AT_ONCE) -> None:
    """Call `act` with each thing, and begin in their order. Raises the error of one, and the others are cancelled."""
    places = anyio.Semaphore(at_once)

    async def one(thing: T) -> None:
        try:
            await act(thing)
        finally:
            places.release()

    with one_error():
        async with anyio.create_task_group() as tasks:
            for thing in things:
                await places.acquire()
                tasks.start_soon(one, thing)
