"""`penstock up`, `init`, `nodes`, `config`: nodes, and the server that they share."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.output import moment
from penstock.cli.terminal.pages import Limit, behind, page, say_more
from penstock.errors import UsageError

if TYPE_CHECKING:
    from actors.fetch.settings.desk import Seeded
    from actors.runtime.membership import NodeRecord
    from penstock.node.config import Config
    from penstock.node.node import Node
    from streams.link.connection import Connection
    from streams.subjects import Namespace

log = logging.getLogger(__name__)

__all__ = ["add_to"]

Seed = Annotated[
    Path | None, typer.Option("--seed", metavar="FILE", help="Settings (TOML) to write where there are none yet.")
]
Drain = Annotated[str | None, typer.Option("--drain", metavar="SPAN", help="For work in hand at the end, as 20s.")]
LogLevel = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. On a terminal: warning, else info.")
]
Profile = Annotated[str | None, typer.Option(metavar="safe|fast", help="What survives a power cut.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Write the seed over what is there.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    command(app, "up")(_up)
    command(app, "work")(_work)
    command(app, "init")(_init)
    command(app, "nodes")(_nodes)
    command(app, "config")(_config)


async def _up(
    call: CommandCall,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The node's name; its own in the cluster.")] = None,
    roles: Annotated[
        str | None, typer.Option(metavar="A,B", help="Duties, parted by commas; all if not given.")
    ] = None,
    zone: Annotated[str | None, typer.Option(metavar="ZONE", help="Where the node stands.")] = None,
    labels: Annotated[str | None, typer.Option(metavar="A,B", help="What sources can be pinned to.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="The embedded server's port.")] = None,
    profile: Profile = None,
    drain: Drain = None,
    sink: Annotated[
        str | None, typer.Option(metavar="URL", help="Where orders go: sqlite:///FILE, postgresql://…")
    ] = None,
    history: Annotated[bool | None, typer.Option("--history", help="Keep each change of an order, too.")] = None,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Serve figures to Prometheus there.")] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the HTTP gateway listens, 127.0.0.1:7070; or off.")
    ] = None,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE", help="Python module with your own handlers, tasks and sinks.")
    ] = None,
    callback_hosts: Annotated[
        str | None, typer.Option(metavar="A,B", help="Hosts that batches' submitters may have called.")
    ] = None,
    callback_secret: Annotated[
        str | None,
        typer.Option(
            metavar="env:NAME|file:/PATH", help="What these calls, and those of external tasks, are signed with."
        ),
    ] = None,
    batch_archive: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep batches as files there before they are removed.")
    ] = None,
    log_level: LogLevel = None,
    seed: Seed = None,
) -> None:
    """Run a node until it is stopped: on the server at --nats, else on an embedded one."""
    config = call.config(
        name=name,
        roles=roles,
        zone=zone,
        labels=labels,
        port=port,
        profile=profile,
        drain_s=drain,
        sink=sink,
        history=history,
        app=app,
        metrics=metrics,
        http=http,
        callback_hosts=callback_hosts,
        callback_secret=callback_secret,
        batch_archive=batch_archive,
        log_level=log_level,
    )
    await _run(config, seed)


async def _work(
    call: CommandCall,
    app: Annotated[str, typer.Argument(metavar="MODULE", help="Python module with your own tasks and handlers.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Its own in the cluster.")] = None,
    zone: Annotated[str | None, typer.Option(metavar="ZONE", help="Where it stands.")] = None,
    drain: Drain = None,
    log_level: LogLevel = None,
) -> None:
    """Run your own code in a process of its own, until it is stopped: batches' tasks and jobs' handlers, nothing else.
    Without --nats it works for the node that runs in the data folder."""
    from penstock.node.session import server_url

    config = call.config(name=name, zone=zone, drain_s=drain, log_level=log_level, app=app, roles="worker,executor")
    await _run(config.with_changes(nats=server_url(config)))


async def _run(config: "Config", seed: Path | None = None) -> None:
    from actors.runtime.logs import fields
    from penstock.cli.settings import seed_of
    from penstock.cli.shown.welcome import welcome
    from penstock.node.app import run_node
    from penstock.node.fetch.sinks import load_app, serves_any
    from penstock.node.logs import is_for_people, set_up_logs

    if config.app:
        load_app(config.app)
    levels = seed_of(seed)
    set_up_logs(config.log_level, config.log_form)
    if config.app and not serves_any(config):
        why = "nothing in it is declared by @penstock.job, @penstock.batch or the like"
        log.warning("app.serves_nothing", extra=fields(app=config.app, why=why))

    @asynccontextmanager
    async def seeded(connection: "Connection") -> AsyncIterator[None]:
        if levels:
            await _seed(connection, seed, is_overwriting=False)
        yield

    def say(text: str) -> None:
        if is_for_people(config.log_form):
            typer.echo(text, err=True)

    def say_ready(node: "Node") -> None:
        say(welcome(config, node.members.name, node.status()))

    stopping = f"Stopping: work in hand has {config.drain_s:g} s at most. Ctrl-C once more ends it at once."
    await run_node(config, before=seeded, on_ready=say_ready, on_stop=lambda: say(stopping))
    say("Stopped.")


async def _init(
    call: CommandCall,
    seed: Seed = None,
    overwrite: Overwrite = False,
    profile: Profile = None,
    replicas: Annotated[int | None, typer.Option(metavar="N", help="Copies of each stream: 1, 3 or 5.")] = None,
    job_streams: Annotated[
        int | None,
        typer.Option("--job-streams", metavar="N", help="How many streams of jobs a new server gets: 1 to 64."),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Make a deleted stream again, empty. What it held is lost.")
    ] = False,
    check: Annotated[bool, typer.Option("--dry-run", help="Only show what differs.")] = False,
    hub: Annotated[bool, typer.Option("--hub", help="The server is the hub of several zones.")] = False,
) -> None:
    """Make the streams and buckets on a server, or bring them up to this version."""
    from penstock.cli.settings import seed_of
    from penstock.node.session import hub_topology, topology_of
    from streams.subjects import Namespace
    from streams.topology.specs import MOST_JOB_STREAMS
    from streams.topology.topology import apply, diff

    config = call.config(profile=profile, replicas=replicas)
    if hub and seed is not None:
        raise UsageError("--seed: the hub has no settings; give it to `penstock init` in a zone")
    if job_streams is not None and (hub or not 1 <= job_streams <= MOST_JOB_STREAMS):
        why = "the hub has no jobs" if hub else f"{job_streams} is not among 1 to {MOST_JOB_STREAMS}"
        raise UsageError(f"--job-streams: {why}")
    levels = seed_of(seed)
    topology = hub_topology(config) if hub else topology_of(config, Namespace(config.namespace))
    async with call.session(config) as session:
        if not hub:
            topology = topology_of(config, await _with_job_streams(session.connection, job_streams))
        found = await (
            diff(session.connection, topology) if check else apply(session.connection, topology, adopt=adopt)
        )
        told = None
        if levels and not check:
            told = await _seed(session.connection, seed, is_overwriting=overwrite)
    lines = [str(each) if check or not each.is_blocking else each.made() for each in found]
    for line in lines:
        call.out.say(line)
    verb = "would be made or changed" if check else "made or changed"
    call.out.say(f"{len(lines)} {verb}" if lines else "everything is there, and as it has to be")
    if told is not None:
        _say_seeded(call, told)
    call.out.result({"differences": lines, "is_applied": not check, "seeded": _seeded(told)})


async def _with_job_streams(connection: "Connection", job_streams: int | None) -> "Namespace":
    """Return the namespace with as many streams of jobs as the server has, unless a number is given."""
    from msgspec.structs import replace

    from streams.topology.topology import learn_job_streams

    await learn_job_streams(connection, is_first_lost=True)
    if job_streams is not None:
        connection.namespace = replace(connection.namespace, job_streams=job_streams)
    return connection.namespace


async def _seed(connection: "Connection", file: Path | None, *, is_overwriting: bool) -> "Seeded":
    from actors.fetch.settings.desk import seed_levels
    from penstock.cli.settings import seed_of
    from penstock.node.session import Session
    from streams.clock import now_ms
    from streams.publish.publisher import Publisher

    async with Publisher(connection) as publisher:
        desk = Session(connection, publisher).settings_desk()
        return await seed_levels(desk, seed_of(file), now_ms=now_ms(), is_overwriting=is_overwriting)


def _say_seeded(call: CommandCall, told: "Seeded") -> None:
    for level in told.written:
        call.out.say(f"seeded {level}")
    for level in told.kept:
        call.out.say(f"left {level} as it is (there already; --overwrite replaces it)")


def _seeded(told: "Seeded | None") -> dict[str, list[str]] | None:
    if told is None:
        return None
    return {"written": [str(each) for each in told.written], "kept": [str(each) for each in told.kept]}


async def _nodes(call: CommandCall, limit: Limit = None, after: Annotated[str, behind("NODE")] = "") -> None:
    """List the nodes that live, their duties, and how their actors fare."""
    async with call.session() as session:
        from actors.runtime.membership import living

        records = sorted(await living(session.bucket("NODES")), key=lambda record: record.node)
    records = page(records, limit, lambda record: record.node > after)
    call.out.table(
        ["node", "zone", "labels", "roles", "platforms", "since", "load", "version", "actors"],
        [_row(record) for record in records],
        empty="no node lives; start one with `penstock up`",
        spare=("version", "since", "platforms", "labels"),
    )
    say_more(call.out, records, limit, lambda record: record.node)
    for record in records:
        for actor in record.actors:
            if actor.last_error:
                call.out.say(f"{record.node}: {actor.name} {actor.status}, failed {actor.failures}: {actor.last_error}")
    call.out.result(records)


def _row(record: "NodeRecord") -> list[Any]:
    troubled = [f"{actor.name}: {actor.status}" for actor in record.actors if actor.status != "running"]
    return [
        record.node,
        record.zone or "-",
        ",".join(record.labels) or "-",
        ",".join(record.roles) or "all",
        ",".join(record.platforms) or "-",
        moment(record.started_ms),
        f"{record.load:.0%}",
        record.version,
        ", ".join(troubled) or f"{len(record.actors)} running",
    ]


async def _config(call: CommandCall) -> None:
    """Print the configuration of a node, and where each value comes from. Secrets are hidden."""
    import os

    from penstock.node.config import origin_of

    config = call.config()
    origins = origin_of(call.file, os.environ, call.flags)
    shown = config.shown()
    call.out.table(
        ["name", "value", "from"],
        [[name, _plain(value), origins.get(name, "default")] for name, value in shown.items()],
    )
    call.out.say(f"data folder: {config.data_folder()}")
    call.out.result({"config": shown, "from": origins, "data_folder": str(config.data_folder())})


def _plain(value: object) -> str:
    return ",".join(str(each) for each in value) if isinstance(value, tuple | list) else str(value)
