"""Live settings: follows the levels in SETTINGS, and answers what is in force for a source.

In: `fetch.default`, `fetch.<platform>`, `fetch.<platform>.<source>`, written by `penstock settings set` or
`nats kv put`. Out: callbacks with each source whose settings changed, and SettingsRefused as an event. State: the
levels in force, in memory; the bucket is the truth.

A level that does not parse, or does not fit together with the others at every source below it, is refused as a whole:
the last good one stays in force, a log line and an event say what is wrong, and the refused one is tried again when
another level changes. A node that starts while a bad value stands there looks for the last good one among the key's
earlier revisions, so that it follows the same settings as the nodes that saw them pass.

A change is in force within `GAP_S` of its arrival; changes that come faster are taken together, so a flapping key costs
a few recomputations a second. Slices that are open keep the windows that they were cut with: a window is never computed
from settings again. Repeats and re-reads after a reconnect bring known revisions and change nothing.
"""

import logging
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskStatus
from msgspec import Struct

from actors.logs import fields
from actors.model.setting_values import BadSetting
from actors.model.settings import FetchSettings, LevelValues, parse_level
from actors.settings_history import Earlier
from actors.settings_levels import LevelName, Levels, UnknownLevel, level_of_key
from actors.sources import SourceKey
from streams.bucket import Bucket, Entry, Synced
from streams.clock import Clock
from streams.messages import FetchEvent, SettingsRefused

log = logging.getLogger(__name__)

__all__ = ["LiveSettings", "Refusal"]

GAP_S = 0.25
"""At least this long from one recomputation to the next: four a second, and a change is in force well within one."""


MOST_NAMED = 20
"""Keys that one log line names."""


class Refusal(Struct, frozen=True):
    """A stored level that is not in force, and why."""

    key: str
    revision: int
    reason: str


class _Stored(Struct, frozen=True):
    """A level as it stands in the bucket: None if it was deleted."""

    revision: int
    text: bytes | None


class LiveSettings:
    """What is in force now. `current` is cheap to ask at any time."""

    def __init__(
        self,
        bucket: Bucket[bytes],
        *,
        clock: Clock,
        earlier: Callable[[str], Awaitable[list[Earlier]]],
        tell: Callable[[FetchEvent], None] = lambda _event: None,
    ) -> None:
        self._bucket = bucket
        self._clock = clock
        self._earlier = earlier
        self._tell = tell
        self._levels = Levels()
        self._last: dict[str, _Stored] = {}
        self._judged: dict[str, int] = {}
        self._waiting: dict[str, _Stored] = {}
        self._refused: dict[str, Refusal] = {}
        self._told: dict[SourceKey, FetchSettings] = {}
        self._listeners: list[Callable[[SourceKey], None]] = []
        self._wake = anyio.Event()

    def current(self, platform: str, source: str = "") -> FetchSettings:
        """Return what is in force for a source, or for a platform's sources that have nothing of their own."""
        key = SourceKey(platform, source)
        found = self._told.get(key)
        if found is None:
            found = self._told[key] = self._levels.settings(LevelName(platform, source))
        return found

    def has_seen(self, platform: str, source: str, revision: int) -> bool:
        """True once the source's own level is in force, or was refused, in `revision` or a later one."""
        key = LevelName(platform, source).key
        stored = self._last.get(key)
        seen = stored.revision if stored is not None else 0
        return seen >= revision and (key not in self._waiting or key in self._refused)

    def on_change(self, listener: Callable[[SourceKey], None]) -> None:
        """Call `listener` with each source (or platform, with an empty source) that `current` was asked for and whose
        settings are others now; it must be short."""
        self._listeners.append(listener)

    @property
    def levels(self) -> Levels:
        """The levels in force."""
        return self._levels

    def revisions(self) -> dict[str, int]:
        """Return the revision of each stored key that `levels` and `refused` speak of; one that arrived since and waits
        for its turn is not among them, or a compare-and-set would overwrite what nobody looked at."""
        return {key: revision for key, revision in self._judged.items() if revision}

    def refused(self) -> tuple[Refusal, ...]:
        """Return the stored levels that are not in force."""
        return tuple(self._refused.values())

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the bucket until cancelled; started once what stands there is in force."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            await self._next_apply()
            task_status.started()
            while True:
                await anyio.sleep(GAP_S)
                await self._next_apply()

    async def _follow(self) -> None:
        """Collect what arrives. The first state is complete at the first Synced, and applied only then."""
        missing = {key for key, stored in self._last.items() if stored.text is not None}
        is_synced = False
        async with self._bucket.watch("fetch.>") as changes:
            async for change in changes:
                if not isinstance(change, Synced):
                    missing.discard(change.key)
                    self._take(change.key, change.entry)
                elif not is_synced:
                    is_synced = True
                    for key in missing:  # deleted while nobody followed: this actor was restarted
                        self._take(key, None)
                if is_synced:
                    self._wake.set()

    def _take(self, key: str, entry: Entry[bytes] | None) -> None:
        stored = _Stored(entry.revision, entry.value) if entry else _Stored(0, None)
        if self._last.get(key) == stored:
            return
        self._last[key] = self._waiting[key] = stored
        if stored.text is None and key in self._refused and not _is_level(key):
            del self._waiting[key], self._refused[key]

    async def _next_apply(self) -> None:
        """Wait for news; put in force what fits, in the order of its revisions, and refuse the rest."""
        await self._wake.wait()
        self._wake = anyio.Event()
        for refusal in self._settle():
            known = self._refused.get(refusal.key)
            if known is None or known.revision != refusal.revision:
                await self._refuse(refusal)
        self._notify()

    def _settle(self) -> list[Refusal]:
        """Accept what can be accepted; return why the rest cannot."""
        accepted: dict[str, int] = {}
        self._judged.update({key: stored.revision for key, stored in self._waiting.items()})
        while True:
            left = len(self._waiting)
            why: list[Refusal] = []
            for key, stored in sorted(self._waiting.items(), key=lambda item: item[1].revision):
                try:
                    self._accept(key, stored.text)
                except (BadSetting, UnknownLevel) as error:
                    why.append(Refusal(key, stored.revision, str(error)))
                else:
                    del self._waiting[key]
                    self._refused.pop(key, None)
                    accepted[key] = stored.revision
            if not why or len(self._waiting) == left:
                if accepted:
                    log.info("settings.changed", extra=fields(count=len(accepted), keys=sorted(accepted)[:MOST_NAMED]))
                return why

    def _accept(self, key: str, text: bytes | None) -> None:
        name = level_of_key(key)
        values: LevelValues | None = None if text is None else parse_level(text, name.level)
        self._levels = self._levels.with_level(name, values)

    async def _refuse(self, refusal: Refusal) -> None:
        """Tell what is wrong, and keep the last good value, if it was never seen the one in the key's history."""
        key, revision, reason = refusal.key, refusal.revision, refusal.reason
        last_good = await self._look_back(key)
        self._refused[key] = refusal
        in_force = "as before" if last_good is None else f"revision {last_good}" if last_good else "nothing"
        log.warning("settings.refused", extra=fields(key=key, revision=revision, reason=reason, in_force=in_force))
        self._tell(SettingsRefused(key=key, revision=revision, at_ms=self._clock.now_ms(), reason=reason))

    async def _look_back(self, key: str) -> int | None:
        """Return the revision of the key's history that is in force now; None if one is already, 0 if there is none."""
        if not _is_level(key):
            return 0
        if level_of_key(key) in self._levels.names():
            return None
        for earlier in await self._earlier(key):
            try:
                self._accept(key, earlier.text)
            except BadSetting:
                continue
            return earlier.revision
        return 0

    def _notify(self) -> None:
        for source, before in list(self._told.items()):
            after = self._levels.settings(LevelName(source.platform, source.source))
            self._told[source] = after
            if after is not before and after != before:
                for listener in self._listeners:
                    listener(source)


def _is_level(key: str) -> bool:
    try:
        level_of_key(key)
    except UnknownLevel:
        return False
    return True
