"""`penstock outbox`: jobs that were added in transactions of another database, handed over."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["add_to"]

Db = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="The database: sqlite:///FILE or postgresql://USER@HOST/NAME; with a password as env:NAME or file:/path.",
    ),
]
Table = Annotated[str, typer.Option(metavar="[SCHEMA.]NAME", help="The outbox's table.")]
Once = Annotated[bool, typer.Option("--once", help="Hand over what is there now, and end; for cron.")]
Poll = Annotated[str, typer.Option(metavar="SPAN", help="How often to look for new jobs, 10ms to 1h.")]
SHORTEST_POLL_MS, LONGEST_POLL_MS = 10, 3_600_000
Batch = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many to hand over at a time.")]

_NUMBER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", re.ASCII)
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(cls=Group, help="Jobs that were added in transactions of your own database.")
    app.add_typer(group, name="outbox")
    command(group, "relay")(_relay)


async def _relay(
    call: CommandCall,
    db: Db,
    table: Table = "penstock_outbox",
    once: Once = False,
    poll: Poll = "100ms",
    batch: Batch = 200,
) -> None:
    """Hand over committed rows until stopped. It may stop at any moment, since a row handed over twice counts once."""
    from penstock.node.logs import set_up_logs
    from penstock.node.outbox_relay import relay, relay_once
    from penstock.node.session import credentials_of, server_url
    from penstock.sdk.client import connect
    from penstock.sdk.outbox import Outbox

    config, poll_s = call.config(), _poll_s(poll)
    schema, _, name = table.rpartition(".")
    outbox, engine = Outbox(name, schema=schema or None), _engine(db)
    set_up_logs(config.log_level, config.log_form)
    opened = connect(
        server_url(config), namespace=config.namespace, name="penstock-outbox", credentials=credentials_of(config)
    )
    try:
        async with opened as client:
            if not once:
                await relay(engine, client.jobs, outbox=outbox, batch=batch, poll_s=poll_s)
            moved = await relay_once(engine, client.jobs, outbox=outbox, batch=batch)
    finally:
        await engine.dispose()
    call.out.say(f"{moved.handed_over} handed over, {moved.refused} refused, {moved.later} to be tried again later")
    call.out.result(moved._asdict())
    if moved.refused or moved.later:
        raise typer.Exit(1)


def _poll_s(text: str) -> float:
    """Return seconds. A plain number is of seconds too, as it was before units."""
    from penstock.rows.job_rows import read_span

    poll_ms = float(text) * 1000 if _NUMBER.fullmatch(text) else read_span("--poll", text)
    if not SHORTEST_POLL_MS <= poll_ms <= LONGEST_POLL_MS:
        raise UsageError(f"--poll {text}: is out of range; use 10ms to 1h")
    return poll_ms / 1000


def _engine(db: str) -> "AsyncEngine":
    """Return the database at a URL or behind a reference. Raises UsageError, which never shows a password."""
    from sqlalchemy.ext.asyncio import create_async_engine

    url = _url(db)
    if url.drivername not in _DRIVERS and url.drivername not in _DRIVERS.values():
        raise UsageError(
            f"--db: no outbox in {url.drivername!r}; say sqlite:///FILE or postgresql://USER@HOST/DATABASE"
        )
    if url.get_backend_name() == "sqlite" and not (url.database and Path(url.database).is_file()):
        from penstock.rows.batch_sources import SLASHES

        raise UsageError(f"--db: no such file: {Path(url.database or '').absolute()}; {SLASHES}")
    return create_async_engine(
        url.set(drivername=_DRIVERS.get(url.drivername, url.drivername)), pool_size=1, hide_parameters=True
    )


def _url(db: str) -> "URL":
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    from actors.runtime.secrets import BadReference, is_reference, resolve_reference

    try:
        url = make_url(resolve_reference(db).reveal() if is_reference(db) else db)
    except BadReference as error:
        raise UsageError(f"--db: {error}") from error
    except ArgumentError:
        raise UsageError("--db: not a database URL; say sqlite:///FILE or postgresql://USER@HOST/DATABASE") from None
    if url.password is not None and not is_reference(db):
        raise UsageError("--db: a password is never written down here; put the whole URL behind env:NAME or file:/path")
    return url
