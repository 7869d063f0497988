"""`penstock jobs peek|list|count|topics|topic|kick|delete`: what waits, and what a person does about it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.held import Topic, open_jobs, open_service
from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.pages import Limit, behind, say_more
from penstock.cli.terminal.parameters import read_values
from penstock.errors import PenstockError, UsageError
from penstock.times import fact_text, read_moment, read_zone, span_text, time_text
from streams.clock import now_ms
from streams.messages.jobs import State

if TYPE_CHECKING:
    from actors.jobs.rules.job_answers import Listed

__all__ = ["add_to"]

LONGEST_BODY = 20_000
SHOWN_BODY = 60
SHOWN = ("is_paused", "rate", "ttr", "attempts", "most_waiting", "lanes")
"""The settings in a list of topics. The view of one topic shows all of them."""
LIMITS = ("rate", "most_waiting", "slots")
"""The settings of which 0 is no limit."""
AfterTopic = Annotated[str, behind("TOPIC")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id within its topic.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands to the group of jobs."""
    command(group, "kick")(_kick)
    command(group, "delete")(_delete)
    command(group, "peek")(_peek)
    command(group, "list")(_list)
    command(group, "count")(_count)
    command(group, "topics")(_topics)
    command(group, "topic")(_topic)


async def _kick(
    call: CommandCall,
    topic: Topic,
    id_: Annotated[str, typer.Argument(metavar="[ID]", help="This one alone.")] = "",
    most: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, the oldest first.")] = 1,
) -> None:
    """Make jobs ready now: the one of this ID, else a topic's buried ones, or if it has none the delayed ones."""
    async with open_jobs(call) as jobs:
        kicked = await jobs.kick(topic, id_ or None, most=most)
    call.out.say(f"{topic}: {kicked} ready now" if kicked else f"{topic}: there was nothing to kick")
    call.out.result({"kicked": kicked})
    if id_ and not kicked:
        raise typer.Exit(1)


async def _delete(
    call: CommandCall,
    topic: Topic,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Of the jobs.")],
) -> None:
    """Remove jobs in any state. None is handed out after this."""
    deleted: list[str] = []
    async with open_jobs(call) as jobs:
        for each in ids:
            if await jobs.delete(each, topic):
                deleted.append(each)
                call.out.say(f"{topic}/{each}: deleted")
            else:
                typer.echo(f"{topic}/{each}: there is no such job", err=True)
    call.out.result({"deleted": deleted, "not_found": [each for each in ids if each not in deleted]})
    if len(deleted) < len(ids):
        raise typer.Exit(1)


async def _peek(call: CommandCall, topic: Topic, id_: JobId) -> None:
    """Show one job whole, without holding it."""
    async with open_jobs(call) as jobs:
        job = await jobs.peek(topic, id_)
    if job is None:
        raise PenstockError(f"{topic}/{id_}: there is no such job")
    for key, value in _document(job).items():
        if key not in ("body", "history") and value not in (0, ""):
            call.out.say(f"{key.removesuffix('_ms')}: {fact_text(key, value)}")
    for line in job.history:
        call.out.say(f"before: {line}")
    body = bytes(job.body).decode("utf-8", "replace")
    call.out.say(body if len(body) <= LONGEST_BODY else f"{body[:LONGEST_BODY]}\n… {len(body)} characters; see --json")
    call.out.result(job)


def _document(job: "Listed") -> dict[str, object]:
    import msgspec

    return msgspec.structs.asdict(job)


async def _list(
    call: CommandCall,
    topic: Topic,
    state: Annotated[State, typer.Option(help="Only jobs in this state.")] = "delayed",
    due_before: Annotated[str, typer.Option(metavar="TIME", help="Only those due before.")] = "",
    due_after: Annotated[str, typer.Option(metavar="TIME", help="Only those due after.")] = "",
    tz: Annotated[str, typer.Option(metavar="ZONE", help="Of times without an offset.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 50,
    after: Annotated[str, typer.Option(metavar="CURSOR", help="Go on where a page ended.")] = "",
) -> None:
    """List a topic's jobs of a state, a page at a time."""
    from actors.jobs.rules.job_answers import ListPage

    zone, at_ms = read_zone(tz), now_ms()
    ask: dict[str, object] = {"topic": topic, "state": state, "after": after, "limit": limit}
    for key, text in (("due_before_ms", due_before), ("due_after_ms", due_after)):
        if text:
            ask[key] = read_moment(text, now_ms=at_ms, zone=zone)
    async with open_service(call) as service:
        page = await service.ask("list", ask, ListPage)
    rows = [
        [
            job.id,
            _when(job, at_ms),
            f"{job.attempts} of {job.most_attempts}" if job.most_attempts else "-",
            job.holder or job.outcome or "-",
            _shown(job),
        ]
        for job in page.jobs
    ]
    call.out.table(["id", "due", "tried", "holder", "body"], rows, empty=f"{topic} has no {state} jobs")
    if page.after:
        call.out.say(f"there may be more: --after {page.after}")
    call.out.result({"jobs": page.jobs, "after": page.after or None})


def _when(job: "Listed", at_ms: int) -> str:
    if job.finished_ms:
        return f"over since {time_text(job.finished_ms)}"
    in_ms = job.due_ms - at_ms
    return f"{time_text(job.due_ms)} (in {span_text(in_ms)})" if in_ms > 0 else time_text(job.due_ms)


def _shown(job: "Listed") -> str:
    body = bytes(job.body).decode("utf-8", "replace")
    return body if len(body) <= SHOWN_BODY else f"{body[: SHOWN_BODY - 1]}…"


async def _count(
    call: CommandCall,
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="All if none is named.")] = None,
    limit: Limit = None,
    after: AfterTopic = "",
) -> None:
    """Count jobs by state."""
    from penstock.sdk.client_jobs import Jobs

    async with open_service(call) as service:
        counts = await Jobs(service).counts(topics or None, after=after, limit=limit)
    rows = [[each.topic, each.delayed, each.ready, each.reserved, each.done] for each in counts]
    call.out.table(["topic", "delayed", "ready", "reserved", "still known"], rows, empty="no topic has been used")
    say_more(call.out, counts, limit, lambda count: count.topic)
    call.out.result(counts)


async def _topics(call: CommandCall, limit: Limit = None, after: AfterTopic = "") -> None:
    """List the topics that were ever used, with what is set about each."""
    from penstock.sdk.client_jobs import Jobs

    async with open_service(call) as service:
        found = await Jobs(service).topics(after=after, limit=limit)
    rows = [[view.topic, *(_text(view.settings.get(name)) for name in SHOWN)] for view in found]
    spare = ("lanes", "most_waiting", "attempts", "ttr")
    call.out.table(["topic", *SHOWN], rows, empty="no topic has been used", spare=spare)
    say_more(call.out, found, limit, lambda one: one.topic)
    call.out.result(found)


async def _topic(
    call: CommandCall,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="`default` is for all topics.")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="As ttr=2m attempts=5 rate=100.")
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave it to `default`.")] = None,
    pause: Annotated[bool | None, typer.Option("--pause/--resume", help="Hand out no jobs, or again.")] = None,
) -> None:
    """Show what is in force for a topic, after changing what is named."""
    from actors.jobs.rules.job_answers import TopicView

    wanted = _values(values or (), unset or ()) | ({} if pause is None else {"is_paused": pause})
    async with open_service(call) as service:
        view = await service.ask("topic", {"topic": topic, "set": wanted}, TopicView)
    if not view.is_used:
        call.out.say(f"{topic}: not used yet, it would have these settings; `penstock jobs topics` lists those in use")
    for name, value in view.settings.items():
        none = " (no limit)" if name in LIMITS and not value else ""
        call.out.say(f"{topic}: {name} = {_text(value)}{none}")
    call.out.result(view)


def _values(texts: Sequence[str], unset: Sequence[str]) -> dict[str, object]:
    """Return settings as JSON values. None resets one to `default`. The desk checks them."""
    values: dict[str, object] = {
        name: value.split(",") if name == "lanes" else _value(value)
        for name, value in read_values(texts, "NAME=VALUE", "ttr=2m").items()
    }
    for name in unset:
        if name in values:
            raise UsageError(f"{name}: set and unset")
        values[name] = None
    return values


def _value(text: str) -> object:
    import msgspec

    try:
        found = msgspec.json.decode(text.encode("utf-8", "replace"))
    except msgspec.DecodeError:
        return text
    return found if isinstance(found, bool | int | float) else text


def _text(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case list() | tuple():
            return ",".join(map(str, value))
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)
