"""`penstock jobs reserve` and what follows: finish, touch, release, bury, by receipt."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.person import who
from penstock.errors import UsageError
from penstock.rows.typed import read_typed
from penstock.times import span_text, time_text

if TYPE_CHECKING:
    from actors.jobs.rules.job_answers import JobReply
    from penstock.sdk.calls import ServiceClient
    from penstock.sdk.client_jobs import Jobs

__all__ = ["Topic", "add_to", "open_jobs", "open_service"]

MOST_ASKED = 1_000
ASK_S = 10.0
"""How long a person is left without an answer."""
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The name under which jobs are queued.")]
Receipts = Annotated[
    list[str], typer.Argument(metavar="RECEIPT...", help="As `jobs reserve` gave it; - reads them from stdin.")
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the job's history.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands to the group of jobs."""
    command(group, "reserve")(_reserve)
    command(group, "finish")(_finish)
    command(group, "touch")(_touch)
    command(group, "release")(_release)
    command(group, "bury")(_bury)


@asynccontextmanager
async def open_service(call: CommandCall) -> "AsyncIterator[ServiceClient]":
    """Connect, and give what asks the nodes' service of jobs."""
    async with call.session() as session:
        from penstock.sdk.calls import ServiceClient

        yield ServiceClient(session.connection, "jobs", ASK_S)


@asynccontextmanager
async def open_jobs(call: CommandCall) -> "AsyncIterator[Jobs]":
    """Connect, and give the client's way to jobs."""
    from penstock.sdk.client_jobs import Jobs

    async with open_service(call) as service:
        yield Jobs(service)


async def _reserve(
    call: CommandCall,
    topic: Topic,
    wait: Annotated[str, typer.Option(metavar="SPAN", help="Wait so long for one to become ready.")] = "0s",
    most: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 1,
    ttr: Annotated[str, typer.Option(metavar="SPAN", help="Time to run; else each job's own.")] = "",
    holder: Annotated[str, typer.Option(metavar="NAME", help="Who holds them; your login if not given.")] = "",
) -> None:
    """Hold ready jobs until their TTR ends. Before that, finish, touch, release or bury each."""
    from penstock.api.forms.jobs import ReservedJobs
    from penstock.rows.job_rows import read_span, read_ttr

    wait_ms = read_span("--wait", wait)
    ask: dict[str, object] = {"topic": topic, "most": most, "wait_ms": wait_ms, "holder": who(holder)}
    if ttr:
        ask["ttr_ms"] = read_ttr("--ttr", ttr)
    async with open_service(call) as service:
        call.if_stopped(lambda: _still_held(topic, wait_ms))
        jobs = (await service.ask("reserve", ask, ReservedJobs, wait_s=wait_ms / 1000)).jobs
        is_paused = not jobs and await _is_paused(service, topic)
    for job in jobs:
        attempt = f"attempt {job.attempt} of {job.most_attempts}"
        call.out.say(f"{job.topic}/{job.id}: {attempt}, until {time_text(job.until_ms)}")
        call.out.say(f"  receipt {job.receipt}")
        call.out.say(f"  {bytes(job.body).decode('utf-8', 'replace')}")
    if not jobs:
        goes_on = f"; `penstock jobs topic {topic} is_paused=false` has it go on"
        call.out.say(f"{topic} is paused{goes_on}" if is_paused else f"nothing is ready in {topic}")
    call.out.result({"jobs": jobs})


def _still_held(topic: str, wait_ms: int) -> str:
    """Say what a stop leaves behind. The node goes on waiting, and its answer reaches nobody."""
    waits = f" within the {span_text(wait_ms)}" if wait_ms else ""
    return (
        f"a job that becomes ready{waits} may still be reserved. It is held until its TTR ends, and comes again then; "
        f"`penstock jobs list {topic} --state reserved` shows it"
    )


async def _is_paused(service: "ServiceClient", topic: str) -> bool:
    from actors.jobs.rules.job_answers import TopicView

    view = await service.ask("topic", {"topic": topic}, TopicView)
    return bool(view.settings.get("is_paused"))


async def _finish(call: CommandCall, receipts: Receipts) -> None:
    """Done: the job is over."""
    await _settle(call, "finish", "finished", receipts)


async def _touch(
    call: CommandCall,
    receipts: Receipts,
    ttr: Annotated[str, typer.Option(metavar="SPAN", help="From now on; else as at first.")] = "",
) -> None:
    """Hold it longer."""
    from penstock.rows.job_rows import read_ttr

    more = {"ttr_ms": read_ttr("--ttr", ttr)} if ttr else {}
    await _settle(call, "touch", "held", receipts, **more)


async def _release(
    call: CommandCall,
    receipts: Receipts,
    delay: Annotated[str, typer.Option(metavar="SPAN", help="Ready again after it; else the topic's backoff.")] = "",
    reason: Reason = "",
    keeps_attempt: Annotated[bool, typer.Option("--keep-attempt", help="Do not count this one as an attempt.")] = False,
) -> None:
    """Give it back, for another attempt."""
    from penstock.rows.job_rows import read_span

    more = {"delay_ms": read_span("--delay", delay)} if delay else {}
    await _settle(call, "release", "released", receipts, reason=reason, counts=not keeps_attempt, **more)


async def _bury(call: CommandCall, receipts: Receipts, reason: Reason = "") -> None:
    """Make it a dead letter. `penstock dead` shows dead letters and sends them again."""
    await _settle(call, "bury", "buried", receipts, reason=reason or f"buried by {who()}")


async def _settle(call: CommandCall, verb: str, done: str, receipts: Sequence[str], **more: object) -> None:
    """Send the request, and print the outcome of each receipt. The exit code is 1 if one is not settled."""
    from penstock.api.forms.jobs import Answers

    named = _receipts(receipts)
    answers: list[JobReply] = []
    async with open_service(call) as service:
        for start in range(0, len(named), MOST_ASKED):
            ask = {"receipts": named[start : start + MOST_ASKED], **more}
            answers += (await service.ask(verb, ask, Answers)).answers
    for receipt, answer in zip(named, answers, strict=True):
        if answer.code == "ok":
            until = f" until {time_text(answer.until_ms)}" if answer.until_ms else ""
            call.out.say(f"{answer.topic}/{answer.id}: {done}{until}" if answer.id else f"{receipt}: {done}{until}")
        else:
            typer.echo(f"{receipt}: {answer.code}: {answer.reason}", err=True)
    call.out.result({"answers": answers})
    if any(answer.code != "ok" for answer in answers):
        raise typer.Exit(1)


def _receipts(receipts: Sequence[str]) -> list[str]:
    if list(receipts) == ["-"]:
        receipts = [line.strip() for line in read_typed().decode("utf-8", "replace").splitlines() if line.strip()]
    if not receipts:
        raise UsageError("name at least one RECEIPT; `penstock jobs reserve` gives them")
    return list(receipts)
