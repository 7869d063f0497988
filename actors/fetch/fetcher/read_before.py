"""What a reading compares its rows with: what earlier readings of the window have published."""

from __future__ import annotations

import logging

from actors.fetch.digests import CONTENTS_MS, Digests
from actors.fetch.fetcher.decisions import ReadSlice
from actors.fetch.fetcher.rows import NewContents, NewVersions, RecentSources
from actors.fetch.fetcher.unfinished import UnfinishedReading
from actors.fetch.rules.cutting import SWEEP
from actors.fetch.rules.tuning import WIDE_MS
from actors.fetch.sources import Sources
from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from platforms.adapter import Declaration
from platforms.bounds import Window
from streams.errors import StreamError

log = logging.getLogger(__name__)

LOOK_KEPT_MS = 3_600_000
"""How long a look remembers what looks at the same time have published."""


class ReadBefore:
    """What the node's readings know of earlier ones, and keep for later ones."""

    def __init__(self, digests: Digests, sources: Sources) -> None:
        self._digests = digests
        self._sources = sources
        self._recent = RecentSources()

    async def known(self, work: ReadSlice, window: Window, declared: Declaration) -> NewVersions | NewContents:
        """Return what tells new rows from those that earlier readings of the window published. Where versions have an
        order, a first look needs none: stores know a version that comes again. After a rewind the tail publishes all
        again, so for it only readings of its own epoch count."""
        longest_ms, piece = _longest_ms(work, window, declared), work.slice
        epoch = piece.epoch if piece.kind == "t" else 0
        if not declared.is_version_ordered:
            latest = await self._digests.contents(work.source, window, longest_ms=longest_ms, epoch=epoch)
            life = self._sources.find(work.source), piece.epoch
            return NewContents(latest, self._recent.of(work.source, life))
        if work.slice.kind != "a" and not _compares_all(work, declared):
            return NewVersions(set(), is_kept=_keep_ms(work, declared) > 0)
        return NewVersions(await self._digests.known(work.source, window, longest_ms=longest_ms, epoch=epoch))

    async def store_fresh(self, work: ReadSlice, progress: UnfinishedReading) -> None:
        """Keep which rows were published, for second looks and sweeps."""
        declared, new = progress.adapter.declaration, progress.new
        keep_ms = _keep_ms(work, declared)
        if keep_ms and isinstance(new, NewVersions) and new.seen:
            hashes = new.seen if _compares_all(work, declared) else new.fresh
            await self._digests.put(work.source, work.slice, hashes, keep_ms=keep_ms)

    async def store_contents(self, work: ReadSlice, progress: UnfinishedReading, new: NewContents) -> None:
        """Store what the reading found under the fence of its first attempt, in place of what that attempt stored."""
        keep_ms = _keep_ms(work, progress.adapter.declaration)
        try:
            await self._digests.put_contents(work.source, work.slice, progress.fence, new.stored, keep_ms=keep_ms)
            new.has_more = False
        except FATAL:
            raise
        except StreamError as error:  # it costs a repeat, which the store recognises
            log.warning("digest.not_stored", extra=fields(source=str(work.source), error=str(error)))


def _compares_all(work: ReadSlice, declared: Declaration) -> bool:
    """Return whether the reading lists what was read before, so that only what differs is to be published."""
    return work.slice.pass_name == SWEEP or work.slice.is_look or declared.window.bounds.lower == "absent"


def _keep_ms(work: ReadSlice, declared: Declaration) -> int:
    """Return how long later readings may compare with this one. 0: none does."""
    sweep_ms = work.settings.sweep_ms or declared.sweep_ms
    is_whole = declared.window.bounds.lower == "absent"
    look_ms = LOOK_KEPT_MS if work.slice.is_look else 0
    return max(*work.settings.looks_ms(declared.again_ms), 2 * sweep_ms, CONTENTS_MS if is_whole else 0, look_ms, 0)


def _longest_ms(work: ReadSlice, window: Window, declared: Declaration) -> int:
    """Return how long slices that touch the window may be."""
    uncut_ms = max((stop_ms - start_ms for start_ms, stop_ms in declared.window.bounds.blurred), default=0)
    if work.settings.slice_ms:
        return max(work.settings.slice_ms, work.settings.again_slice_ms, 2 * uncut_ms)
    if window.start_ms >= work.wide_ms:
        return max(WIDE_MS, work.settings.again_slice_ms, 2 * uncut_ms)
    return declared.window.longest_ms if declared.window.bounds.upper != "absent" else window.end_ms
