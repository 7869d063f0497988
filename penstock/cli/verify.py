"""`penstock verify`: which second was read by whom, when, with how many rows, proven or not, and which is missing."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.admin.source_door import read_source
from penstock.cli.terminal.call import TAKES_TIMES, CommandCall, command
from penstock.cli.terminal.person import progress
from penstock.errors import PenstockError
from penstock.times import read_range, read_zone, span_text, time_text
from streams.clock import now_ms

if TYPE_CHECKING:
    from actors.fetch.rules.ledger import Ledger
    from actors.fetch.sources import SourceKey
    from penstock.admin.audit import Audit
    from penstock.admin.coverage import Coverage, Stretch, StretchState
    from penstock.admin.records import Records
    from streams.messages.fetch import SliceCompleted

__all__ = ["add_to"]

MOST_SHOWN = 60


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, "verify", context=TAKES_TIMES)(_verify)


async def _verify(
    call: CommandCall,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="PLATFORM/SOURCE.")],
    from_: Annotated[str, typer.Argument(metavar="FROM", help="As 2026-01-31T08:00:00Z or -3d.")],
    to: Annotated[str, typer.Argument(metavar="[TO]", help="As FROM; now if not given.")] = "now",
    audit: Annotated[
        bool, typer.Option("--audit", help="Ask the platform again, and compare what it lists now.")
    ] = False,
    each: Annotated[bool, typer.Option("--each", help="Show every reading, however many they are.")] = False,
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="Of times without an offset.")] = "",
) -> None:
    """Tell what of a time was read, by whom, with how many rows. Exit code 1 if anything in it is missing."""
    key = read_source(source)
    start_ms, end_ms = read_range(from_, to, now_ms=now_ms(), zone=read_zone(tz))
    async with call.session() as session:
        from penstock.admin.records import Records
        from penstock.admin.verify import read_coverage

        records = Records(session)
        ledger, coverage = await read_coverage(records, key, start_ms, end_ms)
        told = await _audit(records, key, coverage) if audit else None
    _show_coverage(call, key, ledger, coverage, is_all=each)
    if told is not None:
        _show_audit(call, told)
    call.out.result(_document(key, ledger, coverage, told))
    if not coverage.is_whole or (told is not None and not told.is_good):
        raise typer.Exit(1)


async def _audit(records: "Records", source: "SourceKey", coverage: "Coverage") -> "Audit":
    from penstock.admin.audit import audit
    from penstock.admin.platform_calls import open_source_client

    if coverage.start_ms >= records.now_ms():
        raise PenstockError(f"{source}: the whole range lies in the future; there is nothing to ask for")
    async with open_source_client(records, source) as client:
        with progress(f"asking for {source}") as advance:
            settings = await records.settings_of(source)
            return await audit(records, source, client, coverage, settings=settings, progress=advance)


# ---- for people


def _show_coverage(
    call: CommandCall, source: "SourceKey", ledger: "Ledger | None", coverage: "Coverage", *, is_all: bool
) -> None:
    stretches = coverage.stretches if is_all else coverage.stretches[:MOST_SHOWN]
    call.out.table(
        ["from", "to", "long", "state", "proven", "readings", "rows", "late rows", "by", "read at", ""],
        [_stretch_row(stretch) for stretch in stretches],
    )
    _say_left_out(call, len(coverage.stretches) - len(stretches))
    if is_all or len(coverage.readings) <= MOST_SHOWN:
        call.out.table(
            ["slice", "from", "to", "rows", "new", "proven", "requests", "attempt", "by", "read at"],
            [_reading_row(event) for event in coverage.readings],
            empty="no reading is on record",
        )
    else:
        call.out.say(f"{len(coverage.readings)} readings; --each shows them")
    for line in _summary(source, ledger, coverage):
        call.out.say(line)


def _say_left_out(call: CommandCall, count: int) -> None:
    if count > 0:
        call.out.say(f"… and {count} more; --each shows them")


def _stretch_row(stretch: "Stretch") -> list[object]:
    is_read = stretch.state == "read"
    proven = ("yes" if stretch.is_proven else "no") if is_read and stretch.is_attested else "-"
    about = stretch.reason or ("" if not is_read or stretch.is_attested else "its events are no longer kept")
    return [
        time_text(stretch.start_ms),
        time_text(stretch.end_ms),
        span_text(stretch.length_ms),
        stretch.state,
        proven,
        stretch.readings,
        stretch.rows,
        stretch.late_rows,
        ", ".join(stretch.nodes) or "-",
        time_text(stretch.last_ms) if stretch.last_ms else "-",
        " ".join(part for part in (stretch.slice_id, about) if part),
    ]


def _reading_row(event: "SliceCompleted") -> list[object]:
    return [
        event.slice_id,
        time_text(event.start_ms),
        time_text(event.end_ms),
        event.rows,
        event.new_rows,
        "yes" if event.is_proven else "no",
        event.requests,
        event.attempt,
        event.node,
        time_text(event.finished_ms),
    ]


def _summary(source: "SourceKey", ledger: "Ledger | None", coverage: "Coverage") -> list[str]:
    total = span_text(coverage.end_ms - coverage.start_ms)
    parts = [
        f"{span_text(length_ms)} {words}"
        for words, length_ms in (
            ("read", coverage.length_ms("read")),
            ("open", coverage.length_ms("open")),
            ("given up on", coverage.length_ms("hole")),
            ("not cut yet", coverage.length_ms("ahead")),
            ("never read", coverage.length_ms("gap")),
        )
        if length_ms
    ]
    lines = [f"{source}: of {total}: {', '.join(parts)}"]
    if coverage.unproven_ms:
        lines.append(f"{span_text(coverage.unproven_ms)} without the platform's own count to prove it")
    if coverage.unattested_ms:
        lines.append(f"{span_text(coverage.unattested_ms)} by the ledger's word alone: events are kept for some days")
    if ledger is None:
        lines.append(f"there is no ledger; say where to begin: penstock sources rewind {source} TIME")
    elif coverage.length_ms("ahead"):
        why = "" if ledger.state == "running" else f", and the source is {ledger.state}: {ledger.reason}"
        lines.append(f"reading has come to {time_text(ledger.frontier_ms)}{why}")
    return lines


def _show_audit(call: CommandCall, told: "Audit") -> None:
    found = told.findings[:MOST_SHOWN]
    call.out.table(
        ["order", "version", "modified", "fate", "stored version"],
        [
            [
                each.key,
                each.version,
                "-" if each.modified_ms is None else time_text(each.modified_ms),
                each.fate,
                "-" if each.stored_version is None else each.stored_version,
            ]
            for each in found
        ],
        empty="nothing is listed now that should be stored and is not",
    )
    if told.late + told.missed > len(found):
        call.out.say(f"… and {told.late + told.missed - len(found)} more")
    call.out.say(
        f"asked again in {told.requests} requests: {told.listed} listed, {told.stored} stored, {told.missed} missed, "
        f"{told.late} late (a second look is still to come), {told.unread} in time that is not read yet, "
        f"{told.aged} read so long ago that the stream no longer has them"
        + ("" if told.is_proven else "; the platform's count did not prove the answer")
    )
    if told.short:
        call.out.say(f"short by {told.short}: the platform counts so many more orders than it hands out")
    if told.is_cut_off:
        call.out.say("the platform's list breaks off where nothing smaller can be asked for: there may be more orders")


# ---- for programs


def _document(
    source: "SourceKey", ledger: "Ledger | None", coverage: "Coverage", told: "Audit | None"
) -> dict[str, object]:
    states: tuple[StretchState, ...] = ("read", "open", "hole", "ahead", "gap")
    return {
        "source": str(source),
        "start_ms": coverage.start_ms,
        "end_ms": coverage.end_ms,
        "is_whole": coverage.is_whole,
        **{f"{state}_ms": coverage.length_ms(state) for state in states},
        "unproven_ms": coverage.unproven_ms,
        "unattested_ms": coverage.unattested_ms,
        "frontier_ms": ledger.frontier_ms if ledger else None,
        "watermark_ms": ledger.watermark_ms if ledger else None,
        "stretches": [msgspec.structs.asdict(stretch) for stretch in coverage.stretches],
        "readings": [msgspec.structs.asdict(event) for event in coverage.readings],
        "audit": msgspec.to_builtins(told) if told is not None else None,
    }
