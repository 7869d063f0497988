"""`penstock dead`: letters about what was given up on; sent round again, or dropped."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.call import Call, command
from penstock.cli.person import By, Yes, confirm, progress, who
from penstock.errors import UsageError
from penstock.times import time_text

if TYPE_CHECKING:
    from penstock.dead_letters import Letter, Replayed
    from penstock.records import Records

__all__ = ["add_to"]

Engine = Annotated[str, typer.Option(metavar="ENGINE", help="Only of this engine: fetch, sink.", show_default=False)]
Name = Annotated[str, typer.Option(metavar="NAME", help="Only of this platform or sink.", show_default=False)]
Sequences = Annotated[
    list[int] | None, typer.Argument(metavar="[SEQ]...", help="As `dead list` shows them.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All, or all of --engine and --name.")]
LONGEST_BODY = 20_000


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(help="What was given up on, kept until somebody acts.")
    app.add_typer(group, name="dead")
    command(group, "list")(_list)
    command(group, "show")(_show)
    command(group, "replay")(_replay)
    command(group, "drop")(_drop)


async def _list(
    call: Call,
    engine: Engine = "",
    name: Name = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 50,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Go on behind this one.")] = 0,
) -> None:
    """List dead letters, the oldest first, a page at a time."""
    from penstock.dead_letters import Filter, letters
    from penstock.records import Records

    found: list[Letter] = []
    async with call.session() as session:
        records = Records(session)
        async for letter in letters(records, Filter(engine, name), after=after):
            found.append(letter)
            if len(found) > limit:
                break
    shown, more = found[:limit], len(found) > limit
    rows = [
        [each.seq, *each.names, time_text(each.stored_ms), each.letter.attempts if each.letter else "-", _why(each)]
        for each in shown
    ]
    call.out.table(["seq", "engine", "name", "id", "since", "tried", "why"], rows, empty="no dead letters")
    if more:
        call.out.say(f"there are more: penstock dead list --after {shown[-1].seq}")
    call.out.result({"letters": [_summary(each) for each in shown], "next_after": shown[-1].seq if more else None})


def _why(letter: "Letter") -> str:
    return letter.letter.reason if letter.letter else f"the letter itself does not decode: {letter.fault}"


def _summary(letter: "Letter") -> dict[str, object]:
    engine, name, dead_id = letter.names
    return {
        "seq": letter.seq,
        "engine": engine,
        "name": name,
        "id": dead_id,
        "stored_ms": letter.stored_ms,
        "first_ms": letter.letter.first_ms if letter.letter else None,
        "attempts": letter.letter.attempts if letter.letter else None,
        "reason": _why(letter),
    }


async def _show(
    call: Call, which: Annotated[str, typer.Argument(metavar="SEQ|ID", help="One letter.", show_default=False)]
) -> None:
    """Show one letter whole: body, history, and what sending it again would do."""
    from penstock.dead_letters import find
    from penstock.records import Records

    async with call.session() as session:
        records = Records(session)
        letter = await find(records, which)
    body = _body(letter)
    for key, value in _summary(letter).items():
        call.out.say(f"{key}: {time_text(value) if key.endswith('_ms') and isinstance(value, int) else value}")
    for each in letter.letter.history if letter.letter else ():
        call.out.say(f"attempt {each.attempt}: {time_text(each.at_ms)} {each.node}: {each.reason}")
    call.out.say(f"again: {_plan_text(letter)}")
    call.out.say(
        body if len(body) <= LONGEST_BODY else f"{body[:LONGEST_BODY]}\n… {len(body)} characters; --json prints all"
    )
    history = msgspec.to_builtins(letter.letter.history) if letter.letter else []
    is_base64 = letter.letter.is_base64 if letter.letter else False
    call.out.result({**_summary(letter), "history": history, "is_base64": is_base64, "body": body})


def _body(letter: "Letter") -> str:
    return (letter.payload if letter.letter is None else bytes(letter.letter.body)).decode("utf-8", "replace")


def _plan_text(letter: "Letter") -> str:
    from penstock.dead_letters import Cannot, Redrive, Send, SendStored, plan

    if letter.letter is None:
        return "not possible: it does not decode"
    match plan(letter.letter):
        case Redrive(source=source, slice_id=slice_id):
            return f"reads {slice_id} of {source} again"
        case Send(orders=orders):
            what = f"order {orders[0].order_key}" if len(orders) == 1 else f"{len(orders)} orders"
            return f"sends {what} of {orders[0].platform}/{orders[0].source} to the sinks again"
        case SendStored(seq=seq):
            return f"sends message {seq} of the stream of orders to the sinks again"
        case Cannot(why=why):
            return f"not possible: {why}"


async def _replay(
    call: Call, seqs: Sequences = None, all_: All = False, engine: Engine = "", name: Name = "", by: By = ""
) -> None:
    """Send letters round again, and remove those that were: a hole is read again, an order goes to the sinks again."""
    from penstock.dead_letters import replay
    from penstock.records import Records

    _check_choice(seqs, all_=all_)
    done = 0
    kept: list[Replayed] = []
    async with call.session() as session:
        records = Records(session)
        with progress("replaying") as advance:
            async for letter, share in _chosen(records, seqs, engine, name):
                told = await replay(records, letter, by=who(by))
                done += told.is_done
                if not told.is_done:
                    kept.append(told)
                    typer.echo(f"{told.seq}: left as it is: {told.what}", err=True)
                elif seqs:
                    call.out.say(f"{told.seq}: {told.what}")
                advance(share)
    call.out.say(f"{done} sent again, {len(kept)} left as they are")
    call.out.result({"replayed": done, "kept": [msgspec.to_builtins(each) for each in kept]})
    if kept:
        raise typer.Exit(1)


async def _drop(
    call: Call, seqs: Sequences = None, all_: All = False, engine: Engine = "", name: Name = "", yes: Yes = False
) -> None:
    """Remove letters for good. A hole stays listed in its ledger: this drops only the letter about it."""
    from penstock.dead_letters import drop
    from penstock.records import Records

    _check_choice(seqs, all_=all_)
    of = " ".join(part for part in (engine, name) if part)
    what = f"{len(seqs)} dead letter(s)" if seqs else f"all dead letters{' of ' if of else ''}{of}"
    confirm(f"Drop {what} for good?", is_sure=yes)
    dropped = 0
    async with call.session() as session:
        records = Records(session)
        with progress("dropping") as advance:
            async for letter, share in _chosen(records, seqs, engine, name):
                dropped += await drop(records, letter.seq)
                advance(share)
    call.out.say(f"{dropped} dropped")
    call.out.result({"dropped": dropped})


def _check_choice(seqs: list[int] | None, *, all_: bool) -> None:
    if bool(seqs) == all_:
        raise UsageError("name letters by SEQ, or say --all (with --engine and --name to narrow it)")


async def _chosen(
    records: "Records", seqs: list[int] | None, engine: str, name: str
) -> "AsyncIterator[tuple[Letter, float]]":
    """Yield the letters named, or all that were there when we began, with the share that is done by each."""
    from penstock.dead_letters import Filter, letter_at, letters
    from streams.log import extent_of

    for at, seq in enumerate(seqs or (), 1):
        letter = await letter_at(records, seq)
        if letter is None:
            raise UsageError(f"no dead letter {seq}; `penstock dead list` shows them")
        yield letter, at / len(seqs or ())
    if seqs:
        return
    extent = await extent_of(records.connection, records.namespace.stream("DEAD"))
    async for letter in letters(records, Filter(engine, name)):
        if letter.seq > extent.last_seq:
            return
        yield letter, (letter.seq - extent.first_seq + 1) / (extent.last_seq - extent.first_seq + 1)
