"""Sources over NATS."""

from actors.fetch.look_desk import LookView
from actors.fetch.overview import SourceWhy
from actors.fetch.slice_why import SliceWhy
from actors.fetch.source_desk import SourceDesk
from penstock.api.forms.sources import LookAsk, SourceWhyAsk
from penstock.api.service.calls import Question


async def why(desk: SourceDesk, ask: SourceWhyAsk, _question: Question) -> SourceWhy | SliceWhy:
    if ask.slice:
        return await desk.why_slice(ask.platform, ask.source, ask.slice)
    return await desk.why(ask.platform, ask.source)


async def look(desk: SourceDesk, ask: LookAsk, _question: Question) -> LookView:
    return await desk.look(ask.platform, ask.source, start_ms=ask.start_ms, end_ms=ask.end_ms)
