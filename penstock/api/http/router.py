"""Finds what a path and a method stand for. Pure.

A part of a path in braces stands for any one part that is not empty. A fixed part that fits comes first. The parts are
as they came, percent signs and all, so an id may hold a slash. A slash at the end is left out.
"""

from typing import Generic, NamedTuple, TypeVar

__all__ = ["Route", "Routes"]

T = TypeVar("T")


class Route(NamedTuple, Generic[T]):
    """What stands at a path, by method, and the parts that stand for the braces, in their order."""

    methods: dict[str, T]
    parts: list[str]


class _Place(Generic[T]):
    """A part of a path. `below`: by what comes next, None for braces."""

    __slots__ = ("below", "methods")

    def __init__(self) -> None:
        self.below: dict[str | None, _Place[T]] = {}
        self.methods: dict[str, T] = {}


class Routes(Generic[T]):
    """Paths, and what stands at each."""

    def __init__(self) -> None:
        self._top: _Place[T] = _Place()

    def add(self, method: str, path: str, what: T) -> None:
        place = self._top
        for part in _parts(path):
            place = place.below.setdefault(None if part.startswith("{") else part, _Place())
        place.methods[method] = what

    def find(self, path: str) -> Route[T]:
        """Return what stands at a path; no methods: nothing does."""
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
