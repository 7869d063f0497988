"""Live settings: follows the levels in SETTINGS, and returns what is in force for a source.

In: `fetch.default`, `fetch.<platform>`, `fetch.<platform>.<source>`, written by `penstock settings set` or `nats kv
put`. Out: callbacks with each source whose settings changed, and SettingsRefused as an event. State: the levels in
force, in memory. The bucket is the truth.

A level that does not parse, or does not fit together with the others at every source below it, is refused as a whole.
The last good one stays in force, and a log line and an event report the error. What is in force is computed only from
what is stored, never from what this node saw before (`replay.py`). So nodes that were there and nodes that start
later have the same settings.

A change of sources' own levels, which is the common one, costs only these sources. Everything else is computed from all
levels, in a thread if there are many, so that the loop goes on.

A change is in force within `GAP_S` of its arrival. Changes that come faster are applied together, so a flapping key
costs a few recomputations a second. Open slices keep the windows that they were cut with: a window is never computed
from settings again. Repeats and re-reads after a reconnect bring known revisions and change nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus
from msgspec import Struct

from actors.fetch.rules.settings import FetchSettings
from actors.fetch.settings.history import History
from actors.fetch.settings.levels import PREFIX, LevelName, Levels
from actors.fetch.settings.replay import InForce, Kept, change_together, newest_together, replayed
from actors.fetch.sources import SourceKey, source_of
from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.runtime.pieces import in_pieces
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.clock import Clock
from streams.messages.fetch import FetchEvent, SettingsRefused

log = logging.getLogger(__name__)

R = TypeVar("R")

GAP_S = 0.25
"""The least time between two recomputations: four a second, and a change is in force well within one."""

MANY = 500
"""Levels that are computed in a thread."""

MOST_NAMED = 20
"""How many keys one log line names."""


class RefusedLevel(Struct, frozen=True):
    """A stored level that is not in force, and why."""

    key: str
    revision: int
    reason: str


class LiveSettings:
    """What is in force now. `current` is cheap at any time."""

    def __init__(
        self,
        bucket: Bucket[bytes],
        *,
        clock: Clock,
        history: History,
        tell: Callable[[FetchEvent], None] = lambda _event: None,
    ) -> None:
        self._live: Live[Entry[bytes]] = Live(bucket, lambda entry: entry, pattern="fetch.>")
        self._live.on_change(self._wait_for_turn)
        self._clock = clock
        self._history = history
        self._tell = tell
        self._levels = Levels()
        self._judged: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._refused: dict[str, RefusedLevel] = {}
        self._known: dict[SourceKey, FetchSettings] = {}
        self._listeners: list[Callable[[SourceKey], None]] = []
        self._wake = anyio.Event()

    def current(self, platform: str, source: str = "") -> FetchSettings:
        """Return what is in force for a source, or for a platform's sources without values of their own."""
        key = SourceKey(platform, source)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._levels.settings(LevelName(platform, source))
        return found

    def has_seen(self, platform: str, source: str, revision: int) -> bool:
        """Return whether `revision` or a later one of the source's own level is in force, or was refused."""
        key = LevelName(platform, source).key
        stored = self._live.get(key)
        seen = stored.revision if stored is not None else 0
        return seen >= revision and key not in self._waiting

    def revision_of(self, source: SourceKey) -> int:
        """Return the revision of the latest of a source's levels that were judged."""
        levels = (LevelName(), LevelName(source.platform), LevelName(source.platform, source.source))
        return max(self._judged.get(level.key, 0) for level in levels)

    @property
    def seen(self) -> int:
        """The revision of the last record, once all that was heard of has been judged. 0 until then."""
        return 0 if self._waiting else self._live.seen

    def on_change(self, listener: Callable[[SourceKey], None]) -> None:
        """Call `listener` with each source (or platform, with an empty source) that a caller passed to `current` and
        whose settings have changed. It must be short."""
        self._listeners.append(listener)

    @property
    def levels(self) -> Levels:
        """The levels in force."""
        return self._levels

    def revisions(self) -> dict[str, int]:
        """Return the revision of each stored key that `levels` and `refused` cover. A value that arrived since and
        waits for its turn is not among them. Otherwise a compare-and-set would overwrite it unseen."""
        return {key: revision for key, revision in self._judged.items() if revision}

    def newest(self) -> list[Kept]:
        """Return the values in the bucket now, in force or not."""
        return [Kept(entry.revision, key, entry.raw) for key, entry in self._live.items()]

    def refused(self) -> tuple[RefusedLevel, ...]:
        """Return the stored levels that are not in force."""
        return tuple(self._refused.values())

    async def refresh(self) -> None:
        """Read what is stored now. It is in force in its turn. Raises NoStream, Disconnected."""
        await self._live.refresh()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the bucket until cancelled. Started once the present values are in force."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._live.run)
            await self._apply()
            task_status.started()
            while True:
                await anyio.sleep(GAP_S)
                await self._wake.wait()
                await self._apply()

    def _wait_for_turn(self, key: str) -> None:
        self._waiting.add(key)
        self._wake.set()

    async def _apply(self) -> None:
        """Compute what is in force, and report the changes."""
        self._wake = anyio.Event()
        changed = sorted(self._waiting)
        refused: Mapping[str, str] = {}
        if is_own := self._take_own(changed):
            for key in changed:
                self._judge(key)
        else:
            found = await self._in_force()
            self._levels, self._judged, refused = found.levels, dict(found.newest), found.refused
        self._waiting = {key for key in self._waiting if self._live.revision(key) != self._judged.get(key, 0)}
        accepted = [key for key in changed if key not in refused]
        if accepted:
            log.info("settings.changed", extra=fields(count=len(accepted), keys=accepted[:MOST_NAMED]))
        before = self._refused
        self._refused = {key: RefusedLevel(key, self._judged[key], why) for key, why in refused.items()}
        for key, refusal in self._refused.items():
            if key not in before or before[key].revision != refusal.revision:
                self._refuse(refusal)
        await self._notify(changed if is_own else None)

    def _take_own(self, changed: Sequence[str]) -> bool:
        """Take changes of sources' own levels alone. Return False if all levels have to be looked at, because a wider
        one changed, or one is not in force, or one of these does not fit."""
        if self._refused or not self._judged or any(key.count(".") != 2 for key in changed):
            return False
        entries = ((key, self._live.get(key)) for key in changed)
        return change_together(
            self._levels, [Kept(0, key, None if entry is None else entry.raw) for key, entry in entries]
        )

    def _judge(self, key: str) -> None:
        revision = self._live.revision(key)
        if revision:
            self._judged[key] = revision
        else:
            self._judged.pop(key, None)

    async def _in_force(self) -> InForce:
        newest = self.newest()
        found = await _computed(newest_together, newest)
        return found if found is not None else await _computed(replayed, await self._history())

    def _refuse(self, refusal: RefusedLevel) -> None:
        """Report why a level is refused."""
        key, revision, reason = refusal.key, refusal.revision, refusal.reason
        log.warning("settings.refused", extra=fields(key=key, revision=revision, reason=reason))
        self._tell(SettingsRefused(key=key, revision=revision, at_ms=self._clock.now_ms(), reason=reason))

    async def _notify(self, own: Sequence[str] | None) -> None:
        """Call the listeners for the sources whose settings have changed. `current` returns the new ones already.
        `own`: the keys of sources' own levels, if nothing else can have changed."""
        known = self._known
        if own is None:
            self._known = {}
        else:
            sources = [source_of(key.removeprefix(f"{PREFIX}.")) for key in own]
            known = {source: known.pop(source) for source in sources if source in known}
        async for source, before in in_pieces(known.items()):
            after = self.current(source.platform, source.source)
            if after is not before and after != before:
                for listener in self._listeners:
                    listener(source)


async def _computed(compute: Callable[[list[Kept]], R], values: list[Kept]) -> R:
    """Compute from values in this thread if they are few, else in another one."""
    return compute(values) if len(values) < MANY else await to_thread.run_sync(compute, values)


class SourceBounds:
    """Where sources may be read, by `platform.source`."""

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings

    @property
    def seen(self) -> int:
        """The revision of the last record that was heard of. 0: one of them is not in force yet."""
        return self._settings.seen

    def revision_of(self, name: str) -> int:
        """Return the revision of the latest of a source's levels."""
        return self._settings.revision_of(source_of(name))

    def bound_of(self, name: str) -> str:
        """Return where a source may be read."""
        source = source_of(name)
        return self._settings.current(source.platform, source.source).zone

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with each source whose settings have changed."""
        self._settings.on_change(lambda source: listener(source.key))

    async def refresh(self) -> None:
        """Read what is stored now. Raises NoStream, Disconnected."""
        await self._settings.refresh()
