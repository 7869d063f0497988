"""`penstock dead`: dead letters, to be shown, sent again or dropped."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.person import By, PerSecond, Yes, confirm, progress, who
from penstock.errors import UsageError
from penstock.times import span_text, time_text
from streams.clock import now_ms

if TYPE_CHECKING:
    from penstock.admin.dead_letters import DeadLetterEntry, Dropped, Filter
    from penstock.admin.dead_replay import Replayed
    from penstock.admin.records import Records
    from streams.messages.jobs import JobRecord

__all__ = ["add_to"]

ENGINES = ("fetch", "sink", "jobs", "submit", "batch")
Engine = Annotated[str, typer.Option(metavar="ENGINE", help=f"Only of this engine: {', '.join(ENGINES)}.")]
Name = Annotated[str, typer.Option(metavar="NAME", help="Only of this platform, sink or topic.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Only with this text in the reason.")]
OlderThan = Annotated[str, typer.Option(metavar="SPAN", help="Only those older than 2h, 3d.")]
NewerThan = Annotated[str, typer.Option(metavar="SPAN", help="Only those younger than that.")]
Sequences = Annotated[list[int] | None, typer.Argument(metavar="[SEQ]...", help="As `dead list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="All that the other options choose.")]
LONGEST_BODY = 20_000
LABELS = {"stored_ms": "since", "first_ms": "first", "attempts": "tried", "reason": "why"}
MOST_AT_ONCE = 256


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(cls=Group, help="What was given up on, kept until somebody acts.")
    app.add_typer(group, name="dead")
    command(group, "list")(_list)
    command(group, "show")(_show)
    command(group, "replay")(_replay)
    command(group, "drop")(_drop)


async def _list(
    call: CommandCall,
    engine: Engine = "",
    name: Name = "",
    reason: Reason = "",
    older_than: OlderThan = "",
    newer_than: NewerThan = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 50,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Go on behind this one.")] = 0,
) -> None:
    """List dead letters, the oldest first, a page at a time."""
    which = _filter(engine, name, reason, older_than, newer_than)
    found: list[DeadLetterEntry] = []
    async with call.session() as session:
        from penstock.admin.dead_letters import dead_letters
        from penstock.admin.records import Records

        records = Records(session)
        async for letter in dead_letters(records, which, after=after):
            found.append(letter)
            if len(found) > limit:
                break
    shown, more = found[:limit], len(found) > limit
    rows = [
        [each.seq, *each.names, time_text(each.stored_ms), each.letter.attempts if each.letter else "-", each.why]
        for each in shown
    ]
    call.out.table(["seq", "engine", "name", "id", "since", "tried", "why"], rows, empty="no dead letters")
    if more:
        call.out.say(f"there are more: penstock dead list --after {shown[-1].seq}")
    call.out.result({"letters": [_summary(each) for each in shown], "next_after": shown[-1].seq if more else None})


def _filter(engine: str, name: str, reason: str, older_than: str, newer_than: str) -> "Filter":
    from actors.runtime.rules.setting_values import nearest
    from penstock.admin.dead_letters import Filter
    from penstock.rows.job_rows import read_span

    if engine and engine not in ENGINES:
        raise UsageError(f"--engine {engine[:64]!a}: there is none; {nearest(engine, ENGINES)}")
    at_ms = now_ms()
    before_ms = at_ms - read_span("--older-than", older_than) if older_than else 0
    from_ms = at_ms - read_span("--newer-than", newer_than) if newer_than else 0
    if before_ms and from_ms >= before_ms:
        raise UsageError(f"--older-than {older_than} and --newer-than {newer_than}: no letter is both")
    return Filter(engine, name, reason, from_ms, before_ms)


def _summary(letter: "DeadLetterEntry") -> dict[str, object]:
    engine, name, dead_id = letter.names
    return {
        "seq": letter.seq,
        "engine": engine,
        "name": name,
        "id": dead_id,
        "stored_ms": letter.stored_ms,
        "first_ms": letter.letter.first_ms if letter.letter else None,
        "attempts": letter.letter.attempts if letter.letter else None,
        "reason": letter.why,
    }


async def _show(call: CommandCall, which: Annotated[str, typer.Argument(metavar="SEQ|ID", help="One letter.")]) -> None:
    """Show one letter: why, history, body, and what sending it again would do. With --json it is whole."""
    async with call.session() as session:
        from penstock.admin.dead_letters import find
        from penstock.admin.records import Records

        records = Records(session)
        letter = await find(records, which)
    for line in _lines(letter):
        call.out.say(line)
    body = _body(letter)
    history = msgspec.to_builtins(letter.letter.history) if letter.letter else []
    is_base64 = letter.letter.is_base64 if letter.letter else False
    call.out.result({**_summary(letter), "history": history, "is_base64": is_base64, "body": body})


def _lines(letter: "DeadLetterEntry") -> Iterator[str]:
    """Yield a letter as a person reads it: of a job its own body, since all else of it stands above."""
    job = _job(letter)
    for key, value in _summary(letter).items():
        is_moment = key.endswith("_ms") and isinstance(value, int)
        yield f"{LABELS.get(key, key)}: {time_text(value) if is_moment and isinstance(value, int) else value}"
    if job is not None:
        yield f"due: {time_text(job.due_ms)}, {job.priority} priority, {span_text(job.ttr_ms)} to run"
        if job.expires_ms:
            yield f"expires: {time_text(job.expires_ms)}"
    for each in letter.letter.history if letter.letter else ():
        tried = f"attempt {each.attempt}: {time_text(each.at_ms)} {each.node}: " if each.at_ms else ""
        yield f"{tried}{each.reason}"
    yield f"again: {_plan_text(letter)}"
    body = _indented(_body(letter) if job is None else bytes(job.body).decode("utf-8", "replace"))
    yield body if len(body) <= LONGEST_BODY else f"{body[:LONGEST_BODY]}\n… {len(body)} characters; --json prints all"


def _job(letter: "DeadLetterEntry") -> "JobRecord | None":
    from penstock.admin.dead_letters import Requeue, plan

    found = plan(letter.letter) if letter.letter is not None else None
    return found.job if isinstance(found, Requeue) else None


def _indented(text: str) -> str:
    """Return JSON on lines of its own, any other text as it is."""
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.MsgspecError:
        return text


def _body(letter: "DeadLetterEntry") -> str:
    return (letter.payload if letter.letter is None else bytes(letter.letter.body)).decode("utf-8", "replace")


def _plan_text(letter: "DeadLetterEntry") -> str:
    from penstock.admin.dead_letters import Cannot, Redrive, Requeue, Resubmit, Send, SendStored, plan

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
        case Requeue(job=job):
            return f"adds job {job.id} of {job.topic}, due now, with {job.most_attempts} attempts"
        case Resubmit(subject=subject):
            return f"hands it in again on {subject}"
        case Cannot(why=why):
            return f"not possible: {why}"


async def _replay(
    call: CommandCall,
    seqs: Sequences = None,
    all_: All = False,
    engine: Engine = "",
    name: Name = "",
    reason: Reason = "",
    older_than: OlderThan = "",
    newer_than: NewerThan = "",
    rate: PerSecond = None,
    by: By = "",
) -> None:
    """Send letters round again, and remove those that were.

    A hole is read again, an order goes to the sinks again, a job is due now with all its attempts."""
    which = _filter(engine, name, reason, older_than, newer_than)
    _check_choice(seqs, which, all_=all_)
    done = tried = gone = shared = 0
    kept: list[Replayed] = []
    async with call.session() as session:
        from penstock.admin.dead_replay import Replayer
        from penstock.admin.records import Records

        records = Records(session)
        replayer = Replayer(records, by=who(by))
        call.if_stopped(lambda: _so_far("sent again", done, tried - len(kept) - gone - shared), is_for_errors=True)
        with progress("replaying") as advance:
            async for letters, share in _paced(_chosen(records, seqs, which), rate):
                tried += len(letters)
                answers = await replayer.replay(letters)
                gone += len(letters) - len(answers)
                for told in answers:
                    done += told.is_done and told.is_own
                    shared += told.is_done and not told.is_own
                    if not told.is_done:
                        kept.append(told)
                        typer.echo(f"{told.seq}: left as it is: {told.what}", err=True)
                    elif seqs:
                        call.out.say(f"{told.seq}: {told.what}")
                advance(share)
    others = f", {shared} sent again whose letters another caller removed first" if shared else ""
    others += _gone_text(gone)
    call.out.say(f"{done} sent again, {len(kept)} left as they are{others}")
    kept_ones = [msgspec.to_builtins(each) for each in kept]
    call.out.result({"replayed": done, "shared": shared, "gone": gone, "kept": kept_ones})
    if kept:
        raise typer.Exit(1)


def _so_far(what: str, least: int, most: int) -> str:
    """Say how many letters a command that is broken off has done. It does not know the outcome of its last group."""
    if not most:
        return ""
    return f"{least if least >= most else f'{least} to {most}'} {what}, the other letters are as they were"


async def _paced(
    chosen: "AsyncIterator[tuple[DeadLetterEntry, float]]", rate: float | None
) -> "AsyncIterator[tuple[list[DeadLetterEntry], float]]":
    """Yield letters in groups, no more of them a second than `rate`, with the share that is done by each group."""
    from penstock.rows.own_pace import OwnPace

    pace = OwnPace(rate, most=MOST_AT_ONCE)
    async for group, share in _grouped(chosen, pace.group):
        await pace.wait(len(group))
        yield group, share


async def _grouped(
    chosen: "AsyncIterator[tuple[DeadLetterEntry, float]]", most: int
) -> "AsyncIterator[tuple[list[DeadLetterEntry], float]]":
    group, share = list["DeadLetterEntry"](), 0.0
    async for letter, share in chosen:  # that of the last one is told with the group
        group.append(letter)
        if len(group) == most:
            yield group, share
            group = []
    if group:
        yield group, share


async def _drop(
    call: CommandCall,
    seqs: Sequences = None,
    all_: All = False,
    engine: Engine = "",
    name: Name = "",
    reason: Reason = "",
    older_than: OlderThan = "",
    newer_than: NewerThan = "",
    yes: Yes = False,
) -> None:
    """Remove letters for good. A hole stays listed in its ledger: this drops only the letter about it."""
    which = _filter(engine, name, reason, older_than, newer_than)
    _check_choice(seqs, which, all_=all_)
    what = f"{len(seqs)} dead letter(s)" if seqs else f"all dead letters{_chosen_text(which)}"
    confirm(f"Drop {what} for good?", is_sure=yes)
    told, tried = Counter["Dropped"](), 0
    async with call.session() as session:
        from penstock.admin.dead_letters import drop
        from penstock.admin.records import Records

        records = Records(session)
        call.if_stopped(lambda: _so_far("dropped", told["dropped"], tried - told["gone"]), is_for_errors=True)
        with progress("dropping") as advance:
            async for letters, share in _grouped(_chosen(records, seqs, which), MOST_AT_ONCE):
                tried += len(letters)
                told.update(await drop(records, *(each.seq for each in letters)))
                advance(share)
    gone, in_doubt = told["gone"], told["in_doubt"]
    others = _gone_text(gone)
    others += f", {in_doubt} gone that another caller may have sent again at the same time" if in_doubt else ""
    call.out.say(f"{told['dropped']} dropped{others}")
    call.out.result({"dropped": told["dropped"], "gone": gone, "in_doubt": in_doubt})
    if in_doubt:
        raise typer.Exit(1)


def _gone_text(gone: int) -> str:
    return f", {gone} gone meanwhile: another caller sent them again or dropped them" if gone else ""


def _chosen_text(which: "Filter") -> str:
    """Say which letters are meant, for the question before they are dropped."""
    of = " ".join(part for part in (which.engine, which.name) if part)
    reason = f" with {which.reason!r} in the reason" if which.reason else ""
    since = f" since {time_text(which.from_ms)}" if which.from_ms else ""
    before = f" before {time_text(which.before_ms)}" if which.before_ms else ""
    return f"{' of ' if of else ''}{of}{reason}{since}{before}"


def _check_choice(seqs: list[int] | None, which: "Filter", *, all_: bool) -> None:
    if bool(seqs) == all_:
        raise UsageError("name letters by SEQ, or say --all (with --engine, --name, --reason and others to narrow it)")
    if seqs and any(which):
        raise UsageError("letters named by SEQ are not narrowed down: leave out the other options, or say --all")


async def _chosen(
    records: "Records", seqs: list[int] | None, which: "Filter"
) -> "AsyncIterator[tuple[DeadLetterEntry, float]]":
    """Yield the letters named, or all that were there when we began, with the share that is done by each."""
    from penstock.admin.dead_letters import dead_letter_at, dead_letters
    from streams.reads.log import extent_of

    for at, seq in enumerate(seqs or (), 1):
        letter = await dead_letter_at(records, seq)
        if letter is None:
            raise UsageError(f"no dead letter {seq}; `penstock dead list` shows them")
        yield letter, at / len(seqs or ())
    if seqs:
        return
    extent = await extent_of(records.connection, records.namespace.stream("DEAD"))
    async for letter in dead_letters(records, which):
        if letter.seq > extent.last_seq:
            return
        yield letter, (letter.seq - extent.first_seq + 1) / (extent.last_seq - extent.first_seq + 1)
