"""Sources over NATS."""

from actors.fetch.overview import SourceWhy
from actors.fetch.slice_why import SliceWhy
from actors.fetch.source_desk import SourceDesk
from penstock.api.forms.sources import SourceWhyAsk
from penstock.api.service.calls import Question


async def why(desk: SourceDesk, ask: SourceWhyAsk, _question: Question) -> SourceWhy | SliceWhy:
    if ask.slice:
        return await desk.why_slice(ask.platform, ask.source, ask.slice)
    return await desk.why(ask.platform, ask.source)
