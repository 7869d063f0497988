"""Sources over NATS."""

from actors.fetch.look_desk import LookView
from actors.fetch.overview import SourceWhy
from actors.fetch.slice_why import SliceWhy
from actors.fetch.source_desk import SourceDesk
from actors.fetch.source_import import Imported
from penstock.api.forms.sources import (
    ImportAsk,
    LookAsk,
    SourceRows,
    SourcesQuery,
    SourcesShown,
    SourceWhyAsk,
    rows_page,
    sources_page,
)
from penstock.api.service.calls import Question


async def why(desk: SourceDesk, ask: SourceWhyAsk, _question: Question) -> SourceWhy | SliceWhy:
    if ask.slice:
        return await desk.why_slice(ask.platform, ask.source, ask.slice)
    return await desk.why(ask.platform, ask.source)


async def look(desk: SourceDesk, ask: LookAsk, _question: Question) -> LookView:
    return await desk.look(ask.platform, ask.source, start_ms=ask.start_ms, end_ms=ask.end_ms)


async def list_sources(desk: SourceDesk, ask: SourcesQuery, question: Question) -> SourcesShown:
    return await sources_page(desk, ask, question.page_bytes)


async def export(desk: SourceDesk, ask: SourcesQuery, question: Question) -> SourceRows:
    return await rows_page(desk, ask, question.page_bytes)


async def import_sources(desk: SourceDesk, ask: ImportAsk, _question: Question) -> Imported:
    return await desk.importer.run(ask.sources, is_trial=ask.dry_run, is_updating=ask.update)
