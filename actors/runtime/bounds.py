"""What engines ask about zones: whether this node may work on something that is bound to one (ADR 52)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

Held = Callable[[], Collection[str]]
"""Returns the bounds of the work that runs on this node now."""


class SettingsView(Protocol):
    """A live view of settings that bind work to zones, by the names of what they bind."""

    @property
    def seen(self) -> int:
        """The revision of the last record of the bucket that is in force here."""
        ...

    def revision_of(self, name: str) -> int:
        """Return the revision of the record that binds this. 0: there is none."""
        ...

    def bound_of(self, name: str) -> str:
        """Return to what this is bound now."""
        ...

    def on_change(self, listener: Callable[[str], None]) -> object:
        """Call `listener` with each name whose settings have changed. It must be short."""
        ...

    async def refresh(self) -> None:
        """Take what is stored now: the watch may be behind. Raises the broker's errors."""
        ...


class WorkBounds(Protocol):
    """One node's view. A bound is as in `actors/runtime/rules/bounds.py`."""

    def may_run(self, bound: str, kind: str = "", name: str = "") -> bool:
        """Return whether this node may begin work with this bound now. Cheap. `kind` and `name`: of what is bound, as
        `topics` and `refunds`. It may have been another zone's, and that has to leave it first."""
        ...

    def follow(self, kind: str, view: SettingsView) -> None:
        """Follow the settings that bind things of a kind."""
        ...

    def zone_of(self, bound: str) -> str | None:
        """Return the zone that a bound means now. `None`: no zone. Empty: it is bound to none."""
        ...

    def among(self, bound: str, nodes: Collection[str]) -> list[str]:
        """Return those of the live nodes that are in the zone that a bound means."""
        ...

    def stray(self, what: str, key: str, bound: str) -> str:
        """Return why a record with this key may not be in the zone that a bound means, and write a line for the audit.
        Empty: it may. `what` the record is of, as `topic refunds`."""
        ...

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when this node may begin other work than before. It must be short. Return a function that
        removes it."""
        ...

    def watch(self, held: Held) -> Callable[[], None]:
        """Have a shard that leaves this node's zone go only when none of this work is left. Return a function that
        ends it."""
        ...


class Anywhere:
    """Without zones: work that is not bound runs, and no other."""

    def may_run(self, bound: str, kind: str = "", name: str = "") -> bool:
        return not bound

    def follow(self, kind: str, view: SettingsView) -> None:
        return

    def zone_of(self, bound: str) -> str | None:
        return None if bound else ""

    def among(self, bound: str, nodes: Collection[str]) -> list[str]:
        return [] if bound else list(nodes)

    def stray(self, what: str, key: str, bound: str) -> str:
        return ""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def watch(self, held: Held) -> Callable[[], None]:
        return lambda: None
