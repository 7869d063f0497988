"""Whether the other zones have left what a person has bound to this one by a setting (ADR 52).

In: views of the settings that bind (topics, tasks, flows, sources), and the records of the live nodes. Out: up to which
revision this node has heard of each kind, for its record, and `hear` when there is something to look at. State: what
this node may work on, and of which changes the others must be told, in memory.

A node says up to which revision of a bucket it has heard, once nothing is under way here that the settings have bound
to another zone. What is bound to this zone begins when every live node of the others says so of the record that binds
it, or `drain_ms` after this node asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actors.runtime.bounds import SettingsView
from actors.runtime.membership import NodeRecord
from actors.zone.rules.binding import is_left
from streams.clock import monotonic_s

Thing = tuple[str, str]
"""A kind and a name: `topics`, `refunds`."""


class Rebound:
    """One node's view. `live()`: the records of the live nodes. `may_be_here(bound)`: whether the bound means this
    node's zone now. `drain_ms()`: of the map. `hear()`: `look` must be called soon, and
    again while something waits."""

    def __init__(
        self,
        *,
        zone: str,
        live: Callable[[], Mapping[str, NodeRecord]],
        may_be_here: Callable[[str], bool],
        drain_ms: Callable[[], int],
        hear: Callable[[], None],
    ) -> None:
        self.settled: dict[str, int] = {}
        """Up to which revision of each kind this node has heard, and has left what is another zone's."""
        self._untold: dict[str, int] = {}
        self._zone = zone
        self._live = live
        self._may_be_here = may_be_here
        self._drain_ms = drain_ms
        self._hear = hear
        self._views: dict[str, SettingsView] = {}
        self._bounds: dict[Thing, str] = {}
        self._ours: dict[Thing, str] = {}
        self._waiting: dict[Thing, tuple[str, float]] = {}

    def follow(self, kind: str, view: SettingsView) -> None:
        """Follow the settings of a kind."""

        def changed(name: str) -> None:
            thing, bound = (kind, name), view.bound_of(name)
            if self._bounds.get(thing, "") == bound:
                return
            self._bounds[thing] = bound
            self._forget(thing, bound)
            self._untold[kind] = view.revision_of(name)
            self._hear()

        self._views[kind] = view
        view.on_change(changed)

    async def refresh(self) -> None:
        """Take the settings that are stored now. Raises the broker's errors."""
        for view in tuple(self._views.values()):
            await view.refresh()

    @property
    def has_news(self) -> bool:
        """Whether a bound has changed, and the others have not been told that it was heard."""
        return bool(self._untold)

    def take_news(self) -> bool:
        """Return whether the others can be told now. A change that this node made itself comes by the watch later."""
        if not self._untold or any(self._views[kind].seen < revision for kind, revision in self._untold.items()):
            return False
        self._untold.clear()
        return True

    def settle(self) -> None:
        """Take note that nothing is under way here that is another zone's."""
        self.settled = {kind: view.seen for kind, view in self._views.items()}

    def is_ours(self, kind: str, name: str, bound: str) -> bool:
        """Return whether this node may work on a thing that is bound to its zone. Cheap. If not, `look` reports when it
        may: who has asked in vain need not ask again."""
        thing = (kind, name)
        if self._ours.get(thing) == bound:
            return True
        if self._waiting.get(thing, ("",))[0] == bound:
            return False
        if self._is_left(kind, name):
            self._waiting.pop(thing, None)
            self._ours[thing] = bound
            return True
        self._waiting[thing] = bound, monotonic_s()
        self._hear()
        return False

    @property
    def waits(self) -> bool:
        """Whether something waits for other zones."""
        return bool(self._waiting)

    def look(self) -> bool:
        """Return whether this node may work on something for which it waited."""
        late_s, found = monotonic_s() - self._drain_ms() / 1000, False
        for thing, (bound, since_s) in tuple(self._waiting.items()):
            if not self._may_be_here(bound):
                self._forget(thing, "")
            elif since_s <= late_s or self._is_left(*thing):
                del self._waiting[thing]
                self._ours[thing] = bound
                found = True
        return found

    def _forget(self, thing: Thing, bound: str) -> None:
        if self._ours.get(thing) != bound:
            self._ours.pop(thing, None)
        if self._waiting.get(thing, (bound,))[0] != bound:
            del self._waiting[thing]

    def _is_left(self, kind: str, name: str) -> bool:
        view = self._views.get(kind)
        if view is None:
            return True
        others = [node for node in self._live().values() if node.zone != self._zone]
        said = [node.settled for node in others if node.topics or node.tasks or node.platforms or node.settled]
        return is_left(kind, view.revision_of(name), said)
