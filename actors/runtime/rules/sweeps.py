"""When a table is rid of the entries that say nothing any more.

A sweep looks at each entry. If each new entry had one while many must stay, an entry would cost as much as there are
others. So the next sweep waits until the table is twice as large as the last one left it.
"""


class Sweeps:
    """Sweeps of one table. `few`: entries that are kept whether they say anything or not."""

    def __init__(self, few: int) -> None:
        self._few = few
        self._due_at = few

    def is_due(self, size: int) -> bool:
        """Return whether a table of `size` entries is to be swept before it gets one more."""
        return size >= self._due_at

    def swept(self, left: int) -> None:
        """Note how many entries a sweep left."""
        self._due_at = max(self._few, 2 * left)
