"""`penstock why`: the one thing that keeps a job, a batch, an item, a row, a source or a slice from running."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.admin.source_door import read_source
from penstock.cli.batch import open_batches
from penstock.cli.held import open_jobs
from penstock.cli.terminal.call import CommandCall, command
from penstock.errors import NotAccepted, PenstockError, Timeout, Unavailable, UsageError
from penstock.times import span_text, time_text
from streams.clock import now_ms
from streams.subjects import TOKEN

if TYPE_CHECKING:
    from actors.batch.rules.obstacles import BatchWhy
    from actors.fetch.overview import SourceWhy
    from actors.fetch.slice_why import SliceWhy
    from actors.flow.rules.obstacles import RowWhy
    from actors.jobs.rules.obstacles import JobWhy

    Why = JobWhy | BatchWhy | SourceWhy | SliceWhy | RowWhy

__all__ = ["add_to"]

ASK_S = 10.0


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, "why")(_why)


async def _why(
    call: CommandCall,
    id_: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Of a job (or TOPIC/ID) or a batch, or PLATFORM/SOURCE, PLATFORM/SOURCE/SLICE, FLOW/SHARD/KEY.",
        ),
    ],
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Only a job of this topic.")] = "",
    item: Annotated[int | None, typer.Option(metavar="N", min=0, help="This item of the batch, from 0.")] = None,
    row: Annotated[int | None, typer.Option(metavar="N", min=1, help="This row of the batch's sheet.")] = None,
) -> None:
    """Tell what is in the way of a job, a batch or its item, a row of a flow, a source or its slice, and until when."""
    is_any = not topic and item is None and row is None
    found: list[Why] = [*await _slice(call, id_)] if is_any else []  # it needs no node
    sources = await _source(call, id_) if is_any and not found else []  # nor does this
    try:
        if not found and item is None and row is None:
            found += await _job(call, id_, topic)
        if not topic and not any(_kind(each) == "slice" for each in found):
            found += await _batch(call, id_, item, row)
            found += [*sources, *(await _row(call, id_) if is_any else [])]
    except (Unavailable, Timeout):
        if not sources:
            raise
        found = [*sources]
    if not found:
        raise PenstockError(f"{id_[:80]}: no job, batch, source, slice or row of a flow is called so")
    for each in found:
        call.out.say(f"{_name(each)} is {_state(each)}: {each.reason}{_until(getattr(each, 'until_ms', 0))}")
    call.out.result([{"kind": _kind(each), **msgspec.to_builtins(each)} for each in found])


async def _job(call: CommandCall, id_: str, topic: str) -> "list[JobWhy]":
    async with open_jobs(call) as jobs:
        found = await jobs.why(id_, topic or None)
        if found or topic or "/" not in id_:
            return found
        topic, _, id_ = id_.partition("/")  # as commands print a job
        return await jobs.why(id_, topic) if TOKEN.fullmatch(topic) else []


async def _batch(call: CommandCall, id_: str, item: int | None, row: int | None) -> "list[BatchWhy]":
    async with open_batches(call) as batches:
        try:
            return [await batches.why(id_, item, row=row)]
        except NotAccepted as refused:
            # an id that no batch can have
            if refused.code == "not_found" or (refused.code == "bad" and item is None and row is None):
                return []
            raise


async def _source(call: CommandCall, id_: str) -> "list[SourceWhy]":
    try:
        key = read_source(id_)
    except UsageError:
        return []
    async with call.session() as session:
        from actors.fetch.sources import UnknownSource
        from penstock.node.fetch.source_doors import open_source_desk

        with suppress(UnknownSource):
            return [await open_source_desk(session).why(key.platform, key.source)]
        return []


async def _slice(call: CommandCall, id_: str) -> "list[SliceWhy]":
    source_id, _, slice_id = id_.rpartition("/")
    try:
        key = read_source(source_id)
    except UsageError:
        return []
    from actors.fetch.rules.slices import MalformedSliceId
    from actors.fetch.sources import UnknownSource

    async with call.session() as session:
        from penstock.node.fetch.source_doors import open_source_desk

        with suppress(UnknownSource, MalformedSliceId):
            return [await open_source_desk(session).why_slice(key.platform, key.source, slice_id)]
        return []


async def _row(call: CommandCall, id_: str) -> "list[RowWhy]":
    """Ask about FLOW/SHARD/KEY. A shard's name may hold slashes too, so each of them may be the end of it."""
    flow, *parts = id_.split("/")
    if len(parts) < 2:
        return []
    async with call.session() as session:
        from penstock.sdk.calls import ServiceClient
        from penstock.sdk.client_flows import FlowCalls

        flows = FlowCalls(ServiceClient(session.connection, "flow", ASK_S))
        try:
            found = [await flows.why(flow, "/".join(parts[:at]), "/".join(parts[at:])) for at in range(1, len(parts))]
        except NotAccepted as refused:
            if refused.code in ("not_found", "bad"):
                return []
            raise
        return [min(found, key=lambda each: (each.state == "not_loaded", each.code == "shard"))]


def _until(at_ms: int) -> str:
    wait_ms = at_ms - now_ms()
    return f", until {time_text(at_ms)} (in {span_text(wait_ms)})" if wait_ms > 0 else ""


def _state(why: "Why") -> str:
    return why.state.replace("_", " ")


def _kind(why: "Why") -> str:
    is_item = getattr(why, "item", None) is not None
    return "item" if is_item else type(why).__name__.removesuffix("Why").lower()


def _name(why: "Why") -> str:
    match _kind(why):
        case "job":
            return f"job {why.topic}/{why.id}"  # type: ignore[union-attr] # of a job
        case "item":
            place = f"item {why.item}" if why.row is None else f"row {why.row}"  # type: ignore[union-attr] # of an item
            return f"{place} of batch {why.id}"  # type: ignore[union-attr] # of an item
        case "row":
            return f"row {why.flow}/{why.shard}/{why.key}"  # type: ignore[union-attr] # of a row
        case kind:
            return f"{kind} {why.id}"  # type: ignore[union-attr] # of all others
