"""How many dead letters there are, by engine and name, counted when any came or went. State: the last count."""

from collections import Counter
from collections.abc import Callable, Mapping

from actors.runtime.pieces import in_pieces
from streams.link.connection import Connection
from streams.reads.log import Extent, extent_of, subjects_of

MOST_LISTED = 100_000
"""With more dead letters only their number is told, since each has a subject of its own."""


class DeadCounts:
    """The counts of one reader. `is_left_out(engine, id)`: which ones it does not count."""

    def __init__(
        self, connection: Connection, *, is_left_out: Callable[[str, str], bool] = lambda _engine, _id: False
    ) -> None:
        self._connection = connection
        self._is_left_out = is_left_out
        self._extent: Extent | None = None
        self._counts: dict[tuple[str, str], int] = {}

    async def look(self) -> Mapping[tuple[str, str], int]:
        """Return the counts. Engine and name are empty if there are too many. Raises NoStream, Disconnected,
        OutcomeUnknown."""
        namespace = self._connection.namespace
        stream = namespace.stream("DEAD")
        extent = await extent_of(self._connection, stream)
        if extent != self._extent:
            counts = Counter[tuple[str, str]]()
            if extent.messages > MOST_LISTED:
                counts["", ""] = extent.messages
            else:
                found = await subjects_of(self._connection, stream, namespace.pattern("dead", ">"))
                async for subject, count in in_pieces(found.items()):
                    *_, engine, name, dead_id = subject.split(".")
                    if not self._is_left_out(engine, dead_id):
                        counts[engine, name] += count
            self._extent, self._counts = extent, dict(counts)
        return self._counts
