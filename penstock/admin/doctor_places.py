"""What `penstock doctor` looks at around the server: the files that this process may open, the database of the sink,
and each address of the list, which have to be servers of one cluster."""

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from penstock.admin.check import Check
from penstock.errors import PenstockError
from penstock.node.config import Config
from penstock.node.fetch.sinks import NO_SINK
from penstock.node.session import open_session
from streams.errors import Refused, StreamError

if TYPE_CHECKING:
    from sqlalchemy import URL

__all__ = ["addresses", "open_files", "sink"]

ENOUGH_FILES = 4_096
CONNECT_S = 4.0


def open_files() -> Check:
    """Look at how many files and connections a node that is started here may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Check("open files", "ok", "no limit")
    found = f"{soft:,} files and connections at most"
    if soft >= ENOUGH_FILES:
        return Check("open files", "ok", found)
    more = "" if hard == resource.RLIM_INFINITY else f" (this user may have {hard:,})"
    do = f"half of them are for the gateway's clients: `ulimit -n 65536` before `penstock up`{more}, or LimitNOFILE"
    return Check("open files", "warn", found, do)


async def sink(config: Config) -> Check | None:
    """Connect to the sink's database, and change nothing. `None`: the configuration names none."""
    if not config.sink or config.sink == NO_SINK or not config.has_role("sink"):
        return None
    try:
        text = config.sink_url()
    except PenstockError as error:
        return Check("sink", "fail", str(error), "put a database's URL there")
    return await _database(text)


async def _database(text: str) -> Check:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except ArgumentError:
        return Check("sink", "fail", "is no database's URL", "write sqlite:///FILE or postgresql://USER@HOST/DATABASE")
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite":
        return _file(shown, Path(url.database or ""))
    try:
        await _postgres(url)
    except Exception as error:  # whatever a database's client raises
        do = "orders wait in the stream until then, for 7 days: check the address, the login, and that it runs"
        return Check("sink", "fail", f"{shown}: {type(error).__name__}: {str(error)[:200]}", do)
    return Check("sink", "ok", f"{shown} answers")


def _file(shown: str, path: Path) -> Check:
    place = path if path.exists() else path.absolute().parent
    if not os.access(place, os.W_OK):
        return Check("sink", "fail", f"{shown}: {place} cannot be written to", "make it, or give it to this user")
    return Check("sink", "ok", f"{shown} can be written to")


async def _postgres(url: "URL") -> None:
    import asyncpg

    database = await asyncpg.connect(
        host=url.host, port=url.port, user=url.username, password=url.password, database=url.database, timeout=CONNECT_S
    )
    await database.close(timeout=CONNECT_S)


async def addresses(config: Config) -> Check | None:
    """Connect to each address of the list by itself. `None`: there is one address, or none."""
    listed = [one.strip() for one in config.nats.split(",") if one.strip()]
    if len(listed) < 2:
        return None
    made: dict[str, str] = {}
    away: dict[str, str] = {}

    async def look(address: str) -> None:
        try:
            made[address] = await _made(config.with_changes(nats=address))
        except (PenstockError, StreamError, OSError) as error:
            away[address] = str(error)

    async with anyio.create_task_group() as tasks:
        for address in listed:
            tasks.start_soon(look, address)
    first = next(iter(made.values()), "")
    if others := [address for address, since in made.items() if since != first]:
        same = ", ".join(address for address, since in made.items() if since == first)
        found = f"{', '.join(others)} and {same} do not have the same streams: they are no servers of one cluster"
        return Check("addresses", "fail", found, "nodes would work on whichever they reach: list one cluster's servers")
    if away:
        text = "; ".join(f"{address}: {error}" for address, error in sorted(away.items()))
        return Check("addresses", "warn", text, "start these servers, or take them out of the list")
    return Check("addresses", "ok", f"{len(listed)} servers of one cluster")


async def _made(config: Config) -> str:
    """Return what tells one cluster's streams from another's of the same names: when they were made. Empty: there are
    none."""
    async with open_session(config, name="penstock-doctor", wait_s=CONNECT_S) as session:
        try:
            told = await session.connection.api(f"STREAM.INFO.KV_{session.namespace.bucket('LEDGERS')}")
        except Refused:
            return ""
        return str(told["created"])
