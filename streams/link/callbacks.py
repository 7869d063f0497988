"""Callbacks of one event, and callbacks that share one timer."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from streams.clock import until_turn_s

_C = TypeVar("_C")


class Callbacks(Generic[_C]):
    """The callbacks of one event, in the order in which they were added. One may remove itself while it is called."""

    def __init__(self) -> None:
        self._callbacks: dict[object, _C] = {}

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def __iter__(self) -> Iterator[_C]:
        return iter(tuple(self._callbacks.values()))

    def add(self, callback: _C) -> Callable[[], None]:
        """Return the function that removes the callback."""
        key = object()
        self._callbacks[key] = callback

        def remove() -> None:
            self._callbacks.pop(key, None)

        return remove


class EachSecond:
    """Callbacks that `call` gets once a second, while there are any."""

    def __init__(self, call: Callable[[Iterable[Callable[[], None]]], None]) -> None:
        self._call = call
        self._callbacks = Callbacks[Callable[[], None]]()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Return the function that removes the callback."""
        remove_one = self._callbacks.add(callback)
        if self._timer is None:
            self._begin()

        def remove() -> None:
            remove_one()
            if not self._callbacks and self._timer is not None:
                self._timer.cancel()
                self._timer = None

        return remove

    def _begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(until_turn_s(1.0), self._tick)

    def _tick(self) -> None:
        self._begin()
        self._call(self._callbacks)
