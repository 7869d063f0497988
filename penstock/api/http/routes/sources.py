"""Sources over HTTP. They are the operator's: a tenant's token cannot see them. `look` is the hook by which a platform,
or a program of your own, says that there is something new."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from actors.fetch.ledgers import MissingLedger
from actors.fetch.rules.looks import BadLook
from actors.fetch.rules.slices import MalformedSliceId
from actors.fetch.source_desk import SourceDesk
from actors.fetch.sources import UnknownSource, UnusableSource
from penstock.api.forms.sources import (
    ImportQuery,
    LookQuery,
    Rows,
    SourceRows,
    SourcesQuery,
    SourcesShown,
    SourceWhyQuery,
    rows_page,
    sources_page,
)
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded, query_of
from penstock.api.http.problems import refused
from penstock.api.http.routes.jobs import audit
from streams.errors import MalformedSubject

_P = TypeVar("_P", SourcesShown, SourceRows)
_rows = msgspec.json.Decoder(Rows)


async def why(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Tell why a source, or a slice of it, is not read."""
    slice_id = query_of(SourceWhyQuery, call.query).slice
    platform, source = call.value("platform"), call.value("source")
    _check_operator(call)
    with shared.load.work("other", call.caller.key):
        try:
            if slice_id:
                return HttpAnswer(await shared.sources.why_slice(platform, source, slice_id))
            return HttpAnswer(await shared.sources.why(platform, source))
        except UnknownSource as error:
            raise refused(404, "not_found", str(error), what="source", value=f"{platform}/{source}") from error
        except MalformedSliceId as error:
            raise refused(422, "bad", str(error), what="slice", value=slice_id) from error
        except MalformedSubject as error:
            raise refused(422, "bad", str(error), what="source", value=f"{platform}/{source}") from error


async def list_sources(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List the sources, a page at a time. A page leaves out those that are not the token's."""
    return await _page(shared, call, sources_page)


async def export(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List the sources as they are imported, a page at a time."""
    return await _page(shared, call, rows_page)


async def _page(
    shared: GatewayState, call: HttpCall, page_of: Callable[[SourceDesk, SourcesQuery], Awaitable[_P]]
) -> HttpAnswer:
    asked = query_of(SourcesQuery, call.query)
    _check_operator(call)
    with shared.load.work("other", call.caller.key):
        page = await page_of(shared.sources, asked)
    seen = [each for each in page.sources if call.caller.may_source(each.source)]
    return HttpAnswer(replace(page, sources=seen))


async def import_sources(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Add many sources. If one row cannot be taken, none is written."""
    asked, rows = query_of(ImportQuery, call.query), decoded(_rows, call.body)
    for row in rows:
        call.caller.check_source(*row.source.partition("/")[::2])
    with shared.load.work("other", call.caller.key):
        done = await shared.sources.importer.run(rows, is_trial=asked.dry_run, is_updating=asked.update)
    if not done.is_trial:
        audit(call, "sources.imported", added=done.added, changed=done.changed)
    return HttpAnswer(done)


def _check_operator(call: HttpCall) -> None:
    if call.caller.tenant:
        raise refused(403, "forbidden", "sources are the operator's")


async def look(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Have a source looked at now. The body may be anything in JSON, as platforms send it. It is not read."""
    asked = query_of(LookQuery, call.query)
    platform, source = call.value("platform"), call.value("source")
    call.caller.check_source(platform, source)
    with shared.load.work("other", call.caller.key):
        try:
            view = await shared.sources.look(platform, source, start_ms=asked.start_ms, end_ms=asked.end_ms)
        except (UnknownSource, MissingLedger) as error:
            raise refused(404, "not_found", str(error), what="source", value=f"{platform}/{source}") from error
        except BadLook as error:
            if error.field:
                raise refused(422, "bad", str(error), what=error.field) from error
            raise refused(409, "state", str(error), what="source", value=f"{platform}/{source}") from error
        except UnusableSource as error:
            raise refused(409, "state", str(error), what="source", value=f"{platform}/{source}") from error
    return HttpAnswer(view, 202)
