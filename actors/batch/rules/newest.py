"""The order of instances in a list: the newest first, those of one moment by their ids. Pure."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

LATEST = (1 << 62, "")
"""The place before all."""


class Newest:
    """Ids in order, kept sorted, so that a page costs what is in it."""

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []  # the oldest first: what comes stands at the end
        self._made_ms: dict[str, int] = {}

    def put(self, instance_id: str, created_ms: int) -> None:
        """Take an instance. A later one of its id has another place."""
        if self._made_ms.get(instance_id) != created_ms:
            self.drop(instance_id)
            self._made_ms[instance_id] = created_ms
            insort(self._order, (created_ms, instance_id))

    def drop(self, instance_id: str) -> None:
        """Forget an instance, if there is one of this id."""
        created_ms = self._made_ms.pop(instance_id, None)
        if created_ms is not None:
            del self._order[bisect_left(self._order, (created_ms, instance_id))]

    def behind(self, place: tuple[int, str]) -> Iterator[str]:
        """Yield the ids behind a place. They may change meanwhile."""
        created_ms, behind = place
        while True:
            start, end = bisect_right(self._order, (created_ms, behind)), bisect_left(self._order, (created_ms + 1, ""))
            for _, instance_id in self._order[start:end]:
                yield instance_id
            older = bisect_left(self._order, (created_ms, ""))
            if not older:
                return
            created_ms, behind = self._order[older - 1][0], ""
