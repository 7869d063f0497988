"""The forms of sources, the same for HTTP, NATS and the Python client."""

from typing import Annotated

from msgspec import Meta, Struct

from actors.fetch.overview import Overview
from actors.fetch.source_desk import SourceDesk
from actors.fetch.source_import import SourceRow
from actors.runtime.rules.pages import PAGE_BYTES, page_of
from penstock.api.forms.reading import RequestForm

__all__ = [
    "ImportAsk",
    "ImportQuery",
    "LookAsk",
    "LookQuery",
    "Rows",
    "SourceRows",
    "SourceWhyAsk",
    "SourceWhyQuery",
    "SourcesQuery",
    "SourcesShown",
    "rows_page",
    "sources_page",
]

Moment = Annotated[int, Meta(ge=0, le=10**14)]
MostLines = Annotated[int, Meta(ge=1, le=1_000)]
Rows = Annotated[list[SourceRow], Meta(max_length=1_000)]


class SourceWhyQuery(RequestForm, frozen=True, kw_only=True):
    """`slice`: the slice that is meant, such as `t1-60000-90000`. Empty: the source itself."""

    slice: str = ""


class SourceWhyAsk(RequestForm, frozen=True, kw_only=True):
    """A request why a source, or a slice of it, is not read. `slice`: such as `t1-60000-90000`. Empty: the source."""

    platform: str
    source: str
    slice: str = ""


class LookQuery(RequestForm, frozen=True, kw_only=True):
    """The window to look at, in milliseconds UTC. Without a start: from where the source was read to. Without an end:
    up to the moment of the look."""

    start_ms: Moment | None = None
    end_ms: Moment | None = None


class LookAsk(RequestForm, frozen=True, kw_only=True):
    """Have a source looked at. The window as in LookQuery."""

    platform: str
    source: str
    start_ms: Moment | None = None
    end_ms: Moment | None = None


class ImportQuery(RequestForm, frozen=True, kw_only=True):
    """`dry_run`: check and compare, and write nothing. `update`: change sources that are there in another form."""

    dry_run: bool = False
    update: bool = False


class ImportAsk(RequestForm, frozen=True, kw_only=True):
    """Add many sources. All are checked before the first is written. The rest as in ImportQuery."""

    sources: Rows
    dry_run: bool = False
    update: bool = False


class SourcesQuery(RequestForm, frozen=True, kw_only=True):
    """A page of sources by name. `after`: the `next` of the page before."""

    after: Annotated[str, Meta(max_length=129)] = ""
    limit: MostLines = 100


class SourcesShown(Struct, frozen=True):
    """A page of sources, each at one look. `next` is the `after` of the following page. The last page has none."""

    sources: list[Overview]
    next: str = ""


class SourceRows(Struct, frozen=True):
    """A page of sources as they are imported. `next` as in SourcesShown."""

    sources: list[SourceRow]
    next: str = ""


async def sources_page(desk: SourceDesk, asked: SourcesQuery, most_bytes: int = PAGE_BYTES) -> SourcesShown:
    """Return a page of sources."""
    found = await desk.overviews(after=asked.after, limit=asked.limit + 1)
    return SourcesShown(*page_of(found, asked.limit, most_bytes, lambda each: each.source))


async def rows_page(desk: SourceDesk, asked: SourcesQuery, most_bytes: int = PAGE_BYTES) -> SourceRows:
    """Return a page of rows."""
    found = await desk.rows(after=asked.after, limit=asked.limit + 1)
    return SourceRows(*page_of(found, asked.limit, most_bytes, lambda row: row.source))
