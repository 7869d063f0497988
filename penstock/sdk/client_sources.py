"""Sources of the client.

found = await client.sources.why("mall", "s1")
await client.sources.look("mall", "s1")
"""

from collections.abc import Mapping, Sequence

from actors.fetch.look_desk import LookView
from actors.fetch.overview import SourceWhy
from actors.fetch.slice_why import SliceWhy
from actors.fetch.source_import import Imported, SourceRow
from penstock.api.forms.sources import SourceRows, SourcesShown
from penstock.sdk.calls import ServiceClient

__all__ = ["SourceCalls"]


class SourceCalls:
    """The sources of one namespace. The methods raise NotAccepted (`code`: `bad`, `not_found`, `state`),
    Timeout, Unavailable."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    async def list(self, *, after: str = "", limit: int = 100) -> SourcesShown:
        """Return a page of sources, each at one look. `after`: the `next` of the page before."""
        ask = {"after": after, "limit": limit}
        return await self._service.ask("list", ask, SourcesShown)

    async def export(self, *, after: str = "", limit: int = 100) -> SourceRows:
        """Return a page of sources as `add_many` takes them. `after`: the `next` of the page before."""
        ask = {"after": after, "limit": limit}
        return await self._service.ask("export", ask, SourceRows)

    async def add_many(
        self, sources: Sequence[SourceRow | Mapping[str, object]], *, dry_run: bool = False, update: bool = False
    ) -> Imported:
        """Add up to 1,000 sources. All are checked before the first is written: if there are `faults`, none is. Those
        that are there in another form are changed only with `update`."""
        ask = {"sources": list(sources), "dry_run": dry_run, "update": update}
        return await self._service.ask("import", ask, Imported)

    async def why(self, platform: str, source: str) -> SourceWhy:
        """Return why a source is not read."""
        ask = {"platform": platform, "source": source}
        return await self._service.ask("why", ask, SourceWhy)

    async def why_slice(self, platform: str, source: str, slice_id: str) -> SliceWhy:
        """Return why a slice of a source is not read. `slice_id`: as in its ledger, such as `t1-60000-90000`."""
        ask = {"platform": platform, "source": source, "slice": slice_id}
        return await self._service.ask("why", ask, SliceWhy)

    async def look(
        self, platform: str, source: str, *, start_ms: int | None = None, end_ms: int | None = None
    ) -> LookView:
        """Have a source looked at now, because you know of something new there. Times are milliseconds UTC. Without a
        start: from where it was read to. Without an end: up to the moment of the look.

        It is a hint: hints that come together are one look, and the source is polled all the same."""
        ask = {"platform": platform, "source": source, "start_ms": start_ms, "end_ms": end_ms}
        return await self._service.ask("look", ask, LookView)
