"""Which sources' platforms are known to obey the window of a request, and how many orders they list at once (see
platforms/window_check.py and platforms/page_check.py).

State: in memory. After a start, or with another adapter, the first windows with rows are checked again.
"""

from __future__ import annotations

from actors.fetch.sources import SourceKey
from platforms.adapter import Adapter
from platforms.page_check import PageSize

MOST_CHECKS = 20
"""After so many checks that showed nothing, two requests a window are not worth it."""


class Obeying:
    """The checks of this node."""

    def __init__(self) -> None:
        self._left: dict[SourceKey, tuple[Adapter, int]] = {}
        self._sizes: dict[SourceKey, tuple[Adapter, dict[str, PageSize]]] = {}

    def wants_check(self, source: SourceKey, adapter: Adapter) -> bool:
        return self._of(source, adapter) > 0

    def checked(self, source: SourceKey, adapter: Adapter, obeys: bool | None) -> None:
        """Take a check's result. None: there was none."""
        if obeys is not None:
            self._left[source] = (adapter, 0 if obeys else self._of(source, adapter) - 1)

    def page_sizes(self, source: SourceKey, adapter: Adapter) -> dict[str, PageSize]:
        """Return what is known of the answers of each list. Readings add to it."""
        known, sizes = self._sizes.get(source, (None, {}))
        if known is not adapter:
            self._sizes[source] = adapter, (sizes := {})
        return sizes

    def _of(self, source: SourceKey, adapter: Adapter) -> int:
        known, left = self._left.get(source, (None, 0))
        return left if known is adapter else MOST_CHECKS
