"""Finds the entry of a path and a method. Pure.

A part of a path in braces matches any one part that is not empty. A fixed part that matches comes first. The parts stay
percent-encoded, so an id may contain a slash. A slash at the end is ignored.
"""

from typing import Generic, NamedTuple, TypeVar

__all__ = ["Route", "Routes"]

T = TypeVar("T")


class Route(NamedTuple, Generic[T]):
    """The entries of a path, by method, and the parts that match the braces, in their order."""

    methods: dict[str, T]
    parts: list[str]


class _Place(Generic[T]):
    """A part of a path. `below`: the places by the next part, None for braces."""

    __slots__ = ("below", "methods")

    def __init__(self) -> None:
        self.below: dict[str | None, _Place[T]] = {}
        self.methods: dict[str, T] = {}


class Routes(Generic[T]):
    """Paths, and the entries of each."""

    def __init__(self) -> None:
        self._top: _Place[T] = _Place()

    def add(self, method: str, path: str, what: T) -> None:
        place = self._top
        for part in _parts(path):
            place = place.below.setdefault(None if part.startswith("{") else part, _Place())
        place.methods[method] = what

    def find(self, path: str) -> Route[T]:
        """Return the entries of a path, without methods if it is unknown."""
        place, parts = self._top, list[str]()
        for part in _parts(path):
            below = place.below.get(part)
            if below is None:
                below = place.below.get(None)
                if below is None or not part:
                    return Route({}, [])
                parts.append(part)
            place = below
        return Route(place.methods, parts)


def _parts(path: str) -> list[str]:
    return path.strip("/").split("/")
