"""`penstock why`: the one thing that keeps a job, a batch or a source from running."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.admin.source_door import read_source
from penstock.cli.batch import open_batches
from penstock.cli.call import CommandCall, command
from penstock.cli.held import open_jobs
from penstock.errors import NotAccepted, PenstockError, UsageError
from penstock.times import span_text, time_text
from streams.clock import now_ms

if TYPE_CHECKING:
    from actors.batch.rules.obstacles import BatchWhy
    from actors.jobs.rules.obstacles import JobWhy
    from penstock.admin.source_view import SourceWhy

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, "why")(_why)


async def _why(
    call: CommandCall,
    id_: Annotated[
        str, typer.Argument(metavar="ID", help="Of a job or a batch, or PLATFORM/SOURCE.", show_default=False)
    ],
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Only a job of this topic.", show_default=False)] = "",
) -> None:
    """Tell what is in the way of a job, a batch or a source, and until when, as far as is known."""
    found: list[JobWhy | BatchWhy | SourceWhy] = [*await _job(call, id_, topic)]
    if not topic:
        found += [*await _batch(call, id_), *await _source(call, id_)]
    if not found:
        raise PenstockError(f"{id_[:80]}: no job, batch or source is called so")
    for each in found:
        call.out.say(f"{_name(each)} is {each.state}: {each.reason}{_until(getattr(each, 'until_ms', 0))}")
    call.out.result([{"kind": _kind(each), **msgspec.to_builtins(each)} for each in found])


async def _job(call: CommandCall, id_: str, topic: str) -> "list[JobWhy]":
    async with open_jobs(call) as jobs:
        return await jobs.why(id_, topic or None)


async def _batch(call: CommandCall, id_: str) -> "list[BatchWhy]":
    async with open_batches(call) as batches:
        try:
            return [await batches.why(id_)]
        except NotAccepted as refused:
            if refused.code in ("not_found", "bad"):  # an id that no batch can have
                return []
            raise


async def _source(call: CommandCall, id_: str) -> "list[SourceWhy]":
    try:
        key = read_source(id_)
    except UsageError:
        return []
    async with call.session() as session:
        from penstock.admin.records import Records
        from penstock.admin.source_view import source_why
        from penstock.cli.source_list import overviews

        return [source_why(shown) for shown in await overviews(Records(session), key.key)]


def _until(at_ms: int) -> str:
    wait_ms = at_ms - now_ms()
    return f", until {time_text(at_ms)} (in {span_text(wait_ms)})" if wait_ms > 0 else ""


def _kind(why: "JobWhy | BatchWhy | SourceWhy") -> str:
    return type(why).__name__.removesuffix("Why").lower()


def _name(why: "JobWhy | BatchWhy | SourceWhy") -> str:
    kind = _kind(why)
    return f"job {why.topic}/{why.id}" if kind == "job" else f"{kind} {why.id}"  # type: ignore[union-attr]  # of a job
